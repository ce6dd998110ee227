package heartbeat

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

func TestALayoutHasOfEachRegionWhatTheMapTells(t *testing.T) {
	h := wire.Handshake{
		BaseAddrs: []uint64{1 << 20, 2 << 20}, BlockLens: []uint64{96, 192}, BlockStrides: []uint64{128, 256}, NumBlocks: 7, DeviceID: 3,
	}
	plain := []read.Region{
		{Addr: 1 << 20, BlockLen: 96, BlockStride: 128, Blocks: 7, Device: 3},
		{Addr: 2 << 20, BlockLen: 192, BlockStride: 256, Blocks: 7, Device: 3},
	}
	layout, err := LayoutOf(&h)
	if diff := cmp.Diff(plain, layout.Regions); err != nil || diff != "" {
		t.Errorf("without lists, error %v (-want +got):\n%s", err, diff)
	}

	h.RegionNumBlocks, h.RegionGroupIDs = []uint64{5, 6}, []int64{-1, 31}
	h.RegionMemTypes, h.RegionNames = []wire.RegionMem{transport.VRAM, transport.DRAM}, []string{"k", "v"}
	h.Native, h.Lease.Parts, h.Lease.Replicated = true, []uint32{2, 3}, []bool{false, true}
	told := []read.Region{
		{Addr: 1 << 20, BlockLen: 96, BlockStride: 128, Blocks: 5, Device: 3, Group: -1, Mem: transport.VRAM, Name: "k", Parts: 2},
		{Addr: 2 << 20, BlockLen: 192, BlockStride: 256, Blocks: 6, Device: 3, Group: 31, Mem: transport.DRAM, Name: "v", Parts: 3, Replicated: true},
	}
	layout, err = LayoutOf(&h)
	if diff := cmp.Diff(told, layout.Regions); err != nil || diff != "" {
		t.Errorf("with all lists, error %v (-want +got):\n%s", err, diff)
	}
}
