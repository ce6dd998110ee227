package record

// LastEnd is one of the leases that ended last, as the stats page shows it, 192 bytes.
type LastEnd struct {
	Number      uint64 // from 1 on; 0: nothing has ended here
	AtNs        uint64 // CLOCK_BOOTTIME
	Lease       Handle
	User        uint64
	IDHash      uint64 // of an id longer than ID; else 0, it is there
	Reader      uint64 // number of the account (lease.Account) of who named it last; 0: nobody has
	ReaderHash  uint64 // of a reader of ours
	ReaderEpoch uint64
	HeldNs      uint64
	Blocks      uint32
	Reason      uint16
	IDLen       uint16
	ID          [96]byte
	Zero        [2]uint64
}

// LastEndsMax is how many are remembered.
const LastEndsMax = 1024

// LastEnds remembers the last ones, in a ring by their numbers.
type LastEnds struct {
	Total uint64 // ends so far
	Ring  [LastEndsMax]LastEnd
}

// Next gives the place of the next end, numbered and empty but for that.
func (l *LastEnds) Next() *LastEnd {
	e := &l.Ring[l.Total%LastEndsMax]
	l.Total++
	*e = LastEnd{Number: l.Total}
	return e
}
