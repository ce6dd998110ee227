package core

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// The cases of docs/faults.yaml about a whole context that no other test is about.

func TestIdsThatFitNoSingleMessageAllLive(t *testing.T) {
	l := newLab(t, `{"batch_bytes_max":2048}`)
	for i := range 60 { // 36 bytes each
		id := fmt.Sprintf("%036d", i)
		l.grant(id, uint64(i), []uint32{uint32(i)})
		l.track(&host.Remote{ID: []byte(id)}, "local", 1) // stock heartbeats name whole ids
	}
	l.run(49*time.Second, 100*time.Millisecond)
	if held := l.p.core.leases.Held(); held != 60 { // shows C10.2
		t.Errorf("%d leases are held at 49 s, want all 60", held)
	}
	c := l.p.core.leases.Counters
	if rounds := c.Renewed / 60; c.Renewed%60 != 0 || l.p.core.plane.Counters.BatchesReceived < 2*rounds || rounds < 9 {
		t.Errorf("%d renewals in %d messages: nothing was split", c.Renewed, l.p.core.plane.Counters.BatchesReceived)
	}
	if c.UnknownRenew != 0 { // shows C08.2
		t.Errorf("%d unknown ids", c.UnknownRenew)
	}
}

func TestMessagesAboutUnknownIdsCostNoMemory(t *testing.T) {
	l := newLab(t, `{}`)
	a, peer := third(t, l)
	lease, _ := l.grant("a", 7, blocks(0, 8))
	l.run(12*time.Second, 100*time.Millisecond)
	n := 0
	send := func() {
		for range 100 {
			n++
			if err := a.Send(peer, fmt.Appendf(nil, "HB:u%d", n)); err != nil {
				t.Fatal(err)
			}
			if err := a.Send(peer, fmt.Appendf(nil, "v%d:1", n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 100 {
		send()
		l.step(time.Millisecond)
	}
	k := l.p.core.leases.Counters
	if k.UnknownRenew != 10_000 || k.UnknownDone != 10_000 || l.p.core.plane.Alive() != 1 { // shows C07.1
		t.Errorf("%d unknown heartbeats, %d unknown completions, %d objects at P; want 10,000 each and the lease", k.UnknownRenew, k.UnknownDone, l.p.core.plane.Alive())
	}
	before := rowDeadline(l, lease)
	send()
	if err := a.Send(peer, []byte("HB:a")); err != nil {
		t.Fatal(err)
	}
	l.step(time.Millisecond)
	if rowDeadline(l, lease) <= before { // shows C07.2
		t.Error("a heartbeat was not applied in the step in which it arrived")
	}
}

func TestCallsOfTheHostWaitForNoStep(t *testing.T) {
	l := newLab(t, `{}`)
	_, remote := l.grant("r1", 7, blocks(0, 8))
	l.run(time.Second, 100*time.Millisecond)
	for _, n := range []*node{l.p, l.d} {
		n.core.mu.Lock() // as a step that is held up inside the transport
		defer n.core.mu.Unlock()
	}
	within(t, "a call of the host", func() { // shows C69.3
		h, err := l.p.host.Expect([]byte("r2"))
		if err != nil {
			t.Error(err)
		}
		if _, err = l.p.host.Grant(host.Grant{ID: []byte("r2"), Blocks: 1, Expected: h}, l.now); err != nil {
			t.Error(err)
		}
		track, err := l.d.host.Track(l.peer, remote, []byte("d"), 1, l.now)
		if err != nil {
			t.Error(err)
		}
		var runs []record.Run
		for i := range uint32(30) {
			runs = append(runs, record.Run{Local: 2 * i, Remote: i, N: 1})
		}
		if err := l.d.host.Read(track, runs); err != nil {
			t.Error(err)
		}
		if err := l.d.host.Untrack(track); err != nil {
			t.Error(err)
		}
		var ev [4]record.Event
		l.d.host.Poll(ev[:], l.now)
	})
}

func TestAnIdleContextTakesAMessageAtItsNextWake(t *testing.T) {
	l := newLab(t, `{}`) // the turns are the test's
	_, remote := l.grant("a", 7, blocks(0, 8))
	track := l.track(remote, "d", 1)
	l.run(12*time.Second, pumpHeld)
	p := &pump{core: l.p.core}
	p.period(l.now)
	for end := l.now.Add(60 * time.Second); l.now < end; { // P does nothing but look
		wake := p.period(l.now)
		if wake > pumpStill { // shows C66.1
			t.Fatalf("the pump sleeps for %v while a lease is held", wake)
		}
		l.advance(wake)
		l.stepOne(l.p)
		l.stepOne(l.d)
	}
	if err := l.d.host.Untrack(track); err != nil {
		t.Fatal(err)
	}
	l.stepOne(l.d)
	l.stepOne(l.d)
	l.advance(p.period(l.now))
	l.stepOne(l.p)
	if freed := l.p.take(record.EvFreed); len(freed) != 1 || freed[0].Status != record.FreedReleased { // shows C68.2
		t.Errorf("freed at the next wake: %+v", freed)
	}
	p.period(l.now)
	for end := l.now.Add(10 * time.Second); l.now < end; l.advance(pumpIdle) { // nothing is held any more
		l.stepOne(l.p)
	}
	if wake := p.period(l.now); wake != pumpIdle || time.Second/pumpIdle > 20 { // shows C68.1
		t.Errorf("the pump of an engine with nothing to do sleeps for %v, want %v", wake, pumpIdle)
	}
}

func TestWhatAnEngineDoesByTheClockCanBeRead(t *testing.T) {
	l := newLab(t, `{"kv_lease_duration":12}`)
	var config map[string]any
	if err := json.Unmarshal(l.p.core.cfg.JSON(), &config); err != nil {
		t.Fatal(err)
	}
	stats := l.p.core.counters()
	for name, want := range map[string]time.Duration{"kv_lease_duration": 12 * time.Second, "interval": 2 * time.Second, "extension": 8 * time.Second} {
		if got := config[name]; got != want.Seconds() { // shows C74.2
			t.Errorf("the configuration says %s %v, want %v", name, got, want.Seconds())
		}
		if got := stats[name+"_ms"]; got != want.Milliseconds() { // shows C74.2
			t.Errorf("the statistics say %s_ms %v, want %v", name, got, want.Milliseconds())
		}
	}
}

func TestAContextNoneOfWhoseEnginesAnswersIsNotHealthy(t *testing.T) {
	l := newLab(t, `{}`)
	q := l.node("Q", `{}`)
	l.connect(l.d, q)
	_, remote := l.grant("r1", 7, blocks(0, 8))
	l.track(remote, "d", 1)
	step := func(span time.Duration, nodes ...*node) {
		for end := l.now.Add(span); l.now < end; {
			l.advance(100 * time.Millisecond)
			for _, n := range nodes {
				l.stepOne(n)
			}
		}
	}
	want := func(healthy, failing int) {
		t.Helper()
		s := l.d.core.counters()
		if s["healthy"] != healthy || s["tracker_failing"] != failing { // shows C50.3
			t.Errorf("healthy %v, %v engines failing for up to %v ms; want %d, %d", s["healthy"], s["tracker_failing"], s["tracker_failing_ms"], healthy, failing)
		}
		if h, n := valueOn(t, l.d.core, "healthy"), valueOn(t, l.d.core, "tracker_failing"); int(h) != healthy || int(n) != failing {
			t.Errorf("on the page healthy is %d, %d engines fail; want %d, %d", h, n, healthy, failing)
		}
	}
	step(9*time.Second, l.p, l.d, q)
	want(1, 0)
	l.hub.Kill(l.p.core.tr.Agent())
	step(60*time.Second, l.d, q)
	want(1, 1) // one of two
	if err := l.d.core.RemoveEngine(l.connect(l.d, q)); err != nil {
		t.Fatal(err)
	}
	step(time.Second, l.d)
	want(0, 1)
	step(150*time.Second, l.d)
	want(1, 1) // what was tracked there is lost, and nobody has asked for it since
	if s := l.p.core.counters(); s["healthy"] != 1 {
		t.Error("an engine that knows no other is not healthy")
	}
	atomic.StoreUint32(&l.p.core.mem.Control.Poisoned, 1)
	if s := l.p.core.counters(); s["healthy"] != 0 {
		t.Error("a poisoned context is healthy")
	}
}

func TestAHostNoneOfWhoseEnginesAnswersIsNotHealthy(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	p, d := f.team("P", 2, 1), f.team("D", 2, 1)
	e := f.connect(d, p)
	_, remote := p.grant("r", 7, blocks(3, 4))
	track := d.track(e, remote, 1)
	f.turns(50)
	want := func(healthy, failing int) {
		t.Helper()
		s := d.core.counters()
		if s["healthy"] != healthy || s["group_failing"] != failing || s["group_engines"] != 1 { // shows C50.3
			t.Errorf("healthy %v, %v of %v engines failing for up to %v ms; want %d, %d", s["healthy"], s["group_failing"], s["group_engines"], s["group_failing_ms"], healthy, failing)
		}
		if h, n := valueOn(t, d.core, "healthy"), valueOn(t, d.core, "group_failing"); int(h) != healthy || int(n) != failing {
			t.Errorf("on the page healthy is %d, %d engines fail; want %d, %d", h, n, healthy, failing)
		}
	}
	want(1, 0)
	for _, c := range p.cores() {
		f.hub.Kill(c.tr.Agent())
	}
	p.kill()
	f.pass = 100 * time.Millisecond
	f.turns(200) // 20 s: the next heartbeat finds it out, and an interval has passed since
	want(1, 1)
	f.turns(400)
	want(0, 1)
	if err := d.host.Untrack(track); err != nil {
		t.Fatal(err)
	}
	f.turns(1600)
	want(1, 1) // nobody needs it any more
}
