package log

// sideDefs are the kinds about the side channel: handshakes, clocks and wires.
var sideDefs = map[Kind]Def{
	ClockUnknown: {
		"clock_unknown", Warning, [2]string{},
		"the clock of its owner did not become known in read_timeout, so nobody can say whether its lease stands; the request is to be computed",
		"see that the owner's side channel can be reached from here",
	},
	HandshakeFailing: {
		"handshake_failing", Warning, [2]string{"failures"},
		"it cannot be asked for its handshake ({failures} [failure|failures] in a row): {text}",
		"see that the engine lives and has registered its memory (kvl_register), and that host and port in kv_transfer_params can be reached from here; it is tried again",
	},
	HandshakeMisfit: {
		"handshake_misfit", Error, [2]string{},
		"it does not fit this engine, and nothing is read from it: {text}",
		"give both the same model, block size, layout and number of heads",
	},
	WrongEngine: {
		"wrong_engine", Warning, [2]string{},
		"another engine answers at its address: what is tracked at it is lost, and those requests are to be computed: {text}",
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
		"{readers} [reader was|readers were] named by two nonces: nothing that [its|their] wires say is believed, and deadlines decide",
		"see that no two engines have one engine_id; else somebody makes names up",
	},
	ReaderWiresFull: {
		"reader_wires_full", Warning, [2]string{"wires"},
		"{wires} [reader|readers] found no place for [its wire|their wires]: [its death is|their deaths are] seen by leases alone",
		"raise death_wires_max and the number of descriptors (ulimit -n)",
	},
	SideMalformed: {
		"side_malformed", Warning, [2]string{"connections"},
		"{connections} [connection|connections] at the side channel sent what is no message",
		"see who connects to side_channel_port: a probe, or a peer of another version",
	},
	SideUnregistered: {
		"side_unregistered", Info, [2]string{"requests"},
		"{requests} [handshake was|handshakes were] asked for of ranks without registered memory, and got no answer: peers ask again",
		"none before kvl_register and while the engine sleeps",
	},
	SideUnknownRank: {
		"side_unknown_rank", Warning, [2]string{"requests"},
		"{requests} [handshake was|handshakes were] asked for of ranks that this engine does not have, and got no answer",
		"see which peer names more ranks than there are: tp_size and pp_size of its kvl_engine_add, or of the kv_transfer_params that the router passes",
	},
	SideRefused: {
		"side_refused", Warning, [2]string{"connections"},
		"{connections} [connection|connections] at the side channel found no place, and peers wait",
		"see who connects to side_channel_port; peers try again",
	},
	SideNoDescriptors: {
		"side_no_descriptors", Error, [2]string{"accepts"},
		"{accepts} [connection|connections] could not be accepted, mostly for want of descriptors",
		"raise the number of descriptors (ulimit -n)",
	},
	SidePanic: {
		"side_panic", Error, [2]string{"connections"},
		"{connections} [connection|connections] at the side channel [was|were] closed for a fault of ours",
		"report it",
	},
}
