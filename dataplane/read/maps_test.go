package read

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/transport"
)

func plain(addr, blockLen uint64, names ...string) *Layout {
	l := &Layout{}
	for i, name := range names {
		l.Regions = append(l.Regions, Region{Addr: addr + uint64(i)<<20, BlockLen: blockLen, BlockStride: blockLen, Blocks: 16, Group: -1, Name: name, Parts: 1})
	}
	return l
}

func TestPiecesOfABlockThatLieBesideEachOtherAreOne(t *testing.T) {
	one, two := topology.Shape{TP: 1, PP: 1}, topology.Shape{TP: 2, PP: 1}
	local := plain(1<<30, 4096, "a")
	local.Regions[0].Parts = 2
	for _, tc := range []struct {
		name          string
		reader, owner topology.Shape
		there         uint64
		want          [][]cut // by rank of the owner
	}{
		{"equal sizes: the whole block", one, one, 4096, [][]cut{{{0, 0, 4096}}}},
		{"half of the heads from each: two pieces", one, two, 2048, [][]cut{{{0, 0, 1024}, {2048, 1024, 1024}}, {{1024, 0, 1024}, {3072, 1024, 1024}}}},
		{"half of the heads of one: two pieces", two, one, 8192, [][]cut{{{0, 0, 2048}, {2048, 4096, 2048}}}},
	} {
		remotes := []Remote{}
		for i := range tc.want {
			l := plain(1<<40, tc.there, "a")
			l.Regions[0].Parts = 2
			remotes = append(remotes, Remote{uint32(i), l})
		}
		maps, err := NewMaps(local, tc.reader, 0, tc.owner, 4, remotes)
		if err != nil {
			t.Fatal(err)
		}
		for i, how := range maps {
			if diff := cmp.Diff(tc.want[i], how.cuts, cmp.AllowUnexported(cut{})); diff != "" {
				t.Errorf("%s, rank %d (-want +got):\n%s", tc.name, i, diff)
			}
			if dense := how.pairs[0].dense; dense != (len(tc.want[i]) == 1) {
				t.Errorf("%s: dense is %v", tc.name, dense)
			}
		}
	}
}

func TestManyLayersShareTheirPieces(t *testing.T) {
	names := make([]string, 1000)
	local, remote := plain(1<<30, 4096, names...), plain(1<<40, 2048, names...)
	maps, err := NewMaps(local, topology.Shape{TP: 1, PP: 1}, 0, topology.Shape{TP: 2, PP: 1}, 0, []Remote{{0, remote}, {1, remote}})
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range maps {
		if len(how.pairs) != 1000 || len(how.cuts) != 1 {
			t.Errorf("%d pairs with %d cuts", len(how.pairs), len(how.cuts))
		}
	}
}

// Stock peers of one transfer group call it 0, or do not say; ours may have registered -1.
func TestAGroupThatIsTheOnlyOneOnBothSidesHasNoName(t *testing.T) {
	one := topology.Shape{TP: 1, PP: 1}
	for _, groups := range [][2]int32{{-1, 0}, {0, -1}, {-1, 3}, {-1, -1}, {2, 2}} {
		local, remote := plain(1<<20, 64, "a", "b"), plain(1<<30, 64, "a", "b")
		for i := range 2 {
			local.Regions[i].Group, remote.Regions[i].Group = groups[0], groups[1]
		}
		maps, err := NewMaps(local, one, 0, one, 0, []Remote{{0, remote}})
		if err != nil {
			t.Fatalf("%v: %v", groups, err)
		}
		want := max(groups[0], groups[1])
		for _, p := range maps[0].pairs {
			if p.group != want {
				t.Errorf("%v: a pair of group %d, want %d", groups, p.group, want)
			}
		}
		for g, limit := range maps[0].limit {
			if known := want == -1 || int(want) == g; (limit != 0) != known {
				t.Errorf("%v: blocks of group %d up to %d", groups, g, limit)
			}
		}
	}
}

func TestCachesThatDoNotFitAreNamedWithBothSidesAndTheRemedy(t *testing.T) {
	one, two, four := topology.Shape{TP: 1, PP: 1}, topology.Shape{TP: 2, PP: 1}, topology.Shape{TP: 4, PP: 1}
	stages := topology.Shape{TP: 1, PP: 2}
	edit := func(l *Layout, f func(r *Region)) *Layout { f(&l.Regions[0]); return l }
	for _, tc := range []struct {
		name          string
		reader, owner topology.Shape
		rank, heads   uint32
		local         *Layout
		remotes       []Remote
		says          []string
	}{
		{"no local layout", one, one, 0, 0, nil, nil, []string{"this rank: layout without regions"}},
		{"no layout of a rank", one, one, 0, 0, plain(1, 64, "a"), []Remote{{0, nil}}, []string{"rank 0 of the owner: layout without regions"}},
		{"a rank is missing", one, two, 0, 0, plain(1, 64, "a"), []Remote{{0, plain(1, 32, "a")}}, []string{"rank 1 of the owner is missing", "[0 1]"}},
		{"a rank comes twice", one, two, 0, 0, plain(1, 64, "a"), []Remote{{0, plain(1, 32, "a")}, {0, plain(1, 32, "a")}}, []string{"rank 0", "twice"}},
		{"a rank of another slice", two, four, 0, 0, plain(1, 64, "a"), []Remote{{0, plain(1, 32, "a")}, {2, plain(1, 32, "a")}}, []string{"rank 2", "[0 1]"}},
		{"a rank that no engine has", one, one, 0, 0, plain(1, 64, "a"), []Remote{{1 << 31, plain(1, 64, "a")}}, []string{"rank 2147483648"}},
		{"another length, equal sizes", one, one, 0, 0, plain(1, 64, "a"), []Remote{{0, plain(1, 32, "a")}},
			[]string{`region 0 ("a")`, "64 bytes here", "32 there", "num_kv_heads"}},
		{"a head that is longer there", one, two, 0, 4, plain(1, 64, "a"), []Remote{{0, plain(1, 64, "a")}, {1, plain(1, 64, "a")}},
			[]string{`region 0 ("a") and rank 0`, "1 parts x 4 heads in 64 bytes here, 1 x 2 in 64 there", "num_kv_heads", "KVL_REGION_REPLICATED"}},
		{"heads that do not divide a block", one, two, 0, 4, plain(1, 65, "a"), []Remote{{0, plain(1, 33, "a")}, {1, plain(1, 33, "a")}}, []string{"4 heads in 65 bytes here"}},
		{"one side says replicated, the lengths differ", one, two, 0, 4, edit(plain(1, 64, "a"), func(r *Region) { r.Replicated = true }),
			[]Remote{{0, plain(1, 32, "a")}, {1, plain(1, 32, "a")}}, []string{"whole block", "64 bytes here and 32 there"}},
		{"other parts", one, two, 0, 4, edit(plain(1, 64, "a"), func(r *Region) { r.Parts = 2 }), []Remote{{0, plain(1, 32, "a")}, {1, plain(1, 32, "a")}},
			[]string{"2 parts here and 1 there"}},
		{"another group", one, one, 0, 0, edit(plain(1, 64, "a"), func(r *Region) { r.Group = 2 }),
			[]Remote{{0, edit(plain(1, 64, "a"), func(r *Region) { r.Group = 3 })}}, []string{"transfer group 2 here and 3 there"}},
		{"a region of all groups here, of one of two there", one, one, 0, 0, plain(1, 64, "a", "b"),
			[]Remote{{0, edit(plain(1, 64, "a", "b"), func(r *Region) { r.Group = 3 })}}, []string{"transfer group -1 here and 3 there"}},
		{"another order of names", one, one, 0, 0, plain(1, 64, "a", "b"), []Remote{{0, plain(1, 64, "b", "a")}}, []string{`region 0 ("a")`, `"b"`, "same order"}},
		{"more regions there", one, one, 0, 0, plain(1, 64, ""), []Remote{{0, plain(1, 64, "", "")}}, []string{"1 region here and 2 there", "name every region"}},
		{"fewer regions there", one, one, 0, 0, plain(1, 64, "", ""), []Remote{{0, plain(1, 64, "")}}, []string{"2 regions here and 1 there"}},
		{"ranks of a stage with other numbers of regions", one, two, 0, 0, plain(1, 64, ""), []Remote{{0, plain(1, 32, "")}, {1, plain(1, 32, "", "")}},
			[]string{"rank 1", "2 regions, others of its stage 1"}},
		{"stages without names", stages, one, 0, 0, plain(1, 64, ""), []Remote{{0, plain(1, 64, "", "")}}, []string{"2 stages here, 1 there", "kvl_region_t.name"}},
		{"a name twice here", stages, one, 0, 0, plain(1, 64, "a", "a"), []Remote{{0, plain(1, 64, "a")}}, []string{"regions 0 and 1", `"a"`, "must differ"}},
		{"a layer in two stages there", one, stages, 0, 0, plain(1, 64, "a"), []Remote{{0, plain(1, 64, "a")}, {1, plain(1, 64, "a")}}, []string{`region 0 ("a") and rank 1`, "two stages"}},
		{"a layer twice in one stage there", one, stages, 0, 0, plain(1, 64, "a", "b"), []Remote{{0, plain(1, 64, "a", "a")}, {1, plain(1, 64, "b")}}, []string{`region 0 ("a") and rank 0`, "twice in one"}},
		{"a layer that no stage has", one, stages, 0, 0, plain(1, 64, "a", "b"), []Remote{{0, plain(1, 64, "a")}, {1, plain(1, 64, "c")}},
			[]string{`region 1 ("b")`, "64 bytes a block", "0 of them", "its name differs"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			maps, err := NewMaps(tc.local, tc.reader, tc.rank, tc.owner, tc.heads, tc.remotes)
			if !errors.Is(err, ErrLayout) || maps != nil {
				t.Fatalf("%v, want ErrLayout", err)
			}
			for _, s := range tc.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
		})
	}
	if _, err := NewMaps(plain(1, 64, "a"), two, 0, topology.Shape{TP: 3, PP: 1}, 0, nil); !errors.Is(err, topology.ErrTopology) {
		t.Errorf("sizes that do not divide each other: %v", err)
	}
}

// What a name of a megabyte does to an error's text.
func TestALongNameOfAPeerDoesNotFillALog(t *testing.T) {
	one := topology.Shape{TP: 1, PP: 1}
	local, remote := plain(1, 64, strings.Repeat("x", 1<<20)), plain(1, 64, strings.Repeat("y", 1<<20))
	_, err := NewMaps(local, one, 0, one, 0, []Remote{{0, remote}})
	if err == nil || len(err.Error()) > 1000 {
		t.Errorf("an error of %d bytes", len(fmt.Sprint(err)))
	}
}

// peersMemory makes layouts of a peer's ranks from bytes, near what fits and far from it.
func peersMemory(raw []byte, local *Layout, n int) []*Layout {
	next := func() uint64 {
		var b [8]byte
		raw = raw[copy(b[:], raw):]
		return binary.LittleEndian.Uint64(b[:])
	}
	out := make([]*Layout, n)
	for k := range out {
		out[k] = &Layout{}
		for i := range len(local.Regions) + int(next()%3) - 1 {
			own := &local.Regions[min(i, len(local.Regions)-1)]
			r := Region{Addr: 1<<40 + uint64(k)<<32 + uint64(i)<<24, BlockLen: own.BlockLen, BlockStride: own.BlockLen, Blocks: 16, Group: own.Group, Name: own.Name}
			switch v := next(); v % 16 {
			case 0:
				r.Addr = v
			case 1:
				r.BlockLen = v >> 4
			case 2:
				r.BlockStride = v >> 4
			case 3:
				r.Blocks = uint32(v >> 4)
			case 4:
				r.Group = int32(v >> 4)
			case 5, 6:
				r.Parts = uint32(v >> 4)
			case 7:
				r.Parts = uint32(v>>4) % 4
			case 8:
				r.Replicated = true
			case 9:
				r.Name = local.Regions[int(v>>4)%len(local.Regions)].Name
			case 10:
				r.BlockLen = own.BlockLen / 2
			case 11:
				r.BlockLen = own.BlockLen * 2
				r.BlockStride = r.BlockLen + v>>60
			case 12:
				r.Addr, r.BlockStride = ^uint64(0)-v>>40, v>>20
			}
			out[k].Regions = append(out[k].Regions, r)
		}
	}
	return out
}

// FuzzLayoutsOfPeers: whatever a peer says of its ranks' memory is refused, or fills every byte of the blocks that are read once,
// no other byte of ours, and reads no byte that it did not say to have.
func FuzzLayoutsOfPeers(f *testing.F) {
	f.Add([]byte{}, uint8(1), uint8(1), uint8(1), uint8(1), uint32(0), uint32(2), uint32(3))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 10}, uint8(1), uint8(1), uint8(2), uint8(1), uint32(4), uint32(2), uint32(3))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 11}, uint8(2), uint8(1), uint8(1), uint8(1), uint32(8), uint32(2), uint32(3))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 5, 0xff, 0xff, 0xff}, uint8(4), uint8(2), uint8(8), uint8(1), uint32(1<<31), uint32(0xffffffff), uint32(3))
	f.Fuzz(func(t *testing.T, raw []byte, tp, pp, otherTP, otherPP uint8, kvHeads, local, remote uint32) {
		reader, owner := topology.Shape{TP: uint32(tp), PP: uint32(pp)}, topology.Shape{TP: uint32(otherTP), PP: uint32(otherPP)}
		own := plain(1<<30, 256, "a", "b", "c")
		own.Regions[1].Parts, own.Regions[2].Parts = 2, 0
		own.Regions[1].BlockStride += 64
		own.Regions[2].Group = 1
		reach, err := topology.Reach(reader, owner, 0)
		if err != nil {
			reach = []uint32{0, 1}
		}
		var remotes []Remote
		for i, l := range peersMemory(raw, own, len(reach)) {
			remotes = append(remotes, Remote{reach[i], l})
		}
		maps, err := NewMaps(own, reader, 0, owner, kvHeads, remotes)
		if err != nil {
			if !errors.Is(err, ErrLayout) && !errors.Is(err, topology.ErrTopology) || maps != nil {
				t.Fatal(err)
			}
			return
		}
		fk := &fake{t: t, remote: map[uint64]uint64{}}
		b := newBenchOver(t, Config{ReadsMax: 1, RowsMax: 1, RunsMax: 256, PeersMax: 128, SourcesMax: 64}, fk, fk, own)
		j, _ := b.m.Begin(1, 1)
		byPeer := map[transport.Peer]*Layout{}
		for i, how := range maps {
			if how != nil {
				peer := transport.Peer(i + 1)
				byPeer[peer] = remotes[i].Layout
				b.ok(b.m.AddSource(j, Source{Peer: peer, Map: how}))
			}
		}
		runs := []record.Run{{Local: local, Remote: remote, N: 2}, {Group: 1, Local: local, Remote: remote, N: 1}}
		if b.m.AddRuns(j, runs) != OK || b.m.Commit(j, 1) != OK {
			b.ok(b.m.Abort(j))
			b.wantIdle()
			return
		}
		written := map[uint64]int{}
		fk.onPost = func(x *fakeXfer) {
			x.status = transport.Done
			for _, d := range x.spec.Descs {
				inside := false
				for i := range byPeer[x.spec.Peer].Regions {
					r := &byPeer[x.spec.Peer].Regions[i]
					end := r.Addr + uint64(r.Blocks-1)*r.BlockStride + r.BlockLen
					inside = inside || d.Remote >= r.Addr && d.Remote < end && d.Len <= end-d.Remote
				}
				if !inside {
					t.Fatalf("descriptor %+v reads what peer %d did not say to have", d, x.spec.Peer)
				}
				for k := range d.Len {
					written[d.Local+k]++
				}
			}
		}
		for range 64 {
			b.m.Step(2)
		}
		b.wantOutcome(1, record.ReadOK, false)
		for i := range own.Regions {
			r := &own.Regions[i]
			blocks := map[uint32]int{}
			for _, run := range runs {
				if r.Group == -1 || uint32(r.Group) == run.Group {
					for n := range run.N {
						blocks[run.Local+n]++
					}
				}
			}
			for block, times := range blocks {
				for k := range r.BlockLen {
					at := r.Addr + uint64(block)*r.BlockStride + k
					if written[at] != times {
						t.Fatalf("byte %d of block %d of region %d is written %d times, want %d", k, block, i, written[at], times)
					}
					delete(written, at)
				}
			}
		}
		if len(written) != 0 {
			t.Fatalf("%d bytes outside of the blocks are written", len(written))
		}
		b.wantIdle()
	})
}
