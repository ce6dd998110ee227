package group

import (
	"encoding/binary"

	"github.com/kvlease/kvlease/dataplane/internal/free"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/siphash"
)

// idInline is how much of an id stands in its slot.
const idInline = 96

// pool holds ids that are longer.
type pool struct {
	bytes []byte
	free  free.Places
}

func newPool(n int) pool { return pool{bytes: make([]byte, n*record.IDMax), free: free.New(n)} }

// set stores an id in inline or, if it is longer, here; false: there is no room, nothing was stored.
func (p *pool) set(inline *[idInline]byte, n *uint16, id []byte) bool {
	if len(id) > idInline {
		i := p.free.Take()
		if i == none {
			return false
		}
		copy(p.bytes[int(i)*record.IDMax:], id)
		binary.LittleEndian.PutUint32(inline[:], i)
	} else {
		copy(inline[:], id)
	}
	*n = uint16(len(id))
	return true
}

func (p *pool) get(inline *[idInline]byte, n uint16) []byte {
	if n <= idInline {
		return inline[:n]
	}
	at := int(binary.LittleEndian.Uint32(inline[:])) * record.IDMax
	return p.bytes[at : at+int(n)]
}

func (p *pool) drop(inline *[idInline]byte, n *uint16) {
	if *n > idInline {
		p.free.Give(binary.LittleEndian.Uint32(inline[:]))
	}
	*n = 0
}

// ids are those of the lease slots.
type ids struct{ pool }

func (p *ids) of(s *record.Slot) []byte             { return p.get(&s.ID, s.IDLen) }
func (p *ids) store(s *record.Slot, id []byte) bool { return p.set(&s.ID, &s.IDLen, id) }
func (p *ids) clear(s *record.Slot)                 { p.drop(&s.ID, &s.IDLen) }

// LongIDs is where ids lie that do not fit into their slots; in those is the place, as in a lease table's (lease.Places). It stays there for the
// life of the group.
func (g *Group) LongIDs() record.Place { return record.PlaceOf(g.ids.bytes) }

// index finds the held lease of an id: a second grant of it must end on all ranks alike, whatever order they hear of it in.
type index struct {
	table  []entry
	mask   uint64
	k0, k1 uint64
}

type entry struct {
	tag  uint64 // hash of the id, 0: empty
	slot uint32
}

func newIndex(n int, seed uint64) index {
	size := uint64(2)
	for size < 2*uint64(n) {
		size *= 2
	}
	return index{table: make([]entry, size), mask: size - 1, k0: seed ^ 0x67726f7570000000, k1: seed*0x9e3779b97f4a7c15 + 1}
}

// hash gives the tag of an id, never 0.
func (x *index) hash(id []byte) uint64 { return max(siphash.Sum64(x.k0, x.k1, id), 1) }

// find gives the slot under a tag, or none. Ids whose 64-bit hashes meet count as one: the second is refused as a duplicate.
func (x *index) find(tag uint64) uint32 {
	for p := tag & x.mask; x.table[p].tag != 0; p = (p + 1) & x.mask {
		if x.table[p].tag == tag {
			return x.table[p].slot
		}
	}
	return none
}

// put adds a tag that is not in it. The table is at most half full.
func (x *index) put(tag uint64, slot uint32) {
	p := tag & x.mask
	for x.table[p].tag != 0 {
		p = (p + 1) & x.mask
	}
	x.table[p] = entry{tag, slot}
}

// remove takes a tag out and moves the run behind it back.
func (x *index) remove(tag uint64) {
	p := tag & x.mask
	for x.table[p].tag != tag {
		if x.table[p].tag == 0 {
			return
		}
		p = (p + 1) & x.mask
	}
	for q := (p + 1) & x.mask; x.table[q].tag != 0; q = (q + 1) & x.mask {
		if home := x.table[q].tag & x.mask; (q-home)&x.mask >= (q-p)&x.mask {
			x.table[p] = x.table[q]
			p = q
		}
	}
	x.table[p] = entry{}
}
