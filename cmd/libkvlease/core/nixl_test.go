package main

import (
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cnixl"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/internal/require"
)

const (
	kvBlocks   = 64
	kvBlockLen = 4096
)

// side is one engine over real NIXL in this process.
type side struct {
	core *core.Core
	host *host.Host
	kv   []byte
}

func openSide(t *testing.T, id, drive string) *side {
	t.Helper()
	s := openUnregistered(t, id, drive)
	if err := s.core.Register([]core.Region{s.region()}); err != nil {
		t.Fatal(err)
	}
	return s
}

// region is the side's cache.
func (s *side) region() core.Region {
	return core.Region{
		Addr: record.Addr(s.kv), Bytes: kvBlocks * kvBlockLen, BlockLen: kvBlockLen, BlockStride: kvBlockLen, Blocks: kvBlocks, Group: -1, Name: "layer.0",
	}
}

func openUnregistered(t *testing.T, id, drive string) *side {
	t.Helper()
	cfg, err := core.ParseConfig([]byte(`{"engine_id":"` + id + `","drive":"` + drive + `","log":"host","log_level":"info","requests_max":4096,"tracked_max":4096,"engines_max":16}`))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := core.NewMemory(cfg.Sizes())
	if err != nil {
		t.Fatal(err)
	}
	open := map[string]core.OpenTransport{"nixl": func(cfg *core.Config, agent string) (transport.Transport, error) {
		return cnixl.Open(cnixl.Config{Folders: []string{"../../.."}, Agent: agent, PeersMax: cfg.EnginesMax, ReadsMax: 1 << 13, Settings: cfg.Settings})
	}}
	c, err := core.Open(cfg, mem, open, nil)
	if errors.Is(err, core.ErrUnavailable) {
		require.Skip(t, "nixl", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	kv, err := unix.Mmap(-1, 0, kvBlocks*kvBlockLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.New(mem, c.Wake)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(5 * time.Second); err != nil {
			t.Errorf("close %s: %v", id, err)
		}
	})
	return &side{core: c, host: h, kv: kv}
}

// It costs an agent, 50 ms and a connection, and takes nothing that is left behind.
func TestMemoryIsReadBackOverRealNIXLBeforePeersAreToldOfIt(t *testing.T) {
	s := openSide(t, "proof", "pump")
	read := func() (proven, unproven string, took time.Duration) {
		for { // ends with the test's time
			lines, _ := s.core.Log(1 << 16)
			for line := range strings.Lines(string(lines)) {
				var l log.Line
				if err := json.Unmarshal([]byte(line), &l); err != nil {
					t.Fatal(err)
				}
				switch l.Kind {
				case log.Defs[log.MemoryProven].Name:
					return l.What, "", time.Duration(l.Values["took_ns"])
				case log.Defs[log.MemoryUnproven].Name:
					return "", l.What, 0
				}
			}
		}
	}
	for era := range 3 {
		proven, unproven, took := read()
		if !strings.Contains(proven, "each of 1 region over UCX past shared memory") {
			t.Fatalf("era %d: %q, %q", era, proven, unproven)
		}
		t.Logf("shown in %v", took)
		if err := s.core.Unregister(); err != nil {
			t.Fatal(err)
		}
		if err := s.core.Register([]core.Region{s.region()}); err != nil {
			t.Fatal(err)
		}
	}
}

// advised are devices whose memory cannot be held, and which say what the agent should be told.
type advised struct{}

var errNotHeld = errors.New("it cannot be held")

func (advised) Hold([]core.Region) (core.Held, error) { return nil, errNotHeld }

func (advised) Advise([]core.Region) []core.Setting {
	return []core.Setting{{Setting: transport.Setting{Name: "UCX_NET_DEVICES", Value: "^none0:1,none1:1"}, Reason: "a test says so"}}
}

func TestARealAgentIsMadeAnewForWhatItIsToldAndReads(t *testing.T) {
	p, d := openSide(t, "P", "pump"), openUnregistered(t, "D", "pump")
	d.core.UseDevices(func() (core.Devices, error) { return advised{}, nil })
	gpu := d.region()
	gpu.Mem = transport.VRAM
	if err := d.core.Register([]core.Region{gpu}); !errors.Is(err, errNotHeld) || len(d.core.Config().Settings) != 1 {
		t.Fatalf("%v, told %q", err, d.core.Config().Settings)
	}
	if err := d.core.Register([]core.Region{d.region()}); err != nil || len(d.core.Config().Settings) != 0 { // host memory asks for nothing: another agent again
		t.Fatalf("%v, told %q", err, d.core.Config().Settings)
	}
	engine := d.meet(t, p)
	for i := range p.kv {
		p.kv[i] = byte(i/kvBlockLen + 1)
	}
	lease, err := p.host.Grant(host.Grant{ID: []byte("r"), Blocks: 8}, core.Now())
	if err != nil {
		t.Fatal(err)
	}
	track, err := d.host.Track(engine, &host.Remote{
		ID: []byte("r"), Native: true, Epoch: p.core.Memory().Epoch, Key: p.host.Key(lease), Slot: lease.Slot(), Generation: lease.Use(),
	}, []byte("r"), 1, core.Now())
	if err == nil {
		err = d.host.Read(track, []record.Run{{Local: 40, Remote: 3, N: 8}})
	}
	if err != nil {
		t.Fatal(err)
	}
	var buf [64]record.Event
	for done := 0; done == 0; time.Sleep(time.Millisecond) { // ends with the test's time
		done = d.poll(buf[:], record.EvReadDone)
	}
	for i := range 8 {
		if got := d.kv[(40+i)*kvBlockLen]; got != byte(3+i+1) {
			t.Errorf("block %d has %d, want %d", 40+i, got, 3+i+1)
		}
	}
}

// meet gives s the handshake of p.
func (s *side) meet(t *testing.T, p *side) uint64 {
	t.Helper()
	m, err := p.core.OwnHandshake(0)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := s.core.AddEngine(heartbeat.EngineDesc{ID: "P"})
	if err == nil {
		err = s.core.Handshake(engine, 0, m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

func (s *side) poll(buf []record.Event, kind uint16) int {
	n := 0
	for _, e := range buf[:s.host.Poll(buf, core.Now())] {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// Zero allocations over real NIXL: neither Go's nor the shim's own. What NIXL allocates inside its calls is
// told by cnixl's package text.
func TestAHundredThousandStepsOverNIXLAllocateNothing(t *testing.T) {
	steps := 100_000
	if testing.Short() {
		steps = 5_000
	}
	for _, drive := range []string{"inline", "pump"} {
		if drive == "pump" && !testing.Short() { // each of its steps is a change of threads, which costs milliseconds where others want the cores
			steps /= 10
		}
		t.Run(drive, func(t *testing.T) {
			p, d := openSide(t, "P", drive), openSide(t, "D", drive)
			engine := d.meet(t, p)
			step := func(s *side) {
				if drive == "pump" { // the pump's step follows the wake
					at := atomic.LoadUint64(&s.core.Memory().Control.Steps)
					s.core.Wake()
					for atomic.LoadUint64(&s.core.Memory().Control.Steps) == at {
						runtime.Gosched()
					}
				} else if err := s.core.Step(); err != nil {
					t.Fatalf("step: %v\n%s", err, s.core.Broken())
				}
			}
			id, runs := []byte("request-0000"), []record.Run{{Local: 40, Remote: 3, N: 8}}
			var buf [64]record.Event
			done, freed := 0, 0
			busy := func(i int) {
				id[11], id[10], id[9] = byte('0'+i%10), byte('0'+i/10%10), byte('0'+i/100%10)
				lease, err := p.host.Grant(host.Grant{ID: id, Blocks: 8}, core.Now())
				if err != nil {
					t.Fatal(err)
				}
				remote := host.Remote{ID: id, Native: true, Epoch: p.core.Memory().Epoch, Key: p.host.Key(lease), Slot: lease.Slot(), Generation: lease.Use()}
				track, err := d.host.Track(engine, &remote, id, 1, core.Now())
				if err == nil {
					err = d.host.Read(track, runs)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			settle := func() { // until every read has ended and every lease is freed
				for end := core.Now().Add(20 * time.Second); done != freed || done == 0 || p.core.Held() != 0; {
					if !core.Now().Before(end) {
						t.Fatalf("%d reads done, %d leases freed, %d held", done, freed, p.core.Held())
					}
					step(p)
					step(d)
					done += d.poll(buf[:], record.EvReadDone)
					freed += p.poll(buf[:], record.EvFreed)
				}
			}
			busy(0)
			settle() // the connection is made, everything has been used once

			var before, after runtime.MemStats
			measure := func(what string, turn func(i int)) {
				runtime.GC()
				runtime.ReadMemStats(&before)
				ours := cnixl.Mallocs()
				for i := range steps / 2 { // two engines step in each turn
					turn(i)
					step(p)
					step(d)
					done += d.poll(buf[:], record.EvReadDone)
					freed += p.poll(buf[:], record.EvFreed)
				}
				runtime.ReadMemStats(&after)
				if got := after.Mallocs - before.Mallocs; got > uint64(steps/500) {
					t.Errorf("%s: %d steps made %d Go allocations", what, steps, got)
				}
				if got := cnixl.Mallocs() - ours; got != 0 {
					t.Errorf("%s: %d steps made %d allocations in the shim", what, steps, got)
				}
			}
			measure("idle", func(int) {})
			were := done
			measure("busy", func(i int) {
				if i%5 == 0 {
					busy(i / 5)
				}
			})
			settle()
			if done-were < steps/2/5 {
				t.Errorf("%d reads in %d busy steps: they were not busy", done-were, steps)
			}
		})
	}
}
