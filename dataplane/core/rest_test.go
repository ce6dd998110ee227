package core

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/metrics"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/watch"
)

// An engine that is driven inline makes no step while no request comes. What it is for is that blocks are held, or asked for: only then has
// somebody waited for the step that did not come.
func TestOnlyAContextThatHasSomethingToDoStandsStill(t *testing.T) {
	const gap = 10 * time.Second
	for _, tc := range []struct {
		name    string
		begin   func(l *lab) (n *node)
		stalled bool
	}{
		{"an owner without a lease", func(l *lab) *node { return l.p }, false},
		{"an owner whose lease has ended", func(l *lab) *node {
			_, remote := l.grant("a", 1, blocks(0, 8))
			track := l.track(remote, "d", 1)
			l.run(time.Second, 30*time.Millisecond)
			l.read(track, blocks(40, 8), blocks(0, 8))
			l.run(time.Second, 30*time.Millisecond)
			if freed := l.p.take(record.EvFreed); len(freed) != 1 {
				t.Fatalf("freed %+v", freed)
			}
			return l.p
		}, false},
		{"an owner with a lease", func(l *lab) *node { l.grant("a", 1, blocks(0, 8)); return l.p }, true},
		{"an owner that expects one", func(l *lab) *node {
			if _, err := l.p.host.Expect([]byte("a")); err != nil {
				t.Fatal(err)
			}
			return l.p
		}, true},
		{"a reader that has read all", func(l *lab) *node { return l.d }, false},
		{"a reader that tracks a request", func(l *lab) *node {
			_, remote := l.grant("a", 1, blocks(0, 8))
			l.track(remote, "d", 1)
			return l.d
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, `{}`)
			l.run(time.Second, 30*time.Millisecond)
			n := tc.begin(l)
			l.step(30 * time.Millisecond)
			before := n.core.leases.Times.StallGap.Count()
			l.advance(gap)
			if _, err := n.host.Grant(host.Grant{ID: []byte("next"), Blocks: 1}, l.now); err != nil { // what ends the rest
				t.Fatal(err)
			}
			l.stepOne(n)
			if got := n.core.leases.Times.StallGap.Count() - before; got != map[bool]uint64{true: 1}[tc.stalled] {
				t.Errorf("%d stalls", got)
			}
			if said := len(n.said(t, log.Stall)) > 0; said != tc.stalled {
				t.Errorf("said: %v", said)
			}
		})
	}
}

// What was held is given up by the call that unregisters, and who is driven inline makes no step until it wakes.
func TestASleepIsNoStall(t *testing.T) {
	for _, id := range []string{"P", "D"} {
		t.Run(id, func(t *testing.T) {
			l := newLab(t, `{}`)
			_, remote := l.grant("a", 1, blocks(0, 8))
			l.track(remote, "d", 1)
			l.run(time.Second, 30*time.Millisecond)
			n := map[string]*node{"P": l.p, "D": l.d}[id]
			stalls := func() uint64 { return n.core.leases.Times.StallGap.Count() }
			before := stalls()
			if err := n.core.Unregister(); err != nil {
				t.Fatal(err)
			}
			l.advance(time.Hour)
			if err := n.core.Register(n.regions); err != nil {
				t.Fatal(err)
			}
			l.stepOne(n)
			if got := stalls() - before; got != 0 || len(n.said(t, log.Stall)) > 0 {
				t.Errorf("%d stalls", got)
			}
			if _, err := n.host.Grant(host.Grant{ID: []byte("next"), Blocks: 1}, l.now); err != nil {
				t.Fatal(err)
			}
			l.stepOne(n)
			l.advance(10 * time.Second)
			l.stepOne(n)
			if got := stalls() - before; got != 1 {
				t.Errorf("%d stalls after the wake, of which there was one", got)
			}
		})
	}
}

// Nobody steps who rests, so what its page says then stays: with a lease of the step before, that it stands still and holds blocks.
func TestThePageOfAContextThatRestsSaysThatItHoldsNothing(t *testing.T) {
	l := newLab(t, `{}`)
	l.run(time.Second, 30*time.Millisecond)
	p, err := l.p.core.Page()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	held := func() uint64 {
		t.Helper()
		var s watch.Snapshot
		if err := p.Read(&s); err != nil {
			t.Fatal(err)
		}
		n, _ := s.Value("held", "")
		return n
	}
	lease := func(id string) {
		t.Helper()
		if _, err := l.p.host.Grant(host.Grant{ID: []byte(id), Blocks: 1, TTL: 10 * time.Second, Fixed: true}, l.now); err != nil {
			t.Fatal(err)
		}
		l.advance(pageEvery)
		l.stepOne(l.p)
		if n := held(); n != 1 {
			t.Fatalf("%d leases on the page, want 1", n)
		}
	}
	lease("ends")
	for end := l.now.Add(9 * time.Second); l.now < end; l.advance(50 * time.Millisecond) {
		l.stepOne(l.p)
	}
	for l.p.core.plane.Alive() > 0 { // its last step comes between two states of the page
		l.advance(7 * time.Millisecond)
		l.stepOne(l.p)
	}
	if n := held(); n != 0 {
		t.Errorf("at rest: %d leases on the page", n)
	}
	lease("slept")
	if err := l.p.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	if n := held(); n != 0 {
		t.Errorf("asleep: %d leases on the page", n)
	}
}

// What a context does in the moment before it rests stands on its page, be it since the last state that it came and went.
func TestThePageOfAContextThatRestsSaysWhatItDidLast(t *testing.T) {
	l := newLab(t, `{}`)
	_, remote := l.grant("a", 1, blocks(0, 8))
	l.run(time.Second, 30*time.Millisecond)
	p, err := l.d.core.Page()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	value := func(name, label string) uint64 {
		t.Helper()
		var s watch.Snapshot
		if err := p.Read(&s); err != nil {
			t.Fatal(err)
		}
		n, ok := s.Value(name, label)
		if !ok {
			t.Fatalf("no %s %s", name, label)
		}
		return n
	}
	l.advance(pageEvery)
	l.stepOne(l.d)
	shown := l.now
	l.read(l.track(remote, "d", 1), blocks(40, 8), blocks(0, 8))
	for len(l.d.take(record.EvReadDone)) == 0 || l.d.core.plane.Alive() > 0 {
		l.step(time.Millisecond)
		if l.now >= shown.Add(pageEvery) {
			t.Fatal("it takes too long")
		}
	}
	if n := value("beat_outcomes", fmt.Sprint(record.ReadOK)); n != 1 {
		t.Errorf("%d reads on the page", n)
	}
	before := value("steps", "")
	l.track(&host.Remote{ID: []byte("next"), Native: true, Epoch: 1}, "next", 2)
	for range 9 { // it has something to do: each 100 ms is enough
		l.step(time.Millisecond)
	}
	if n := value("steps", ""); n != before {
		t.Errorf("shown after %d more steps", n-before)
	}
}

// Memory is registered before the first step of an engine that is driven inline, and after its sleep nobody steps until a request comes.
func TestThePageSaysWhatIsRegisteredBeforeAStepComes(t *testing.T) {
	l := newLab(t, `{"engines_max":400}`)
	const more = 2 * walkMax // engines, so that a look at all takes several states
	for n := range more {
		engine, err := l.d.core.AddEngine(heartbeat.EngineDesc{ID: fmt.Sprint("e", n)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.d.host.Track(engine, &host.Remote{ID: []byte("never"), Native: true, Epoch: 1}, nil, 0, l.now); err != nil {
			t.Fatal(err)
		}
		l.stepOne(l.d)
	}
	last := l.node("last", `{}`)
	l.connect(l.d, last)
	l.run(time.Second, 30*time.Millisecond)
	p, err := l.d.core.Page()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	says := func() (registered uint64, connected int) {
		t.Helper()
		var s watch.Snapshot
		if err := p.Read(&s); err != nil {
			t.Fatal(err)
		}
		for _, r := range s.Remotes {
			if r.State == "connected" {
				connected++
			}
		}
		if len(s.Remotes) != more+2 {
			t.Errorf("%d engines", len(s.Remotes))
		}
		registered, _ = s.Value("registered_bytes", "")
		return registered, connected
	}
	bytes, connected := says()
	if bytes == 0 || connected != 2 {
		t.Fatalf("%d bytes, %d engines connected", bytes, connected)
	}
	if err := l.d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	if n, connected := says(); n != 0 || connected != 0 {
		t.Errorf("asleep: %d bytes, %d engines connected", n, connected)
	}
	l.awake(l.d)
	if n, _ := says(); n != bytes {
		t.Errorf("awake: %d bytes, want %d", n, bytes)
	}
}

// An engine that is driven inline registers before it steps: how far that is a step does not say.
func TestThePageSaysHowFarARegistrationIsThoughNobodySteps(t *testing.T) {
	l, result := newSlow(t, func(l *lab) { l.d.core.pace.every = time.Millisecond })
	p, err := l.d.core.Page()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	value := func(name string) uint64 {
		var s watch.Snapshot
		if err := p.Read(&s); err != nil {
			t.Fatal(err)
		}
		n, _ := s.Value(name, "")
		return n
	}
	tr := waitForSlow(l)
	<-tr.at
	eventually(t, "it says what is to come", func() bool {
		return value("registering_bytes") > labLayers*labBlocks*labBlockLen && value("registered_bytes") == 0
	})
	tr.let <- struct{}{}
	<-tr.at
	eventually(t, "it says what there is", func() bool { return value("registered_bytes") == labBlocks*labBlockLen })
	close(tr.let)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if n := value("registering_bytes"); n != 0 || value("registered_bytes") == 0 {
		t.Errorf("%d bytes are to come, %d are there", n, value("registered_bytes"))
	}
}

// A router asks before it sends something new, and who has nothing to do makes no step that would say it.
func TestAContextThatRestsSaysOnItsPageThatItDrains(t *testing.T) {
	l := newLab(t, `{}`)
	l.run(time.Second, 30*time.Millisecond)
	p, err := l.p.core.Page()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	exporter := metrics.NewExporter(l.p.core.Page)
	defer exporter.Close()
	says := func(want string) bool {
		t.Helper()
		text, err := exporter.Text()
		if err != nil {
			t.Fatal(err)
		}
		line := regexp.MustCompile(`(?m)^kvlease_draining\{.*\} (.*)$`).FindSubmatch(text)
		return line != nil && string(line[1]) == want
	}
	if !says("0") {
		t.Error("before it drains")
	}
	if err := l.p.core.Drain(time.Minute); err != nil {
		t.Fatal(err)
	}
	var s watch.Snapshot
	if err := p.Read(&s); err != nil {
		t.Fatal(err)
	}
	at := s.Published
	eventually(t, "the page says it", func() bool { return says("1") })
	if err := p.Read(&s); err != nil || s.Published != at || !s.Draining {
		t.Errorf("%v; a step has written the page: %d, then %d; draining %v", err, at, s.Published, s.Draining)
	}
}

// What a hook has said, or could not say, nothing but a step takes; if that does not come the page says so all the same.
func TestThePageSaysWhatNoStepHasTaken(t *testing.T) {
	l := newLab(t, `{"ring_bytes":4096}`)
	l.run(time.Second, 30*time.Millisecond)
	p, err := l.p.core.Page()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var s watch.Snapshot
	value := func(name string) uint64 {
		t.Helper()
		if err := p.Read(&s); err != nil {
			t.Fatal(err)
		}
		v, ok := s.Value(name, "")
		if !ok {
			t.Fatalf("no %s", name)
		}
		return v
	}
	if n := value("untaken_bytes"); n != 0 {
		t.Errorf("%d bytes of nothing", n)
	}
	at := s.Published
	grant := func() error {
		_, err := l.p.host.Grant(host.Grant{ID: []byte("a"), Blocks: 1}, l.now)
		return err
	}
	for err == nil {
		err = grant()
	}
	eventually(t, "it says what waits", func() bool { return value("untaken_bytes") > 3000 && value("refused_ring") == 1 })
	if s.Published != at {
		t.Error("a step has written the page")
	}
	l.stepOne(l.p)
	eventually(t, "nothing waits", func() bool { return value("untaken_bytes") == 0 })
}

// The slot of a lease that is over comes free when its end is told, for which the host has to poll.
func TestWhatIsOverAndNotToldTakesItsSlot(t *testing.T) {
	l := newLab(t, `{"events_max":64,"expect_max":40}`)
	used := func() (n float64) {
		t.Helper()
		for _, key := range []string{"held", "expected", "ending"} {
			n += float64(l.p.core.counters()[key].(int))
		}
		return n
	}
	const leases = 200
	for i := range leases {
		if _, err := l.p.host.Grant(host.Grant{ID: fmt.Append(nil, i), Blocks: 1, TTL: 10 * time.Second, Fixed: true}, l.now); err != nil {
			t.Fatal(err)
		}
	}
	step := func() {
		if err := l.p.core.Step(); err != nil { // nobody polls
			t.Fatal(err)
		}
	}
	step()
	if n := used(); n != leases {
		t.Fatalf("%v slots are used of %d leases", n, leases)
	}
	for range 600 {
		l.advance(100 * time.Millisecond)
		step()
	}
	full := used()
	if held := l.p.core.counters()["held"]; held != 0 || full == 0 || full >= leases {
		t.Errorf("%v are held, %v slots used, though %d ends at least wait in the ring", held, full, 64)
	}
	l.run(time.Second, 100*time.Millisecond) // polled
	if n := used(); n != 0 {
		t.Errorf("%v slots are used after a poll", n)
	}
}
