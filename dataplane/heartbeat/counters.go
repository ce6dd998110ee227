package heartbeat

// Counters only ever grow. The stepping thread writes them; a copy is taken by Tracker.Counters.
type Counters struct {
	Tracked, Untracked, Rejected uint64 // submissions taken
	StaleHandles                 uint64 // submissions about a slot or engine that had ended: ignored, or the request is lost
	LongIDsFull                  uint64 // a stock peer's request could not be tracked: its id is long and there is no room
	BadIDs                       uint64 // an id that the stock format cannot carry: no heartbeat, no completion
	Lost                         uint64 // requests whose engine was replaced or removed

	BeatBatches, BeatBytes, Beats uint64 // heartbeat messages, their bytes, the requests in them
	BeatsDropped                  uint64 // rounds of heartbeats that ended before all were sent, as the peer hears nothing (UnheardBytesMax)
	BeatsCut                      uint64 // steps that stopped at BatchesStepMax
	SendFailed                    uint64 // sends that the transport refused
	Disconnects                   uint64 // of these, and of reads: the peer was unreachable

	Completes, Releases   uint64 // requests told about
	EndBatches            uint64 // messages that told it
	Attached              uint64 // completions that left with their READ
	EndsCut               uint64 // steps that stopped at EndsStepMax
	OwedDropped, OwedLate uint64 // messages given up: no room to keep them, or the lease had ended by itself
	OwedLost              uint64 // messages given up, as their engine was removed or replaced
	Leavings              uint64

	Handshakes, HandshakesSame uint64
	Loads                      uint64 // loads of a rank's metadata that were tried
	LoadsFailed                uint64 // loads of a rank's metadata that failed
	LoadsPutOff                uint64 // times that another agent of this process was loading
	Heals, HealWaits           uint64 // loads tried since a connection broke; times one waited for open transfers
	MadeAnew                   uint64 // connections made anew since reads, rows or messages went on failing for a reason of this side
	Abandons                   uint64 // agents dropped under transfers that had not ended in HealWait
	Hellos                     uint64
	EnginesDead                uint64 // boots that were told dead
	EnginesWithdrawn           uint64 // boots that were told to have given their memory up, or to have drained, on purpose
	EnginesUnusable            uint64 // boots found not to fit, or whose address another engine has
	Flaps                      uint64 // changes back to the boot before that came too soon
	RowStatesFull              uint64 // requests at an engine of several ranks for which there was no room to look at all rows
	FixedOver                  uint64 // fixed leases whose time was up
	WalksCut                   uint64 // steps that left a walk over an engine's requests to the next one

	Rows, RowsCut uint64 // row reads posted, steps that stopped at RowsStepMax
	RowsFailed    uint64 // row reads and probes that failed, or could not be posted
	Draining      uint64 // engines whose board said that they take nothing new
	Probes        uint64
	Renewals      uint64 // rows that showed one
	Gone          uint64 // requests told to be lost before they were read
	AtRisk        uint64 // requests told to be at risk

	Reads, ReadsEmpty, ReadsWaited uint64
	ReadsInvalid                   uint64    // reads that the machine refused: blocks or regions do not fit
	Outcomes                       [8]uint64 // by record.Read*
	WaitTimeouts                   uint64    // reads whose engine was not reached in ReadTimeout
	RunsFull                       uint64    // reads refused, as too many runs wait
	GuardRefused                   uint64    // stock reads outside the time guard, before or after
	Keyless                        uint64    // reads from a peer that speaks kvlease whose parameters came without its key: nothing could prove them
	EventsRefused                  uint64    // the completion ring was full; kept for the next step
	RegistryBusy                   uint64    // steps that found the registry locked
	LateUsers                      uint64    // requests that joined a stock remote id whose completion had left
	OtherLeases                    uint64    // requests of another lease under a stock remote id that was in use: not read
	Repeats                        uint64    // tracks and reads said again by a host
	BadParts                       uint64    // parts of a read that did not fit together
	Retired                        uint64    // tracking slots out of uses
}

// Gauges are how much of everything there is now.
type Gauges struct {
	Tracked       int // requests
	Remotes       int // leases of others that are tracked, or about which a message is owed
	Owed          int // messages not yet sent
	Reading       int // reads begun and not reported
	Waiting       int // reads that wait for their engine
	Events        int // requests and engines with an event that was not taken
	BlocksHeld    int // failed reads whose blocks are not back
	Idle          int // engines by state
	Loading       int
	Connected     int
	Broken        int
	UnheardMax    uint64 // bytes, of the worst engine connected
	LongIDsFree   int
	Parked        int    // agents of engines that came back as others, not yet dropped
	Failing       int    // engines without a connection or unheard for an interval, or from which the last three reads have failed
	FailingLong   int    // of these, for one lease duration, and requests are tracked there, or were in its trouble: two minutes and a lease duration ago at most
	FailingUnused int    // of these, for one lease duration, and nobody misses them
	FailingMs     uint64 // the longest of all
}
