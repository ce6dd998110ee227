package log

// Kind says what a record is about. Its name in lines does not change.
type Kind uint8

const (
	RecordsLost Kind = iota
	EngineUp
	EngineDown
	EngineDead
	EngineWithdrawn
	EngineUnusable
	EngineReplaced
	EngineTwice
	EngineDrains
	LoadFailed
	AgentAbandoned
	HeartbeatsDropped
	SendFailed
	HeartbeatsLate
	ReadStale
	ReadUnproven
	ReadKeyless
	ReadLate
	ReadFailed
	ReadFailedHere
	ReadInvalid
	ReadTimeout
	ReadLost
	ReadWaited
	BlocksAside
	BlocksStuck
	LeaseGone
	RequestLost
	LeaseAtRisk
	LeaseOver
	IDUnsendable
	RequestIDsFull
	EndUntold
	TracksFull
	RunsFull
	TransfersFailHere
	HeartbeatsMuted
	LeaseUnread
	LeaseExpired
	ReaderDead
	ReaderWithdrawn
	LeasesFull
	LeaseIDsFull
	LeaseUnindexed
	DuplicateGrant
	ExpectLapsed
	ReadyFailed
	KeyWrong
	Stall
	MessageMalformed
	MessageUnknown
	MessagesTooLong
	StockIgnored
	PushRegistration
	SubmissionsBad
	EventsWait
	Poisoned
	Fenced
	Draining
	PageMissing
	TransportTold
	NetworkDown
	DeviceRegistered
	DeviceUnchecked
	MemoryProven
	MemoryUnproven
	Registering
	RegisteringSlow
	PriorityOff
	PumpOverslept
	CollectionLong
	RankUp
	RankLeft
	RankLost
	RankBroken
	RankBehind
	RankBad
	RankUntold
	RankMisfit
	HostRefuses
	HostLost
	HostLeft
	MapRefused
	ClockUnknown
	HandshakeFailing
	HandshakeMisfit
	WrongEngine
	EngineMoved
	EngineClaimed
	ClockJumped
	WireDisputed
	ReaderWiresFull
	SideMalformed
	SideUnregistered
	SideUnknownRank
	SideRefused
	SideNoDescriptors
	SidePanic
	kinds
)

// Def says of a kind how bad it is, what its numbers are, and what a line says. In What {text} and the names of the numbers in
// braces are put in, and of [one|many] what fits the last number before it: "{reads} [read is|reads are] open". A name that ends in _ns is
// a span.
type Def struct {
	Name   string
	Level  Level
	Values [2]string // of Entry.A and B; "": there is none
	What   string
	Remedy string
}

// Defs are all kinds. docs/logging.md shows them, remade by go generate.
var Defs = all(remoteDefs, leaseDefs, contextDefs, rankDefs, sideDefs)

// all puts the kinds together; one that is named twice is a fault of this package, which none of its users can live with.
func all(some ...map[Kind]Def) (defs [kinds]Def) {
	for _, of := range some {
		for k, d := range of {
			if defs[k].Name != "" {
				panic("log: two definitions of " + d.Name)
			}
			defs[k] = d
		}
	}
	return defs
}
