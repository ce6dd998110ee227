package heartbeat

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// ErrHandshake is wrapped by every error about the content of a handshake.
var ErrHandshake = errors.New("heartbeat: handshake cannot be used")

// facts are what the step needs of the handshakes of one boot of an engine, made off the step and never changed.
type facts struct {
	engine []byte // its id
	native bool
	epoch  uint64
	times  times
	ranks  []rankFacts // of those that this rank talks to, in the order of topology.Reach
}

// rankFacts are those of one rank.
type rankFacts struct {
	way
	blob   []byte
	layout read.Layout
	base   uint64
	board  uint64
	rows   uint32
	device uint32
	mem    transport.Mem
	probe  uint64 // address of 8 bytes that can be read for a sign of life: the board's header, a stock peer's first region
}

// factsOf checks what comes from a peer; nothing of it is believed later without these bounds.
func (t *Tracker) factsOf(desc *EngineDesc, reach []uint32, ways []way, maps []*wire.Handshake) (*facts, error) {
	f := &facts{engine: []byte(desc.ID), ranks: make([]rankFacts, len(maps))}
	shortest := wire.DurationMax
	for i, h := range maps {
		switch {
		case h == nil || len(h.AgentMetadata) == 0:
			return nil, fmt.Errorf("%w: rank %d has no agent metadata", ErrHandshake, reach[i])
		case desc.ID != "" && h.EngineID != desc.ID:
			return nil, fmt.Errorf("handshake of %q, expected %q: %w", h.EngineID, desc.ID, ErrEngine)
		case i == 0:
			f.native = h.Native
			if h.Native {
				f.epoch = h.Lease.Epoch
			}
		case f.native != h.Native || h.Native && h.Lease.Epoch != f.epoch:
			return nil, fmt.Errorf("%w: ranks %d and %d of engine %q are of different boots", ErrHandshake, reach[0], reach[i], desc.ID)
		}
		k := &f.ranks[i]
		k.way = ways[i]
		if err := k.fill(h); err != nil {
			return nil, fmt.Errorf("rank %d of engine %q: %w", reach[i], desc.ID, err)
		}
		shortest = min(shortest, h.Lease.Duration)
	}
	f.times = t.cfg.stockTimes()
	if f.native {
		f.times = t.cfg.nativeTimes(shortest)
	}
	return f, nil
}

func (k *rankFacts) fill(h *wire.Handshake) error {
	k.blob = bytes.Clone(h.AgentMetadata)
	if err := k.regions(h); err != nil {
		return err
	}
	if !h.Native {
		k.probe = k.layout.Regions[0].Addr
		k.mem, k.device = k.layout.Regions[0].Mem, k.layout.Regions[0].Device
		return nil
	}
	l := &h.Lease
	switch end := l.Board + record.BoardHeadLen + uint64(l.Slots)*record.RowLen; {
	case l.Epoch == 0:
		return fmt.Errorf("%w: boot epoch 0", ErrHandshake)
	case l.Base >= 1<<62:
		return fmt.Errorf("%w: base %#x is not below 2^62", ErrHandshake, l.Base)
	case l.Board == 0 || l.Board%8 != 0 || end < l.Board:
		return fmt.Errorf("%w: board at %#x with %d rows", ErrHandshake, l.Board, l.Slots)
	case l.Duration < wire.DurationMin || l.Duration > wire.DurationMax:
		return fmt.Errorf("%w: lease duration %v, want %v to %v",
			ErrHandshake, l.Duration, wire.DurationMin, wire.DurationMax)
	}
	k.probe = l.Board
	k.base, k.board, k.rows, k.device, k.mem = l.Base, l.Board, l.Slots, l.BoardDevice, l.BoardMem
	return nil
}

func (k *rankFacts) regions(h *wire.Handshake) error {
	n := len(h.BaseAddrs)
	if n == 0 || len(h.BlockLens) != n || len(h.BlockStrides) != n {
		return fmt.Errorf("%w: %d regions with %d lengths and %d strides", ErrHandshake, n, len(h.BlockLens), len(h.BlockStrides))
	}
	for _, list := range []int{len(h.RegionNumBlocks), len(h.RegionGroupIDs), len(h.RegionMemTypes)} {
		if list != 0 && list != n {
			return fmt.Errorf("%w: a list of %d for %d regions", ErrHandshake, list, n)
		}
	}
	for i := range n {
		r := read.Region{Addr: h.BaseAddrs[i], BlockLen: h.BlockLens[i], BlockStride: h.BlockStrides[i], Device: h.DeviceID}
		blocks := h.NumBlocks
		if len(h.RegionNumBlocks) > 0 {
			blocks = h.RegionNumBlocks[i]
		}
		if blocks == 0 || blocks >= 1<<32 {
			return fmt.Errorf("%w: region %d has %d blocks", ErrHandshake, i, blocks)
		}
		r.Blocks = uint32(blocks)
		if len(h.RegionGroupIDs) > 0 {
			if g := h.RegionGroupIDs[i]; g < -1 || g >= read.GroupsMax {
				return fmt.Errorf("%w: region %d belongs to group %d", ErrHandshake, i, g)
			}
			r.Group = int32(h.RegionGroupIDs[i])
		}
		if len(h.RegionMemTypes) > 0 {
			r.Mem = h.RegionMemTypes[i]
		}
		k.layout.Regions = append(k.layout.Regions, r)
	}
	return nil
}

// same reports that two handshakes speak of the same boot of the same agents.
func (f *facts) same(g *facts) bool {
	if f.native != g.native || f.epoch != g.epoch || len(f.ranks) != len(g.ranks) {
		return false
	}
	for i := range f.ranks {
		if !bytes.Equal(f.ranks[i].blob, g.ranks[i].blob) {
			return false
		}
	}
	return true
}
