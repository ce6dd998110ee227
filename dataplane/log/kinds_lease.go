package log

// leaseDefs are the kinds about leases of our own, and what readers and the host say of them.
var leaseDefs = map[Kind]Def{
	LeaseUnread: {
		"lease_unread", Warning, [2]string{"held_ns", "blocks"},
		"the lease expired after {held_ns}, {blocks} [block|blocks]: no heartbeat has ever come for it",
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
		"see why it died, or was killed; one that is closed or sleeps is reader_withdrawn, unless it is of a release that says no farewell",
	},
	ReaderWithdrawn: {
		"reader_withdrawn", Info, [2]string{},
		"this reader has given its memory up on purpose: it sleeps (kvl_unregister), or was closed; leases that it alone may read end now, others at their deadlines",
		"none",
	},
	LeasesFull: {
		"leases_full", Warning, [2]string{"leases"},
		"all leases ({leases}) are taken: kvl_grant answers KVL_ERR_FULL, and those blocks are not kept",
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
		"a second lease was asked for under an id that holds one: it has ended at once, and its {blocks} [block is|blocks are] not kept",
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
		"it has sent a message of {bytes} [byte|bytes] that is none",
		"see what runs under that name: it is no peer of this version, or broken",
	},
	MessageUnknown: {
		"message_unknown", Warning, [2]string{"bytes"},
		"it has sent a message of a newer version or kind, which is left aside",
		"install the same version of kvlease on both engines",
	},
	MessagesTooLong: {
		"messages_too_long", Warning, [2]string{"messages"},
		"{messages} [message was|messages were] longer than parse_max, and dropped unread",
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
		"{submissions} [submission|submissions] of the host fit no slot, or [was|were] of no kind that is known: a fault of the host's side",
		"report it with kvlease dump; libkvlease.so and the core must be of one build",
	},
	EventsWait: {
		"events_wait", Warning, [2]string{"times"},
		"the ring of events is full: ended leases keep their slots until kvl_poll takes them",
		"call kvl_poll in every turn of the loop, or raise events_max",
	},
}
