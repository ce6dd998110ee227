package record

// Tags of submission records.
const (
	TagExpect   = 1
	TagGrant    = 2
	TagCancel   = 3
	TagRevoke   = 4
	TagPressure = 5
	TagTrack    = 16
	TagUntrack  = 17
	TagReject   = 18
	TagRead     = 19

	// Between a host context and its ranks only.
	TagEngine      = 32 // host -> rank: a remote engine is known under this handle
	TagEngineGone  = 33 // host -> rank: forget it
	TagBlob        = 34 // both: a piece of something long
	TagPause       = 35 // host -> rank: time left of a pause
	TagEra         = 36 // host -> rank: epoch and secret from now on
	TagFull        = 37 // host -> rank: start and end of the full state
	TagDrain       = 38 // host -> rank: tell owners what will not be read
	TagPoison      = 39 // host -> rank: close every row for ever
	TagReaderDead  = 40 // host -> rank: a reader engine's death wire fell (L12)
	TagHostLeaves  = 41 // host -> rank: it closes its context
	TagEvent       = 64 // rank -> host: an Event of this rank alone
	TagRetired     = 65 // rank -> host: nothing is left of a tracked request here
	TagReaderHeard = 67 // rank -> host: a reader has said who its death wire is, or that it leaves
	TagState       = 66 // rank -> host: registered or not
	TagTrouble     = 68 // rank -> host: how it finds a remote engine
)

// IDMax is the longest request id in bytes; RunsMax the most runs of one read part (4 KiB record).
const (
	IDMax   = 1024
	RunsMax = 253
)

// Expect is followed by the id.
type Expect struct {
	Lease Handle
	IDLen uint32
	Zero  uint32
}

// Grant is followed by the id.
type Grant struct {
	Lease      Handle
	Key        uint64
	User       uint64
	TTLNs      uint64 // time left when said; 0: the configured duration
	SaidNs     uint64 // CLOCK_BOOTTIME when said; 0: unknown
	ReadyEvent uint64
	Blocks     uint32
	Tokens     uint32
	Flags      uint32 // GrantFixed
	IDLen      uint32
}

// GrantFixed in a grant's flags: the life is fixed, no heartbeat extends it (blocks kept for a second turn).
const GrantFixed = 1

// TrackReq is TRACK and REJECT (Track = 0); followed by the remote id, then the local id.
type TrackReq struct {
	Track      Handle
	Engine     uint64
	Epoch      uint64
	Key        uint64
	User       uint64
	SaidNs     uint64
	ExpiresNs  uint64 // fixed leases: the end, in CLOCK_MONOTONIC of the owner's host; 0: heartbeats renew it
	LeftNs     uint64 // fixed leases on a stream: time from SaidNs (0: from the arrival) until the certain end; 0: not converted
	Slot       uint32
	Generation uint32
	Native     uint32
	RemoteLen  uint16
	LocalLen   uint16
}

// Run is n blocks that are contiguous on both sides.
type Run struct{ Group, Local, Remote, N uint32 }

// Read is one part of a read, followed by N runs.
type Read struct {
	Track Handle
	Part  uint32
	Parts uint32
	N     uint32
	Zero  uint32
}

// Event is what the host polls, 64 bytes for ever.
type Event struct {
	Kind     uint16
	Reserved uint16
	Flags    uint32
	Status   int32
	Rank     uint32
	Handle   uint64
	User     uint64
	Value0   uint64
	Value1   uint64
	TimeNs   uint64
	Reasons  uint64 // EvFreed: reason of each rank, 4 bits each, rank 0 lowest; ranks past 15 are only in Status
}

// Event kinds, with the meaning that kvlease.h gives them.
const (
	EvFreed        = 1
	EvReadDone     = 2
	EvReadFailed   = 3
	EvBlocksBack   = 4
	EvLeaseGone    = 5
	EvAtRisk       = 6
	EvEngineUp     = 7
	EvEngineDown   = 8
	EvPoisoned     = 9
	EvExpectLapsed = 10
	EvRankUp       = 11
	EvRankDown     = 12
	EvHostDown     = 13 // HostRefuses, or 0
	EvEngineDrains = 14

	FlagBlocksHeld = 1

	HostRefuses = 1 // status of EvHostDown: it is there, and does not take this rank
)

// Reasons of EvFreed.
const (
	FreedCompleted = 1
	FreedReleased  = 2
	FreedRevoked   = 3
	FreedExpired   = 4
	FreedPoisoned  = 5
	FreedDuplicate = 6
	FreedClosed    = 7
	FreedLost      = 8
)

// Outcomes of a read.
const (
	ReadOK        = 0
	ReadStale     = 1
	ReadUnproven  = 2
	ReadFailed    = 3
	ReadTimeout   = 4
	ReadCancelled = 5
	ReadLost      = 6
)
