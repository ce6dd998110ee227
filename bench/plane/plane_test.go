// Package plane times whole steps of the core over the loopback transport: what a part alone does not show.
package plane

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// engine is one core over a hub, on a clock that the benchmark moves.
type engine struct {
	b    *testing.B
	now  clock.Instant
	hub  *loopback.Hub
	core *core.Core
	host *host.Host
}

func open(b *testing.B, hub *loopback.Hub, id, config string) *engine {
	b.Helper()
	e := &engine{b: b, now: clock.Instant(time.Hour), hub: hub}
	cfg, err := core.ParseConfig([]byte(config))
	must(b, err)
	cfg.EngineID, cfg.Transport = id, "loopback"
	mem, err := core.NewMemory(cfg.Sizes())
	must(b, err)
	e.core, err = core.Open(cfg, mem, map[string]core.OpenTransport{"loopback": func(_ *core.Config, agent string) (transport.Transport, error) {
		return hub.New(agent, loopback.Config{NotifBytesMax: 8 << 20})
	}}, func() clock.Instant { return e.now })
	must(b, err)
	b.Cleanup(func() { e.core.Close(0) })
	kv, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(b, err)
	must(b, e.core.Register([]core.Region{{Addr: uint64(uintptr(unsafe.Pointer(&kv[0]))), Bytes: 1 << 20, BlockLen: 4096, BlockStride: 4096, Blocks: 256, Group: -1}}))
	e.host, err = host.New(mem, e.core.Wake)
	must(b, err)
	return e
}

func must(b *testing.B, err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}

func (e *engine) step(d time.Duration) {
	e.now = e.now.Add(d)
	must(e.b, e.core.Step())
}

// requestID has the 50 bytes of an id of an OpenAI-style server, as in the peer's probe.
func requestID(i int) string { return fmt.Sprintf("chatcmpl-%032x-%08x", i, uint32(i)) }

// hold grants n leases.
func (e *engine) hold(n int) []record.Handle {
	leases := make([]record.Handle, n)
	for i := range leases {
		for {
			var err error
			if leases[i], err = e.host.Grant(host.Grant{ID: []byte(requestID(i)), Blocks: 8}, e.now); err == nil {
				break
			}
			e.step(time.Microsecond) // the ring was full
		}
	}
	for range 100 {
		e.step(time.Microsecond)
	}
	if held := e.core.Held(); held != n {
		e.b.Fatalf("%d leases held, want %d", held, n)
	}
	return leases
}

// connect lets e know owner, by the handshake map out of band.
func (e *engine) connect(owner *engine) uint64 {
	m, err := owner.core.OwnHandshake(0)
	must(e.b, err)
	h, err := e.core.AddEngine(heartbeat.EngineDesc{ID: owner.core.Config().EngineID})
	must(e.b, err)
	must(e.b, e.core.Handshake(h, 0, m))
	return h
}

// One stock heartbeat that names 10,000 of the leases in random order, and the step that applies it. An op is one heartbeat.
func BenchmarkHeartbeat10000(b *testing.B) {
	for _, leases := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprintf("leases=%d", leases), func(b *testing.B) {
			p, send := stockReader(b, leases)
			msgs := heartbeats(leases, 10_000)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				send(msgs[i%len(msgs)])
				b.StartTimer()
				must(b, p.core.Step())
			}
			applied(b, p, 10_000)
		})
	}
}

// The same of fewer ids, among 10,000 leases.
func BenchmarkHeartbeat(b *testing.B) {
	for _, ids := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("ids=%d", ids), func(b *testing.B) {
			p, send := stockReader(b, 10_000)
			msgs := heartbeats(10_000, ids)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				send(msgs[i%len(msgs)])
				b.StartTimer()
				must(b, p.core.Step())
			}
			applied(b, p, ids)
		})
	}
}

// A completion of a stock decoder among 10,000 leases: from its message to the event that the blocks are free.
func BenchmarkCompletion(b *testing.B) {
	p, send := stockReader(b, 10_000)
	var evs [8]record.Event
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		id := requestID(i % 10_000)
		send([]byte(id + ":1"))
		b.StartTimer()
		must(b, p.core.Step())
		n := p.host.Poll(evs[:], p.now)
		b.StopTimer()
		if n != 1 || evs[0].Kind != record.EvFreed {
			b.Fatalf("%d events behind the completion of %s: %+v", n, id, evs[0])
		}
		_, err := p.host.Grant(host.Grant{ID: []byte(id), Blocks: 8}, p.now)
		must(b, err)
		p.step(time.Millisecond)
		b.StartTimer()
	}
}

// stockReader is P with leases, and what sends it a message of vLLM's agent and lets a millisecond pass.
func stockReader(b *testing.B, leases int) (p *engine, send func(msg []byte)) {
	b.Helper()
	hub := loopback.NewHub()
	p = open(b, hub, "P", fmt.Sprintf(`{"requests_max":%d,"kv_lease_duration":3600}`, leases))
	p.hold(leases)
	m, err := p.core.OwnHandshake(0)
	must(b, err)
	var h wire.Handshake
	must(b, wire.ParseHandshake(m, &h))
	d, err := hub.New("vllm-agent", loopback.Config{NotifBytesMax: 8 << 20})
	must(b, err)
	peer, err := d.Load(h.AgentMetadata)
	must(b, err)
	return p, func(msg []byte) {
		must(b, d.Send(peer, msg))
		p.now = p.now.Add(time.Millisecond)
	}
}

// applied checks that each message was, with all its ids.
func applied(b *testing.B, p *engine, ids int) {
	b.Helper()
	var stats struct {
		NotifsReceived int `json:"notifs_received"`
		BeatsApplied   int `json:"beats_applied"`
	}
	must(b, json.Unmarshal(p.core.Stats(), &stats))
	if stats.NotifsReceived != b.N || stats.BeatsApplied != ids*b.N {
		b.Fatalf("%d of %d messages received, %d beats applied", stats.NotifsReceived, b.N, stats.BeatsApplied)
	}
}

// Messages of a stock decoder, each for n different leases in random order. They are made before: what making one throws away would
// be collected, and what it touches would take the caches from the step that is timed.
func heartbeats(leases, n int) [][]byte {
	rng := rand.New(rand.NewPCG(1, 2))
	msgs := make([][]byte, 16)
	for i := range msgs {
		msgs[i] = append(msgs[i], "HB:"...)
		for j, lease := range rng.Perm(leases)[:n] {
			if j > 0 {
				msgs[i] = append(msgs[i], ',')
			}
			msgs[i] = append(msgs[i], requestID(lease)...)
		}
	}
	return msgs
}

// The step of an engine that holds and tracks 10,000 requests each and waits for one handshake, when nothing is due.
func BenchmarkIdleStep(b *testing.B) {
	d := idle(b)
	b.ReportAllocs()
	for b.Loop() {
		d.now = d.now.Add(time.Microsecond)
		must(b, d.core.Step())
	}
}

// The same with trace sites to which nobody is attached and without any, in turn.
func BenchmarkIdleStepSites(b *testing.B) {
	none := idle(b)
	trace.SetProcess(trace.New(new(trace.Words), nil))
	there := idle(b)
	trace.SetProcess(nil)
	var spent [2][]float64 // ns a step, of each stretch
	const stretch = 500
	for i := 0; b.Loop(); i++ {
		if i%stretch != 0 {
			continue
		}
		for k := range 2 {
			at := (i/stretch + k) % 2
			d := [2]*engine{none, there}[at]
			from := time.Now()
			for range stretch {
				d.step(time.Microsecond)
			}
			spent[at] = append(spent[at], float64(time.Since(from))/stretch)
		}
	}
	for k, unit := range [2]string{"none-ns/op", "there-ns/op"} {
		slices.Sort(spent[k])
		b.ReportMetric(spent[k][len(spent[k])/2], unit)
	}
}

// idle is an engine that holds and tracks 10,000 requests each and waits for one handshake.
func idle(b *testing.B) *engine {
	b.Helper()
	const n = 10_000
	hub := loopback.NewHub()
	config := `{"kv_lease_duration":3600}`
	p, d := open(b, hub, "P", config), open(b, hub, "D", config)
	leases := p.hold(n)
	d.hold(n)
	known := d.connect(p)
	pending, err := d.core.AddEngine(heartbeat.EngineDesc{ID: "pending"})
	must(b, err)
	track := func(engine uint64, i int) {
		r := host.Remote{ID: []byte(requestID(i)), Native: true, Epoch: p.core.Memory().Epoch, Key: p.host.Key(leases[i]), Slot: leases[i].Slot(), Generation: leases[i].Use()}
		for {
			if _, err := d.host.Track(engine, &r, []byte("local"), 0, d.now); err == nil {
				return
			}
			d.step(time.Microsecond)
		}
	}
	for i := range n {
		track(known, i)
	}
	track(pending, 0)
	for range 2000 {
		p.step(time.Millisecond)
		d.step(time.Millisecond)
	}
	return d
}
