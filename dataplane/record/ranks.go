package record

// Records between a host context and one of its ranks, beside those of a submission stream. They cross between processes:
// views of them are copies.

// Engine says that a remote engine is known under this handle; followed by its id.
type Engine struct {
	Engine uint64 // handle that the host chose
	User   uint64
	TP, PP uint32
	IDLen  uint32
	Zero   uint32
}

// EngineGone says that the handle means nothing any more.
type EngineGone struct{ Engine uint64 }

// Blob is followed by a piece of something long. Pieces come in order, one blob of a kind, rank and handle at a time; offset 0
// begins it anew. Total 0 and no piece: there is none any more.
type Blob struct {
	Kind   uint32
	Rank   uint32 // whose map; of none: why (heartbeat.Over)
	Handle uint64 // BlobPeer: the engine
	Total  uint32 // bytes of the whole; 0 with no piece: there is none any more
	Offset uint32 // of this piece
}

// Kinds of blobs.
const (
	BlobPeer = 1 // host -> rank: handshake map of a rank of a remote engine
	BlobOwn  = 2 // rank -> host: its own handshake map

	BlobPieceMax = 4064 // what a 4 KiB record has room for
)

// Pause is how long the engine will not step on purpose; 0: it does again.
type Pause struct{ LeftNs uint64 }

// Era is who this engine is to its readers from now on.
type Era struct {
	Era    uint64 // eras begun
	Epoch  uint64
	Secret [2]uint64

	DurationNs uint64 // kv_lease_duration of the host: a rank with another one takes no part
}

// Full stands before and behind the host's full state for a rank. What the rank holds and the state does not name is over.
type Full struct {
	Incarnation uint64 // grows with each full state; the end carries the number of its start
	Mark        uint32
	Zero        uint32
}

// Marks of Full.
const (
	FullStart = 1
	FullEnd   = 2
)

// Drain asks a rank to tell owners what will not be read.
type Drain struct{ LeftNs uint64 }

// Poison closes every row for ever.
type Poison struct{ Zero uint64 }

// HostLeaves says that the host closes its context: the end of the stream that follows is no crash.
type HostLeaves struct{ Zero uint64 }

// ReaderDead says that a reader engine's death wire fell.
type ReaderDead struct {
	Reader uint64 // hash of its id, as in native messages
	Epoch  uint64
}

// ReaderHeard hands on what a reader has said to a rank about its death wire.
type ReaderHeard struct {
	Reader uint64 // hash of its id
	Epoch  uint64
	Nonce  [16]byte
	Left   uint32 // 1: it leaves on purpose; Nonce is zero
	Zero   uint32
}

// Trouble is how a rank finds a remote engine, told when it changes: a connection may stand and nothing be heard over it.
type Trouble struct {
	Engine uint64
	ForNs  uint64 // it fails for so long (heartbeat.Tracker.Trouble); 0: it does not, or no longer
}

// RankState is what a rank tells about itself when a flag or number has changed; the counts are gauges of its last step.
type RankState struct {
	Flags         uint32
	Held          uint32 // leases expected or held
	Tracked       uint32
	Reads         uint32 // in flight
	Era           uint64 // the last that it was told
	Incarnation   uint64 // of the last full state taken up to its end
	Registrations uint64 // how often memory was registered: each is a new agent and base
	Steps         uint64
}

// Flags of RankState.
const (
	RankRegistered = 1
	RankPoisoned   = 2
	RankDrained    = 4
	RankClosed     = 8  // the context closes: its rows are closed for ever, and nothing writes to blocks any more
	RankSpent      = 16 // memory that was registered in the era it was told, or before it was told any, is gone: that era is over here
)
