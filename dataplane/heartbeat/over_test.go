package heartbeat

import (
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Whoever reads of a request that is lost reads why, and of a death only where somebody has died.
func TestWhatIsSaidOfAnEngineThatIsNoMoreIsWhyItIsNot(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(r *rig, o *owner, e uint64)
		kind log.Kind
		text string
	}{
		{"it died", func(r *rig, _ *owner, e uint64) { must(r.t, r.k.EngineOver(e, Died)) }, log.EngineDead, "is gone"},
		{"it sleeps", func(r *rig, _ *owner, e uint64) { must(r.t, r.k.EngineOver(e, Withdrew)) }, log.EngineWithdrawn, "has given its memory up"},
		{"it does not fit", func(r *rig, _ *owner, e uint64) { must(r.t, r.k.EngineOver(e, Misfits)) }, log.EngineUnusable, "does not fit this one"},
		{"another one answers", func(r *rig, _ *owner, e uint64) { must(r.t, r.k.EngineOver(e, Another)) }, log.EngineUnusable, "has another one at its address"},
		{"another boot answers", func(r *rig, o *owner, e uint64) {
			o.reboot()
			must(r.t, r.k.LoadHandshake(e, 0, o.handshake()))
		}, log.EngineReplaced, "has come back as another boot"},
		{"it was removed", func(r *rig, _ *owner, e uint64) { must(r.t, r.k.RemoveEngine(e)) }, log.RequestLost, "was removed here"},
		{"it is not heard", func(r *rig, _ *owner, _ uint64) {
			r.hub.Kill("P")
			r.run(sec(120), time.Second)
		}, log.EngineDown, "was not heard for as long as a lease there can stand"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", false)
			e := r.connect(o)
			r.track(e, o, 1, 0)
			r.run(sec(6), time.Second)
			tc.do(r, o, e)
			r.run(r.now.Add(2*time.Second), time.Second)
			if len(r.book.Of(t, tc.kind)) == 0 {
				t.Errorf("nothing of kind %s is said", log.Defs[tc.kind].Name)
			}
			for _, k := range []log.Kind{log.EngineDead, log.EngineWithdrawn, log.EngineUnusable} {
				if said := r.book.Of(t, k); k != tc.kind && len(said) != 0 {
					t.Errorf("said, too: %+v", said)
				}
			}
			lost := r.book.Of(t, log.RequestLost)
			if len(lost) != 1 || !strings.Contains(lost[0].What, tc.text) {
				t.Errorf("of the request is said %+v, want that its engine %s", lost, tc.text)
			}
		})
	}
}

// That who has died, or is there all of a sudden, is another boot is worth a warning. A sleep and a wake are not.
func TestTheReturnOfWhoWithdrewIsNoTrouble(t *testing.T) {
	for _, tc := range []struct {
		name string
		why  Over
		late bool // a request of the boot before is tracked behind its end
		want int
	}{
		{"it died", Died, false, 1},
		{"it slept", Withdrew, false, 0},
		{"it slept, and a request that named it is lost", Withdrew, true, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", false)
			e := r.connect(o)
			r.track(e, o, 1, 0)
			r.run(sec(6), time.Second)
			must(t, r.k.EngineOver(e, tc.why))
			r.run(r.now.Add(2*time.Second), time.Second)
			if tc.late {
				r.track(e, o, 2, 0)
			}
			o.reboot()
			must(t, r.k.LoadHandshake(e, 0, o.handshake()))
			r.run(r.now.Add(2*time.Second), time.Second)
			if said := r.book.Of(t, log.EngineReplaced); len(said) != tc.want {
				t.Errorf("said: %+v, want %d", said, tc.want)
			}
			if g := r.k.Gauges(); g.Connected != 1 || len(r.book.Of(t, log.EngineUp)) != 2 {
				t.Errorf("%d connected; up: %+v", g.Connected, r.book.Of(t, log.EngineUp))
			}
		})
	}
}

// What a host tells as a number is a reason, whatever the number.
func TestAReasonIsReadFromItsNumber(t *testing.T) {
	for n, want := range map[uint32]Over{0: Died, 1: Withdrew, 2: Misfits, 3: Another, 4: Died, ^uint32(0): Died} {
		if got := OverOf(n); got != want {
			t.Errorf("%d is %v, want %v", n, got, want)
		}
	}
}

// The agent that goes takes no engine's death with it: the next one would load an engine that nobody answers for.
func TestAnEngineThatHasDiedStaysDeadOverTheNextAgent(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	r.track(e, o, 2, 0)
	r.run(sec(2), 500*time.Millisecond)
	must(t, r.k.EngineOver(e, Died))
	r.run(sec(5), 500*time.Millisecond)
	loads := r.k.Counters().Loads
	r.k.Part(r.now)
	r.k.Wake(77, r.now)
	r.run(sec(60), 500*time.Millisecond)
	if n := r.k.Counters().Loads - loads; n != 0 {
		t.Errorf("it was loaded %d times", n)
	}
	r.wantEngine(e, "up down")
	must(t, r.k.LoadHandshake(e, 0, o.handshake())) // somebody has spoken with it
	r.step(r.now.Add(500 * time.Millisecond))
	h := r.track(e, o, 1, 0)
	r.run(sec(70), 500*time.Millisecond)
	r.read(h, record.Run{N: 1})
	r.run(sec(72), 500*time.Millisecond)
	r.wantSaid(h, "done")
	r.wantEngine(e, "up down up")
}
