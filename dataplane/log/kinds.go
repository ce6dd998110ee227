package log

// Kind says what a record is about. Its name in lines does not change.
type Kind uint8

const (
	RecordsLost Kind = iota
	EngineUp
	EngineDown
	EngineDead
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
	HeartbeatsMuted
	LeaseUnread
	LeaseExpired
	ReaderDead
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
	SideRefused
	SideNoDescriptors
	SidePanic
	kinds
)

// Def says of a kind how bad it is, what its numbers are, and what a line says. In What {text} and the names of the numbers in
// braces are put in. A name that ends in _ns is a span.
type Def struct {
	Name   string
	Level  Level
	Values [2]string // of Entry.A and B; "": there is none
	What   string
	Remedy string
}

// Defs are all kinds. docs/logging.md shows them, remade by go generate.
var Defs = [kinds]Def{
	RecordsLost: {
		"records_lost", Warning, [2]string{"records"},
		"{records} records found no place in the log",
		"drain it more often (kvl_log_take), or look at the counters of kvl_stats for what is missing",
	},
	EngineUp: {
		"engine_up", Info, [2]string{"after_ns"},
		"it is connected, {after_ns} after it was not",
		"none",
	},
	EngineDown: {
		"engine_down", Warning, [2]string{"requests"},
		"the connection to it broke; {requests} requests are tracked there, and their heartbeats wait until it is made anew",
		"none if engine_up follows within seconds; else see whether the engine lives and the network between the two",
	},
	EngineDead: {
		"engine_dead", Warning, [2]string{"requests"},
		"its process is gone; {requests} requests that were tracked there are lost, and are to be computed",
		"none if it was ended on purpose; else see why it died",
	},
	EngineReplaced: {
		"engine_replaced", Warning, [2]string{"requests"},
		"it has come back as another boot; {requests} requests of the boot before are lost, and are to be computed",
		"none if it was restarted, or its memory was registered anew; else see why it died",
	},
	EngineTwice: {
		"engine_twice", Error, [2]string{},
		"it goes back and forth between two boots: two processes have its engine_id",
		"give each engine an engine_id of its own",
	},
	EngineDrains: {
		"engine_drains", Info, [2]string{},
		"it takes nothing new, as it is about to exit",
		"send new requests elsewhere",
	},
	LoadFailed: {
		"load_failed", Warning, [2]string{"failures"},
		"the transport does not take its metadata ({failures} failures in a row): {text}",
		"see that both engines have the same transport and version of NIXL, and that the engine lives; it is tried again",
	},
	AgentAbandoned: {
		"agent_abandoned", Warning, [2]string{"waited_ns"},
		"reads from it had not ended {waited_ns} after its connection broke; it is connected anew, and their local blocks stay aside until the transport ends them",
		"none if blocks_stuck does not follow; else look at the network's own counters",
	},
	HeartbeatsDropped: {
		"heartbeats_dropped", Warning, [2]string{"unheard_bytes"},
		"heartbeats to it are dropped: it has not been heard since {unheard_bytes} bytes were sent; leases there will expire",
		"see whether the engine's loop steps and the network between the two; unheard_bytes_max is the bound",
	},
	SendFailed: {
		"send_failed", Warning, [2]string{"bytes"},
		"the transport refused a message of {bytes} bytes to it",
		"none if it stays alone: heartbeats say the same again; else see whether the engine lives",
	},
	HeartbeatsLate: {
		"heartbeats_late", Warning, [2]string{"late_ns", "interval_ns"},
		"a round of heartbeats to it began {late_ns} late, the interval is {interval_ns}: leases there may have expired",
		"step more often (step_max), or set drive to pump; pause on purpose with kvl_pause",
	},
	ReadStale: {
		"read_stale", Warning, [2]string{"took_ns", "bytes"},
		"the lease had ended before its data was proven: what was read counts for nothing, and the request is to be computed",
		"see why the request waited: a longer kv_lease_duration, fewer waiting requests, or blocks that the owner took back under pressure",
	},
	ReadUnproven: {
		"read_unproven", Warning, [2]string{"took_ns", "bytes"},
		"nothing proves that the lease stood while its blocks were read, so they count for nothing, and the request is to be computed",
		"see whether the owner was reached; over a stock owner raise kv_lease_duration on both sides",
	},
	ReadKeyless: {
		"read_keyless", Warning, [2]string{"took_ns", "bytes"},
		"the owner speaks kvlease, and the parameters came without its key, so nothing can prove the read; the request is to be computed",
		"have the router pass kv_transfer_params through whole",
	},
	ReadLate: {
		"read_late", Warning, [2]string{"took_ns", "bytes"},
		"a stock owner may have given the blocks out already, as the chain of heartbeats has a gap or they came too late; the request is to be computed",
		"step more often, raise kv_lease_duration on both sides, or run kvlease on the owner, too",
	},
	ReadFailed: {
		"read_failed", Warning, [2]string{"took_ns", "bytes"},
		"the transport failed the read; the request is to be computed",
		"none if the engine was ended; else look at the network and at what the transport has written to stderr",
	},
	ReadInvalid: {
		"read_invalid", Error, [2]string{"took_ns", "bytes"},
		"blocks or regions of the read do not fit what is registered, or it needs more runs than read_runs_max",
		"a fault of the engine's block numbers, or raise read_runs_max; report it with kvlease dump",
	},
	ReadTimeout: {
		"read_timeout", Warning, [2]string{"took_ns", "bytes"},
		"the read had not ended in read_timeout; the request is to be computed, and its local blocks stay aside until the transport ends it",
		"look at the network between the two; read_timeout is the bound",
	},
	ReadLost: {
		"read_lost", Warning, [2]string{"took_ns", "bytes"},
		"the engine was gone, replaced or never reached before the read was done; the request is to be computed",
		"see the records of the engine before this one",
	},
	ReadWaited: {
		"read_waited", Warning, [2]string{"took_ns", "bytes"},
		"the engine was not reached in read_timeout; the request is to be computed",
		"see that the engine lives and that its side channel can be reached from here",
	},
	BlocksAside: {
		"blocks_aside", Warning, [2]string{"bytes"},
		"a read has ended badly and its transfer has not: its local blocks are not free until the transport says so",
		"none if the engine gives them back at KVL_EV_BLOCKS_BACK; blocks_stuck says if they do not come",
	},
	BlocksStuck: {
		"blocks_stuck", Error, [2]string{"reads"},
		"{reads} reads have ended neither well nor badly for long: nobody can say when their local blocks are free",
		"look at the network; if they do not come back (reads_held), restart this engine when it is convenient",
	},
	LeaseGone: {
		"lease_gone", Warning, [2]string{},
		"its lease had ended before it was read; the request is to be computed",
		"see why it waited so long, or whether the owner took its blocks back; a longer kv_lease_duration covers longer queues",
	},
	RequestLost: {
		"request_lost", Warning, [2]string{},
		"the engine that holds its blocks is gone or another one; the request is to be computed",
		"see the records of the engine before this one",
	},
	LeaseAtRisk: {
		"lease_at_risk", Warning, [2]string{"left_ns"},
		"its row at the owner does not move, although heartbeats leave: it stands for {left_ns} more for certain",
		"see whether the owner's loop steps and the network between the two",
	},
	LeaseOver: {
		"lease_over", Info, [2]string{},
		"a lease without heartbeats is over before it was read; the request is to be computed",
		"none if turns come that late; else raise decoder_kv_blocks_ttl at the owner",
	},
	IDUnsendable: {
		"id_unsendable", Warning, [2]string{"bytes"},
		"its id of {bytes} bytes cannot be carried by the stock format: no heartbeats, and it can be read for its first term only",
		"use ids of up to 1,024 bytes without the separators of the format, or run kvlease on the owner, too",
	},
	RequestIDsFull: {
		"request_ids_full", Warning, [2]string{"bytes"},
		"there is no room for one more request of a stock owner with an id of more than 96 bytes ({bytes} here); the request is to be computed",
		"use shorter ids, or raise tracked_max",
	},
	EndUntold: {
		"end_untold", Warning, [2]string{"waited_ns"},
		"its owner could not be told that nobody will read it; the lease ends there by itself",
		"see the records of the engine before this one",
	},
	TracksFull: {
		"tracks_full", Warning, [2]string{"tracked"},
		"all {tracked} tracking slots are taken: kvl_track answers KVL_ERR_FULL, and those requests are to be computed",
		"raise tracked_max",
	},
	RunsFull: {
		"runs_full", Warning, [2]string{"reads"},
		"{reads} reads failed for want of room for their runs of blocks",
		"raise read_runs_max",
	},
	HeartbeatsMuted: {
		"heartbeats_muted", Warning, [2]string{"since_ns"},
		"the forward loop has not passed for {since_ns}: no heartbeats leave until it does, and leases at others expire",
		"see where the engine hangs; before a pause on purpose call kvl_pause, and stall_cover is the bound",
	},
	LeaseUnread: {
		"lease_unread", Warning, [2]string{"held_ns", "blocks"},
		"the lease expired after {held_ns}, {blocks} blocks: no heartbeat has ever come for it",
		"see whether the request reached a reader: the router, its queue before kvl_track, or a reader without kvlease and without heartbeats",
	},
	LeaseExpired: {
		"lease_expired", Warning, [2]string{"held_ns", "silent_ns"},
		"the lease expired after {held_ns}; its reader was heard last {silent_ns} ago",
		"see whether that engine lives, steps, and is connected",
	},
	ReaderDead: {
		"reader_dead", Warning, [2]string{},
		"this reader's process has died, as its wire says: leases that it alone may read end now, others at their deadlines",
		"none if it was ended on purpose; else see why it died",
	},
	LeasesFull: {
		"leases_full", Warning, [2]string{"leases"},
		"all {leases} leases are taken: kvl_grant answers KVL_ERR_FULL, and those blocks are not kept",
		"raise requests_max, or see why readers do not come for what is held (kvlease top)",
	},
	LeaseIDsFull: {
		"lease_ids_full", Warning, [2]string{"bytes"},
		"there is no room for one more lease with an id of more than 96 bytes ({bytes} here): stock readers do not reach it",
		"raise long_ids_max, or use shorter ids",
	},
	LeaseUnindexed: {
		"lease_unindexed", Warning, [2]string{"bytes"},
		"the lease found no place among the ids: stock readers do not reach it",
		"raise requests_max",
	},
	DuplicateGrant: {
		"duplicate_grant", Warning, [2]string{"blocks"},
		"a second lease was asked for under an id that holds one: it has ended at once, and its {blocks} blocks are not kept",
		"give each request an id of its own, also when it comes again",
	},
	ExpectLapsed: {
		"expect_lapsed", Warning, [2]string{"after_ns"},
		"it was expected {after_ns} ago and no lease came: what peers say of it is no longer kept",
		"cancel expectations of requests that are aborted (kvl_cancel), or raise expect_max",
	},
	ReadyFailed: {
		"ready_failed", Warning, [2]string{"slot"},
		"the ready_event of a grant could not be asked: its lease in slot {slot} is never offered, and ends at its deadline: {text}",
		"keep the event until kvl_params has succeeded or the lease has ended, and give one of the registered device's",
	},
	KeyWrong: {
		"key_wrong", Warning, [2]string{"slot"},
		"a message named the lease in slot {slot} with a key that does not fit: it has changed nothing",
		"have the router pass kv_transfer_params through unchanged; else this peer makes keys up",
	},
	Stall: {
		"stall", Warning, [2]string{"gap_ns", "allowed_ns"},
		"two steps were {gap_ns} apart, {allowed_ns} are allowed: what has expired is held for one interval more, so that nothing that has arrived is missed",
		"see where the engine's loop stood, or set drive to pump; stall_gap is the bound",
	},
	MessageMalformed: {
		"message_malformed", Warning, [2]string{"bytes"},
		"it has sent a message of {bytes} bytes that is none",
		"see what runs under that name: it is no peer of this version, or broken",
	},
	MessageUnknown: {
		"message_unknown", Warning, [2]string{"bytes"},
		"it has sent a message of a newer version or kind, which is left aside",
		"install the same version of kvlease on both engines",
	},
	MessagesTooLong: {
		"messages_too_long", Warning, [2]string{"messages"},
		"{messages} messages were longer than parse_max, and were dropped unread",
		"raise parse_max, or see who sends them",
	},
	StockIgnored: {
		"stock_ignored", Warning, [2]string{},
		"it does not speak kvlease, and stock_peers is off: nothing that it says counts, and its leases expire",
		"set stock_peers, or run kvlease there",
	},
	PushRegistration: {
		"push_registration", Warning, [2]string{},
		"it wants blocks to be pushed, which is not served here",
		"configure the pull connector on that engine",
	},
	SubmissionsBad: {
		"submissions_bad", Error, [2]string{"submissions"},
		"{submissions} submissions of the host fit no slot, or were of no kind that is known: a fault of the host's side",
		"report it with kvlease dump; libkvlease.so and the core must be of one build",
	},
	EventsWait: {
		"events_wait", Warning, [2]string{"times"},
		"the ring of events is full: ended leases keep their slots until kvl_poll takes them",
		"call kvl_poll in every turn of the loop, or raise events_max",
	},
	Poisoned: {
		"poisoned", Error, [2]string{},
		"the core broke, and every row is closed; nothing of this context can be read any more: {text}",
		"restart the engine, and report this text",
	},
	Fenced: {
		"fenced", Error, [2]string{},
		"kvl_fence_all was called: every row is closed, and nothing of this context can be read any more",
		"restart the engine",
	},
	Draining: {
		"draining", Info, [2]string{"held"},
		"it drains: {held} leases are held, and nothing new is taken",
		"none",
	},
	PageMissing: {
		"page_missing", Warning, [2]string{},
		"tools do not see this context, as its stats page could not be made: {text}",
		"give stats_page a folder in memory with room that this user may write to, or leave it empty",
	},
	TransportTold: {
		"transport_told", Info, [2]string{},
		"for reads of this device memory {text}",
		"none; what UCX's environment variables or a ucx.conf say stays, and with transport_settings off nothing is told",
	},
	DeviceRegistered: {
		"device_registered", Info, [2]string{"bytes", "pieces"},
		"{bytes} bytes of device memory are registered in {pieces} pieces; both ends of each were read through the driver",
		"none; memory_proven or memory_unproven says whether peers can read it",
	},
	DeviceUnchecked: {
		"device_unchecked", Warning, [2]string{},
		"not all that device memory needs could be checked: {text}",
		"none if no NIC is to reach it; else look at kvlease doctor, name the management library by KVLEASE_NVML, or compare the cache with the BAR1 window yourself (nvidia-smi -q -d MEMORY)",
	},
	MemoryProven: {
		"memory_proven", Info, [2]string{"regions", "took_ns"},
		"a second agent of this process read the last page of each of {regions} regions over {text}, as a peer would, in {took_ns}",
		"none",
	},
	MemoryUnproven: {
		"memory_unproven", Warning, [2]string{"regions"},
		"{regions} regions are registered, and it was not shown that peers can read them: {text}",
		"the first read of a peer shows it; to have it shown at the start leave self_read on and shared memory out of UCX_TLS, and give the process 32 descriptors more",
	},
	Registering: {
		"registering", Info, [2]string{"done_bytes", "bytes"},
		"{done_bytes} of {bytes} bytes are registered",
		"none: steps go on; kvl_close cuts it off after the piece that the transport is at",
	},
	RegisteringSlow: {
		"registering_slow", Warning, [2]string{"since_ns", "bytes"},
		"registering {bytes} bytes has taken {since_ns} so far: devices look at the memory, then each page is pinned, by each NIC",
		"host memory: huge pages, which are fewer, and fewer NICs (UCX_NET_DEVICES); device memory: see dmesg for NVRM lines, and whether other processes of the machine pin, too",
	},
	PriorityOff: {
		"priority_off", Warning, [2]string{"times"},
		"the priority that pump_priority asks for was not permitted",
		"give the process CAP_SYS_NICE or an RLIMIT_RTPRIO, or set pump_priority to off",
	},
	PumpOverslept: {
		"pump_overslept", Warning, [2]string{"times"},
		"the pump woke more than 20 ms late {times} times: the machine's processors are busy",
		"leave it a processor (cpus), or run fewer threads beside it",
	},
	CollectionLong: {
		"collection_long", Warning, [2]string{"pause_ns"},
		"a collection of the core's memory stopped its threads for up to {pause_ns}",
		"report it with the counters of kvl_stats; go_heap_bytes says how large the heap is",
	},
	RankUp: {
		"rank_up", Info, [2]string{"rank"},
		"rank {rank} of this engine has registered its memory",
		"none",
	},
	RankLeft: {
		"rank_left", Info, [2]string{"rank"},
		"rank {rank} of this engine has closed its context: what it had not ended counts as ended",
		"none",
	},
	RankLost: {
		"rank_lost", Error, [2]string{"rank"},
		"rank {rank} of this engine is lost: what it had not ended counts as ended, and reads that need it fail",
		"see why its process ended; the engine has to be restarted",
	},
	RankBroken: {
		"rank_broken", Error, [2]string{"rank"},
		"rank {rank} of this engine is broken: its rows are closed, and requests that need it are to be computed",
		"see that rank's own log; restart the engine, and report it",
	},
	RankBehind: {
		"rank_behind", Warning, [2]string{"rank"},
		"the stream to rank {rank} had no room: it is told everything again",
		"see whether that rank's loop steps",
	},
	RankBad: {
		"rank_bad", Error, [2]string{"rank"},
		"rank {rank} has said what cannot be: it is left aside",
		"install the same version of kvlease for all ranks",
	},
	RankUntold: {
		"rank_untold", Warning, [2]string{"words"},
		"{words} rejects or deaths of readers were not told to a rank that stands still: those leases end by themselves",
		"see which rank's loop does not step",
	},
	RankMisfit: {
		"rank_misfit", Error, [2]string{"host_ns", "here_ns"},
		"the host's kv_lease_duration is {host_ns} and this rank's {here_ns}: this rank takes nothing",
		"give all contexts of an engine the same kv_lease_duration",
	},
	HostRefuses: {
		"host_refuses", Error, [2]string{},
		"the host of this rank does not take it: {text}",
		"give host and ranks of an engine the same sizes, and each rank a number of its own",
	},
	HostLost: {
		"host_lost", Error, [2]string{},
		"the host of this rank is lost: nothing new comes, and what is held ends at its deadline",
		"end this rank, and start the engine anew",
	},
	MapRefused: {
		"map_refused", Warning, [2]string{},
		"the map of an engine that the host has told cannot be used here: {text}",
		"see that both engines have the same model, block size and layout",
	},
	ClockUnknown: {
		"clock_unknown", Warning, [2]string{},
		"the clock of its owner did not become known in read_timeout, so nobody can say whether its lease stands; the request is to be computed",
		"see that the owner's side channel can be reached from here",
	},
	HandshakeFailing: {
		"handshake_failing", Warning, [2]string{"failures"},
		"it cannot be asked for its handshake ({failures} failures in a row): {text}",
		"see that the engine lives, and that host and port in kv_transfer_params can be reached from here; it is tried again",
	},
	HandshakeMisfit: {
		"handshake_misfit", Error, [2]string{},
		"it does not fit this engine, and nothing is read from it: {text}",
		"give both the same model, block size, layout and number of heads",
	},
	WrongEngine: {
		"wrong_engine", Warning, [2]string{},
		"another engine answers at its address: what is tracked at it is lost, and those requests are to be computed",
		"none if it was restarted under another engine_id; else see the router's table",
	},
	EngineMoved: {
		"engine_moved", Info, [2]string{},
		"it is at {text} now",
		"none",
	},
	EngineClaimed: {
		"engine_claimed", Error, [2]string{},
		"two engines claim this engine_id: {text}",
		"give each engine an engine_id of its own",
	},
	ClockJumped: {
		"clock_jumped", Warning, [2]string{},
		"a clock of this host jumped: how the clocks of peers stand to it is found anew",
		"none after a suspend; else see what sets the clock",
	},
	WireDisputed: {
		"wire_disputed", Warning, [2]string{"readers"},
		"{readers} readers were named by two nonces: nothing their wires say is believed, and their deadlines decide",
		"see that no two engines have one engine_id; else somebody makes names up",
	},
	ReaderWiresFull: {
		"reader_wires_full", Warning, [2]string{"wires"},
		"{wires} readers found no place for their wires: their deaths are seen by their leases alone",
		"raise death_wires_max and the number of descriptors (ulimit -n)",
	},
	SideMalformed: {
		"side_malformed", Warning, [2]string{"connections"},
		"{connections} connections at the side channel sent what is no message",
		"see who connects to side_channel_port: a probe, or a peer of another version",
	},
	SideRefused: {
		"side_refused", Warning, [2]string{"connections"},
		"{connections} connections at the side channel found no place, and peers wait",
		"see who connects to side_channel_port; peers try again",
	},
	SideNoDescriptors: {
		"side_no_descriptors", Error, [2]string{"accepts"},
		"{accepts} connections could not be accepted, mostly for want of descriptors",
		"raise the number of descriptors (ulimit -n)",
	},
	SidePanic: {
		"side_panic", Error, [2]string{"connections"},
		"{connections} connections at the side channel were closed for a fault of ours",
		"report it",
	},
}
