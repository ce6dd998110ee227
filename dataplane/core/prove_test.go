package core

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// scripted is a transport whose twin a test has its way with.
type scripted struct {
	transport.Transport
	twin func(*transport.Twin) error
	last *loopback.Agent
}

func (s *scripted) Twin(agent string) (transport.Twin, error) {
	t, err := s.Transport.(transport.Twins).Twin(agent)
	if err != nil {
		return t, err
	}
	s.last = t.Transport.(*loopback.Agent)
	t.Way = "the wire"
	if err := s.twin(&t); err != nil {
		_ = t.Close()
		return t, err
	}
	return t, nil
}

// bare is a transport that has no twins.
type bare struct{ transport.Transport }

// garbling is a twin that brings other bytes than there are.
type garbling struct {
	transport.Transport
	at []uint64 // where reads land
}

func (g *garbling) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	g.at = append(g.at, spec.Descs[0].Local)
	return g.Transport.PostRead(spec)
}

func (g *garbling) PollReads(xfers []transport.Xfer, out []transport.Status, spinNs int64) {
	g.Transport.PollReads(xfers, out, spinNs)
	for _, at := range g.at {
		*(*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))) ^= 1
	}
	g.at = nil
}

// newScripted is a lab whose D has no memory registered and registers it next over a transport with this twin.
func newScripted(t *testing.T, config string, twin func(*transport.Twin) error) (*lab, func() *scripted) {
	t.Helper()
	l := newLab(t, config)
	if err := l.d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	l.d.said(t, log.MemoryProven)
	l.d.book.Lines = nil
	var s *scripted
	l.wrap = func(_ string, tr transport.Transport) transport.Transport {
		s = &scripted{Transport: tr, twin: twin}
		return s
	}
	return l, func() *scripted { return s }
}

func TestAPageOfEachRegionIsReadBackBeforeAnyPeerIsToldOfIt(t *testing.T) {
	reads := map[uint64]uint64{}
	l, _ := newScripted(t, `{}`, func(tw *transport.Twin) error {
		tw.Transport = &noting{tw.Transport, reads}
		return nil
	})
	l.awake(l.d)
	l.d.wantSaid(t, log.MemoryProven, "", "")
	if said := l.d.book.Of(t, log.MemoryProven)[0]; !strings.Contains(said.What, "each of 2 regions over the wire") {
		t.Errorf("said %q", said.What)
	}
	board := l.d.core.mem.Board
	want := append([]Region{{Addr: record.Addr(board), Bytes: uint64(len(board))}}, l.d.regions...)
	for _, r := range want { // shows C62.1
		if n := reads[r.Addr+r.Bytes-min(r.Bytes, 4096)]; n != min(r.Bytes, 4096) {
			t.Errorf("%d bytes were read of the end of %d at %#x", n, r.Bytes, r.Addr)
		}
	}
	if len(reads) != len(want) {
		t.Errorf("%d reads, want %d", len(reads), len(want))
	}
	if n := agentsOf(l); n != 2 {
		t.Errorf("%d agents are left, want those of P and D", n)
	}
}

// noting is a twin whose reads are written down.
type noting struct {
	transport.Transport
	reads map[uint64]uint64
}

func (n *noting) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	n.reads[spec.Descs[0].Remote] = spec.Descs[0].Len
	return n.Transport.PostRead(spec)
}

// agentsOf counts the agents of P, D and their twins that are alive, by asking for their names.
func agentsOf(l *lab) (n int) {
	names := []string{l.p.core.tr.Agent(), l.d.core.tr.Agent()}
	for i := range twins.Load() {
		names = append(names, fmt.Sprintf("kvl~%d.%d", unix.Getpid(), i+1))
	}
	for _, name := range names {
		a, err := l.hub.New(name, loopback.Config{})
		if err != nil {
			n++
			continue
		}
		_ = a.Close()
	}
	return n
}

func TestMemoryThatPeersCouldNotReadIsRefusedWithRegionWayAndRemedy(t *testing.T) {
	proofsTake(t, time.Minute)
	agent := func(tw *transport.Twin) *loopback.Agent { return tw.Transport.(*loopback.Agent) }
	for _, tc := range []struct {
		name  string
		mem   transport.Mem
		twin  func(*transport.Twin) error
		words []string
	}{
		{"a read that fails", transport.DRAM, func(tw *transport.Twin) error {
			agent(tw).FailNext(loopback.OpRead, nil)
			return nil
		}, []string{"region 0", "layer.0", "the transport failed the read"}},
		{"a read that fails of a device", transport.VRAM, func(tw *transport.Twin) error {
			agent(tw).FailNext(loopback.OpRead, nil)
			return nil
		}, []string{"the transport failed the read", "GPU memory to NICs", "module cuda"}},
		{"a read that is refused", transport.DRAM, func(tw *transport.Twin) error {
			agent(tw).FailNext(loopback.OpPostRead, transport.ErrPeer)
			return nil
		}, []string{"region 0", "layer.0", "peer unreachable"}},
		{"a read that does not end", transport.DRAM, func(tw *transport.Twin) error {
			agent(tw).HoldReads(true)
			return nil
		}, []string{"region 0", "layer.0", "had not ended after 5ms"}},
		{"other bytes than there are", transport.DRAM, func(tw *transport.Twin) error {
			tw.Transport = &garbling{Transport: tw.Transport}
			return nil
		}, []string{"other bytes than there are"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if proofMax = time.Minute; strings.Contains(tc.words[len(tc.words)-1], "5ms") {
				proofMax = 5 * time.Millisecond
			}
			l, at := newScripted(t, `{}`, tc.twin)
			dev := &device{current: map[int]bool{}}
			l.d.core.UseDevices(dev.open)
			regions := append([]Region(nil), l.d.regions...)
			for i := range regions {
				regions[i].Mem = tc.mem
			}
			err := l.d.core.Register(regions)
			if !errors.Is(err, ErrTransport) { // shows C62.2
				t.Fatalf("%v, want that the transport refuses", err)
			}
			for _, w := range append(tc.words, "over the wire", "Remedy: ", "kvlease doctor", "self_read") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			if len(err.Error()) > 500 {
				t.Errorf("%d bytes: kvl_last_error would cut it", len(err.Error()))
			}
			if _, err := l.d.core.OwnHandshake(0); err == nil {
				t.Error("peers are told of it")
			}
			first := at()
			if hangs := strings.Contains(tc.words[len(tc.words)-1], "5ms"); l.d.core.gone != hangs {
				t.Errorf("the agent that could answer it still is gone: %v, want %v", l.d.core.gone, hangs)
			}
			if got := agentOf(first.Transport).Unregister([]transport.Region{{Addr: regions[0].Addr, Bytes: regions[0].Bytes, Mem: tc.mem}}); got == nil || dev.held != 0 {
				t.Errorf("it is registered still, or held: %d", dev.held)
			}
			first.last.HoldReads(false) // what had not ended does, and its twin goes with the next registration
			proofMax = time.Minute
			first.twin = func(*transport.Twin) error { return nil }
			l.wrap = nil
			if err := l.d.core.Register(regions); err != nil {
				t.Fatalf("again: %v", err)
			}
			if n := agentsOf(l); n != 2 {
				t.Errorf("%d agents are left, want those of P and D", n)
			}
		})
	}
}

func agentOf(tr transport.Transport) *loopback.Agent { return tr.(*loopback.Agent) }

func TestMemoryOfWhichNothingCouldBeShownIsRegisteredAndTheLogSaysWhy(t *testing.T) {
	none := func(*transport.Twin) error { return nil }
	for _, tc := range []struct {
		name, config string
		twin         func(*transport.Twin) error
		bare         bool
		want         string
	}{
		{"self_read is off", `{"self_read":"off"}`, none, false, "self_read is off"},
		{"a transport without twins", `{}`, none, true, "loopback has no second agent"},
		{"no room for a twin", `{}`, func(*transport.Twin) error { return fmt.Errorf("%w: no descriptors", transport.ErrUnavailable) }, false, "no descriptors"},
		{"a twin that cannot connect", `{}`, func(tw *transport.Twin) error {
			tw.Transport.(*loopback.Agent).FailNext(loopback.OpLoad, transport.ErrPeer)
			return nil
		}, false, "does not reach it over the wire"},
		{"a twin that may have taken a short cut", `{}`, func(tw *transport.Twin) error {
			tw.Near = true
			return nil
		}, false, "lets that be shared memory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, _ := newScripted(t, tc.config, tc.twin)
			if tc.bare {
				l.wrap = func(_ string, tr transport.Transport) transport.Transport { return bare{tr} }
			}
			l.awake(l.d)
			l.d.wantSaid(t, log.MemoryUnproven, "", "")
			if said := l.d.book.Of(t, log.MemoryUnproven)[0]; !strings.Contains(said.What, tc.want) || !strings.Contains(said.What, "2 regions") {
				t.Errorf("said %q, want %q", said.What, tc.want)
			}
			if n := l.d.core.counters()["regions_unproven"]; n != 2 || len(l.d.book.Of(t, log.MemoryProven)) != 0 {
				t.Errorf("%v regions are counted so, and %d times it was said that they were shown", n, len(l.d.book.Of(t, log.MemoryProven)))
			}
		})
	}
}

// Peers of the machine read it by NVLink, which a second agent of the same process may not have.
func TestDeviceMemoryThatNoNICIsToReachIsNotRefusedForIt(t *testing.T) {
	l, _ := newScripted(t, `{}`, func(tw *transport.Twin) error {
		tw.Transport.(*loopback.Agent).FailNext(loopback.OpRead, nil)
		return nil
	})
	dev := &device{current: map[int]bool{}, noNIC: true}
	l.d.core.UseDevices(dev.open)
	regions := mixed(l.d.regions)
	if err := l.d.core.Register(regions); !errors.Is(err, ErrTransport) || !strings.Contains(err.Error(), "layer.0") {
		t.Errorf("host memory beside it that cannot be read: %v", err)
	}
	regions[0].Mem = transport.VRAM
	if err := l.d.core.Register(regions); err != nil {
		t.Fatal(err)
	}
	l.d.wantSaid(t, log.MemoryUnproven, "", "")
	if said := l.d.book.Of(t, log.MemoryUnproven)[0]; !strings.Contains(said.What, `region 0 ("layer.0"`) || !strings.Contains(said.What, "has no NIC") {
		t.Errorf("said %q", said.What)
	}
}

// A transport in software would read it in this process, and the process would die.
func TestMemoryThatMayNotBeReadYetIsNotReadBack(t *testing.T) {
	l, _ := newScripted(t, `{}`, func(*transport.Twin) error { return nil })
	at, err := unix.MmapPtr(-1, 0, nil, 1<<16, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.MunmapPtr(at, 1<<16)
	regions := append([]Region(nil), l.d.regions...)
	regions = append(regions, Region{Addr: uint64(uintptr(at)), Bytes: 1 << 16, BlockLen: 1 << 16, BlockStride: 1 << 16, Blocks: 1, Group: -1, Name: "later"})
	if err := l.d.core.Register(regions); err != nil {
		t.Fatal(err)
	}
	l.d.said(t, log.MemoryUnproven)
	unproven, proven := l.d.book.Of(t, log.MemoryUnproven), l.d.book.Of(t, log.MemoryProven)
	if len(unproven) != 1 || !strings.Contains(unproven[0].What, `region 2 ("later"`) || len(proven) != 1 || !strings.Contains(proven[0].What, "each of 2 regions") {
		t.Errorf("said %+v and %+v", unproven, proven)
	}
}
