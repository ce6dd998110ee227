package heartbeat

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// ErrHandshake is wrapped by every error about the content of a handshake.
var ErrHandshake = errors.New("heartbeat: handshake cannot be used")

// facts are what the step needs of the handshakes of one boot of an engine, made off the step. Only the links change.
type facts struct {
	engine string // its id
	native bool
	bare   bool // there is nothing to read into yet: reads wait
	epoch  uint64
	times  times
	hello  wire.HelloBody
	links  []link      // the step's, from when it takes the facts
	ranks  []rankFacts // of those that this rank talks to, in the order of topology.Reach
}

// rankFacts are those of one rank.
type rankFacts struct {
	rank    uint32
	readers uint16    // n of a completion to it
	how     *read.Map // nil: nothing is read from it
	blob    []byte
	layout  read.Layout
	base    uint64
	board   uint64
	rows    uint32
	device  uint32
	mem     transport.Mem
	probe   uint64 // address of 8 bytes that can be read for a sign of life: the board's header, a stock peer's first region
}

// factsOf checks what comes from a peer; nothing of it is believed later without these bounds.
// local is what is read into; nil: nothing can be read, only tracked.
func (t *Tracker) factsOf(desc *EngineDesc, reach []uint32, readers []uint16, local *read.Layout, maps []*wire.Handshake) (*facts, error) {
	f := &facts{engine: desc.ID, bare: local == nil, ranks: make([]rankFacts, len(maps))}
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
		if err := fits(desc, reach[i], h); err != nil {
			return nil, err
		}
		k := &f.ranks[i]
		k.rank, k.readers = reach[i], readers[i]
		if err := k.fill(h); err != nil {
			return nil, fmt.Errorf("rank %d of engine %q: %w", reach[i], desc.ID, err)
		}
		shortest = min(shortest, h.Lease.Duration)
	}
	f.times = t.cfg.stockTimes()
	if f.native {
		f.times = t.cfg.nativeTimes(shortest)
	}
	if local != nil {
		remotes := make([]read.Remote, len(maps))
		for i := range remotes {
			remotes[i] = read.Remote{Rank: reach[i], Layout: &f.ranks[i].layout}
		}
		heads := t.cfg.KVHeads
		if theirs := maps[0].Lease.KVHeads; f.native && heads == 0 {
			heads = theirs
		} else if f.native && theirs != 0 && theirs != heads {
			return nil, fmt.Errorf("%w: engine %q has %d KV heads, this one %d: another model", ErrHandshake, desc.ID, theirs, heads)
		}
		hows, err := read.NewMaps(local, t.cfg.Shape, t.cfg.Self.Rank, topology.Shape{TP: desc.TP, PP: desc.PP}, heads, remotes)
		if err != nil {
			return nil, fmt.Errorf("engine %q: %w", desc.ID, err)
		}
		sources := 0
		for i, how := range hows {
			if f.ranks[i].how = how; how != nil {
				sources++
			}
		}
		if sources > t.cfg.SourcesMax {
			return nil, fmt.Errorf("%w: a read from engine %q takes blocks from %d of its ranks, at most %d: raise sources_max",
				ErrHandshake, desc.ID, sources, t.cfg.SourcesMax)
		}
	}
	t.greet(f)
	f.links = make([]link, len(f.ranks))
	for i := range f.links {
		f.links[i].rankFacts = &f.ranks[i]
	}
	return f, nil
}

// fits holds what a rank says of its engine against what it was asked for. An owner may leave it unsaid.
func fits(desc *EngineDesc, rank uint32, h *wire.Handshake) error {
	l := &h.Lease
	if !h.Native || max(l.TP, 1)*max(l.PP, 1) == 1 {
		return nil
	}
	if max(l.TP, 1) != desc.TP || max(l.PP, 1) != desc.PP {
		return fmt.Errorf("engine %q has TP %d x PP %d, not %d x %d: %w", desc.ID, max(l.TP, 1), max(l.PP, 1), desc.TP, desc.PP, ErrShape)
	}
	if l.Rank != rank {
		return fmt.Errorf("handshake of rank %d of engine %q was given as that of rank %d: %w", l.Rank, desc.ID, rank, ErrRank)
	}
	return nil
}

func (k *rankFacts) fill(h *wire.Handshake) error {
	k.blob = bytes.Clone(h.AgentMetadata)
	var err error
	if k.layout, err = LayoutOf(h); err != nil {
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
