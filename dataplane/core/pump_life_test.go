package core

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// newRealPumped is a lab whose pumps run on the machine's clock.
func newRealPumped(t *testing.T, config string) *lab {
	l := &lab{t: t, hub: loopback.NewHub(), size: loopbackConfig, now: Now(), drive: "pump", clock: Now}
	l.p, l.d = l.node("P", config), l.node("D", config)
	l.peer = l.connect(l.d, l.p)
	return l
}

// until waits for a condition, at most 20 s.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestAnIdlePumpWakesAtMostTwentyTimesASecondAndCountsIt(t *testing.T) {
	l := newRealPumped(t, `{}`)
	var took time.Duration
	var before, after PumpCounters
	until(t, "ten turns in a row with nothing to do", func() bool { // the two have still to meet
		began := time.Now()
		before = l.p.core.Pump()
		until(t, "ten turns", func() bool { return l.p.core.Pump().Turns >= before.Turns+10 })
		after, took = l.p.core.Pump(), time.Since(began)
		return after.TurnsIdle-before.TurnsIdle == after.Turns-before.Turns && after.Woken == before.Woken
	})
	if least := 9 * pumpIdle; took < least { // shows C68.1
		t.Errorf("%d idle turns took %v, want at least %v", after.Turns-before.Turns, took, least)
	}
}

func TestWhatMayNotWaitEndsTheSleepOfAnIdlePump(t *testing.T) {
	l := newRealPumped(t, `{}`)
	until(t, "nothing is left to do", func() bool { return l.p.core.Pump().TurnsIdle > 2 })
	records := func() uint64 { return l.p.core.stat("records") }
	for range 20 {
		until(t, "the pump sleeps", func() bool { return atomic.LoadUint32(&l.p.core.mem.Control.Asleep) != 0 })
		woken, taken := l.p.core.Pump().Woken, records()
		if err := l.p.host.Pressure(1); err != nil {
			t.Fatal(err)
		}
		until(t, "it is taken", func() bool { return records() > taken })
		if l.p.core.Pump().Woken > woken {
			return // of several: one may come just when the period is over
		}
	}
	t.Error("no sleep was ended by what was said")
}

func TestWhileAReadIsInFlightThePumpLooksEveryMillisecond(t *testing.T) {
	l := newLab(t, `{}`) // inline: the turns are the test's
	p := &pump{core: l.d.core}
	there := blocks(3, 8)
	_, remote := l.grant("r1", 7, there)
	track := l.track(remote, "d-r1", 70)
	l.run(time.Second, 30*time.Millisecond)
	p.period(l.now) // what has been done so far is no news
	l.run(2*time.Second, 100*time.Millisecond)
	if got := p.period(l.now.Add(time.Hour)); got == pumpIdle {
		t.Errorf("period %v while a request is tracked", got)
	}
	agent(t, l.d).HoldReads(true)
	l.read(track, blocks(40, 8), there)
	l.step(time.Millisecond)
	p.period(l.now)
	if got := p.period(l.now.Add(time.Second)); got != pumpBusy {
		t.Errorf("period %v a second after the read was posted, want %v", got, pumpBusy)
	}
	agent(t, l.d).HoldReads(false)
	l.run(time.Second, 10*time.Millisecond)
	p.period(l.now)
	if got := p.period(l.now.Add(time.Second)); got != pumpIdle {
		t.Errorf("period %v with nothing left, want %v", got, pumpIdle)
	}
}

// carrier is a source that a test fills.
type carrier struct {
	asleep, pending atomic.Bool
	toldAfterAsked  atomic.Bool
}

func (c *carrier) Sleeping(s bool) { c.asleep.Store(s) }

func (c *carrier) Pending() bool {
	if !c.asleep.Load() {
		c.toldAfterAsked.Store(true)
	}
	return c.pending.Swap(false)
}

func TestThePumpWakesForACarrierAsForAProducer(t *testing.T) {
	l := newLab(t, `{}`)
	n := l.p
	s := &carrier{}
	n.core.sources = append(n.core.sources, s)
	n.core.mem.Control.WakeFd = -1
	n.core.clock = Now
	p, err := startPump(n.core)
	if err != nil {
		t.Fatal(err)
	}
	n.core.mu.Lock() // its steps look, for the stats page
	n.core.pump = p  // Close halts it
	n.core.mu.Unlock()
	until(t, "the pump sleeps", s.asleep.Load)
	woken := n.core.Pump().Woken
	s.pending.Store(true)
	n.core.Wake()
	until(t, "a sleep ended by it", func() bool { return n.core.Pump().Woken > woken })
	if s.toldAfterAsked.Load() {
		t.Error("a carrier was asked before it was told that the pump sleeps: what comes between is not seen")
	}
}

func TestAPriorityThatIsNotPermittedIsCounted(t *testing.T) {
	for _, want := range []string{"off", "nice", "rr", "auto"} {
		l := newRealPumped(t, `{"pump_priority":"`+want+`"}`)
		until(t, "a turn", func() bool { return l.p.core.Pump().Turns > 0 })
		l.p.core.mu.Lock()
		class, refused := l.p.core.pump.class, l.p.core.pump.counters.PriorityOff
		l.p.core.mu.Unlock()
		switch {
		case want == "off" && (class != priorityNone || refused != 0):
			t.Errorf("off: %v, %d refused", class, refused)
		case want == "nice" && !(class == priorityNice && refused == 0 || class == priorityNone && refused == 1):
			t.Errorf("nice: %v, %d refused", class, refused)
		case want == "rr" && !(class == priorityRR && refused == 0 || class == priorityNone && refused == 1):
			t.Errorf("rr: %v, %d refused", class, refused)
		case want == "auto" && int(refused) != map[priority]int{priorityRR: 0, priorityNice: 1, priorityNone: 2}[class]:
			t.Errorf("auto: %v, %d refused", class, refused)
		}
		if got := l.p.core.counters()["pump_class"]; got != int(class) {
			t.Errorf("stats say %v, the kernel granted %v", got, class)
		}
		if err := l.p.core.Close(time.Second); err != nil {
			t.Error(err)
		}
		if err := l.d.core.Close(time.Second); err != nil {
			t.Error(err)
		}
	}
}

// Threads of pumps that took no priority are used again: none ends with a context.
func TestAPumpWithoutPriorityGivesItsThreadBack(t *testing.T) {
	const rounds = 10
	var mu sync.Mutex
	seen := map[int]bool{}
	l := &lab{t: t, hub: loopback.NewHub(), size: smallLoopback, drive: "pump", clock: func() clock.Instant { // asked by the pumps among others
		mu.Lock()
		defer mu.Unlock()
		seen[unix.Gettid()] = true
		return Now()
	}}
	for i := range rounds {
		n := l.node(fmt.Sprint("E", i), `{"pump_priority":"off"}`)
		until(t, "a turn", func() bool { return n.core.Pump().Turns > 0 })
		if err := n.core.Close(time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) >= rounds {
		t.Errorf("%d pumps, one after another, ran on %d threads", rounds, len(seen))
	}
}

func TestALeaseIsReadOverPumpsOnTheMachinesClock(t *testing.T) {
	l := newRealPumped(t, `{}`)
	there, here := blocks(3, 8), blocks(40, 8)
	l.d.await(t, record.EvEngineUp)
	lease, err := l.p.host.Grant(host.Grant{ID: []byte("r1"), Blocks: 8, User: 7}, Now())
	if err != nil {
		t.Fatal(err)
	}
	l.p.fill(7, there)
	remote := &host.Remote{ID: []byte("r1"), Native: true, Epoch: l.p.core.mem.Epoch, Key: l.p.host.Key(lease), Slot: lease.Slot(), Generation: lease.Use()}
	l.set(Now())
	l.read(l.track(remote, "d-r1", 70), here, there)
	l.d.await(t, record.EvReadDone)
	if freed := l.p.await(t, record.EvFreed); freed.Status != record.FreedCompleted || l.d.wrong(7, here) != 0 {
		t.Errorf("freed: %+v", freed)
	}
	if s := l.d.core.Pump(); s.StepMaxNs == 0 || s.Turns == 0 {
		t.Errorf("counters %+v", s)
	}
	l.d.core.ResetPump()
}
