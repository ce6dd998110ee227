package lease

// Outcome is what became of a message. Every one is counted, too.
type Outcome uint8

const (
	Applied   Outcome = iota // a lease heard it
	Ended                    // it ended the lease
	Kept                     // its grant is still to come: kept in the slot
	Repeated                 // this reader had reported before: nothing changed
	Late                     // the lease has ended
	Unknown                  // nothing is known of the id or slot
	BadKey                   // the key is not that of the slot's use
	Refused                  // it may not end this lease (L12), but it was heard
	Full                     // no room to remember this reader: the deadline decides
	Ignored                  // stock messages are off
	Malformed                // no reader count
	Fixed                    // the lease cannot be extended
	Misfit                   // a submission whose handle does not fit its slot
)

// Counters of a table. They only grow.
type Counters struct {
	Grants, Expects uint64

	Renewed, RenewedNative uint64 // heartbeats applied
	Kept                   uint64 // messages kept early
	Repeated               uint64

	LateRenew, LateRelease                    uint64
	LateDone                                  uint64 // stock completions of a lease that had ended: what was read may have been another's
	LateDoneNative                            uint64 // completions of readers of ours after the end: their fence has shown it to them
	LateDoneRepeated                          uint64 // stock completions by the only reader of a lease, which had completed it before
	UnknownRenew, UnknownDone, UnknownRelease uint64
	BadKey                                    uint64
	Malformed                                 uint64
	StockIgnored                              uint64
	StockEndRefused                           uint64 // L12: a native message had named the lease
	ReleaseRefused                            uint64 // L12: shared or unchecked
	RevokeWaits                               uint64 // L12: revoke left to the deadline
	Gone                                      uint64 // engines that are gone, as the death wire says
	GoneKept                                  uint64 // L12: leases of a gone engine left to the deadline
	GoneLeft                                  uint64 // gone engines that had said good-bye: nothing ended
	GoneDropped                               uint64 // gone engines that found no place in the queue
	FixedRenew                                uint64

	ReadersFull uint64 // readers not remembered
	IndexFull   uint64 // leases without an index entry
	LongFull    uint64 // ids too long for the room left
	Duplicate   uint64 // grants under an id that holds a lease
	BadHandle   uint64 // submissions that do not fit their slot
	Again       uint64 // submissions repeated, or about a use that has ended: nothing changed
	OtherEra    uint64 // grants said before the memory was registered anew
	EndedBefore uint64 // grants of a use that had already ended here
	Lapsed      uint64 // expectations
	Cancelled   uint64 // expectations
	Retired     uint64 // slots out of generations

	Freed      [8]uint64 // by record.Freed*
	Due        uint64    // first looks
	DueStalled uint64    // of these after a gap
	DueSaved   uint64    // renewed between the two looks
	Lingered   uint64
	LingerHeld uint64 // renewed while lingering
	ReadersCut uint64 // readers that had reported when an incomplete lease expired

	SweepCut, ExamineCut, PressureCut, GoneCut uint64 // loops that reached their bound
	EndsOpen                                   uint64 // most ends that ever waited to be told
}
