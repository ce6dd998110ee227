package core

import (
	"fmt"
	"net"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/deathwire"
	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/dataplane/zmtp"
)

// Each kind that a context says of itself, or of messages, comes from its cause.
func TestWhatGoesWrongInAContextIsSaid(t *testing.T) {
	send := func(t *testing.T, l *lab, msg []byte) {
		t.Helper()
		a, peer := third(t, l)
		if err := a.Send(peer, msg); err != nil {
			t.Fatal(err)
		}
		l.step(time.Millisecond)
	}
	step := func(l *lab, span, pass time.Duration) { // a host that does not poll
		for end := l.now.Add(span); l.now < end; {
			l.advance(pass)
			l.p.core.Step()
		}
	}
	renew := native(wire.Renew, 9, 0, 0, 0, 1)
	for _, tc := range []struct {
		kind   log.Kind
		config string
		engine string
		edit   func(*Config)
		do     func(t *testing.T, l *lab)
	}{
		{kind: log.MessageMalformed, engine: "third", do: func(t *testing.T, l *lab) { send(t, l, []byte("req-1")) }},
		{kind: log.MessageUnknown, engine: "third", do: func(t *testing.T, l *lab) { send(t, l, append([]byte{renew[0], renew[1], 2}, renew[3:]...)) }},
		{kind: log.PushRegistration, engine: "third", do: func(t *testing.T, l *lab) { send(t, l, []byte("PUSH_REG:\x80")) }},
		{kind: log.StockIgnored, config: `{"stock_peers":false}`, engine: "third", do: func(t *testing.T, l *lab) { send(t, l, []byte("HB:a")) }},
		{kind: log.KeyWrong, engine: "#0000000000000abc", do: func(t *testing.T, l *lab) {
			l.grant("req-1", 7, blocks(0, 8))
			send(t, l, renew)
		}},
		{kind: log.MessagesTooLong, config: `{"parse_max":1048576}`, do: func(t *testing.T, l *lab) {
			send(t, l, make([]byte, 1<<20+8192))
			l.run(2*time.Second, 100*time.Millisecond)
		}},
		{kind: log.SubmissionsBad, do: func(t *testing.T, l *lab) {
			l.p.core.leases.Expect(record.NewHandle(1<<30, 0), []byte("a"), l.now)
			l.run(2*time.Second, 100*time.Millisecond)
		}},
		{kind: log.EventsWait, config: `{"events_max":64}`, do: func(t *testing.T, l *lab) {
			for i := range 1000 {
				if _, err := l.p.host.Grant(host.Grant{ID: fmt.Append(nil, i), Blocks: 1}, l.now); err != nil {
					t.Fatal(err)
				}
			}
			step(l, 50*time.Second, 100*time.Millisecond)
		}},
		{kind: log.LeasesFull, config: `{"requests_max":4}`, do: func(t *testing.T, l *lab) {
			for i := range 4 {
				l.grant(fmt.Sprint(i), 7, blocks(0, 1))
			}
			l.step(time.Millisecond)
		}},
		{kind: log.Draining, do: func(t *testing.T, l *lab) { l.p.core.Drain(0) }},
		{kind: log.PageMissing, edit: func(c *Config) { c.StatsPage = "/nowhere" }, do: func(*testing.T, *lab) {}},
		{kind: log.Fenced, do: func(_ *testing.T, l *lab) { atomic.StoreUint32(&l.p.core.mem.Control.Poisoned, 1) }}, // as kvl_fence_all does
		{kind: log.HeartbeatsMuted, do: func(_ *testing.T, l *lab) {
			c := l.p.core
			c.mu.Lock()
			defer c.mu.Unlock()
			atomic.StoreUint64(&c.mem.Control.PassNs, uint64(l.now))
			c.cover(l.now.Add(c.cfg.StallCover + time.Second))
		}},
		{kind: log.CollectionLong, do: func(t *testing.T, l *lab) {
			everyCollectionIsLong(t)
			runtime.GC()
		}},
	} {
		t.Run(log.Defs[tc.kind].Name, func(t *testing.T) {
			l := &lab{t: t, now: clock.Instant(time.Hour), hub: loopback.NewHub(), size: loopbackConfig, edit: tc.edit}
			if tc.config == "" {
				tc.config = `{}`
			}
			l.p, l.d = l.node("P", tc.config), l.node("D", `{}`)
			l.peer = l.connect(l.d, l.p)
			tc.do(t, l)
			l.p.core.log.beside.at = time.Time{} // look at once
			l.p.wantSaid(t, tc.kind, tc.engine, "")
		})
	}
}

// everyCollectionIsLong makes each collection worth a line, the first one from here on at once.
func everyCollectionIsLong(t *testing.T) {
	before := collectionLong
	t.Cleanup(func() { collectionLong = before })
	collectionLong = 1
	paceCollections(log.Pace{})
}

// paceCollections says how lines about collections stand: those of the process before a test count, too.
func paceCollections(p log.Pace) {
	collections.Lock()
	defer collections.Unlock()
	collections.pace = p
}

func TestACollectionIsSaidByOneContextOfTheProcess(t *testing.T) {
	percent := debug.SetGCPercent(-1) // none but ours
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	l := newLab(t, `{}`)
	errors := l.node("E", `{}`)
	errors.core.cfg.LogLevel = "error" // it would not show it
	everyCollectionIsLong(t)
	for n := 1; n <= 2; n++ {
		runtime.GC()
		paceCollections(log.Pace{})
		lines := map[*node]int{}
		for _, c := range []*node{errors, l.p, l.d} {
			c.core.log.beside.at = time.Time{} // look at once
			lines[c] = len(c.said(t, log.CollectionLong))
		}
		if lines[errors] != 0 || lines[l.p]+lines[l.d] != n {
			t.Errorf("%d and %d lines after %d collections, %d where only errors are shown", lines[l.p], lines[l.d], n, lines[errors])
		}
	}
	said := func() int {
		for _, c := range []*node{l.p, l.d} {
			c.core.log.beside.at = time.Time{}
			c.said(t, log.CollectionLong)
		}
		return len(l.p.said(t, log.CollectionLong)) + len(l.d.said(t, log.CollectionLong))
	}
	var soon log.Pace
	soon.Due(Now()) // as if a line had come just now
	paceCollections(soon)
	runtime.GC()
	if n := said(); n != 2 {
		t.Errorf("%d lines: another one comes at once", n)
	}
	paceCollections(log.Pace{})
	if n := said(); n != 3 {
		t.Errorf("%d lines, want one more for what had to wait", n)
	}
}

func TestWhatGoesWrongForAReadersContextIsSaid(t *testing.T) {
	t.Run("tracks_full", func(t *testing.T) {
		l := newLab(t, `{"tracked_max":2}`)
		for i := range 2 {
			_, remote := l.grant(fmt.Sprint(i), 7, blocks(0, 1))
			l.track(remote, "d", 1)
		}
		l.step(time.Millisecond)
		l.d.wantSaid(t, log.TracksFull, "", "")
	})
	t.Run("runs_full", func(t *testing.T) {
		l := newLab(t, `{"read_runs_max":1024}`)
		e, err := l.d.core.AddEngine(heartbeat.EngineDesc{ID: "elsewhere"})
		if err != nil {
			t.Fatal(err)
		}
		_, remote := l.grant("a", 7, blocks(0, 1))
		l.peer = e
		track := l.track(remote, "d", 1)
		if err := l.d.host.Read(track, make([]record.Run, 9000)); err != nil {
			t.Fatal(err)
		}
		l.run(2*time.Second, 100*time.Millisecond)
		l.d.wantSaid(t, log.RunsFull, "", "")
	})
	t.Run("transfers_fail_here", func(t *testing.T) {
		l := newLab(t, `{}`)
		_, remote := l.grant("a", 7, blocks(3, 4))
		track := l.track(remote, "d", 1)
		l.run(time.Second, 100*time.Millisecond)
		agent(t, l.d).FailNext(loopback.OpPostRead, transport.ErrInvalid)
		l.read(track, blocks(8, 4), blocks(3, 4))
		l.run(3*time.Second, 100*time.Millisecond)
		l.d.wantSaid(t, log.TransfersFailHere, "", "")
	})
	t.Run("blocks_stuck", func(t *testing.T) {
		l := newLab(t, `{"read_timeout":5}`)
		_, remote := l.grant("a", 7, blocks(3, 4))
		track := l.track(remote, "d", 1)
		l.run(time.Second, 100*time.Millisecond)
		agent(t, l.d).HoldReads(true)
		l.read(track, blocks(8, 4), blocks(3, 4))
		l.run(30*time.Second, 100*time.Millisecond)
		if said := l.d.said(t, log.BlocksStuck); len(said) != 0 {
			t.Errorf("said after 25 s: %+v", said)
		}
		l.run(90*time.Second, 100*time.Millisecond)
		if said := l.d.said(t, log.BlocksStuck); len(said) == 0 || said[0].Values["reads"] != 1 {
			t.Errorf("of one read is said %+v", said)
		}
		l.d.wantSaid(t, log.BlocksAside, "P", "a")
	})
}

// The line of a broken core has the panic's text and its place.
func TestAPanicIsSaidWithItsTextAndPlace(t *testing.T) {
	l := newLab(t, `{}`)
	bad := &faulty{Transport: l.p.core.tr, broken: true}
	l.p.core.plane.WrapTransport(bad)
	l.p.core.Step()
	said := l.p.said(t, log.Poisoned)
	if len(said) != 1 || said[0].Level != "error" || !strings.Contains(said[0].What, "index out of range [0] with length 0 at poison_test.go:") {
		t.Errorf("said: %+v", said)
	}
	if len(l.p.said(t, log.Fenced)) != 0 {
		t.Error("it counts as fenced by its host, too")
	}
}

func TestWhatGoesWrongWithAPumpIsSaid(t *testing.T) {
	l := newRealPumped(t, `{}`)
	c := l.p.core
	until(t, "a turn", func() bool { return c.Pump().Turns > 0 })
	c.mu.Lock()
	c.pump.slept(Now().Add(time.Second), time.Millisecond, false)
	c.mu.Unlock()
	until(t, "that it overslept is said", func() bool { return len(l.p.said(t, log.PumpOverslept)) > 0 })
	if first := l.p.said(t, log.PumpOverslept)[0]; first.Values["times"] == 0 || first.Values["late_ns"] < uint64(900*time.Millisecond) {
		t.Errorf("said: %+v", first)
	}

	done := make(chan error)
	go func() { // a thread that may not: it ends with the goroutine
		runtime.LockOSThread()
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		err := unix.Capget(&head, &caps[0])
		if err == nil {
			caps[0].Effective &^= 1 << unix.CAP_SYS_NICE
			err = unix.Capset(&head, &caps[0])
		}
		c.cfg.PumpPriority = "rr"
		(&pump{core: c}).prioritize()
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	l.p.wantSaid(t, log.PriorityOff, "", "")
}

func TestWhatGoesWrongAtTheSideChannelIsSaid(t *testing.T) {
	dial := func(t *testing.T, p *node, says []byte) net.Conn {
		t.Helper()
		addr, _ := sideAddr("127.0.0.1", p.port())
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := c.Write(says); err != nil {
			t.Fatal(err)
		}
		return c
	}
	hello := func(n byte) []byte {
		f := deathwire.Frame{Kind: deathwire.Hello, Engine: uint64(n), Epoch: 1, Nonce: [16]byte{n}}
		return f.Append(nil)
	}
	for _, tc := range []struct {
		kind   log.Kind
		engine string
		config string
		do     func(t *testing.T, l *sideLab, p *node)
	}{
		{kind: log.HandshakeFailing, engine: "gone", do: func(t *testing.T, l *sideLab, p *node) {
			l.nameAt(p, "gone", "127.0.0.1", 1) // nobody listens there
		}},
		{kind: log.SideMalformed, do: func(t *testing.T, _ *sideLab, p *node) {
			dial(t, p, []byte("GET /metrics HTTP/1.1\r\nHost: an.engine:5600\r\n\r\n"))
		}},
		{kind: log.SideUnregistered, do: func(t *testing.T, l *sideLab, p *node) {
			if err := p.core.Unregister(); err != nil {
				t.Fatal(err)
			}
			d := l.node("D", `{}`)
			l.name(d, p)
			eventually(t, "it is asked", func() bool { return p.stat("side_server_unregistered") > 0 })
			eventually(t, "who asks says what is missing", func() bool {
				failing := d.said(t, log.HandshakeFailing)
				return len(failing) > 0 && strings.Contains(failing[0].What, handshake.Unregistered)
			})
			if said := append(p.said(t, log.SideMalformed), p.said(t, log.SideUnknownRank)...); len(said) != 0 || p.stat("side_server_unknown") != 0 {
				t.Errorf("malformed or unknown: %+v", said)
			}
		}},
		{kind: log.SideUnknownRank, do: func(t *testing.T, _ *sideLab, p *node) {
			addr, _ := sideAddr("127.0.0.1", p.port())
			if _, _, err := (zmtp.Client{}).Request(t.Context(), addr, wire.AppendRequest(nil, 0, 1)); err == nil {
				t.Error("rank 1 of 1 has a map")
			}
			if n := p.stat("side_server_unregistered"); n != 0 {
				t.Errorf("%d count as not registered yet", n)
			}
		}},
		{kind: log.SideRefused, do: func(t *testing.T, _ *sideLab, p *node) {
			for i := range uint64(300) { // more than may owe their hello
				dial(t, p, hello(1)[:8])
				eventually(t, "it is asked for the rest", func() bool {
					var now sideStats
					now.read(p.core.side)
					return now.wire.Others == i+1
				})
			}
		}},
		{kind: log.SideRefused, do: func(t *testing.T, _ *sideLab, p *node) {
			for range 300 { // more than may say nothing at all
				dial(t, p, nil)
			}
		}},
		{kind: log.ReaderWiresFull, config: `{"death_wires_max":1}`, do: func(t *testing.T, _ *sideLab, p *node) {
			p.core.side.Heard(1, 1, [16]byte{1})
			dial(t, p, hello(1))
			eventually(t, "it is kept", func() bool { return p.stat("side_readers_wires") == 1 })
			dial(t, p, hello(2))
		}},
		{kind: log.WireDisputed, do: func(t *testing.T, _ *sideLab, p *node) {
			p.core.side.Heard(1, 1, [16]byte{1})
			p.core.side.Heard(1, 1, [16]byte{2})
		}},
		{kind: log.ClockJumped, do: func(t *testing.T, _ *sideLab, p *node) {
			p.core.side.watch.jump.Seen(Now().Add(-time.Second), int64(monotonic())) // the host slept for a second since
			p.core.side.keepClocks()
		}},
		{kind: log.SidePanic, do: func(t *testing.T, _ *sideLab, p *node) {
			dial(t, p, append(greeting("REQ"), message(wire.AppendRequest(nil, 0, 0))...))
		}},
		{kind: log.SideNoDescriptors, do: func(t *testing.T, _ *sideLab, p *node) {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) // ours is there before there are none
			if err != nil {
				t.Fatal(err)
			}
			var was unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
				t.Fatal(err)
			}
			none := was
			none.Cur = 0
			t.Cleanup(func() { unix.Setrlimit(unix.RLIMIT_NOFILE, &was); unix.Close(fd) })
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
				t.Fatal(err)
			}
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: p.port(), Addr: [4]byte{127, 0, 0, 1}}); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(log.Defs[tc.kind].Name, func(t *testing.T) {
			if tc.kind == log.SidePanic {
				t.Cleanup(func() { serverClock = monotonic })
				serverClock = func() clock.RemoteInstant { panic("a fault of ours") }
			}
			l := newSideLab(t)
			if tc.config == "" {
				tc.config = `{}`
			}
			p := l.node("P", tc.config)
			tc.do(t, l, p)
			eventually(t, "it is said", func() bool {
				p.core.log.beside.at = time.Time{}
				return len(p.said(t, tc.kind)) > 0
			})
			p.wantSaid(t, tc.kind, tc.engine, "")
		})
	}
}

// What a step pays in which nothing goes wrong.
func BenchmarkStepThatSaysNothing(b *testing.B) {
	l := newLab(b, `{}`)
	c := l.p.core
	b.ReportAllocs()
	for b.Loop() {
		c.log.stepped(c.now)
	}
}
