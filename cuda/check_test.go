package cuda

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var open64 = Machine{BAR1Free: map[int]uint64{0: 64 << 30, 1: 64 << 30}}

func TestAPlanJoinsWhatTouchesInOneAllocation(t *testing.T) {
	s := newScript(t)
	d := s.open()
	s.Do("engine 0 1")
	s.Do("engine 1 1")
	a, b := s.alloc("device", 0, 4<<20, 0), s.alloc("device", 0, 1<<20, 0)
	far := s.alloc("vmm", 1, 8<<20, 2<<20)
	if b != a+4<<20 {
		t.Fatalf("%#x and %#x do not touch", a, b)
	}
	got, err := d.Check([]Region{
		{Addr: b, Bytes: 1 << 20, Name: "another allocation, though it touches"},
		{Addr: a + 1<<20, Bytes: 1 << 20, Name: "second"},
		{Addr: far, Bytes: 6 << 20, Device: 1, Name: "over three mappings"},
		{Addr: a, Bytes: 1 << 20, Name: "first"},
		{Addr: a + 3<<20, Bytes: 1 << 20, Name: "behind a gap"},
	}, open64)
	if err != nil {
		t.Fatal(err)
	}
	want := Plan{
		Ranges:      []Range{{a, 2 << 20, 0}, {a + 3<<20, 1 << 20, 0}, {b, 1 << 20, 0}, {far, 6 << 20, 1}},
		Devices:     []int{0, 1},
		Allocations: []Range{{a, 4 << 20, 0}, {b, 1 << 20, 0}, {far, 8 << 20, 1}},
		Pinned:      map[int]uint64{0: 4 << 20, 1: 6 << 20},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if s.Do("count cuDevicePrimaryCtxRetain") != 0 || s.Do("count cuPointerSetAttribute") != 0 {
		t.Error("a check changes something")
	}
}

func TestPagesThatRegionsShareArePinnedOnce(t *testing.T) {
	s := newScript(t)
	d := s.open()
	a := s.alloc("device", 0, 1<<20, 0) // at the begin of a page of 64 KiB
	for _, tc := range []struct {
		name    string
		regions []Region
		want    uint64
	}{
		{"sixteen bytes", []Region{{Addr: a + 16, Bytes: 16}}, 64 << 10},
		{"over an edge", []Region{{Addr: a + 64<<10 - 16, Bytes: 32}}, 128 << 10},
		{"two on one page", []Region{{Addr: a, Bytes: 16}, {Addr: a + 32, Bytes: 16}}, 64 << 10},
		{"the second ends on the next page", []Region{{Addr: a, Bytes: 16}, {Addr: a + 32, Bytes: 64 << 10}}, 128 << 10},
		{"pages apart", []Region{{Addr: a, Bytes: 16}, {Addr: a + 256<<10, Bytes: 64 << 10}}, 128 << 10},
	} {
		if p, err := d.Check(tc.regions, open64); err != nil || p.Pinned[0] != tc.want {
			t.Errorf("%s: %d bytes pinned, want %d, %v", tc.name, p.Pinned[0], tc.want, err)
		}
	}
}

func TestARefusedRegionSaysWhyAndWhatHelps(t *testing.T) {
	s := newScript(t)
	d := s.open()
	var a uint64 // memory of device 0
	one := func(addr, bytes uint64) []Region { return []Region{{Addr: addr, Bytes: bytes, Name: "layer.0"}} }
	of := func(kind string) func() []Region {
		return func() []Region { return one(s.alloc(kind, 0, 4<<20, 2<<20), 4<<20) }
	}
	for _, tc := range []struct {
		name    string
		regions func() []Region
		script  string
		machine Machine
		kind    error
		words   []string
	}{
		{name: "no bytes", regions: func() []Region { return one(a, 0) }, kind: ErrInvalid, words: []string{"no range"}},
		{name: "no address", regions: func() []Region { return one(0, 16) }, kind: ErrInvalid, words: []string{"no range"}},
		{name: "past the end of all addresses", regions: func() []Region { return one(a, ^uint64(0)-15) }, kind: ErrInvalid, words: []string{"no range"}},
		{name: "an odd address", regions: func() []Region { return one(a+8, 16) }, kind: ErrInvalid, words: []string{"multiple of 16"}},
		{name: "memory that nobody knows", regions: func() []Region { return one(4096, 4096) }, kind: ErrInvalid, words: []string{"no memory of CUDA's", "KVL_MEM_DRAM"}},
		{name: "host memory", regions: of("host"), kind: ErrInvalid, words: []string{"host memory", "KVL_MEM_DRAM"}},
		{name: "managed memory", regions: of("managed"), kind: ErrInvalid, words: []string{"managed memory", "cudaMalloc"}},
		{name: "another device's", regions: func() []Region { return []Region{{Addr: a, Bytes: 16, Device: 1, Name: "layer.0"}} }, kind: ErrInvalid,
			words: []string{"memory of device 0", "device 1 was said", "CUDA_VISIBLE_DEVICES"}},
		{name: "more than was allocated", regions: func() []Region { return one(a+1<<20, 1<<20) }, kind: ErrInvalid, words: []string{"ends after 524288 bytes"}},
		{name: "an overlap", regions: func() []Region { return append(one(a, 48), Region{Addr: a + 32, Bytes: 48, Name: "layer.1"}) }, kind: ErrInvalid,
			words: []string{"region 1", "layer.1", "overlaps region 0"}},
		{name: "memory of a pool that NICs cannot take", regions: of("pool"), script: "rdma %#x 0", kind: ErrUnavailable,
			words: []string{"pool memory", "cuPointerGetAttribute", "cudaMallocAsync"}},
		{name: "VMM memory made without the flag", regions: of("vmm"), script: "rdma %#x 0", kind: ErrUnavailable, words: []string{"VMM memory", "gpuDirectRDMACapable"}},
		{name: "memory of another process that NICs cannot take", regions: of("ipc"), script: "rdma %#x 0", kind: ErrUnavailable, words: []string{"IPC handle", "in the process"}},
		{name: "device memory that NICs cannot take", regions: of("device"), script: "rdma %#x 0", kind: ErrUnavailable, words: []string{"device memory", "data-centre"}},
		{name: "a hole in VMM memory", regions: func() []Region {
			r := of("vmm")()
			s.Do("hole %#x 0x200000", r[0].Addr+2<<20)
			return r
		}, kind: ErrInvalid, words: []string{"nothing is mapped 2097152 bytes behind"}},
		{name: "a GPU without GPUDirect RDMA and dma-buf", regions: of("device"), script: "attribute 0 116 0;attribute 0 124 0", kind: ErrUnavailable,
			words: []string{"device 0 (0000:1b:00.0)", "cuDeviceGetAttribute", "neither GPUDirect RDMA nor dma-buf", "KVL_MEM_DRAM"}},
		{name: "the same with peer memory", regions: of("device"), script: "attribute 0 116 0;attribute 0 124 0", machine: Machine{Peermem: true}, kind: ErrUnavailable,
			words: []string{"neither GPUDirect RDMA nor dma-buf"}},
		{name: "a GPU that neither orders writes nor flushes them", regions: of("device"), script: "attribute 0 118 0;attribute 0 117 0", kind: ErrUnavailable,
			words: []string{"device 0 (0000:1b:00.0)", "orders no writes", "Volta"}},
		{name: "VMM memory in pieces over peer memory", regions: of("vmm"), script: "attribute 0 124 0", machine: Machine{Peermem: true}, kind: ErrUnavailable,
			words: []string{"region 0", "layer.0", "in 2 pieces", "nvidia_peermem", "expandable_segments:False", "dma-buf"}},
		{name: "a GPU that offers it not for VMM memory", regions: of("vmm"), script: "attribute 0 110 0", kind: ErrUnavailable,
			words: []string{"VMM memory", "layer.0", "expandable_segments"}},
		{name: "no peer memory", regions: of("device"), script: "attribute 0 124 0", kind: ErrUnavailable, words: []string{"no dma-buf", "modprobe nvidia_peermem"}},
		{name: "a window smaller than the cache", regions: of("device"), machine: Machine{BAR1Free: map[int]uint64{0: 2 << 20}}, kind: ErrUnavailable,
			words: []string{"4.0 MiB", "2.0 MiB of its BAR1", "Resizable BAR"}},
		{name: "a driver that does not answer", regions: of("device"), script: "fail cuPointerGetAttributes 1 999", kind: ErrUnavailable,
			words: []string{"layer.0", "cuPointerGetAttributes", "CUDA_ERROR_UNKNOWN", "Xid"}},
		{name: "a device that does not answer", regions: of("device"), script: "fail cuDeviceGetAttribute 1 46", kind: ErrUnavailable,
			words: []string{"device 0", "cuDeviceGetAttribute", "CUDA_ERROR_DEVICE_UNAVAILABLE", "nvidia-smi -c 0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.Do("reset")
			s.Do("engine 0 1")
			a = s.alloc("device", 0, 3<<19, 0)
			regions := tc.regions()
			switch {
			case tc.script == "":
			case tc.script[:4] == "rdma":
				s.Do(tc.script, regions[0].Addr)
			default:
				for _, line := range strings.Split(tc.script, ";") {
					s.Do("%s", line)
				}
			}
			_, err := d.Check(regions, tc.machine)
			wants(t, err, tc.kind, tc.words...)
		})
	}
}

func TestWithoutANICNothingIsHeldAgainstWhatNICsNeed(t *testing.T) {
	s := newScript(t)
	d := s.open()
	s.Do("engine 0 1")
	a := s.alloc("vmm", 0, 4<<20, 0)
	s.Do("rdma %#x 0", a)
	for _, line := range []string{"attribute 0 110 0", "attribute 0 116 0", "attribute 0 117 0", "attribute 0 118 0", "attribute 0 124 0"} {
		s.Do("%s", line)
	}
	regions := []Region{{Addr: a, Bytes: 4 << 20, Name: "layer.0"}}
	m := Machine{NoNIC: true, BAR1Free: map[int]uint64{0: 1}}
	h, err := d.Hold(regions, m)
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Notes()) != 1 || h.Unordered() {
		t.Errorf("notes %q, unordered %v", h.Notes(), h.Unordered())
	}
	if err := h.Release(); err != nil {
		t.Error(err)
	}
	regions[0].Addr = s.alloc("managed", 0, 4<<20, 0) // what is wrong whoever reads it
	_, err = d.Hold(regions, m)
	wants(t, err, ErrInvalid, "managed memory")
}

func TestWhatNobodyKnowsIsSaidAndStandsInNobodysWay(t *testing.T) {
	s := newScript(t)
	d := s.open()
	a := s.alloc("ipc", 0, 1<<20, 0) // some drivers say so of all memory
	s.Do("attribute 0 124 0")
	p, err := d.Check([]Region{{Addr: a, Bytes: 1 << 20}}, Machine{Peermem: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"device 0: the free part of its BAR1 window is not known, so 1.0 MiB of regions were not held against it"}, p.Unchecked); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestVMMMemoryInPiecesIsTakenByDMABufAndNeverJoined(t *testing.T) {
	s := newScript(t)
	d := s.open()
	a := s.alloc("vmm", 0, 8<<20, 2<<20)
	regions := []Region{{Addr: a, Bytes: 1 << 20, Name: "k.0"}, {Addr: a + 1<<20, Bytes: 1 << 20, Name: "v.0"}, {Addr: a + 2<<20, Bytes: 4 << 20, Name: "k.1"}}
	want := []Range{{a, 2 << 20, 0}, {a + 2<<20, 4 << 20, 0}}
	if p, err := d.Check(regions, open64); err != nil || !cmp.Equal(want, p.Ranges) || len(p.Unchecked) != 0 {
		t.Errorf("ranges %v, unchecked %q, %v, want %v", p.Ranges, p.Unchecked, err, want)
	}
	both := Machine{BAR1Free: open64.BAR1Free, Peermem: true}
	if p, err := d.Check(regions, both); err != nil || len(p.Unchecked) != 1 || !strings.Contains(p.Unchecked[0], `1 region is VMM memory in several pieces (region 2 ("k.1") in 2)`) {
		t.Errorf("unchecked %q, %v, want a word of the region in two pieces", p.Unchecked, err)
	}
	more := append(regions[:3:3], Region{Addr: a + 6<<20 - 16, Bytes: 2 << 20, Name: "v.1"})
	more[2].Bytes -= 16
	if p, err := d.Check(more, both); err != nil || len(p.Unchecked) != 1 || !strings.Contains(p.Unchecked[0], `2 regions are VMM memory in several pieces (region 2 ("k.1") in 2)`) {
		t.Errorf("unchecked %q, %v, want one word of all that are in pieces", p.Unchecked, err)
	}
	s.Do("attribute 0 124 0")
	if _, err := d.Check(regions[:2], both); err != nil {
		t.Errorf("regions in one piece each over peer memory: %v", err)
	}
}

func TestADMABufIsEnough(t *testing.T) {
	s := newScript(t)
	d := s.open()
	a := s.alloc("device", 0, 1<<20, 0)
	s.Do("attribute 0 116 0")
	s.Do("rdma %#x 0", a) // as such a device says of its memory
	if _, err := d.Check([]Region{{Addr: a, Bytes: 1 << 20}}, open64); err != nil {
		t.Error(err)
	}
}

// TestWhatTouchesIsJoinedUpToAPieceOfARegistration, and no region is cut: one that is longer is a range of its own.
func TestWhatTouchesIsJoinedUpToAPieceOfARegistration(t *testing.T) {
	const base, mib = uint64(1) << 40, uint64(1) << 20
	of := func(mibs ...uint64) (list []checked) {
		at := base
		for _, n := range mibs {
			list = append(list, checked{Region: Region{Addr: at, Bytes: n * mib}, at: Pointer{Base: base, Bytes: 1 << 37}, pieces: 1})
			at += n * mib
		}
		return list
	}
	for _, tc := range []struct{ regions, want []uint64 }{
		{[]uint64{512, 512}, []uint64{1024}},
		{[]uint64{512, 512, 1}, []uint64{1024, 1}},
		{[]uint64{300, 300, 300, 300, 300, 300, 300}, []uint64{900, 900, 300}},
		{[]uint64{1, 20480, 1, 1}, []uint64{1, 20480, 2}},
	} {
		p, end, all := join(of(tc.regions...)), base, uint64(0)
		var got []uint64
		for _, r := range p.Ranges {
			if r.Addr != end {
				t.Errorf("%d: a range begins at %#x, the one before ends at %#x", tc.regions, r.Addr, end)
			}
			end, all, got = r.Addr+r.Bytes, all+r.Bytes, append(got, r.Bytes/mib)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" || p.Pinned[0] != all || len(p.Allocations) != 1 {
			t.Errorf("regions of %d MiB: pinned %d of %d bytes, %d allocations, ranges (-want +got):\n%s", tc.regions, p.Pinned[0], all, len(p.Allocations), diff)
		}
	}
}
