package core

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/internal/await"
)

// greeting is ZMTP's up to READY, as a ROUTER or REQ says it.
func greeting(socket string) []byte {
	g := make([]byte, 64)
	g[0], g[9], g[10] = 0xff, 0x7f, 3
	copy(g[12:], "NULL")
	body := append([]byte("\x05READY\x0bSocket-Type"), 0, 0, 0, byte(len(socket)))
	body = append(body, socket...)
	return append(append(g, 4, byte(len(body))), body...)
}

// message frames the parts of a reply after an empty envelope.
func message(parts ...[]byte) []byte {
	out := []byte{1, 0}
	for i, p := range parts {
		flags := byte(2)
		if i < len(parts)-1 {
			flags |= 1
		}
		out = binary.BigEndian.AppendUint64(append(out, flags), uint64(len(p)))
		out = append(out, p...)
	}
	return out
}

// hostiles are listeners that an engine may be told to ask.
var hostiles = []struct {
	name  string
	serve func(c net.Conn)
}{
	{"silent", func(c net.Conn) { io.Copy(io.Discard, c) }},
	{"closes at once", func(net.Conn) {}},
	{"speaks HTTP", func(c net.Conn) { c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) }},
	{"greets and stands still", func(c net.Conn) { c.Write(greeting("ROUTER")); io.Copy(io.Discard, c) }},
	{"claims 2^62 bytes: the 73-byte killer", func(c net.Conn) {
		c.Write(append(greeting("ROUTER"), 2, 0x40, 0, 0, 0, 0, 0, 0, 0))
		io.Copy(io.Discard, c)
	}},
	{"nests msgpack without end", func(c net.Conn) {
		nested := make([]byte, 1<<16)
		for i := range nested {
			nested[i] = 0x91
		}
		c.Write(append(greeting("ROUTER"), message(nested, wire.AppendStamp(nil, 1))...))
		io.Copy(io.Discard, c)
	}},
	{"claims four billion elements in 26 bytes", func(c net.Conn) {
		c.Write(append(greeting("ROUTER"), message([]byte{0xdf, 0xff, 0xff, 0xff, 0xff}, wire.AppendStamp(nil, 1))...))
		io.Copy(io.Discard, c)
	}},
	{"half a message", func(c net.Conn) {
		m := message(wire.AppendPayload(nil, "", stockMap("X")), wire.AppendStamp(nil, 1))
		c.Write(append(greeting("ROUTER"), m[:len(m)/2]...))
		io.Copy(io.Discard, c)
	}},
	{"a byte a second", func(c net.Conn) {
		for _, b := range greeting("ROUTER") {
			if _, err := c.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	}},
	{"another engine", func(c net.Conn) {
		c.Write(append(greeting("ROUTER"), message(wire.AppendPayload(nil, "", stockMap("somebody")), wire.AppendStamp(nil, 1))...))
		io.Copy(io.Discard, c)
	}},
	{"a metadata blob that is none", func(c net.Conn) {
		c.Write(append(greeting("ROUTER"), message(wire.AppendPayload(nil, "", stockMap("hostile 10")), wire.AppendStamp(nil, 1))...))
		io.Copy(io.Discard, c)
	}},
	{"only one frame", func(c net.Conn) {
		c.Write(append(greeting("ROUTER"), message(wire.AppendPayload(nil, "", stockMap("X")))...))
		io.Copy(io.Discard, c)
	}},
	{"a flood of commands", func(c net.Conn) {
		c.Write(greeting("ROUTER"))
		ping := append([]byte{4, 7, 4}, "PING\x00\x00"...)
		for {
			if _, err := c.Write(ping); err != nil {
				return
			}
		}
	}},
}

// hostileAt listens and serves until the test ends.
func hostileAt(t testing.TB, serve func(net.Conn)) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	closed := false
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			if closed {
				c.Close()
			}
			mu.Unlock()
			running.Go(func() {
				serve(c)
				c.Close()
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		closed = true
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return l.Addr().(*net.TCPAddr).Port
}

// beats follows how many beats P has applied, and the longest time without one. What this machine withheld from the loop that
// steps is no delay of a peer's making.
type beats struct {
	stop     chan struct{}
	done     sync.WaitGroup
	n        uint64
	longest  time.Duration
	withheld time.Duration // the longest time between two turns of the loop, steps left out
	step     time.Duration // the longest turn of steps
}

func (n *node) beatsApplied() uint64 {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	return n.core.plane.Counters.BeatsApplied
}

// watchBeats steps both engines on a goroutine of its own, every few milliseconds, as their loops would.
func (l *sideLab) watchBeats(p *node, others ...*node) *beats {
	b := &beats{stop: make(chan struct{})}
	b.done.Go(func() {
		last, seen := time.Now(), p.beatsApplied()
		turned := time.Now()
		for {
			select {
			case <-b.stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			b.withheld = max(b.withheld, time.Since(turned))
			stepped := time.Now()
			for _, n := range append([]*node{p}, others...) {
				if err := n.core.Step(); err != nil {
					l.t.Error(err)
					return
				}
			}
			turned = time.Now()
			b.step = max(b.step, turned.Sub(stepped))
			if now := p.beatsApplied(); now != seen {
				b.n += now - seen
				b.longest = max(b.longest, time.Since(last))
				last, seen = time.Now(), now
			}
		}
	})
	return b
}

// end holds how regularly P was beaten against the interval.
func (b *beats) end(t *testing.T, interval time.Duration, least uint64) {
	t.Helper()
	close(b.stop)
	b.done.Wait()
	t.Logf("%d beats to P, at most %v apart (interval %v); steps took up to %v, and up to %v between them", b.n, b.longest, interval, b.step, b.withheld)
	if b.longest > interval+interval/2+2*(b.step+b.withheld) || b.n < least { // sent in one turn, applied in the next
		t.Errorf("%d beats, at most %v apart, interval %v", b.n, b.longest, interval)
	}
}

func TestDeadSlowAndHostilePeersDelayNobody(t *testing.T) {
	noLeaks(t)
	l := newSideLab(t)
	p, q, d := l.node("P", shortLease+`}`), l.node("Q", shortLease+`}`), l.node("D", shortLease+`}`)
	engine := l.name(d, p)
	l.until("P is connected", func() bool { return d.view(engine).State == heartbeat.Connected }, p, d)
	lease, _ := l.handOver(p, d, engine, "r", 1)
	refused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused.Close()
	b := l.watchBeats(p, q, d)
	var bad []uint64
	for i := range 4 * len(hostiles) {
		h := hostiles[i%len(hostiles)]
		bad = append(bad, l.nameAt(d, fmt.Sprintf("hostile %d", i), "127.0.0.1", hostileAt(t, h.serve)))
	}
	for i := range 20 {
		bad = append(bad, l.nameAt(d, fmt.Sprintf("dead %d", i), "127.0.0.1", refused.Addr().(*net.TCPAddr).Port))
		bad = append(bad, l.nameAt(d, fmt.Sprintf("far %d", i), "192.0.2.1", 5600)) // nobody answers there, or the network says no
	}
	began, ran := time.Now(), await.Stopwatch(t)
	live := l.name(d, q)
	eventually(t, "a live engine behind them is connected", func() bool { return d.view(live).State == heartbeat.Connected })
	met := ran()
	time.Sleep(time.Until(began.Add(4 * time.Second))) // they are asked again and again meanwhile
	b.end(t, d.core.cfg.Interval(), 12)
	t.Logf("Q was connected after %v", met)
	if met > 3*time.Second { // shows S24.1
		t.Errorf("a live engine was connected after %v", met)
	}
	if got := p.take(record.EvFreed); len(got) != 0 || p.core.Held() != 1 {
		t.Errorf("lease %x has ended: %+v", lease, got)
	}
	for _, e := range bad {
		if s := d.view(e).State; s == heartbeat.Connected {
			t.Errorf("hostile engine %x is connected", e)
		}
	}
	if d.stat("side_wrong_engine") == 0 {
		t.Error("nobody was found to be another engine")
	}
}

// crowd bounds a number of connections by what this machine gives, with both ends in this process.
func crowd(t testing.TB, n int) int {
	t.Helper()
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		t.Fatal(err)
	}
	most := int(min(r.Cur, 1<<20))/2 - 500
	if most < n {
		t.Logf("%d descriptors allow %d connections at once, not %d", r.Cur, most, n)
	}
	return min(n, most)
}

func TestTenThousandConnectionsToTheListenerDelayNobody(t *testing.T) {
	noLeaks(t)
	l := newSideLab(t)
	p, d := l.node("P", shortLease+`}`), l.node("D", shortLease+`}`)
	engine := l.name(d, p)
	l.until("P is connected", func() bool { return d.view(engine).State == heartbeat.Connected }, p, d)
	l.handOver(p, d, engine, "r", 1)
	b := l.watchBeats(p, d)
	addr, err := sideAddr(l.host, p.port())
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const all = 10_000
	says := [][]byte{
		nil, {'K'}, []byte("KVLW"), greeting("REQ")[:1], greeting("REQ")[:40], greeting("REQ"), []byte("GET / HTTP/1.1\r\n"),
		append(greeting("REQ"), 2, 0x40, 0, 0, 0, 0, 0, 0, 0),
		append(greeting("DEALER"), message([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})...),
		append(greeting("DEALER"), message(wire.AppendRequest(nil, 7, 7))...), // a rank that there is not
		append(greeting("DEALER"), message(wire.AppendRequest(nil, 0, 0))[:7]...),
	}
	kept := make(chan net.Conn, crowd(t, all))
	var opening sync.WaitGroup
	turns := make(chan struct{}, 64)
	for i := range all {
		turns <- struct{}{}
		opening.Go(func() {
			defer func() { <-turns }()
			c, err := net.DialTimeout("tcp", addr, 10*time.Second)
			if err != nil {
				return
			}
			c.Write(says[i%len(says)])
			select {
			case kept <- c:
			default:
				c.Close()
			}
		})
	}
	opening.Wait()
	t.Logf("%d of %d connections are kept open by their makers", len(kept), all)
	began := time.Now()
	if _, err := fetch(t, p); err != nil {
		t.Errorf("a handshake among them: %v", err)
	}
	t.Logf("a handshake among them took %v", time.Since(began))
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
		t.Errorf("%d MiB of heap", grown>>20)
	}
	b.end(t, d.core.cfg.Interval(), 1)
	if p.core.Held() != 1 {
		t.Error("the lease has ended")
	}
	close(kept)
	for c := range kept {
		c.Close()
	}
	if st := p.core.side.server.Stats(); st.Wire.Panics != 0 || st.Wire.Open > 64 {
		t.Errorf("%+v", st)
	}
}
