package kvcache

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kvlease/kvlease/internal/require"
)

func TestWordsEqualTheGoldenValuesOfTheCExamples(t *testing.T) {
	for _, tc := range []struct {
		request                             string
		layer, v, block, head, token, index uint32
		want                                uint64
	}{
		{"r1", 0, 0, 0, 0, 0, 0, 0x4a2f0b7118f4058d},
		{"r1", 3, 1, 7, 2, 15, 9, 0xc6a5448f32f323a5},
		{"chatcmpl-é,1", 63, 1, 65535, 3, 15, 15, 0x9bd55307057876ad},
		{"", 1, 0, 1, 1, 1, 1, 0x67b5b50c884b63f5},
	} {
		if got := Word(Seed(tc.request, tc.layer, tc.v, tc.block, tc.head, tc.token), tc.index); got != tc.want {
			t.Errorf("word %d of %q, layer %d, block %d: %016x, want %016x", tc.index, tc.request, tc.layer, tc.block, got, tc.want)
		}
	}
}

// checkProgram fills the same blocks as the Go side and prints a hash of the whole cache.
const checkProgram = `
#include "engine.h"
int main(void)
{
	static const uint32_t blocks[] = {2, 0, 3};
	struct cache c;
	cache_open(&c, 2, 4);
	cache_fill(&c, "r1", blocks, 3);
	c.base[1][1] ^= 1;
	uint64_t h = 0xcbf29ce484222325u;
	for (int l = 0; l < 2; l++) {
		for (size_t i = 0; i < 4 * c.block_len; i++)
			h = (h ^ c.base[l][i]) * 0x100000001b3u;
	}
	printf("%016llx %llu\n", (unsigned long long)h, (unsigned long long)cache_bad_bytes(&c, "r1", blocks, 3));
	return 0;
}
`

func TestACacheFilledByCIsByteForByteTheOneFilledByGo(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		require.Skip(t, "cc", err.Error())
	}
	root := filepath.Join("..", "..", "..", "..")
	dir := t.TempDir()
	source, program := filepath.Join(dir, "check.c"), filepath.Join(dir, "check")
	if err := os.WriteFile(source, []byte(checkProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command(cc, "-std=c11", "-O2", "-I"+filepath.Join(root, "docs", "examples"),
		"-I"+filepath.Join(root, "cmd", "libkvlease", "include"), source, "-o", program)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}

	c, err := New(2, 4)
	if err != nil {
		t.Fatal(err)
	}
	blocks := []uint32{2, 0, 3}
	c.Fill("r1", blocks)
	c.Layer(1)[1] ^= 1
	h := fnv.New64a()
	for l := uint32(0); l < 2; l++ {
		h.Write(c.Layer(l))
	}
	want := fmt.Sprintf("%016x %d\n", h.Sum64(), c.BadBytes("r1", blocks))
	if string(got) != want {
		t.Errorf("C says %q, Go says %q", got, want)
	}
}

func TestEveryWrongByteIsCounted(t *testing.T) {
	c, err := New(3, 4)
	if err != nil {
		t.Fatal(err)
	}
	blocks := []uint32{3, 1}
	c.Clear(blocks)
	c.Fill("r1", blocks)
	if bad := c.BadBytes("r1", blocks); bad != 0 {
		t.Fatalf("%d bad bytes right after the fill", bad)
	}
	for _, at := range []int{0, BlockLen/2 - 1, BlockLen / 2, BlockLen - 1} {
		c.Layer(2)[3*BlockLen+at] ^= 0x10
	}
	if bad := c.BadBytes("r1", blocks); bad != 4 {
		t.Errorf("%d bad bytes counted, 4 were made", bad)
	}
	if bad := c.BadBytes("r2", blocks); bad < 3*2*BlockLen*9/10 {
		t.Errorf("another request's KV differs in %d bytes only", bad)
	}
	if bad := c.BadBytes("r1", []uint32{1, 3}); bad < 3*2*BlockLen*9/10 {
		t.Errorf("blocks in the wrong order differ in %d bytes only", bad)
	}
}

// The heads of two ranks, put together, are the block of one rank that holds all.
func TestTheHeadsOfTwoRanksMakeTheBlockOfOne(t *testing.T) {
	all, err := New(2, 3)
	if err != nil {
		t.Fatal(err)
	}
	all.Fill("r1", []uint32{2, 0})
	for rank := range uint32(2) {
		half, err := NewRank(2, 3, rank, 2)
		if err != nil {
			t.Fatal(err)
		}
		half.Fill("r1", []uint32{2, 0})
		for _, block := range []int{2, 0} {
			for part := range Parts {
				got := half.Layer(1)[block*half.BlockLen+part*half.BlockLen/Parts:][:half.BlockLen/Parts]
				want := all.Layer(1)[block*BlockLen+part*BlockLen/Parts+int(rank)*half.BlockLen/Parts:][:len(got)]
				if !bytes.Equal(got, want) {
					t.Errorf("rank %d, block %d, part %d: not the heads of the whole block", rank, block, part)
				}
			}
		}
	}
}

func TestACacheOfImpossibleSizeIsRefused(t *testing.T) {
	for _, ranks := range [][2]uint32{{0, 0}, {0, 3}, {2, 2}, {0, 8}} {
		if _, err := NewRank(1, 1, ranks[0], ranks[1]); err == nil {
			t.Errorf("rank %d of %d was not refused", ranks[0], ranks[1])
		}
	}
	for _, size := range [][2]uint32{{0, 1}, {1, 0}, {LayersMax + 1, 1}, {1, BlocksMax + 1}} {
		if _, err := New(size[0], size[1]); err == nil {
			t.Errorf("%d layers of %d blocks were not refused", size[0], size[1])
		}
	}
}
