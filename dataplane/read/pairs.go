package read

import (
	"fmt"

	"github.com/kvlease/kvlease/dataplane/topology"
)

// shape is all that the cuts of a pair depend on within one take: many layers share one.
type shape struct {
	here, there uint64 // bytes of a block
	parts       uint32
	whole       bool
}

// take makes the map of one rank of the owner.
func (m *mapper) take(t *topology.Take) (*Map, error) {
	out := &Map{Rank: t.Rank}
	clear(m.known)
	stage := t.Rank / m.owner.TP
	there := m.layouts[t.Rank]
	if m.byName == nil && m.skipped[stage] {
		return out, nil
	}
	for k := range there.Regions {
		at := m.first[stage] + k
		if m.byName != nil {
			i, ok := m.byName[there.Regions[k].Name]
			if !ok {
				continue // a layer of another stage of ours
			}
			at = i
		}
		if err := m.pair(out, t, at, &there.Regions[k]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// pair adds what region i of this rank takes from region r of the owner's rank, if that is anything.
func (m *mapper) pair(out *Map, t *topology.Take, i int, r *Region) error {
	l := &m.local.Regions[i]
	differ := func(format string, args ...any) error {
		return fmt.Errorf("%w: region %d (%.64q) and rank %d of the owner: %s", ErrLayout, i, l.Name, t.Rank, fmt.Sprintf(format, args...))
	}
	group := max(l.Group, r.Group)
	if l.Group != r.Group && !(m.alone && min(l.Group, r.Group) == -1) {
		return differ("transfer group %d here and %d there", l.Group, r.Group)
	}
	if m.byName == nil && l.Name != "" && r.Name != "" && l.Name != r.Name {
		return differ("its name there is %.64q: register the layers in the same order on both sides", r.Name)
	}
	s := shape{here: l.BlockLen, there: r.BlockLen, parts: max(l.Parts, r.Parts, 1)}
	if l.Parts != 0 && r.Parts != 0 && l.Parts != r.Parts {
		return differ("a block has %d parts here and %d there", l.Parts, r.Parts)
	}
	s.whole = l.Replicated || r.Replicated || !m.told && l.BlockLen == r.BlockLen
	if s.whole && l.BlockLen != r.BlockLen {
		return differ("every rank holds the whole block, but it has %d bytes here and %d there", l.BlockLen, r.BlockLen)
	}
	if s.whole && !t.Whole {
		return nil // another rank of the stage gives it
	}
	cuts, ok := m.known[s]
	if !ok {
		first := len(out.cuts)
		if out.cuts, ok = appendCuts(out.cuts, t, &s); !ok {
			return differ("%d parts x %d heads in %d bytes here, %d x %d in %d there: a head is not equally long: set num_kv_heads to the heads of the model, parts as the blocks are laid out, KVL_REGION_REPLICATED if every rank holds all heads",
				s.parts, t.OfHere, s.here, s.parts, t.OfThere, s.there)
		}
		cuts = [2]int32{int32(first), int32(len(out.cuts) - first)}
		m.known[s] = cuts
	}
	p := pair{
		here: l.Addr, there: r.Addr, hereStride: l.BlockStride, thereStride: r.BlockStride, len: l.BlockLen,
		hereDevice: l.Device, thereDevice: r.Device, firstCut: cuts[0], cutsN: cuts[1], group: group,
		mem: uint8(memPair(l.Mem, r.Mem)),
	}
	bytes := uint64(0)
	for _, c := range out.cuts[cuts[0] : cuts[0]+cuts[1]] {
		bytes += c.len
	}
	p.dense = l.dense() && r.dense() && bytes == s.here && s.here == s.there && p.cutsN == 1
	if m.filled[i] += bytes; m.filled[i] > l.BlockLen {
		return differ("another rank gives the same bytes: its layer is in two stages there, or twice in one")
	}
	out.pairs = append(out.pairs, p)
	for g := range out.limit {
		if (group == -1 || int(group) == g) && (out.limit[g] == 0 || r.Blocks < out.limit[g]) {
			out.limit[g] = r.Blocks
		}
	}
	return nil
}

// appendCuts adds the runs of bytes that a block takes, those that lie beside each other on both sides as one. It reports false
// if the two sides' heads are not equally long.
func appendCuts(to []cut, t *topology.Take, s *shape) ([]cut, bool) {
	if s.whole {
		return append(to, cut{0, 0, s.here}), true
	}
	headsHere, headsThere := uint64(s.parts)*uint64(t.OfHere), uint64(s.parts)*uint64(t.OfThere)
	if s.here%headsHere != 0 || s.there%headsThere != 0 || s.here/headsHere != s.there/headsThere {
		return to, false
	}
	head := s.here / headsHere
	for part := range uint64(s.parts) {
		c := cut{
			here:  (part*uint64(t.OfHere) + uint64(t.Here)) * head,
			there: (part*uint64(t.OfThere) + uint64(t.There)) * head,
			len:   uint64(t.Heads) * head,
		}
		if part > 0 {
			if last := &to[len(to)-1]; last.here+last.len == c.here && last.there+last.len == c.there {
				last.len += c.len
				continue
			}
		}
		to = append(to, c)
	}
	return to, true
}
