package topology

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestARankTalksToItsSliceOfEveryStage(t *testing.T) {
	for _, tc := range []struct {
		reader, owner Shape
		r             uint32
		want          []uint32
	}{
		{Shape{1, 1}, Shape{1, 1}, 0, []uint32{0}},
		{Shape{2, 1}, Shape{1, 1}, 1, []uint32{0}},
		{Shape{1, 1}, Shape{2, 1}, 0, []uint32{0, 1}},
		{Shape{2, 1}, Shape{4, 1}, 1, []uint32{2, 3}},
		{Shape{4, 1}, Shape{2, 1}, 1, []uint32{0}},
		{Shape{4, 1}, Shape{2, 1}, 2, []uint32{1}},
		{Shape{1, 1}, Shape{8, 1}, 0, []uint32{0, 1, 2, 3, 4, 5, 6, 7}},
		{Shape{8, 1}, Shape{1, 1}, 7, []uint32{0}},
		{Shape{1, 1}, Shape{2, 2}, 0, []uint32{0, 1, 2, 3}},
		{Shape{2, 1}, Shape{2, 2}, 1, []uint32{1, 3}},
		{Shape{2, 2}, Shape{1, 1}, 3, []uint32{0}},
		{Shape{2, 2}, Shape{4, 2}, 3, []uint32{2, 3, 6, 7}},
	} {
		got, err := Reach(tc.reader, tc.owner, tc.r)
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("rank %d of %v at %v: %v, ranks (-want +got):\n%s", tc.r, tc.reader, tc.owner, err, diff)
		}
	}
}

func TestHeadsThatARankTakes(t *testing.T) {
	for _, tc := range []struct {
		name          string
		reader, owner Shape
		r, kvHeads    uint32
		want          []Take
	}{
		{"equal sizes take all from their peer", Shape{2, 1}, Shape{2, 1}, 1, 8, []Take{{1, 0, 0, 4, 4, 4, true}}},
		{"one rank takes halves from two", Shape{1, 1}, Shape{2, 1}, 0, 8, []Take{{0, 0, 0, 4, 8, 4, true}, {1, 4, 0, 4, 8, 4, false}}},
		{"of two ranks the second takes the second half of one", Shape{2, 1}, Shape{1, 1}, 1, 8, []Take{{0, 0, 4, 4, 4, 8, true}}},
		{"heads not told are as many as the larger side has ranks", Shape{1, 1}, Shape{2, 1}, 0, 0, []Take{{0, 0, 0, 1, 2, 1, true}, {1, 1, 0, 1, 2, 1, false}}},
		{"of ranks that hold the same head one is read from", Shape{1, 1}, Shape{4, 1}, 0, 2, []Take{{0, 0, 0, 1, 2, 1, true}, {2, 1, 0, 1, 2, 1, false}}},
		{"and the next reader reads from the next one", Shape{2, 1}, Shape{8, 1}, 1, 2, []Take{{5, 0, 0, 1, 1, 1, true}}},
		{"readers that hold the same head take the same one", Shape{4, 1}, Shape{2, 1}, 3, 2, []Take{{1, 0, 0, 1, 1, 1, true}}},
		{"one head for all", Shape{2, 1}, Shape{4, 1}, 1, 1, []Take{{3, 0, 0, 1, 1, 1, true}}},
		{"every stage gives its layers", Shape{1, 1}, Shape{2, 2}, 0, 2, []Take{
			{0, 0, 0, 1, 2, 1, true}, {1, 1, 0, 1, 2, 1, false}, {2, 0, 0, 1, 2, 1, true}, {3, 1, 0, 1, 2, 1, false},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Takes(tc.reader, tc.owner, tc.r, tc.kvHeads)
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("%v, takes (-want +got):\n%s", err, diff)
			}
		})
	}
}

// pairs runs f over every two sizes whose TPs divide each other.
func pairs(f func(reader, owner Shape)) {
	for _, r := range []uint32{1, 2, 3, 4, 6, 8, 16, 64} {
		for _, o := range []uint32{1, 2, 3, 4, 6, 8, 16, 64} {
			if max(r, o)%min(r, o) != 0 {
				continue
			}
			for _, rp := range []uint32{1, 2, 4} {
				for _, op := range []uint32{1, 2, 3} {
					if r*rp <= RanksMax && o*op <= RanksMax {
						f(Shape{r, rp}, Shape{o, op})
					}
				}
			}
		}
	}
}

func TestEveryHeadOfAReaderIsTakenExactlyOnceFromAStage(t *testing.T) {
	n := 0
	pairs(func(reader, owner Shape) {
		for _, kvHeads := range []uint32{0, 1, 2, 3, 4, 8, 16, 48, 64, 192} {
			for r := range reader.Ranks() {
				takes, err := Takes(reader, owner, r, kvHeads)
				told := kvHeads != 0
				fits := max(kvHeads, reader.TP)%max(min(kvHeads, reader.TP), 1) == 0 && max(kvHeads, owner.TP)%max(min(kvHeads, owner.TP), 1) == 0
				if told && !fits {
					if !errors.Is(err, ErrTopology) {
						t.Fatalf("%v at %v, %d heads: %v, want ErrTopology", reader, owner, kvHeads, err)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				n++
				units := kvHeads
				if !told {
					units = max(reader.TP, owner.TP)
				}
				checkTakes(t, reader, owner, r, units, takes)
			}
		}
	})
	if n < 1000 {
		t.Fatalf("only %d cases", n)
	}
}

// held gives the heads of a rank, by the definition.
func held(tp, ranks, units uint32) []uint32 {
	var out []uint32
	for h := range units {
		if units >= ranks && h*ranks/units == tp || units < ranks && tp*units/ranks == h {
			out = append(out, h)
		}
	}
	return out
}

func checkTakes(t *testing.T, reader, owner Shape, r, units uint32, takes []Take) {
	t.Helper()
	name := fmt.Sprintf("rank %d of %v at %v, %d heads", r, reader, owner, units)
	reach, err := Reach(reader, owner, r)
	if err != nil {
		t.Fatal(err)
	}
	mine := held(r%reader.TP, reader.TP, units)
	got := map[uint32][]uint32{} // by stage
	whole := map[uint32]int{}
	last := -1
	for _, k := range takes {
		if !slices.Contains(reach, k.Rank) {
			t.Fatalf("%s: takes from rank %d, which it does not reach", name, k.Rank)
		}
		if int(k.Rank) <= last {
			t.Fatalf("%s: takes are not in rising order: %v", name, takes)
		}
		last = int(k.Rank)
		theirs := held(k.Rank%owner.TP, owner.TP, units)
		if int(k.OfHere) != len(mine) || int(k.OfThere) != len(theirs) || k.Heads == 0 {
			t.Fatalf("%s: %+v, but here are %d heads and there %d", name, k, len(mine), len(theirs))
		}
		for i := range k.Heads {
			if mine[k.Here+i] != theirs[k.There+i] {
				t.Fatalf("%s: %+v fills head %d from head %d", name, k, mine[k.Here+i], theirs[k.There+i])
			}
			got[k.Rank/owner.TP] = append(got[k.Rank/owner.TP], k.Here+i)
		}
		if k.Whole {
			whole[k.Rank/owner.TP]++
		}
	}
	for stage := range owner.PP {
		slices.Sort(got[stage])
		for i := range mine {
			if len(got[stage]) != len(mine) || got[stage][i] != uint32(i) {
				t.Fatalf("%s: of stage %d the heads %v are taken, want each of %d once", name, stage, got[stage], len(mine))
			}
		}
		if whole[stage] != 1 {
			t.Fatalf("%s: %d ranks of stage %d give whole blocks, want one", name, whole[stage], stage)
		}
	}
}

func TestAnOwnersRankIsReachedByAsManyRanksAsItCountsOn(t *testing.T) {
	pairs(func(reader, owner Shape) {
		reports := make([]uint32, owner.Ranks())
		for r := range reader.Ranks() {
			reach, err := Reach(reader, owner, r)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.IsSorted(reach) || len(slices.Compact(slices.Clone(reach))) != len(reach) {
				t.Fatalf("rank %d of %v at %v: %v", r, reader, owner, reach)
			}
			for _, o := range reach {
				reports[o]++
			}
		}
		for o, got := range reports {
			want, err := Readers(reader, owner, uint32(o))
			if err != nil || got != want || got == 0 {
				t.Errorf("rank %d of %v: %d ranks of %v report, Readers says %d (%v)", o, owner, got, reader, want, err)
			}
			if stock := max(1, reader.TP/owner.TP); reader.PP == 1 && want != stock {
				t.Errorf("rank %d of %v: Readers says %d for %v, vLLM %d", o, owner, want, reader, stock)
			}
		}
	})
}

func TestReadersSpreadOverRanksThatHoldTheSameHeads(t *testing.T) {
	// Two heads on eight ranks: four have each. Two engines' ranks, four in all, must not all read from the first.
	from := map[uint32]int{}
	for r := range uint32(2) {
		takes, err := Takes(Shape{2, 1}, Shape{8, 1}, r, 2)
		if err != nil {
			t.Fatal(err)
		}
		from[takes[0].Rank%4]++
	}
	if len(from) != 2 {
		t.Errorf("ranks of the same copies are read from: %v", from)
	}
}

func TestSizesThatDoNotFitAreRefusedWithBothAndTheRemedy(t *testing.T) {
	for _, tc := range []struct {
		name          string
		reader, owner Shape
		rank, kvHeads uint32
		says          []string
	}{
		{"TPs that do not divide each other", Shape{2, 1}, Shape{3, 1}, 0, 0, []string{"TP 2 of the reader", "TP 3 of the owner", "multiple"}},
		{"neither does", Shape{6, 1}, Shape{4, 1}, 0, 0, []string{"TP 6", "TP 4", "multiple"}},
		{"no ranks", Shape{0, 1}, Shape{1, 1}, 0, 0, []string{"reader", "TP 0"}},
		{"no stages", Shape{1, 1}, Shape{1, 0}, 0, 0, []string{"owner", "PP 0"}},
		{"too many", Shape{1, 1}, Shape{16, 8}, 0, 0, []string{"owner", "TP 16 x PP 8", "1 to 64"}},
		{"sizes whose product wraps", Shape{1 << 31, 2}, Shape{1, 1}, 0, 0, []string{"reader", "1 to 64"}},
		{"a rank that is none", Shape{2, 1}, Shape{2, 1}, 2, 0, []string{"rank 2 of the"}},
		{"heads that no rank can share evenly", Shape{2, 1}, Shape{4, 1}, 0, 6, []string{"6 KV heads", "TP 4 of the owner", "choose a TP"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, takes := Takes(tc.reader, tc.owner, tc.rank, tc.kvHeads)
			errs := []error{takes}
			if tc.kvHeads == 0 {
				_, reach := Reach(tc.reader, tc.owner, tc.rank)
				_, readers := Readers(tc.owner, tc.reader, tc.rank)
				errs = append(errs, reach, readers)
			}
			for i, err := range errs {
				if !errors.Is(err, ErrTopology) {
					t.Fatalf("call %d: %v, want ErrTopology", i, err)
				}
			}
			for _, s := range tc.says {
				if !strings.Contains(takes.Error(), s) {
					t.Errorf("%q does not say %q", takes, s)
				}
			}
		})
	}
}
