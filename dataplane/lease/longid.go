package lease

import (
	"bytes"
	"encoding/binary"

	"github.com/kvlease/kvlease/dataplane/internal/free"
	"github.com/kvlease/kvlease/dataplane/record"
)

// longIDs holds the ids that do not fit into their slot. The slot keeps the length and, in the id's first bytes, the place.
type longIDs struct {
	bytes []byte
	free  free.Places

	commas int // slots whose id has a comma
}

const inlineMax = len(record.Slot{}.ID)

func newLongIDs(n int) longIDs {
	return longIDs{bytes: make([]byte, n*record.IDMax), free: free.New(n)}
}

// store puts id into the slot. It reports false, and leaves the slot without an id, if there is no place.
func (l *longIDs) store(slot *record.Slot, id []byte) bool {
	slot.IDLen = 0
	if len(id) == 0 || len(id) > record.IDMax {
		return false
	}
	if len(id) <= inlineMax {
		copy(slot.ID[:], id)
		slot.IDLen = uint16(len(id))
		l.commas += comma(id)
		return true
	}
	place := l.free.Take()
	if place == free.None {
		return false
	}
	copy(l.bytes[int(place)*record.IDMax:], id)
	binary.LittleEndian.PutUint32(slot.ID[:], place)
	slot.IDLen = uint16(len(id))
	l.commas += comma(id)
	return true
}

// id gives the id of a slot; empty if it has none.
func (l *longIDs) id(slot *record.Slot) []byte {
	n := int(slot.IDLen)
	if n <= inlineMax {
		return slot.ID[:n]
	}
	at := int(binary.LittleEndian.Uint32(slot.ID[:])) * record.IDMax
	return l.bytes[at : at+n]
}

func comma(id []byte) int {
	if bytes.IndexByte(id, ',') < 0 {
		return 0
	}
	return 1
}

func (l *longIDs) drop(slot *record.Slot) {
	l.commas -= comma(l.id(slot))
	if int(slot.IDLen) > inlineMax {
		l.free.Give(binary.LittleEndian.Uint32(slot.ID[:]))
	}
	slot.IDLen = 0
}
