package core

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/stream"
)

// The extent of what is handed in is computed with all its bits: a product that comes round to a few bytes would fit any region.
func TestBlocksPastAllAddressesAreNoRegion(t *testing.T) {
	page := uint64(unix.Getpagesize())
	for what, r := range map[string]Region{
		"that come round to one block": {Blocks: 1<<25 + 1, BlockStride: 1 << 39},
		"that come round to a few":     {Blocks: 1<<30 + 1, BlockStride: 1<<34 + 1<<12},
	} {
		r.Addr, r.Bytes, r.BlockLen, r.Group = 1<<20, 1<<43, page, -1
		if err := checkRegions([]Region{r}); !errors.Is(err, ErrInvalid) {
			t.Errorf("blocks %s: %v", what, err)
		}
	}
}

// A peer's READ of an address that is not there would end the owner's process.
func TestMemoryThatIsNotMappedIsNotRegistered(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	c, _ := f.context("rank", "P", 2, 1, 0)
	defer c.Close(0)
	page := unix.Getpagesize()
	at, err := unix.MmapPtr(-1, 0, nil, 4*uintptr(page), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON) // filled later, as some allocators do
	if err != nil {
		t.Fatal(err)
	}
	defer unix.MunmapPtr(at, 3*uintptr(page))
	if err := unix.MunmapPtr(unsafe.Add(at, 3*page), uintptr(page)); err != nil {
		t.Fatal(err)
	}
	addr := uint64(uintptr(at))
	region := func(at, pages uint64) []Region {
		n := pages * uint64(page)
		return []Region{{Addr: at, Bytes: n, BlockLen: n, BlockStride: n, Blocks: 1, Group: -1, Name: "layer"}}
	}
	for what, r := range map[string][]Region{
		"the last page is not there":       region(addr, 4),
		"the end of the address space":     region(^uint64(0)-1<<20, 1),
		"nothing below the first mappings": region(uint64(page), 1),
	} {
		if err := c.Register(r); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `region 0 ("layer")`) || !strings.Contains(err.Error(), "not all mapped") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := c.Register(region(addr+8, 2)); err != nil {
		t.Errorf("mapped, from the middle of a page: %v", err)
	}
}
