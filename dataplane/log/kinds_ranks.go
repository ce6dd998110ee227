package log

// rankDefs are the kinds about the ranks of an engine and their host.
var rankDefs = map[Kind]Def{
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
		"{words} [reject or death of a reader was|rejects or deaths of readers were] not told to a rank that stands still: those leases end by themselves",
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
	HostLeft: {
		"host_left", Info, [2]string{},
		"the host of this rank has closed its context: nothing new comes",
		"close this rank",
	},
	MapRefused: {
		"map_refused", Warning, [2]string{},
		"the map of an engine that the host has told cannot be used here: {text}",
		"see that both engines have the same model, block size and layout",
	},
}
