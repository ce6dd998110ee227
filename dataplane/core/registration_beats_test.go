package core

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// between lets a piece of a slow registration go and steps until the next one begins, or, after the last, until Register has returned.
func (l *lab) between(tr *laggard, result chan error) (over bool, err error) {
	l.t.Helper()
	tr.let <- struct{}{}
	for { // ends with the test's time
		select {
		case <-tr.at:
			return false, nil
		case err := <-result:
			return true, err
		default:
			l.step(time.Microsecond) // the clock of a machine that is busy elsewhere must not run away
		}
	}
}

// TestARegistrationThatTakesLongLosesNoLease: the engine is known from before the sleep, the request is tracked while memory is registered, which
// takes longer than the lease, and no piece of it does.
func TestARegistrationThatTakesLongLosesNoLease(t *testing.T) {
	l, result := newSlow(t, func(l *lab) { l.d.core.pace.window = time.Hour })
	tr := waitForSlow(l)
	<-tr.at
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote := l.grant("r0", 5, there)
	track := l.track(remote, "d-r0", 5)
	before := l.d.core.counters()
	for over, err := false, error(nil); !over; {
		l.run(l.p.core.cfg.Duration/2, 100*time.Millisecond) // as long as a piece takes
		if over, err = l.between(tr, result); err != nil {
			t.Fatal(err)
		}
	}
	l.run(l.p.core.cfg.Duration, 100*time.Millisecond)
	if freed, events := l.p.take(record.EvFreed), l.d.take(record.EvLeaseGone); len(freed)+len(events) != 0 {
		t.Fatalf("P has ended %+v, D is told %+v", freed, events)
	}
	l.read(track, here, there)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 1 || l.d.wrong(5, here) != 0 {
		t.Errorf("read afterwards: %+v, left %+v", done, l.d.evs)
	}
	after := l.d.core.counters()
	for _, name := range []string{"beat_send_failed", "beat_loads_put_off", "beat_rows_failed", "beat_disconnects"} {
		if before[name] != after[name] {
			t.Errorf("%s: %v, and %v before", name, after[name], before[name])
		}
	}
	if said := l.d.said(t, log.SendFailed); len(said) != 0 {
		t.Errorf("said %+v", said)
	}
}

// TestAReadThatIsAskedForWhileMemoryIsRegisteredStandsInNobodysWay: its engine is reached between two pieces, and nothing is there to read into.
func TestAReadThatIsAskedForWhileMemoryIsRegisteredStandsInNobodysWay(t *testing.T) {
	l, result := newSlow(t, func(l *lab) { l.d.core.pace.window = time.Hour })
	tr := waitForSlow(l)
	<-tr.at
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote := l.grant("r0", 5, there)
	l.read(l.track(remote, "d-r0", 5), here, there)
	for over, err := false, error(nil); !over; {
		l.run(l.p.core.cfg.Interval(), 100*time.Millisecond)
		if over, err = l.between(tr, result); err != nil {
			t.Fatal(err)
		}
	}
	l.run(200*time.Millisecond, 10*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 1 || l.d.wrong(5, here) != 0 {
		t.Errorf("read: %+v, left %+v", done, l.d.evs)
	}
}

// TestWhereNobodyStepsARegistrationWaitsOnce: a wait that is not over ends with the time of the tests.
func TestWhereNobodyStepsARegistrationWaitsOnce(t *testing.T) {
	l, result := newSlow(t, nil)
	tr := waitForSlow(l)
	<-tr.at
	_, remote := l.grant("r0", 5, blocks(3, 8))
	l.track(remote, "d-r0", 5)
	c := l.d.core
	for due := false; !due; _, due = c.due() {
		l.step(time.Millisecond)
	}
	close(tr.let)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	r := &registration{pace: registrationPace{window: time.Millisecond}}
	c.letStepsIn(r)
	if !r.waited {
		t.Fatal("not waited at all")
	}
	r.pace.window = time.Hour
	c.letStepsIn(r)
}

// TestWhoHasRegisteredNothingYetKeepsLeases: rows have nowhere to land, which is no fault of the engine.
func TestWhoHasRegisteredNothingYetKeepsLeases(t *testing.T) {
	l := newLab(t, `{}`)
	l.d = l.unregistered("E")
	m, err := l.p.core.OwnHandshake(0)
	if err != nil {
		t.Fatal(err)
	}
	h := new(wire.Handshake)
	if err := wire.ParseHandshake(m, h); err != nil {
		t.Fatal(err)
	}
	if l.peer, err = l.d.core.AddEngine(heartbeat.EngineDesc{ID: "P"}); err != nil {
		t.Fatal(err)
	}
	if err := l.d.core.tracker.LoadHandshake(l.peer, 0, h); err != nil { // as a rank's host hands it on
		t.Fatal(err)
	}
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote := l.grant("r0", 5, there)
	track := l.track(remote, "d-r0", 5)
	l.run(3*l.p.core.cfg.Duration, 100*time.Millisecond)
	if freed, lost, gone := l.p.take(record.EvFreed), l.d.take(record.EvEngineDown), l.d.take(record.EvLeaseGone); len(freed)+len(lost)+len(gone) != 0 {
		t.Fatalf("P has ended %+v, D is told %+v, %+v", freed, lost, gone)
	}
	if err := l.d.core.Register(l.d.regions); err != nil {
		t.Fatal(err)
	}
	l.run(3*l.p.core.cfg.Duration, 100*time.Millisecond)
	l.read(track, here, there)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 1 || l.d.wrong(5, here) != 0 {
		t.Errorf("read: %+v, left %+v", done, l.d.evs)
	}
	if n := l.d.core.counters()["beat_rows"]; n == uint64(0) {
		t.Error("no row was read after the registration")
	}
}

// refusing is a transport whose registrations fail.
type refusing struct{ transport.Transport }

func (refusing) Register([]transport.Region) error { return transport.ErrFull }

// TestARegistrationThatFailsLeavesMessagesPossible, and no read.
func TestARegistrationThatFailsLeavesMessagesPossible(t *testing.T) {
	l := newLab(t, `{}`)
	if err := l.d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	l.wrap = func(_ string, inner transport.Transport) transport.Transport { return refusing{inner} }
	if err := l.d.core.Register(l.d.regions); err == nil {
		t.Fatal("registered")
	}
	_, remote := l.grant("r0", 5, blocks(3, 8))
	l.track(remote, "d-r0", 5)
	l.run(3*l.p.core.cfg.Duration, 100*time.Millisecond)
	if freed := l.p.take(record.EvFreed); len(freed) != 0 {
		t.Errorf("P has ended %+v", freed)
	}
	if n := l.d.core.counters()["beat_rows_failed"]; n != uint64(0) {
		t.Errorf("%v reads of rows, which have nowhere to land", n)
	}
}
