package core

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// shortLease has an interval of 200 ms.
const shortLease = `{"kv_lease_duration": 1.2, "allow_short_leases": true, "step_max": 0.2`

// sideLab is engines in one process that meet over TCP, on the real clock.
type sideLab struct {
	*lab
	host string
}

func newSideLab(t testing.TB) *sideLab {
	l := &lab{t: t, hub: loopback.NewHub(), size: loopbackConfig, clock: Now}
	s := &sideLab{lab: l, host: "127.0.0.1"}
	l.edit = func(cfg *Config) {
		cfg.SideChannelHost, cfg.SideChannelPort, cfg.SideChannelListen = s.host, 0, true
	}
	return s
}

// node opens an engine at a port of its own, or at port.
func (l *sideLab) node(id, config string, port ...int) *node {
	l.t.Helper()
	edit := l.edit
	defer func() { l.edit = edit }()
	l.edit = func(cfg *Config) {
		edit(cfg)
		if len(port) > 0 {
			cfg.SideChannelPort = port[0]
		}
	}
	n := l.lab.node(id, config)
	l.t.Cleanup(func() { n.core.Close(5 * time.Second) }) // rows may be on their way
	return n
}

func (n *node) port() int { return n.core.cfg.SideChannelPort }

// name makes reader ask owner.
func (l *sideLab) name(reader, owner *node) uint64 {
	l.t.Helper()
	return l.nameAt(reader, owner.core.cfg.EngineID, owner.core.cfg.SideChannelHost, owner.port())
}

func (l *sideLab) nameAt(reader *node, id, host string, port int) uint64 {
	l.t.Helper()
	e, err := reader.core.AddPeer(heartbeat.EngineDesc{ID: id}, host, port)
	if err != nil {
		l.t.Fatal(err)
	}
	return e
}

// state is how a reader's steps see an engine.
func (n *node) view(engine uint64) heartbeat.EngineView {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	return n.core.tracker.View(engine)
}

// stat reads a counter.
func (n *node) stat(name string) uint64 {
	switch v := n.core.counters()[name].(type) {
	case uint64:
		return v
	case int:
		return uint64(v)
	case uint32:
		return uint64(v)
	default:
		panic(fmt.Sprintf("counter %s is a %T", name, v))
	}
}

// turn steps engines once, now.
func (l *sideLab) turn(nodes ...*node) {
	l.t.Helper()
	l.set(Now())
	for _, n := range nodes {
		l.stepOne(n)
	}
}

// until steps engines until what holds, at most for 20 s.
func (l *sideLab) until(what string, holds func() bool, nodes ...*node) {
	l.t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		l.turn(nodes...)
		if time.Now().After(end) {
			for _, n := range nodes {
				l.t.Logf("%s: %s", n.core.cfg.EngineID, n.core.Stats())
			}
			l.t.Fatalf("never: %s", what)
		}
	}
}

// eventually looks until what holds, at most for 20 s.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !holds(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// noLeaks looks when all else of the test is over whether goroutines and sockets are back.
func noLeaks(t testing.TB) {
	t.Helper()
	goroutines, open := runtime.NumGoroutine(), sockets(t)
	t.Cleanup(func() {
		back := func() bool { return runtime.NumGoroutine() <= goroutines && sockets(t) <= open }
		for end := time.Now().Add(10 * time.Second); !back(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				stacks := make([]byte, 1<<20)
				t.Fatalf("%d goroutines, were %d, and %d sockets, were %d:\n%s", runtime.NumGoroutine(), goroutines,
					sockets(t), open, stacks[:runtime.Stack(stacks, true)])
			}
		}
	})
}

func sockets(t testing.TB) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// handOver grants a request on p and tracks it on d.
func (l *sideLab) handOver(p, d *node, engine uint64, id string, user uint64) (record.Handle, record.Handle) {
	l.t.Helper()
	l.set(Now())
	l.p, l.d, l.peer = p, d, engine
	lease, remote := l.grant(id, user, blocks(0, 4))
	return lease, l.track(remote, id, user)
}

func TestEnginesMeetOverTheSideChannel(t *testing.T) {
	for _, tc := range []struct{ listens, named string }{
		{"127.0.0.1", "127.0.0.1"}, {"::1", "::1"}, {"[::1]", "[::1]"}, {"localhost", "localhost"},
	} {
		t.Run(tc.named, func(t *testing.T) {
			noLeaks(t)
			l := newSideLab(t)
			l.host = tc.listens
			p, d := l.node("P", `{}`), l.node("D", `{}`)
			engine := l.nameAt(d, "P", tc.named, p.port())
			l.until("P is connected", func() bool { return d.view(engine).State == heartbeat.Connected }, p, d)
			_, track := l.handOver(p, d, engine, "r", 1)
			l.read(track, blocks(8, 4), blocks(0, 4))
			l.until("the read ends", func() bool { return len(d.take(record.EvReadDone)) == 1 }, p, d)
			if n := d.wrong(1, blocks(8, 4)); n != 0 {
				t.Errorf("%d words are wrong", n)
			}
			l.until("the lease ends", func() bool { return len(p.take(record.EvFreed)) == 1 }, p, d)
		})
	}
}

func TestTheFirstBeatLeavesOnTheStepAfterTheHandshake(t *testing.T) {
	l := newSideLab(t)
	p, d := l.node("P", `{}`), l.node("D", `{}`)
	engine, err := d.core.tracker.AddEngine(heartbeat.EngineDesc{ID: "P"})
	if err != nil {
		t.Fatal(err)
	}
	l.handOver(p, d, engine, "r", 1)
	l.turn(p, d)
	l.name(d, p)
	eventually(t, "the maps are fetched", func() bool { return d.stat("side_loads") == 1 })
	l.turn(d)
	if s := d.view(engine).State; s != heartbeat.Connected {
		t.Fatalf("after one step it is %v", s)
	}
	l.turn(d)
	l.turn(p)
	if n := p.stat("beats_applied"); n != 1 { // shows S10.1
		t.Errorf("%d beats were applied after the step that follows", n)
	}
}

func TestWhereWeCannotListenTheErrorSaysWhatToDo(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	for _, tc := range []struct {
		name, host string
		port       int
		want       []string
	}{
		{"a port in use", "127.0.0.1", port, []string{`key "side_channel_port"`, fmt.Sprint(port), "in use", "choose another one"}},
		{"a name without an address", "no-such-host.invalid", 5600, []string{`key "side_channel_host"`, "no-such-host.invalid", "no address"}},
		{"an address of another machine", "192.0.2.1", 5600, []string{`key "side_channel_host"`, "192.0.2.1", "not an address of this machine"}},
		{"an IPv6 address of another machine", "[2001:db8::1]", 5600, []string{`key "side_channel_host"`, "2001:db8::1", "not an address of this machine"}},
		{"all addresses", "0.0.0.0", 5600, []string{`key "side_channel_host"`, "0.0.0.0", "peer could connect"}},
		{"all IPv6 addresses", "::", 5600, []string{`key "side_channel_host"`, "peer could connect"}},
		{"none", "", 5600, []string{`key "side_channel_host"`, "peer could connect"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			noLeaks(t)
			cfg, err := ParseConfig([]byte(`{"transport": "loopback", "side_channel_listen": true}`))
			if err != nil {
				t.Fatal(err)
			}
			cfg.SideChannelHost, cfg.SideChannelPort = tc.host, tc.port
			mem, err := NewMemory(cfg.Sizes())
			if err != nil {
				t.Fatal(err)
			}
			hub := loopback.NewHub()
			_, err = Open(cfg, mem, map[string]OpenTransport{"loopback": Loopback(hub)}, nil)
			if !errors.Is(err, ErrConfig) {
				t.Fatalf("Open = %v", err)
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			cfg.SideChannelHost, cfg.SideChannelPort = "127.0.0.1", 0
			c, err := Open(cfg, mem, map[string]OpenTransport{"loopback": Loopback(hub)}, nil)
			if err != nil {
				t.Fatalf("with another place: %v", err) // the agent of the first attempt is gone
			}
			c.Close(0)
		})
	}
}

func TestARemovedEngineIsNotAskedAnyMore(t *testing.T) {
	noLeaks(t)
	l := newSideLab(t)
	p, d := l.node("P", `{}`), l.node("D", `{}`)
	engine := l.name(d, p)
	l.until("wire and maps are there", func() bool { return p.stat("side_readers_wires") == 1 && d.stat("side_loads") == 1 }, p, d)
	if err := d.core.RemoveEngine(engine); err != nil {
		t.Fatal(err)
	}
	l.until("the wire is gone", func() bool { return p.stat("side_readers_wires") == 0 }, p, d)
	if st := d.core.side.client.Stats(); st.Engines != [handshake.States]int{} || d.stat("side_peers") != 0 {
		t.Errorf("still asked: %+v", st)
	}
	again := l.name(d, p)
	l.until("P is connected anew", func() bool { return d.view(again).State == heartbeat.Connected }, p, d)
}

func TestTwoEnginesThatClaimOneIdAreSeen(t *testing.T) {
	l := newSideLab(t)
	p, q, d := l.node("P", `{}`), l.node("P", `{}`), l.node("D", `{}`)
	engine := l.name(d, p)
	for range 20 {
		l.name(d, p) // the same place again is no move
	}
	var err error
	moves := 0
	for range 10 {
		for _, n := range []*node{q, p} {
			var again uint64
			if again, err = d.core.AddPeer(heartbeat.EngineDesc{ID: "P"}, n.core.cfg.SideChannelHost, n.port()); err != nil {
				break
			}
			if moves++; again != engine {
				t.Fatal("another handle")
			}
		}
		if err != nil {
			break
		}
	}
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "two engines have one id") || moves != movesMax { // shows S25.2
		t.Errorf("after %d moves: %v", moves, err)
	}
	if d.stat("side_claims") != 1 || d.stat("side_moved") != movesMax {
		t.Errorf("%d claims, %d moves", d.stat("side_claims"), d.stat("side_moved"))
	}
	d.wantSaid(t, log.EngineMoved, "P", "")
	d.wantSaid(t, log.EngineClaimed, "P", "")
	l.until("one of them is connected", func() bool { return d.view(engine).State == heartbeat.Connected }, p, q, d)
}

func TestAPlaceOfASideChannelThatCannotBeIsRefused(t *testing.T) {
	l := newSideLab(t)
	d := l.node("D", `{}`)
	for _, tc := range []struct {
		host string
		port int
	}{{"127.0.0.1", 0}, {"127.0.0.1", -1}, {"127.0.0.1", 65536}, {strings.Repeat("x", 2000), 5600}} {
		if _, err := d.core.AddPeer(heartbeat.EngineDesc{ID: "P"}, tc.host, tc.port); !errors.Is(err, ErrInvalid) {
			t.Errorf("%.20s port %d: %v", tc.host, tc.port, err)
		}
	}
	if _, err := d.core.AddPeer(heartbeat.EngineDesc{ID: "P"}, "", 0); err != nil {
		t.Errorf("out of band: %v", err)
	}
}

func TestWhatTheSideChannelDoesInAStepAllocatesNothing(t *testing.T) {
	l := newLab(t, `{}`)
	s := l.d.core.side
	if err := s.Want(l.peer, heartbeat.EngineDesc{ID: "P"}, "127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	now := clock.Instant(time.Hour)
	breaks := uint32(0)
	n := testing.AllocsPerRun(1000, func() {
		now = now.Add(time.Second)
		breaks++
		s.Note(l.peer, heartbeat.EngineView{Breaks: breaks})
		s.look(now, l.d.core.view)
		l.d.core.deaths.put(death{engine: 1, epoch: 2})
		l.d.core.sideStep(now)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
