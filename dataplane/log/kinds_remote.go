package log

// remoteDefs are the kinds about engines that this one reads from, their leases, and reads.
var remoteDefs = map[Kind]Def{
	EngineUp: {
		"engine_up", Info, [2]string{"after_ns"},
		"its metadata is loaded, {after_ns} after it was not: no proof yet that it can be reached",
		"none",
	},
	EngineDown: {
		"engine_down", Warning, [2]string{"requests"},
		"the connection to it broke; {requests} [request is|requests are] tracked there, and heartbeats wait until it is made anew",
		"none if engine_up follows within seconds and this does not come again; else see whether the engine lives and the network between the two",
	},
	EngineDead: {
		"engine_dead", Warning, [2]string{"requests"},
		"its process is gone; {requests} [request that was tracked there is|requests that were tracked there are] lost, and [is|are] to be computed",
		"see why it died, or was killed; one that is closed or sleeps is engine_withdrawn, unless it is of a release that says no farewell",
	},
	EngineWithdrawn: {
		"engine_withdrawn", Info, [2]string{"requests"},
		"it has given its memory up on purpose: it sleeps (kvl_unregister), was closed, or has ended after kvl_drain had succeeded; {requests} [request that was tracked there is|requests that were tracked there are] lost, and [is|are] to be computed",
		"none; that it answers no handshake is said again when requests name it",
	},
	EngineUnusable: {
		"engine_unusable", Warning, [2]string{"requests"},
		"it {text}; {requests} [request that was tracked there is|requests that were tracked there are] lost, and [is|are] to be computed",
		"see handshake_misfit or wrong_engine of the context that has asked it, which is the host's where there are ranks",
	},
	EngineReplaced: {
		"engine_replaced", Warning, [2]string{"requests"},
		"it has come back as another boot; {requests} [request|requests] of the boot before [is|are] lost, and [is|are] to be computed",
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
		"the transport does not take its metadata ({failures} [failure|failures] in a row): {text}",
		"see that the engine lives, and that both have the same transport and version of NIXL; one that answers handshakes and registered its memory before its network was up names its loopback interface alone: start it again; it is tried again",
	},
	AgentAbandoned: {
		"agent_abandoned", Warning, [2]string{"waited_ns"},
		"reads from it had not ended {waited_ns} after its connection broke; it is connected anew, and their local blocks stay aside until the transport ends them",
		"none if blocks_stuck does not follow; else look at the network's own counters",
	},
	HeartbeatsDropped: {
		"heartbeats_dropped", Warning, [2]string{"unheard_bytes"},
		"heartbeats to it are dropped: it has not been heard since {unheard_bytes} [byte was|bytes were] sent; leases there will expire",
		"see whether the engine's loop steps and the network between the two; unheard_bytes_max is the bound",
	},
	SendFailed: {
		"send_failed", Warning, [2]string{"bytes"},
		"the transport refused a message of {bytes} [byte|bytes] to it",
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
	ReadFailedHere: {
		"read_failed_here", Warning, [2]string{"took_ns", "bytes"},
		"the read failed for a reason of this side, not of its owner: its memory, its device, or what it asked the transport; the request is to be computed",
		"look at what the transport has written to stderr and, with device memory, at dmesg for NVRM lines; if it goes on, unregister the memory and register it again",
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
		"the engine was gone, replaced, found not to fit or never reached before the read was done; the request is to be computed",
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
		"{reads} [read has|reads have] ended neither well nor badly for long: nobody can say when [its|their] local blocks are free",
		"look at the network; if they do not come back (reads_held), restart this engine when it is convenient",
	},
	LeaseGone: {
		"lease_gone", Warning, [2]string{},
		"its lease had ended before it was read; the request is to be computed",
		"see why it waited so long, or whether the owner took its blocks back; a longer kv_lease_duration covers longer queues",
	},
	RequestLost: {
		"request_lost", Warning, [2]string{},
		"the engine that holds its blocks {text}; the request is to be computed",
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
		"its id of {bytes} [byte|bytes] cannot be carried by the stock format: no heartbeats, and it can be read for its first term only",
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
		"all tracking slots ({tracked}) are taken: kvl_track answers KVL_ERR_FULL, and those requests are to be computed",
		"raise tracked_max",
	},
	RunsFull: {
		"runs_full", Warning, [2]string{"reads"},
		"{reads} [read|reads] failed for want of room for [its|their] runs of blocks",
		"raise read_runs_max",
	},
	TransfersFailHere: {
		"transfers_fail_here", Warning, [2]string{"times"},
		"{times} [transfer|transfers] of data, rows or fences failed for a reason of this side: its memory, its device, or what it asked the transport",
		"look at what the transport has written to stderr and, with device memory, at dmesg for NVRM lines; if it goes on, unregister the memory and register it again",
	},
	HeartbeatsMuted: {
		"heartbeats_muted", Warning, [2]string{"since_ns"},
		"the forward loop has not passed for {since_ns}: no heartbeats leave until it does, and leases at others expire",
		"see where the engine hangs; before a pause on purpose call kvl_pause, and stall_cover is the bound",
	},
}
