package lease

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

const nextBase = 1 << 30 // lower than testBase: rows go back

// wake ends everything and begins another era, as a context does that unregisters its memory and registers other memory.
func (r *rig) wake() {
	r.tb.Helper()
	r.t.FenceAll()
	r.t.EndAll(record.FreedClosed, r.now)
	r.secret = [2]uint64{33, 44}
	if err := r.t.Reset(r.secret, nextBase, testEpoch+1); err != nil {
		r.tb.Fatal(err)
	}
}

func TestAnEraAcceptsNothingOfTheOneBefore(t *testing.T) {
	r := newRig(t, 8)
	a, b := r.grant("a"), r.grant("b")
	r.t.Renew(r.entry(b), engineD, r.now)
	r.want(r.t.Renew(Entry{Slot: 5, Key: Key(r.secret, 5, 0)}, engineD, r.now), Kept) // early, for a use to come
	r.expect("c")
	old := r.secret
	r.wake()
	r.wantEnded(record.FreedClosed, a, b)
	for s, use := range map[uint32]uint32{a.Slot(): 1, b.Slot(): 1, 5: 0} {
		for g := range use + 2 {
			if o := r.t.Renew(Entry{Slot: s, Generation: g, Key: Key(old, s, g)}, engineD, r.now); o != BadKey {
				t.Errorf("an old key of slot %d, use %d: outcome %d, want a bad key", s, g, o)
			}
		}
	}
	r.want(r.beat("b"), Late) // the ids freed last stay known
	r.want(r.beat("c"), Unknown)
	for _, id := range []string{"d", "e", "f", "g", "h", "i", "j"} {
		h := r.grant(id)
		if k := &r.t.hot[h.Slot()]; k.who != 0 || k.is(namedNative) || !k.is(isUnchecked) {
			t.Errorf("the lease in slot %d begins with claim %#x, flags %#x", h.Slot(), k.who, k.a&lowMask)
		}
		r.want(r.t.Renew(r.entry(h), engineD, r.now), Applied)
	}
	if got := r.t.EngineGone(engineD.Engine, engineD.Epoch, r.now); got != 7 {
		t.Errorf("%d leases ended with their engine, want 7", got)
	}
}

func TestAnErasRowsStartAtItsBaseAndTheUsesOfTheirSlots(t *testing.T) {
	r := newRig(t, 4)
	for i := range 3 { // slot 0 is used three times
		h := r.grant(fmt.Sprint(i))
		r.done(fmt.Sprint(i), "D", 1)
		r.drain()
		if h.Slot() != 0 || h.Use() != uint32(i) {
			t.Fatalf("granted %#x", uint64(h))
		}
		r.never = uint32(len(r.mem.Slots))
	}
	r.never = 1
	held := r.grant("held")
	r.wake()
	for s, want := range []uint64{nextBase + 3, nextBase + 1, nextBase, nextBase} {
		if held.Slot() == 0 {
			t.Fatal("the held lease took slot 0")
		}
		if got := r.mem.Rows[s]; got.Fence != want || got.GenBeats != 0 || got.DeadlineUs != 0 {
			t.Errorf("row %d is %+v, want fence %#x and nothing else", s, got, want)
		}
	}
	if h := r.mem.Header; h.Flags != 0 || h.Base != nextBase || h.Epoch != testEpoch+1 {
		t.Errorf("header %+v", *h)
	}
	r.drain()
	for range 4 {
		h := r.grant(fmt.Sprint("next", r.now))
		if got, want := r.mem.Rows[h.Slot()].Fence, nextBase+uint64(h.Use()); got != want {
			t.Errorf("fence of use %d is %#x, want %#x", h.Use(), got, want)
		}
		r.now++
	}
}

func TestAnEndThatWaitsIsToldInTheNextEra(t *testing.T) {
	r := newRig(t, 2)
	a := r.grant("a")
	r.t.FenceAll()
	r.t.EndAll(record.FreedClosed, r.now)
	if err := r.t.Reset(r.secret, nextBase, 2); err != nil {
		t.Fatal(err)
	}
	r.wantFence(a, nextBase+1)
	if r.t.Ending() != 1 {
		t.Fatalf("%d ends wait, want 1", r.t.Ending())
	}
	r.wantEnded(record.FreedClosed, a)
	r.wantFence(a, nextBase+1)
	r.wantEmpty()
}

// The host says a grant, the memory goes and comes back, the record arrives: its parameters name the era that is over.
func TestAGrantThatWasOnItsWayThroughARegistrationEndsAsClosed(t *testing.T) {
	for _, expected := range []bool{false, true} {
		t.Run(fmt.Sprintf("expected=%v", expected), func(t *testing.T) {
			r := newRig(t, 2)
			var h record.Handle
			if expected {
				h = r.expect("a")
				r.want(r.beat("a"), Kept)
				atomic.StoreUint64(&r.mem.Slots[0].State, record.State(0, record.Granted))
			} else {
				h, _ = r.take(record.Granted)
			}
			g := record.Grant{Lease: h, Key: Key(r.secret, h.Slot(), h.Use()), Blocks: 8, IDLen: 1}
			r.wake()
			if r.t.Expected() != 0 {
				t.Errorf("%d expectations outlived the era", r.t.Expected())
			}
			r.want(r.t.Grant(&g, []byte("a"), r.now), Ended)
			r.wantEnded(record.FreedClosed, h)
			r.wantCount("grants of another era", r.c.OtherEra, 1)
			r.wantEmpty()
		})
	}
}

func TestNoEraBeginsWhileLeasesAreHeldOrAfterPoison(t *testing.T) {
	r := newRig(t, 2)
	a := r.grant("a")
	if err := r.t.Reset(r.secret, nextBase, 2); !errors.Is(err, ErrEra) {
		t.Errorf("with a lease held: %v", err)
	}
	r.wantHeld(a)
	r.wantFence(a, testBase)
	if err := r.t.Reset(r.secret, 1<<62, 2); !errors.Is(err, ErrEra) {
		t.Errorf("with a base that is too high: %v", err)
	}
	r.t.FenceAll()
	r.t.EndAll(record.FreedClosed, r.now)
	r.mem.Control.Poisoned = 1
	if err := r.t.Reset(r.secret, nextBase, 2); !errors.Is(err, ErrEra) {
		t.Errorf("when poisoned: %v", err)
	}
	for s := range r.mem.Rows {
		if r.mem.Rows[s].Fence != record.FenceClosed {
			t.Errorf("row %d is open", s)
		}
	}
}

// What a rank hears from its host is said again after every gap of the stream.

func TestAGrantSaidAgainChangesNothingButALaterDeadline(t *testing.T) {
	r := newRig(t, 2)
	a := r.grant("a")
	r.want(r.t.Renew(r.entry(a), engineD, r.now), Applied)
	r.run(at(10))
	before := r.mem.Rows[0]
	r.want(r.say(a, "a", ttl(time.Second)), Repeated) // earlier than what stands
	r.want(r.t.Expect(a, []byte("a"), r.now), Repeated)
	if r.mem.Rows[0] != before || r.t.Held() != 1 || r.t.Blocks() != 8 || r.c.Grants != 1 {
		t.Errorf("row %+v, %d held, %d blocks", r.mem.Rows[0], r.t.Held(), r.t.Blocks())
	}
	r.want(r.say(a, "a", ttl(40*time.Second)), Repeated)
	if got := r.mem.Rows[0].DeadlineUs; got != 50e6 {
		t.Errorf("the row's deadline is %d us, want 50 s", got)
	}
	r.run(at(49.9))
	r.wantHeld(a)
	r.run(at(50.2))
	r.wantEnded(record.FreedExpired, a)
	r.wantEmpty()
}

func TestAGrantSaidAgainBetweenTheTwoLooksHoldsTheLease(t *testing.T) {
	r := newRig(t, 2)
	a := r.grant("a")
	r.run(at(30.03))
	r.want(r.say(a, "a", ttl(5*time.Second)), Repeated)
	r.run(at(34.9))
	r.wantHeld(a)
	r.run(at(35.2))
	r.wantEnded(record.FreedExpired, a)
}

func TestAnExpectationWhoseCancelWasLostGivesWayToANewerUse(t *testing.T) {
	for _, bits := range []uint32{record.Expected, record.Granted} {
		t.Run(fmt.Sprint(bits), func(t *testing.T) {
			r := newRig(t, 2, func(c *Config) { c.ExpectMax = -1 })
			r.want(r.t.Expect(record.NewHandle(0, 0), []byte("a"), r.now), Applied)
			r.want(r.beat("a"), Kept)
			r.want(r.done("a", "D", 2), Kept)
			b := record.NewHandle(0, 1)
			if bits == record.Expected {
				r.want(r.t.Expect(b, []byte("b"), r.now), Applied)
			}
			r.want(r.say(b, "b"), Applied)
			r.want(r.beat("a"), Unknown)
			if k := &r.t.hot[0]; k.set() != 0 || k.is(namedStock) {
				t.Error("what was kept for use 0 is there for use 1")
			}
			r.want(r.t.Expect(record.NewHandle(0, 0), []byte("a"), r.now), Late)
			r.want(r.done("b", "D", 1), Ended)
			r.wantEnded(record.FreedCompleted, b)
			r.wantEmpty()
		})
	}
}

func TestARanksExpectationsLapseOnlyWhenTheHostSaysSo(t *testing.T) {
	r := newRig(t, 2, func(c *Config) { c.ExpectMax = -1 })
	a := r.expect("a")
	r.run(at(2000))
	if r.t.Expected() != 1 || len(r.ends) != 0 {
		t.Fatalf("%d expectations, ends %v", r.t.Expected(), r.ends)
	}
	r.t.Cancel(a, r.now)
	r.t.Cancel(a, r.now) // the full state repeats it
	r.t.Revoke(a, r.now)
	r.wantCount("repeated", r.c.Again, 2)
	r.wantCount("bad handles", r.c.BadHandle, 0)
	r.wantEmpty()
}

func TestTimeLeftRunsFromWhenTheRankHearsIt(t *testing.T) { // C60
	r := newRig(t, 2)
	r.now = at(10000)
	a := r.grant("a", ttl(29700*time.Millisecond)) // 0.3 s on the way
	r.run(at(10029.6))
	r.wantHeld(a)
	r.run(at(10029.9))
	r.wantEnded(record.FreedExpired, a) // shows C60.1
}

// Fixed grants: the blocks that a decode engine keeps for the next turn.

func TestAFixedGrantEndsAtItsTimeWhateverIsHeard(t *testing.T) { // C02
	r := newRig(t, 4, func(c *Config) { c.StockLinger = 20 * time.Second })
	x := r.grant("x", fixed)
	y := r.grant("y", fixed, ttl(60*time.Second))
	a := r.grant("a")
	if got := r.mem.Rows[x.Slot()].DeadlineUs; got != 480e6 {
		t.Errorf("the row's deadline is %d us, want 480 s", got)
	}
	r.run(at(10))
	r.want(r.beat("y"), Fixed)
	r.want(r.t.Renew(r.entry(x), engineD, r.now), Fixed)
	r.want(r.t.Renew(r.entry(x), engineD, r.now), Fixed)
	if got := r.mem.Rows[x.Slot()]; got.GenBeats>>32 != 2 || got.DeadlineUs != 480e6 {
		t.Errorf("row %+v, want two beats and the same deadline", got)
	}
	r.run(at(32))
	r.wantEnded(record.FreedExpired, a)
	r.run(at(59.9))
	r.wantHeld(x, y)
	r.want(r.beat("y"), Fixed)
	r.run(at(60.2)) // no linger
	r.wantEnded(record.FreedExpired, y)
	r.run(at(479.9))
	r.wantHeld(x)
	r.run(at(480.2))
	r.wantEnded(record.FreedExpired, x)
	r.wantEmpty()
}

func TestAFixedGrantIsTakenBackLikeAnyOther(t *testing.T) {
	r := newRig(t, 4)
	a, b, c := r.grant("a", fixed), r.grant("b", fixed), r.grant("c", fixed)
	for _, h := range []record.Handle{a, b} {
		r.want(r.t.Renew(r.entry(h), engineD, r.now), Fixed)
	}
	r.t.Revoke(a, r.now)
	r.wantEnded(record.FreedRevoked, a)
	r.t.Pressure(16, r.now)
	r.wantEnded(record.FreedRevoked, b)
	r.wantHeld(c) // nobody is known to check its fence
}

func TestAllocBeginningsAndRepetitionsTouchNoHeap(t *testing.T) {
	r := newRig(t, 64)
	h := r.grant("a")
	r.t.Renew(r.entry(h), engineD, r.now)
	g := record.Grant{Lease: h, Key: Key(r.secret, 0, 0), TTLNs: 1}
	id := []byte("a")
	n := uint64(0)
	if got := testing.AllocsPerRun(200, func() {
		r.t.Grant(&g, id, r.now)
		r.t.EngineGone(100+n, 1, r.now)
		r.t.Leaving(n, 1)
		r.t.Pressure(1, r.now)
		r.step()
		n++
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// A rank begins an era in the step that hears of it.
func TestTheBeginOfAnEraAllocatesNothing(t *testing.T) {
	r := newRig(t, 64)
	n := uint64(0)
	if got := testing.AllocsPerRun(100, func() {
		n++
		r.t.EngineGone(n, 1, r.now)
		r.t.Leaving(n, 2)
		r.t.FenceAll()
		r.t.EndAll(record.FreedClosed, r.now)
		if err := r.t.Reset([2]uint64{n, n}, nextBase, testEpoch+n); err != nil {
			t.Fatal(err)
		}
		if !r.t.gone.empty() || r.t.left.has(r.t.who(Reader{Engine: n, Epoch: 2})) {
			t.Fatal("readers of the era before are remembered")
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}
