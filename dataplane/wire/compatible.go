package wire

import (
	"errors"
	"fmt"
	"slices"
)

// ErrIncompatible says that blocks of the two sides do not have the same shape; the error around it names the first difference.
var ErrIncompatible = errors.New("wire: incompatible KV caches")

// Compatible checks that blocks of two engines have the same content, token by token: what holds for all their regions.
// Element type, model and versions are only in the hashes, so those are compared where both sides give one.
//
// Regions are compared where both sides say that they have equally many ranks and stages, and then must be alike.
// How the blocks of other sizes fit together is for package read (NewMaps), which is told the sizes of stock peers, too.
// Not compared: the number of blocks, the kind of memory and the devices.
func Compatible(local, remote *Handshake) error {
	if a, b := local.Lease.Hash, remote.Lease.Hash; a != "" && b != "" && a != b {
		return differ("compatibility_hash", a, b)
	}
	if local.Layout != remote.Layout {
		return differ(handshakeKeys[keyLayout], local.Layout, remote.Layout)
	}
	if local.AttnBackend != remote.AttnBackend {
		return differ(handshakeKeys[keyAttnBackend], local.AttnBackend, remote.AttnBackend)
	}
	for _, v := range []struct {
		key         int
		here, there uint64
	}{
		{keyBlockSize, local.BlockSize, remote.BlockSize},
		{keyPhysicalPerLogical, local.PhysicalPerLogical, remote.PhysicalPerLogical},
		{keyDCPSize, local.DCPSize, remote.DCPSize},
		{keyPCPSize, local.PCPSize, remote.PCPSize},
	} {
		if v.here != v.there {
			return differ(handshakeKeys[v.key], v.here, v.there)
		}
	}
	if local.SSMSizes != remote.SSMSizes {
		return differ(handshakeKeys[keySSMSizes], local.SSMSizes, remote.SSMSizes)
	}
	if a, b := local.PLEBlockLen, remote.PLEBlockLen; (a == nil) != (b == nil) || a != nil && *a != *b {
		return differ(handshakeKeys[keyPLEBlockLen], orNone(a), orNone(b))
	}
	if !local.Native || !remote.Native {
		return nil
	}
	a, b := &local.Lease, &remote.Lease
	if a.KVHeads != 0 && b.KVHeads != 0 && a.KVHeads != b.KVHeads {
		return differ("kvlease."+leaseKeys[leaseKVHeads], a.KVHeads, b.KVHeads)
	}
	if max(a.TP, 1) != max(b.TP, 1) || max(a.PP, 1) != max(b.PP, 1) {
		return nil
	}
	if max(a.PP, 1) > 1 && a.Rank/max(a.TP, 1) != b.Rank/max(b.TP, 1) {
		return nil // stages have layers of their own
	}
	return sameRegions(local, remote)
}

func differ(what string, here, there any) error {
	return fmt.Errorf("%w: %s is %v here and %v there", ErrIncompatible, what, here, there)
}

// sameRegions compares the regions of two ranks that hold the same layers.
func sameRegions(local, remote *Handshake) error {
	if a, b := len(local.BaseAddrs), len(remote.BaseAddrs); a != b {
		return differ("the number of regions", a, b)
	}
	for i := range local.BaseAddrs {
		if a, b := local.BlockLens[i], remote.BlockLens[i]; a != b {
			return differ(fmt.Sprintf("block_lens[%d]", i), a, b)
		}
		if a, b := local.group(i), remote.group(i); a != b && !(min(a, b) == -1 && local.oneGroup() && remote.oneGroup()) {
			return differ(fmt.Sprintf("region_group_ids[%d]", i), a, b)
		}
		if local.RegionNames != nil && remote.RegionNames != nil && local.RegionNames[i] != remote.RegionNames[i] {
			return differ(fmt.Sprintf("region_names[%d]", i), local.RegionNames[i], remote.RegionNames[i])
		}
		if a, b := local.Parts(i), remote.Parts(i); a != b {
			return differ(fmt.Sprintf("kvlease.parts[%d]", i), a, b)
		}
		if a, b := local.Replicated(i), remote.Replicated(i); a != b {
			return differ(fmt.Sprintf("kvlease.replicated[%d]", i), a, b)
		}
	}
	return nil
}

// oneGroup reports that all regions are of one transfer group: then it does not matter whether it is called -1 or by its number.
func (h *Handshake) oneGroup() bool {
	return !slices.ContainsFunc(h.RegionGroupIDs, func(g int64) bool { return g != h.RegionGroupIDs[0] })
}

// group is the transfer group of region i; without the list there is one group.
func (h *Handshake) group(i int) int64 {
	if h.RegionGroupIDs == nil {
		return 0
	}
	return h.RegionGroupIDs[i]
}

func orNone(v *uint64) any {
	if v == nil {
		return "absent"
	}
	return *v
}
