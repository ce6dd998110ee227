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

// facts are what the step needs of a handshake, made off the step and never changed.
type facts struct {
	blob   []byte
	layout read.Layout
	times  times
	native bool
	epoch  uint64
	base   uint64
	board  uint64
	rows   uint32
	device uint32
	mem    transport.Mem
	probe  uint64 // address of 8 bytes that can be read for a sign of life: the board's header, a stock peer's first region
}

// factsOf checks what comes from a peer; nothing of it is believed later without these bounds.
func (t *Tracker) factsOf(h *wire.Handshake) (*facts, error) {
	if h == nil || len(h.AgentMetadata) == 0 {
		return nil, fmt.Errorf("%w: no agent metadata", ErrHandshake)
	}
	f := &facts{blob: bytes.Clone(h.AgentMetadata), native: h.Native}
	if err := f.regions(h); err != nil {
		return nil, err
	}
	if !h.Native {
		f.times = t.cfg.stockTimes()
		f.probe = f.layout.Regions[0].Addr
		f.mem, f.device = f.layout.Regions[0].Mem, f.layout.Regions[0].Device
		return f, nil
	}
	l := &h.Lease
	switch end := l.Board + record.BoardHeadLen + uint64(l.Slots)*record.RowLen; {
	case l.Epoch == 0:
		return nil, fmt.Errorf("%w: boot epoch 0", ErrHandshake)
	case l.Base >= 1<<62:
		return nil, fmt.Errorf("%w: base %#x is not below 2^62", ErrHandshake, l.Base)
	case l.Board == 0 || l.Board%8 != 0 || end < l.Board:
		return nil, fmt.Errorf("%w: board at %#x with %d rows", ErrHandshake, l.Board, l.Slots)
	case l.Duration < wire.DurationMin || l.Duration > wire.DurationMax:
		return nil, fmt.Errorf("%w: lease duration %v, want %v to %v",
			ErrHandshake, l.Duration, wire.DurationMin, wire.DurationMax)
	}
	f.probe = l.Board
	f.epoch, f.base, f.board, f.rows, f.device, f.mem = l.Epoch, l.Base, l.Board, l.Slots, l.BoardDevice, l.BoardMem
	f.times = t.cfg.nativeTimes(l.Duration)
	return f, nil
}

func (f *facts) regions(h *wire.Handshake) error {
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
		f.layout.Regions = append(f.layout.Regions, r)
	}
	return nil
}

// same reports that two handshakes speak of the same boot of the same agent.
func (f *facts) same(g *facts) bool {
	return f.native == g.native && f.epoch == g.epoch && bytes.Equal(f.blob, g.blob)
}
