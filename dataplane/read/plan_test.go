package read

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

type postedDesc struct {
	LocalMem, RemoteMem transport.Mem
	Desc                transport.Desc
}

// planned commits a read, lets every part end in its post and gives all descriptors in the order of their posts.
func planned(b *bench, runs []record.Run, sources ...from) (descs []postedDesc, perPost []int) {
	b.t.Helper()
	b.f.onPost = func(x *fakeXfer) {
		b.f.land(x)
		if isFence(x) {
			return
		}
		perPost = append(perPost, len(x.spec.Descs))
		for _, d := range x.spec.Descs {
			descs = append(descs, postedDesc{x.spec.LocalMem, x.spec.RemoteMem, d})
		}
	}
	j, st := b.m.Begin(1, b.now)
	b.ok(st)
	b.ok(add(b.m, j, sources...))
	for len(runs) > 0 { // in parts, as the ring brings them
		n := min(len(runs), 3)
		b.ok(b.m.AddRuns(j, runs[:n]))
		runs = runs[n:]
	}
	b.ok(b.m.Commit(j, b.now))
	for range 10_000 {
		b.step(1)
		if o := b.outcome(); o != nil {
			if o.Status != record.ReadOK {
				b.t.Fatalf("outcome %+v", *o)
			}
			return descs, perPost
		}
	}
	b.t.Fatal("the read does not end")
	return nil, nil
}

func TestRunsAreMergedWhereBothSidesAreContiguous(t *testing.T) {
	const n = 4096 // bytes of a block
	local := &Layout{Regions: []Region{
		{Addr: 0x4000_0000, BlockLen: n, BlockStride: n, Blocks: 64, Group: -1},
		{Addr: 0x5000_0000, BlockLen: n, BlockStride: 2 * n, Blocks: 64, Group: -1},
	}}
	remote := &Layout{Regions: []Region{
		{Addr: 0x1000_0000, BlockLen: n, BlockStride: n, Blocks: 64, Group: -1, Device: 5},
		{Addr: 0x2000_0000, BlockLen: n, BlockStride: n, Blocks: 64, Group: -1, Device: 5},
	}}
	f := &fake{t: t, remote: map[uint64]uint64{}}
	b := newBenchOver(t, Config{}, f, f, local)
	s := b.source(1, 0, 1)
	s.Remote = remote
	got, posts := planned(b, []record.Run{
		{Local: 0, Remote: 10, N: 2},
		{Local: 2, Remote: 12, N: 1}, // follows on both sides
		{Local: 3, Remote: 20, N: 1}, // follows here only
		{Local: 9, Remote: 21, N: 1}, // follows there only
	}, s)
	d := func(l, r, blocks uint64) postedDesc {
		return postedDesc{Desc: transport.Desc{Local: l, Remote: r, Len: blocks * n, RemoteDevice: 5}}
	}
	want := []postedDesc{
		d(0x4000_0000, 0x1000_0000+10*n, 3), d(0x4000_0000+3*n, 0x1000_0000+20*n, 1), d(0x4000_0000+9*n, 0x1000_0000+21*n, 1),
		d(0x5000_0000, 0x2000_0000+10*n, 1), d(0x5000_0000+2*n, 0x2000_0000+11*n, 1), d(0x5000_0000+4*n, 0x2000_0000+12*n, 1),
		d(0x5000_0000+6*n, 0x2000_0000+20*n, 1), d(0x5000_0000+18*n, 0x2000_0000+21*n, 1),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("descriptors (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{8}, posts); diff != "" {
		t.Errorf("one READ for the source (-want +got):\n%s", diff)
	}
}

func TestEachKindOfMemoryHasItsOwnRead(t *testing.T) {
	local := layoutAt(0x4000_0000, 4, 64, 4096)
	local.Regions[1].Mem, local.Regions[1].Device = transport.VRAM, 1
	local.Regions[3].Mem, local.Regions[3].Device = transport.VRAM, 1
	f := &fake{t: t, remote: map[uint64]uint64{}}
	b := newBenchOver(t, Config{}, f, f, local)
	s := b.source(1, 0, 4)
	s.Remote.Regions[3].Mem = transport.VRAM
	got, posts := planned(b, []record.Run{{N: 4}}, s)
	if diff := cmp.Diff([]int{2, 1, 1}, posts); diff != "" {
		t.Errorf("descriptors of each post (-want +got):\n%s", diff)
	}
	for _, d := range got {
		wantMem := transport.DRAM
		if d.Desc.LocalDevice == 1 {
			wantMem = transport.VRAM
		}
		if d.LocalMem != wantMem {
			t.Errorf("%+v with the wrong kind of memory", d)
		}
	}
}

// TestThePlanIsWhatTheRunsSay compares the blocks that descriptors touch with a naive walk over runs and regions.
func TestThePlanIsWhatTheRunsSay(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		const blocks = 40
		local := &Layout{}
		var sources []from
		addr := uint64(1 << 30)
		region := func() Region {
			r := Region{Addr: addr, BlockLen: 8 << rng.IntN(3), Blocks: blocks, Group: int32(rng.IntN(4) - 1)}
			r.BlockStride = r.BlockLen
			if rng.IntN(3) == 0 {
				r.BlockStride += 24
			}
			r.Mem = transport.Mem(rng.IntN(2))
			r.Device = uint32(rng.IntN(4))
			addr += 1 << 20
			return r
		}
		for range 1 + rng.IntN(6) {
			local.Regions = append(local.Regions, region())
		}
		local.Regions = append(local.Regions, Region{Addr: 1 << 29, BlockLen: 8, BlockStride: 8, Blocks: blocks, Group: -1})
		f := &fake{t: t, remote: map[uint64]uint64{}}
		cfg := Config{DescsStepMax: 1 + rng.IntN(30), PartsMax: 1 + rng.IntN(3)}
		if rng.IntN(2) == 0 {
			cfg.PostBudget = time.Duration(25+rng.IntN(50)) * time.Microsecond
		}
		b := newBenchOver(t, cfg, f, f, local)
		for first := 0; first < len(local.Regions); {
			n := 1 + rng.IntN(len(local.Regions)-first)
			s := b.source(transport.Peer(len(sources)+1), first, 1)
			s.Remote = &Layout{}
			for k := range n {
				r := region()
				r.BlockLen, r.Group = local.Regions[first+k].BlockLen, local.Regions[first+k].Group
				r.BlockStride = max(r.BlockStride, r.BlockLen)
				s.Remote.Regions = append(s.Remote.Regions, r)
			}
			sources = append(sources, s)
			first += n
		}
		groups := []uint32{0} // ids of group 0 address the last region at least
		for _, r := range local.Regions {
			if r.Group > 0 {
				groups = append(groups, uint32(r.Group))
			}
		}
		var runs []record.Run
		for range 1 + rng.IntN(12) {
			r := record.Run{Group: groups[rng.IntN(len(groups))], Local: uint32(rng.IntN(blocks)), Remote: uint32(rng.IntN(blocks))}
			if n := len(runs); n > 0 && rng.IntN(2) == 0 {
				p := runs[n-1]
				r = record.Run{Group: p.Group, Local: (p.Local + p.N) % blocks, Remote: (p.Remote + p.N) % blocks}
			}
			r.N = 1 + uint32(rng.IntN(int(min(blocks-r.Local, blocks-r.Remote, 6))))
			runs = append(runs, r)
		}

		type touch struct {
			LMem, RMem    transport.Mem
			LDev, RDev    uint32
			Local, Remote uint64
		}
		want, got := map[touch]int{}, map[touch]int{}
		for _, s := range sources {
			for k := range s.Remote.Regions {
				l, r := local.Regions[s.First+k], s.Remote.Regions[k]
				for _, run := range runs {
					if l.Group != -1 && l.Group != int32(run.Group) {
						continue
					}
					for i := range uint64(run.N) {
						for at := uint64(0); at < l.BlockLen; at += 8 {
							want[touch{l.Mem, r.Mem, l.Device, r.Device, l.Addr + (uint64(run.Local)+i)*l.BlockStride + at, r.Addr + (uint64(run.Remote)+i)*r.BlockStride + at}]++
						}
					}
				}
			}
		}
		descs, posts := planned(b, runs, sources...)
		for _, d := range descs {
			for at := uint64(0); at < d.Desc.Len; at += 8 {
				got[touch{d.LocalMem, d.RemoteMem, d.Desc.LocalDevice, d.Desc.RemoteDevice, d.Desc.Local + at, d.Desc.Remote + at}]++
			}
		}
		if diff := cmp.Diff(want, got); diff != "" { // shows C30.1, C30.2, C30.3
			t.Fatalf("seed %d: words touched (-want +got):\n%s", seed, diff)
		}
		for _, n := range posts {
			if n > b.m.cfg.DescsStepMax || n == 0 {
				t.Fatalf("seed %d: a post of %d descriptors, at most %d", seed, n, b.m.cfg.DescsStepMax)
			}
		}
		b.wantIdle()
	}
}

func TestWhatDoesNotFitTheLayoutsIsInvalidAndPostsNothing(t *testing.T) {
	local := layoutAt(0x4000_0000, 2, 64, 4096)
	local.Regions[1].Group = 3
	good := func(b *bench) from {
		s := b.source(3, 0, 2)
		s.Remote.Regions[1].Group = 3
		return s
	}
	run := []record.Run{{N: 1}}
	for _, tc := range []struct {
		name string
		edit func(s *from)
		runs []record.Run
		want string
	}{
		{"no peer", func(s *from) { s.Peer = 0 }, run, "source without peer"},
		{"no layout", func(s *from) { s.Remote = nil }, run, "layout without regions"},
		{"a block of no bytes", func(s *from) { s.Remote.Regions[0].BlockLen = 0 }, run, "region without blocks"},
		{"another block length", func(s *from) { s.Remote.Regions[0].BlockLen = 2048 }, run, "a head is not equally long"},
		{"another group", func(s *from) { s.Remote.Regions[0].Group = 1 }, run, "transfer group -1 here and 1 there"},
		{"a group out of range", func(s *from) { s.Remote.Regions[0].Group = GroupsMax }, run, "region: group out of range"},
		{"overlapping blocks", func(s *from) { s.Remote.Regions[0].BlockStride = 4095 }, run, "region: block stride below block length"},
		{"an address that wraps", func(s *from) { s.Remote.Regions[0].Addr = ^uint64(0) - 5000 }, run, "region: wraps the address space"},
		{"a size that wraps", func(s *from) {
			s.Remote.Regions[0].Blocks, s.Remote.Regions[0].BlockStride = 1<<31, 1<<62
		}, run, "region: wraps the address space"},
		{"unknown memory", func(s *from) { s.Remote.Regions[0].Mem = 7 }, run, "region: unknown kind of memory"},
		{"too many regions", func(s *from) { s.Remote.Regions = append(s.Remote.Regions, s.Remote.Regions[1]) }, run, "2 regions here and 3 there"},
		{"a region left out", func(s *from) { s.Remote.Regions = s.Remote.Regions[:1] }, run, "2 regions here and 1 there"},
		{"a fence without address", func(s *from) { s.Fence.Addr = 0 }, run, "fence address"},
		{"a crooked fence address", func(s *from) { s.Fence.Addr += 4 }, run, "fence address"},
		{"the word of a closed board", func(s *from) { s.Fence.Want = record.FenceClosed }, run, "fence word of a closed board"},
		{"a native source with a completion", func(s *from) { s.Notif = []byte("x") }, run, "a native source takes no notification with its read"},
		{"a completion too long", func(s *from) { s.Fence, s.Notif = Fence{}, make([]byte, 2000) }, run, "notifications longer than NotifMax"},
		{"an unknown group", nil, []record.Run{{N: 1}, {Group: GroupsMax, N: 1}}, "run of a group that no region has"},
		{"no blocks", nil, []record.Run{{}}, "run of no blocks"},
		{"local past the end", nil, []record.Run{{Local: 63, N: 2}}, "local block past the end of its region"},
		{"remote past the end", nil, []record.Run{{Remote: 63, N: 2}}, "remote block past the end of its region"},
		{"local wraps", nil, []record.Run{{Local: 0xFFFFFFFF, N: 2}}, "local block past the end of its region"},
		{"remote wraps", nil, []record.Run{{Remote: 2, N: 0xFFFFFFFF}}, "local block past the end of its region"},
		{"a smaller remote region", func(s *from) { s.Remote.Regions[1].Blocks = 10 }, []record.Run{{Group: 3, Remote: 10, N: 1}}, "remote block past the end of its region"},
		{"a stock source without blocks of its own", func(s *from) { s.Fence, s.Notif = Fence{}, []byte("x") }, nil, "-"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &fake{t: t, remote: map[uint64]uint64{}}
			b := newBenchOver(t, Config{}, f, f, local)
			s := good(b)
			if tc.edit != nil {
				tc.edit(&s)
			}
			j, _ := b.m.Begin(1, b.now)
			st := add(b.m, j, s)
			if st == OK {
				st = b.m.AddRuns(j, tc.runs)
			}
			if st == OK {
				st = b.m.Commit(j, b.now)
			}
			if tc.want == "-" {
				if st != Empty {
					t.Fatalf("status %v, want empty", st)
				}
			} else if st != Invalid || !strings.Contains(b.m.Why(), tc.want) {
				t.Fatalf("status %v, %q, want invalid, %q", st, b.m.Why(), tc.want)
			}
			b.ok(b.m.Abort(j))
			b.step(0)
			if b.posts() != 0 {
				t.Error("something was posted")
			}
			b.wantNone()
			b.wantIdle()
		})
	}
}

func TestAReadTakesAllMapsThatWereMadeTogetherAndEachOnce(t *testing.T) {
	b := newBench(t, Config{}, 3)
	j, _ := b.m.Begin(1, b.now)
	three, err := mapped(&b.m.local, b.source(1, 0, 1), b.source(2, 1, 1), b.source(3, 2, 1))
	if err != nil {
		t.Fatal(err)
	}
	others, err := mapped(&b.m.local, b.source(4, 0, 3))
	if err != nil {
		t.Fatal(err)
	}
	moved, err := mapped(layoutAt(0x5000_0000, 3, 64, 4096), b.source(5, 0, 3))
	if err != nil {
		t.Fatal(err)
	}
	cut := Layout{Regions: slices.Clone(b.m.local.Regions)} // the same bytes, which are other heads
	for i := range cut.Regions {
		cut.Regions[i].Parts = 2
	}
	parted, err := mapped(&cut, b.source(6, 0, 3))
	if err != nil {
		t.Fatal(err)
	}
	bad := func(st Status, why string) {
		t.Helper()
		if st != Invalid || b.m.Why() != why {
			t.Errorf("%v: %s, want invalid: %s", st, b.m.Why(), why)
		}
	}
	bad(b.m.AddSource(j, Source{Peer: 1}), "source without map")
	bad(b.m.AddSource(j, moved[0]), "map of another local layout")
	bad(b.m.AddSource(j, parted[0]), "map of another local layout")
	b.ok(b.m.AddSource(j, three[0]))
	bad(b.m.AddSource(j, three[0]), "two sources with one map")
	bad(b.m.AddSource(j, others[0]), "maps that were not made together")
	b.ok(b.m.AddSource(j, three[2]))
	b.ok(b.m.AddRuns(j, []record.Run{{N: 1}}))
	bad(b.m.Commit(j, b.now), "a map has no source")
	bad(b.m.AddSource(j, three[1]), "source after the first run")
	b.ok(b.m.Abort(j))
	for _, st := range []Status{b.m.Abort(j), b.m.AddSource(j, three[0]), b.m.AddRuns(j, nil), b.m.Commit(j, b.now), b.m.Cancel(j, b.now), b.m.Cancel(0, b.now), b.m.Cancel(1<<32|999, b.now)} {
		if st != Stale {
			t.Errorf("a call with a dead job answers %v", st)
		}
	}
}

// A pipeline stage none of whose layers the read touches has its fence read all the same: its lease is part of the request.
func TestASourceWithoutBlocksIsFenced(t *testing.T) {
	local := layoutAt(0x4000_0000, 2, 64, 4096)
	local.Regions[0].Group, local.Regions[1].Group = 0, 1
	for _, word := range []uint64{want, want + 1} {
		f := &fake{t: t, remote: map[uint64]uint64{}}
		b := newBenchOver(t, Config{}, f, f, local)
		s1, s2 := b.source(1, 0, 1), b.source(2, 1, 1)
		s1.Remote.Regions[0].Group, s2.Remote.Regions[0].Group = 0, 1
		f.remote[rowAddr(2, 0)] = word
		f.onPost = f.land
		b.commit(1, 4, s1, s2)
		b.step(0)
		b.step(0)
		status := uint8(record.ReadOK)
		if word != want {
			status = record.ReadStale
		}
		b.wantOutcome(1, status, false)
		b.wantIdle()
	}
}
