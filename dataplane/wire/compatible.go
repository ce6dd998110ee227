package wire

import (
	"errors"
	"fmt"
)

// ErrIncompatible says that blocks of the two sides do not have the same shape; the error around it names the first difference.
var ErrIncompatible = errors.New("wire: incompatible KV caches")

// Compatible checks that blocks can be read from remote into local byte for byte: one rank each, heads not resliced.
// Element type, model and versions are only in the hashes, so those are compared where both sides give one.
// Not compared: the number of blocks, the kind of memory and the devices.
func Compatible(local, remote *Handshake) error {
	differ := func(what string, here, there any) error {
		return fmt.Errorf("%w: %s is %v here and %v there", ErrIncompatible, what, here, there)
	}
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
		{keyBaseAddr, uint64(len(local.BaseAddrs)), uint64(len(remote.BaseAddrs))},
	} {
		if v.here == v.there {
			continue
		}
		if v.key == keyBaseAddr {
			return differ("the number of regions", v.here, v.there)
		}
		return differ(handshakeKeys[v.key], v.here, v.there)
	}
	if local.SSMSizes != remote.SSMSizes {
		return differ(handshakeKeys[keySSMSizes], local.SSMSizes, remote.SSMSizes)
	}
	if a, b := local.PLEBlockLen, remote.PLEBlockLen; (a == nil) != (b == nil) || a != nil && *a != *b {
		return differ(handshakeKeys[keyPLEBlockLen], orNone(a), orNone(b))
	}
	for i := range local.BaseAddrs {
		if a, b := local.BlockLens[i], remote.BlockLens[i]; a != b {
			return differ(fmt.Sprintf("block_lens[%d]", i), a, b)
		}
		if a, b := local.group(i), remote.group(i); a != b {
			return differ(fmt.Sprintf("region_group_ids[%d]", i), a, b)
		}
		if local.RegionNames != nil && remote.RegionNames != nil && local.RegionNames[i] != remote.RegionNames[i] {
			return differ(fmt.Sprintf("region_names[%d]", i), local.RegionNames[i], remote.RegionNames[i])
		}
	}
	return nil
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
