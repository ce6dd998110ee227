package lease

import (
	"encoding/binary"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Places are where the tables lie that say how each lease stands, beside the slots and the rows: what Seen and SeenIndex read.
type Places struct{ Hot, Granted, Index, LongIDs record.Place }

// Places gives them. They stay where they are for the life of the table.
func (t *Table) Places() Places {
	return Places{
		Hot: record.PlaceOf(t.hot), Granted: record.PlaceOf(t.granted), Index: record.PlaceOf(t.index.entries), LongIDs: record.PlaceOf(t.long.bytes),
	}
}

// Lengths of an entry of Places.Hot and Places.Index, and the longest id that a slot holds itself; of a longer one its first four bytes
// are the place in Places.LongIDs, which has record.IDMax bytes each.
const (
	HotLen    = 32
	IndexLen  = 16
	InlineMax = inlineMax
)

// Seen is how a slot stands, as its entry of Places.Hot says.
type Seen struct {
	Expected, Held, Ended bool
	Deadline              clock.Instant // of the grant and the heartbeats of engines of ours; 0: it has passed, or there is none
	LookedAt              bool          // once or twice (L8): it ends unless a heartbeat comes
	Account               uint8         // of the reader: Reader.Row of the stats page
	Native, Stock         bool          // engines of ours, or stock messages, have named it
	Shared, Unchecked     bool          // L12
	Fixed, Lingering      bool
	RevokeWaits           bool
}

// SeeHot reads an entry of Places.Hot, which has HotLen bytes. The process may have been writing it.
func SeeHot(entry []byte) Seen {
	k := hot{a: binary.LittleEndian.Uint64(entry[16:]), b: binary.LittleEndian.Uint64(entry[24:])}
	p := k.phase()
	return Seen{
		Expected: p == phaseExpected, Held: p == phaseHeld, Ended: p == phaseEnded,
		Deadline: clock.Instant(k.until() << unitShift), LookedAt: k.is(isDue | isNoted), Account: k.account(),
		Native: k.is(namedNative), Stock: k.is(namedStock), Shared: k.is(isShared), Unchecked: k.is(isUnchecked),
		Fixed: k.is(isFixed), Lingering: k.is(isLingering), RevokeWaits: k.is(revokeSaid),
	}
}

// SeeIndex reads an entry of Places.Index, which has IndexLen bytes: the slot that it is of, and the end that the last stock heartbeat
// gave; 0: there was none. false: the entry is empty.
func SeeIndex(entry []byte) (slot uint32, stock clock.Instant, ok bool) {
	tag, word := binary.LittleEndian.Uint64(entry), binary.LittleEndian.Uint64(entry[8:])
	return uint32(word & slotMask), clock.Instant(word >> lowBits << unitShift), tag != 0
}
