package read

import (
	"math/bits"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// GroupsMax is the number of transfer groups that a layout may name: 0 .. GroupsMax-1.
const GroupsMax = 32

// Region is one array of KV blocks: block i starts at Addr + i*BlockStride and has BlockLen bytes.
type Region struct {
	Addr, BlockLen, BlockStride uint64 // bytes
	Blocks                      uint32 // ids are 0 .. Blocks-1
	Group                       int32  // transfer group whose ids address it; -1: every group's ids do
	Device                      uint32
	Mem                         transport.Mem
}

// Layout is the KV cache of one rank: its regions in the order in which both sides count them.
// A layout given to a source must stay unchanged until the read's outcome.
type Layout struct{ Regions []Region }

// dense reports that blocks which follow each other lie beside each other.
func (r *Region) dense() bool { return r.BlockLen == r.BlockStride }

// check gives what is wrong with a region, or "". Layouts of peers come from the network: nothing is believed.
func (r *Region) check() string {
	switch {
	case r.BlockLen == 0 || r.Blocks == 0:
		return "region without blocks"
	case r.BlockStride < r.BlockLen:
		return "region: block stride below block length"
	case r.Group < -1 || r.Group >= GroupsMax:
		return "region: group out of range"
	case r.Mem > transport.VRAM:
		return "region: unknown kind of memory"
	}
	hi, span := bits.Mul64(uint64(r.Blocks), r.BlockStride)
	if hi != 0 || r.Addr+span < r.Addr {
		return "region: wraps the address space"
	}
	return ""
}

// check gives what is wrong with a layout, or "".
func (l *Layout) check() string {
	if l == nil || len(l.Regions) == 0 {
		return "layout without regions"
	}
	for i := range l.Regions {
		if why := l.Regions[i].check(); why != "" {
			return why
		}
	}
	return ""
}

// pairs gives what keeps a peer's region from filling this one of ours, or "".
func (r *Region) pairs(remote *Region) string {
	switch {
	case r.BlockLen != remote.BlockLen:
		return "regions differ in block length"
	case r.Group != remote.Group:
		return "regions differ in group"
	}
	return ""
}

// memPair numbers the four kinds of READ: one request has one kind of memory on each side.
func memPair(local, remote transport.Mem) int { return int(local)<<1 | int(remote) }

const memPairs = 4
