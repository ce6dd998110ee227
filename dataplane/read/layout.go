package read

import (
	"encoding/binary"
	"hash/fnv"
	"math/bits"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// GroupsMax is the number of transfer groups that a layout may name: 0 .. GroupsMax-1.
const GroupsMax = 32

// BlockPartsMax is the most parts that a block may have.
const BlockPartsMax = 64

// Region is one array of KV blocks: block i starts at Addr + i*BlockStride and has BlockLen bytes: Parts pieces of equal length,
// each one run of bytes per KV head of this rank, heads in order.
type Region struct {
	Addr, BlockLen, BlockStride uint64 // bytes
	Blocks                      uint32 // ids are 0 .. Blocks-1
	Group                       int32  // transfer group whose ids address it; -1: every group's ids do
	Device                      uint32
	Mem                         transport.Mem
	Replicated                  bool   // every rank holds the whole block (MLA)
	Parts                       uint32 // 0: not told; then as many as the other side says, else 1
	Name                        string // layer, may be empty
}

// Layout is the KV cache of one rank: its regions in the order in which both sides count them.
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
	case r.Parts > BlockPartsMax || r.Parts > 1 && r.BlockLen%uint64(r.Parts) != 0:
		return "region: a block cannot have so many equal parts"
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

// sum names the content of a layout: a map is good only for the layout that it was made for.
func (l *Layout) sum() uint64 {
	h := fnv.New64a()
	var b []byte
	for i := range l.Regions {
		r := &l.Regions[i]
		b = b[:0]
		whole := uint64(0)
		if r.Replicated {
			whole = 1
		}
		for _, v := range [...]uint64{r.Addr, r.BlockLen, r.BlockStride, uint64(r.Blocks), uint64(r.Group), uint64(r.Device), uint64(r.Mem), uint64(r.Parts), whole} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		h.Write(b)
	}
	return h.Sum64()
}

// memPair numbers the four kinds of READ: one request has one kind of memory on each side.
func memPair(local, remote transport.Mem) int { return int(local)<<1 | int(remote) }

const memPairs = 4
