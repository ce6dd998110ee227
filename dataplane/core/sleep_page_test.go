package core

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/watch"
)

// states of the engines on a page, by id.
func states(s *watch.Snapshot) map[string]string {
	all := map[string]string{}
	for _, r := range s.Remotes {
		all[r.ID] = r.State
	}
	return all
}

func valueOn(t *testing.T, c *Core, name string) uint64 {
	t.Helper()
	v, ok := shown(t, c).Value(name, "")
	if !ok {
		t.Fatalf("the page has no %s", name)
	}
	return v
}

// Who was put to sleep misses no memory, and its peers are not on their way to it; who never had any, or could not get it, does.
func TestThePageTellsASleepFromMemoryThatIsMissing(t *testing.T) {
	l := newLab(t, `{}`)
	l.run(time.Second, 30*time.Millisecond)
	is := func(when string, asleep uint64, state string) {
		t.Helper()
		if n := valueOn(t, l.d.core, "asleep"); n != asleep {
			t.Errorf("%s: asleep is %d, want %d", when, n, asleep)
		}
		if got := states(shown(t, l.d.core))["P"]; got != state {
			t.Errorf("%s: P is %q, want %q", when, got, state)
		}
	}
	is("awake", 0, "connected")
	if err := l.d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	is("asleep", 1, stateAsleep)
	l.run(time.Minute, time.Second)
	is("asleep, and it steps", 1, stateAsleep)
	bad := l.d.regions[:1:1]
	bad[0].Blocks = 0
	if err := l.d.core.Register(bad); err == nil {
		t.Fatal("memory that cannot be was registered")
	}
	is("asleep, after a call that was none", 1, stateAsleep)
	bad[0].Blocks = labBlocks
	agents := l.d.core.open
	l.d.core.open = func(cfg *Config, name string) (transport.Transport, error) {
		tr, err := agents(cfg, name)
		if err == nil {
			tr.(*loopback.Agent).FailNext(loopback.OpRegister, transport.ErrInvalid)
		}
		return tr, err
	}
	if err := l.d.core.Register(l.d.regions); err == nil {
		t.Fatal("memory was registered that the transport refuses")
	}
	if n := valueOn(t, l.d.core, "asleep"); n != 0 {
		t.Error("who could not register is said to be asleep")
	}
	l.d.core.open = agents
	l.awake(l.d)
	l.run(time.Second, 30*time.Millisecond)
	is("awake again", 0, "connected")
}

func TestAHostTellsThatItsRanksSleep(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	p, d := f.team("P", 2, 1), f.team("D", 2, 1)
	f.connect(d, p)
	is := func(when string, asleep uint64, state string) {
		t.Helper()
		if n := valueOn(t, d.core, "group_ranks_asleep"); n != asleep {
			t.Errorf("%s: %d ranks are asleep, want %d", when, n, asleep)
		}
		if got := states(shown(t, d.core))["P"]; (got == stateAsleep) != (state == stateAsleep) || state == "connected" && got != state {
			t.Errorf("%s: P is %q, want %q", when, got, state)
		}
	}
	is("awake", 0, "connected")
	d.unregister(0)
	f.turns(20)
	is("one sleeps", 1, "")
	d.unregister(1)
	f.turns(20)
	is("asleep", 2, stateAsleep)
	for range 60 { // the host has told the next era by now, in which nobody has an agent yet
		f.turns(20)
	}
	for i, r := range d.ranks {
		if got := states(shown(t, r.core))["P"]; valueOn(t, r.core, "asleep") != 1 || got != stateAsleep || valueOn(t, r.core, "tracker_failing") != 0 {
			t.Errorf("rank %d: P is %q, and %d engines fail", i, got, valueOn(t, r.core, "tracker_failing"))
		}
		n := node{core: r.core}
		if said := n.said(t, log.LoadFailed); len(said) != 0 {
			t.Errorf("rank %d loads in its sleep: %+v", i, said)
		}
	}
}
