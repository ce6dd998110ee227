package read

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/topology"
)

// anyCase draws two engines whose caches fit: powers of two on both sides, heads that both divide or that divide both.
func anyCase(t *rapid.T) ranksCase {
	power := func(most int, what string) uint32 { return 1 << rapid.IntRange(0, most).Draw(t, what) }
	tc := ranksCase{
		reader: topology.Shape{TP: power(3, "reader tp"), PP: uint32(rapid.IntRange(1, 3).Draw(t, "reader pp"))},
		owner:  topology.Shape{TP: power(3, "owner tp"), PP: uint32(rapid.IntRange(1, 3).Draw(t, "owner pp"))},
		cache: cache{
			heads: power(4, "heads"), parts: uint32(rapid.IntRange(1, 3).Draw(t, "parts")), headLen: 8 * uint64(rapid.IntRange(1, 3).Draw(t, "head words")),
			layers: rapid.IntRange(3, 6).Draw(t, "layers"), // each stage has one
		},
		told: true, here: 8 * uint64(rapid.IntRange(0, 3).Draw(t, "gap here")), there: 8 * uint64(rapid.IntRange(0, 3).Draw(t, "gap there")),
		named: true,
	}
	tc.kvHeads = tc.heads
	if rapid.Bool().Draw(t, "by order") && (tc.reader.PP == tc.owner.PP || tc.reader.PP == 1) {
		tc.named = false
	}
	whole := rapid.IntRange(0, 7).Draw(t, "whole layers")
	tc.mla = func(layer int) bool { return whole>>(layer%3)&1 != 0 }
	if tc.layers == 5 && tc.reader.PP == 3 || tc.layers == 5 && tc.owner.PP == 3 || tc.layers == 4 { // 2+2+0, 2+2+1: the last stage may be short, not empty
		tc.layers = 6
	}
	tc.config = Config{SourcesMax: topology.RanksMax, DescsStepMax: rapid.SampledFrom([]int{0, 1, 7, 64}).Draw(t, "descriptors a step"), PartsMax: rapid.IntRange(0, 3).Draw(t, "parts in flight")}
	return tc
}

// anyRuns draws runs that fill no local block twice. Some follow each other on both sides and become one.
func anyRuns(t *rapid.T, blocks int) (runs []record.Run) {
	for at := rapid.IntRange(0, 3).Draw(t, "first"); at < blocks; {
		n := min(rapid.IntRange(1, 6).Draw(t, "blocks"), blocks-at)
		remote := rapid.IntRange(0, blocks-n).Draw(t, "from")
		if len(runs) > 0 && rapid.Bool().Draw(t, "goes on") {
			if last := runs[len(runs)-1]; int(last.Remote+last.N)+n <= blocks && int(last.Local+last.N) == at {
				remote = int(last.Remote + last.N)
			}
		}
		runs = append(runs, record.Run{Local: uint32(at), Remote: uint32(remote), N: uint32(n)})
		at += n + max(rapid.IntRange(-2, 3).Draw(t, "left out"), 0)
	}
	return runs
}

// Whatever the shapes, heads, strides, groups of runs and bounds of a step: each byte of each block is read once, from the rank that
// holds its head in the block that was asked for, and nothing beside it is touched.
func TestAnyReadBetweenAnyTwoEnginesFillsEveryByteOnceFromItsPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tc := anyCase(t)
		rank := uint32(rapid.IntRange(0, int(tc.reader.Ranks())-1).Draw(t, "rank"))
		l := newRanksLab(t, &tc, rank)
		l.clean()
		runs := anyRuns(t, tc.blocks)
		if len(runs) == 0 {
			t.Skip("no blocks")
		}
		l.begin(1, runs)
		if o := l.end(); o.Status != record.ReadOK || !o.Proven || o.BlocksHeld || o.Bytes != l.bytesOf(runs) {
			t.Fatalf("outcome %+v, the blocks have %d bytes", o, l.bytesOf(runs))
		}
		l.check(runs)
		l.wantIdle()
	})
}

// The same blocks in other pieces are the same read: runs that follow each other on both sides are merged, so cutting them changes
// neither the bytes nor the number of descriptors.
func TestRunsThatAreCutIntoPiecesAreReadAsOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runs := anyRuns(t, 64)
		var g, again groupRuns
		pool := newRunPool(4096)
		g.head, g.tail, again.head, again.tail = none, none, none, none
		for i := range runs {
			if !g.add(&pool, &runs[i]) {
				t.Fatal("no room")
			}
			for rest := runs[i]; rest.N > 0; {
				cut := rest
				cut.N = uint32(rapid.IntRange(1, int(rest.N)).Draw(t, "piece"))
				if !again.add(&pool, &cut) {
					t.Fatal("no room")
				}
				rest.Local, rest.Remote, rest.N = rest.Local+cut.N, rest.Remote+cut.N, rest.N-cut.N
			}
		}
		list := func(g *groupRuns) (out []run) {
			for i := g.head; i != none; i = pool.pieces[i].next {
				out = append(out, pool.pieces[i].runs[:pool.pieces[i].n]...)
			}
			return out
		}
		whole, pieces := list(&g), list(&again)
		if len(whole) != len(pieces) || g.runs != again.runs || g.blocks != again.blocks || int(g.runs) != len(whole) {
			t.Fatalf("%d runs of %d blocks, in pieces %d of %d", g.runs, g.blocks, again.runs, again.blocks)
		}
		for i := range whole {
			if whole[i] != pieces[i] {
				t.Fatalf("run %d is %v, in pieces %v", i, whole[i], pieces[i])
			}
			if i > 0 {
				if l := whole[i-1]; l.local+l.n == whole[i].local && l.remote+l.n == whole[i].remote {
					t.Fatalf("runs %v and %v follow each other and are two", l, whole[i])
				}
			}
		}
		pool.give(g.head)
		pool.give(again.head)
		if pool.free.Used() != 0 {
			t.Fatalf("%d of %d pieces came back", pool.free.Left(), len(pool.pieces))
		}
	})
}
