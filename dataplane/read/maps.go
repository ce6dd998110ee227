package read

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/internal/plural"
)

// ErrLayout is wrapped by every error of NewMaps that is about what the two sides hold; sizes that do not divide each other are
// topology.ErrTopology.
var ErrLayout = errors.New("read: KV caches do not fit")

// Remote is one rank of an owner.
type Remote struct {
	Rank   uint32
	Layout *Layout
}

// Map says how the local blocks are filled from one rank of an owner: pairs of regions, and per pair the bytes of a block here
// and there. It is made off the step and never changes.
type Map struct {
	Rank uint32 // of the owner

	pairs []pair
	cuts  []cut
	limit [GroupsMax]uint32 // remote ids of a group must be below it; 0: no region of the group
	local uint64            // sum of the layout that it fills
	set   *mapSet
	bit   uint64 // its own in the set
}

// mapSet is what NewMaps has made together: only all of them fill a block.
type mapSet struct{ all uint64 }

// pair is one region here and the one there that it is filled from.
type pair struct {
	here, there             uint64 // address of block 0
	hereStride, thereStride uint64
	len                     uint64 // bytes of a block, if dense
	hereDevice, thereDevice uint32
	firstCut, cutsN         int32
	group                   int32
	mem                     uint8 // memPair
	dense                   bool  // whole blocks that lie beside each other on both sides
}

// cut is a run of bytes within a block.
type cut struct{ here, there, len uint64 }

// NewMaps says how rank of the reader fills its blocks from the ranks of an owner. remotes are the ranks of topology.Reach, in any
// order; the answer is in theirs, nil for one from which nothing is read. A read wants one source for each map that is not nil.
//
// kvHeads are those of the model, over all ranks; 0: not told. Then regions whose blocks are equally long on both sides count
// as replicated, and others as cut into as many heads as the larger side has TP ranks.
//
// Regions are matched by name if the two sides have different numbers of stages and name every region; else by their
// order, for which one of the two stages' counts must be equal or the reader has one stage.
//
// Layouts of peers come from the network: nothing of them is believed. Cost: some bytes for each region. Errors name the
// region, what both sides say and what to do.
func NewMaps(local *Layout, reader topology.Shape, rank uint32, owner topology.Shape, kvHeads uint32, remotes []Remote) ([]*Map, error) {
	takes, err := topology.Takes(reader, owner, rank, kvHeads)
	if err != nil {
		return nil, err
	}
	if why := local.check(); why != "" {
		return nil, fmt.Errorf("%w: this rank: %s", ErrLayout, why)
	}
	m := mapper{
		local: local, told: kvHeads != 0, stage: rank / reader.TP, stages: reader.PP, owner: owner,
		filled: make([]uint64, len(local.Regions)), known: map[shape][2]int32{},
	}
	reach, err := topology.Reach(reader, owner, rank)
	if err != nil {
		return nil, err
	}
	if err := m.gather(reach, remotes); err != nil {
		return nil, err
	}
	m.alone = oneGroup(local)
	for _, l := range m.layouts {
		m.alone = m.alone && (l == nil || oneGroup(l))
	}
	if err := m.match(); err != nil {
		return nil, err
	}
	var made [topology.RanksMax]*Map
	set := &mapSet{}
	sum := local.sum()
	for i := range takes {
		one, err := m.take(&takes[i])
		if err != nil {
			return nil, err
		}
		if len(one.pairs) == 0 {
			continue
		}
		one.local, one.set, one.bit = sum, set, 1<<(i%64) // takes are ranks, at most 64
		set.all |= one.bit
		made[one.Rank] = one
	}
	if err := m.full(); err != nil {
		return nil, err
	}
	out := make([]*Map, len(remotes))
	for i := range remotes {
		out[i] = made[remotes[i].Rank]
	}
	return out, nil
}

// mapper is the work of one NewMaps.
type mapper struct {
	local         *Layout
	told          bool // the number of heads is known
	alone         bool // each side has one transfer group, so it does not matter whether it says -1 or the number
	stage, stages uint32
	owner         topology.Shape
	layouts       [topology.RanksMax]*Layout
	filled        []uint64 // bytes of a block that have a source, per local region

	byName  map[string]int          // local regions; nil: by order
	first   [topology.RanksMax]int  // by order: the local region that region 0 of a stage fills
	skipped [topology.RanksMax]bool // by order: the stage has none of this rank's layers
	known   map[shape][2]int32      // cuts of the map being made
}

// oneGroup reports that all regions of a layout are of the same transfer group.
func oneGroup(l *Layout) bool {
	return !slices.ContainsFunc(l.Regions, func(r Region) bool { return r.Group != l.Regions[0].Group })
}

// gather sorts the layouts by rank.
func (m *mapper) gather(reach []uint32, remotes []Remote) error {
	var wanted [topology.RanksMax]bool
	for _, r := range reach {
		wanted[r] = true
	}
	for i := range remotes {
		r := &remotes[i]
		if r.Rank >= topology.RanksMax || !wanted[r.Rank] {
			return fmt.Errorf("%w: rank %d of the owner is none that this rank talks to, which are %v", ErrLayout, r.Rank, reach)
		}
		if m.layouts[r.Rank] != nil {
			return fmt.Errorf("%w: rank %d of the owner is there twice", ErrLayout, r.Rank)
		}
		if why := r.Layout.check(); why != "" {
			return fmt.Errorf("%w: rank %d of the owner: %s", ErrLayout, r.Rank, why)
		}
		m.layouts[r.Rank] = r.Layout
	}
	for _, r := range reach {
		if m.layouts[r] == nil {
			return fmt.Errorf("%w: rank %d of the owner is missing: this rank talks to %v", ErrLayout, r, reach)
		}
	}
	return nil
}

// match decides how regions are told apart.
func (m *mapper) match() error {
	if m.stages != m.owner.PP && m.named() {
		m.byName = make(map[string]int, len(m.local.Regions))
		for i := range m.local.Regions {
			name := m.local.Regions[i].Name
			if at, twice := m.byName[name]; twice {
				return fmt.Errorf("%w: regions %d and %d of this rank are both named %.64q: with other numbers of stages (%d here, %d there) names must differ",
					ErrLayout, at, i, name, m.stages, m.owner.PP)
			}
			m.byName[name] = i
		}
		return nil
	}
	if m.stages != m.owner.PP && m.stages != 1 {
		return fmt.Errorf("%w: %d stages here, %d there, and not every region has a name: give kvl_region_t.name on both sides, or run equally many stages",
			ErrLayout, m.stages, m.owner.PP)
	}
	at := 0
	for stage := range m.owner.PP {
		if m.stages == m.owner.PP {
			m.skipped[stage] = stage != m.stage
			at = 0
		}
		n := -1
		for tp := range m.owner.TP {
			l := m.layouts[stage*m.owner.TP+tp]
			if l == nil {
				continue
			}
			if n < 0 {
				n = len(l.Regions)
			}
			if len(l.Regions) != n {
				return fmt.Errorf("%w: rank %d of the owner has %d regions, others of its stage %d", ErrLayout, stage*m.owner.TP+tp, len(l.Regions), n)
			}
		}
		m.first[stage] = at
		if !m.skipped[stage] {
			at += n
			if at > len(m.local.Regions) {
				return m.counts(at)
			}
		}
	}
	if m.stages == 1 && at != len(m.local.Regions) {
		return m.counts(at)
	}
	if n := m.regionsOf(m.stage); m.stages != 1 && n != len(m.local.Regions) {
		return m.counts(n)
	}
	return nil
}

func (m *mapper) counts(there int) error {
	return fmt.Errorf("%w: %s here and %d there, matched by their order: register the same layers on both sides, or name every region",
		ErrLayout, plural.Counted(len(m.local.Regions), "region", "regions"), there)
}

func (m *mapper) regionsOf(stage uint32) int {
	for tp := range m.owner.TP {
		if l := m.layouts[stage*m.owner.TP+tp]; l != nil {
			return len(l.Regions)
		}
	}
	return 0
}

// named reports that every region of both sides has a name.
func (m *mapper) named() bool {
	all := func(l *Layout) bool {
		for i := range l.Regions {
			if l.Regions[i].Name == "" {
				return false
			}
		}
		return true
	}
	for _, l := range m.layouts {
		if l != nil && !all(l) {
			return false
		}
	}
	return all(m.local)
}

// full looks whether every byte of a block has a source.
func (m *mapper) full() error {
	for i := range m.local.Regions {
		if r := &m.local.Regions[i]; m.filled[i] != r.BlockLen {
			return fmt.Errorf("%w: region %d (%.64q) of this rank has %d bytes a block, and the owner's ranks give %d of them: its layer is in no stage there, or its name differs",
				ErrLayout, i, r.Name, r.BlockLen, m.filled[i])
		}
	}
	return nil
}
