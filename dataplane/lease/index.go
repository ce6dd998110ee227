package lease

import "math/bits"

// index finds a slot by the hash of its id.
//
// Entries lie in the order of their tags, the largest first, each at its home or behind it, without gaps in between: a look-up
// stops at the first that is not larger, which an empty one never is; a removal moves the rest of the run back, so nothing is
// left behind. The tag is the whole keyed 64-bit
// hash and no two entries share one, so a heartbeat for a live id always finds its own entry without reading the id.
// A peer does not know the hash's seed, so it cannot build runs; past probeMax an insertion is refused.
//
// word = deadline units << 24 | cold << 23 | slot. The deadline is the end that the last stock heartbeat gave, 0 none.
// Cold: the fast path of a stock heartbeat is not for this lease (expected, fixed, or no stock message has named it yet).
type index struct {
	entries []entry
	homes   uint64
	used    int
}

type entry struct{ tag, word uint64 }

const (
	coldBit  = 1 << 23
	slotMask = coldBit - 1
	probeMax = 512
)

func newIndex(n int) index {
	homes := n*7/4 + 8 // runs stay short, and a lease costs 28 bytes here
	return index{entries: make([]entry, homes+probeMax+1), homes: uint64(homes)}
}

func (x *index) clear() {
	clear(x.entries)
	x.used = 0
}

// home is the further behind the smaller the tag is.
func (x *index) home(tag uint64) int {
	hi, _ := bits.Mul64(^tag, x.homes)
	return int(hi)
}

// find gives the position of tag, or -1. How far it is from home differs by chance, and a processor that guesses it wrongly
// loses more than the few steps that nearly all need, which are therefore made without a branch.
func (x *index) find(tag uint64) int { return x.findFrom(x.home(tag), tag) }

// findFrom is find for who has the tag's home at hand.
func (x *index) findFrom(i int, tag uint64) int {
	e := x.entries
	_, larger := bits.Sub64(tag, e[i].tag, 0)
	i += int(larger)
	_, larger = bits.Sub64(tag, e[i].tag, 0)
	i += int(larger)
	_, larger = bits.Sub64(tag, e[i].tag, 0)
	i += int(larger)
	for e[i].tag > tag {
		i++
	}
	if e[i].tag != tag {
		return -1
	}
	return i
}

// insert puts tag in. It reports false if the run is too long; tag must not be there.
func (x *index) insert(tag, word uint64) bool {
	i := x.home(tag)
	stop := min(i+probeMax, len(x.entries)-1)
	for ; x.entries[i].tag > tag; i++ {
		if i == stop {
			return false
		}
	}
	free := i
	for ; x.entries[free].tag != 0; free++ {
		if free == stop {
			return false
		}
	}
	if free == len(x.entries)-1 {
		return false // the last entry stays empty: it ends every run
	}
	copy(x.entries[i+1:free+1], x.entries[i:free])
	x.entries[i] = entry{tag, word}
	x.used++
	return true
}

// remove takes the entry at position i out.
func (x *index) remove(i int) {
	next := i + 1
	for x.entries[next].tag != 0 && x.home(x.entries[next].tag) < next {
		next++
	}
	copy(x.entries[i:next-1], x.entries[i+1:next])
	x.entries[next-1] = entry{}
	x.used--
}

// gravesMax is how many freed ids are remembered, so that late messages are told from unknown ones.
const gravesMax = 65536

// completerMask are the bits of a grave's word that name who completed it; those below it hold any count up to gravesMax.
const completerMask = ^uint64(1<<24 - 1)

// graves remembers the last tags added: those of the ids freed. The low bits of the
// word count how often a tag is in the ring; the others are of who completed it, if it is there once and that was its only reader.
type graves struct {
	index index
	ring  []uint64
	next  int
}

func newGraves(n int) graves { return graves{index: newIndex(n), ring: make([]uint64, n)} }

func (g *graves) clear() {
	g.index.clear()
	clear(g.ring)
	g.next = 0
}

func (g *graves) add(tag uint64) {
	if old := g.ring[g.next]; old != 0 {
		if i := g.index.find(old); i >= 0 {
			if g.index.entries[i].word--; g.index.entries[i].word&^completerMask == 0 {
				g.index.remove(i)
			}
		}
	}
	g.ring[g.next] = 0
	if i := g.index.find(tag); i >= 0 {
		g.index.entries[i].word = g.index.entries[i].word&^completerMask + 1 // whose completion comes now cannot be told
	} else if !g.index.insert(tag, 1) {
		return // forgotten: its late messages count as unknown
	}
	g.ring[g.next] = tag
	g.next = (g.next + 1) % len(g.ring)
}

// complete notes who ended the use that was added last.
func (g *graves) complete(tag, who uint64) {
	if i := g.index.find(tag); i >= 0 && g.index.entries[i].word == 1 {
		g.index.entries[i].word |= who & completerMask
	}
}

// completer gives those bits of who completed a tag; 0: it is not known, or was not one reader alone.
func (g *graves) completer(tag uint64) uint64 {
	if i := g.index.find(tag); i >= 0 {
		return g.index.entries[i].word & completerMask
	}
	return 0
}

func (g *graves) has(tag uint64) bool { return g.index.find(tag) >= 0 }
