package heartbeat

import (
	"fmt"

	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// LayoutOf says where a rank's blocks are, as its map tells it. What NewMaps and the map's parser look at is not looked at here.
// Errors wrap ErrHandshake.
func LayoutOf(h *wire.Handshake) (read.Layout, error) {
	var layout read.Layout
	n := len(h.BaseAddrs)
	if n == 0 || len(h.BlockLens) != n || len(h.BlockStrides) != n {
		return layout, fmt.Errorf("%w: %d regions with %d lengths and %d strides", ErrHandshake, n, len(h.BlockLens), len(h.BlockStrides))
	}
	for _, list := range []int{len(h.RegionNumBlocks), len(h.RegionGroupIDs), len(h.RegionMemTypes)} {
		if list != 0 && list != n {
			return layout, fmt.Errorf("%w: a list of %d for %d regions", ErrHandshake, list, n)
		}
	}
	for i := range n {
		r := read.Region{Addr: h.BaseAddrs[i], BlockLen: h.BlockLens[i], BlockStride: h.BlockStrides[i], Device: h.DeviceID}
		blocks := h.NumBlocks
		if len(h.RegionNumBlocks) > 0 {
			blocks = h.RegionNumBlocks[i]
		}
		if blocks == 0 || blocks >= 1<<32 {
			return layout, fmt.Errorf("%w: region %d has %d blocks", ErrHandshake, i, blocks)
		}
		r.Blocks = uint32(blocks)
		if len(h.RegionNames) == n {
			r.Name = h.RegionNames[i]
		}
		if len(h.RegionGroupIDs) > 0 {
			if g := h.RegionGroupIDs[i]; g < -1 || g >= read.GroupsMax {
				return layout, fmt.Errorf("%w: region %d belongs to group %d", ErrHandshake, i, g)
			}
			r.Group = int32(h.RegionGroupIDs[i])
		}
		if len(h.RegionMemTypes) > 0 {
			r.Mem = h.RegionMemTypes[i]
		}
		if h.Native && (len(h.Lease.Parts) != 0 && len(h.Lease.Parts) != n || len(h.Lease.Replicated) != 0 && len(h.Lease.Replicated) != n) {
			return layout, fmt.Errorf("%w: parts of %d and replicated of %d for %d regions", ErrHandshake, len(h.Lease.Parts), len(h.Lease.Replicated), n)
		}
		r.Parts, r.Replicated = h.Parts(i), h.Replicated(i)
		layout.Regions = append(layout.Regions, r)
	}
	return layout, nil
}
