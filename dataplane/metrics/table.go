package metrics

import (
	"fmt"
	"strconv"

	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/watch"
)

// contexts are the roles that have a metric. What counts requests is the host's to say, and what a rank's memory and connections do the
// rank's; so a sum over all contexts of an engine counts nothing twice.
type contexts uint8

const (
	roleEngine contexts = 1 << iota
	roleHost
	roleRank

	ofRequests = roleEngine | roleHost
	ofRanks    = roleEngine | roleRank
	ofAll      = roleEngine | roleHost | roleRank
)

func (c contexts) has(role string) bool {
	switch role {
	case "engine":
		return c&roleEngine != 0
	case "host":
		return c&roleHost != 0
	case "rank":
		return c&roleRank != 0
	}
	return false
}

// metric is one line of the table. With parts it is filled from keys of kvl_stats; without, by code of this package.
type metric struct {
	name   string // without kvlease_
	kind   watch.Kind
	of     contexts
	help   string
	labels []string // its own
	parts  []part
	scale  float64 // 0: 1
}

// part is one value: the sum of the keys that the context has.
type part struct {
	value string // of the metric's label
	keys  []string
}

func (m *metric) unit() float64 {
	if m.scale == 0 {
		return 1
	}
	return m.scale
}

func counter(name string, of contexts, help string, keys ...string) metric {
	return metric{name: name, kind: watch.Counter, of: of, help: help, parts: sumOf(keys)}
}

func gauge(name string, of contexts, help string, keys ...string) metric {
	return metric{name: name, kind: watch.Gauge, of: of, help: help, parts: sumOf(keys)}
}

func sumOf(keys []string) []part {
	if len(keys) == 0 {
		return nil
	}
	return []part{{keys: keys}}
}

func (m metric) by(label string, parts ...part) metric {
	m.labels, m.parts = []string{label}, parts
	return m
}

// with names labels that code fills.
func (m metric) with(labels ...string) metric {
	m.labels = labels
	return m
}

func (m metric) times(scale float64) metric {
	m.scale = scale
	return m
}

func is(value string, keys ...string) part { return part{value, keys} }

// each makes a part of every entry of an array that has a name; the keys are those of an engine and of a host.
func each(names []string, keys ...string) (parts []part) {
	for i, name := range names {
		if name == "" {
			continue
		}
		p := part{value: name}
		for _, key := range keys {
			p.keys = append(p.keys, key+"/"+strconv.Itoa(i))
		}
		parts = append(parts, p)
	}
	return parts
}

// names are the texts of an enumeration's first n values.
func names[T fmt.Stringer](n int, of func(int) T) (list []string) {
	for i := range n {
		list = append(list, of(i).String())
	}
	return list
}

var (
	handshakeStates  = names(handshake.States, func(i int) handshake.State { return handshake.State(i) })
	handshakeClasses = append([]string{""}, names(handshake.Classes, func(i int) handshake.Class { return handshake.Class(i) })[1:]...) // the first is none
)

// table is every metric there is, in the order of docs/metrics.md.
var table = []metric{
	gauge("up", ofAll, "1: the process of the context lives; 0: it is gone, and its stats page is left. What follows is there only with 1."),
	gauge("engine_info", ofAll, "1. hash joins a reader's hash on other engines to this engine's name.").with("hash", "transport", "drive", "carrier", "tp", "pp", "version"),
	gauge("healthy", ofAll, "0: broken, or no known engine can be reached since one lease duration, and requests need one of them.", "healthy"),
	gauge("poisoned", ofAll, "1: the core is broken, or kvl_fence_all was called; every row is closed, and leases end."),
	gauge("draining", ofAll, "1: the context takes nothing new."),
	gauge("lease_duration_seconds", ofAll, "kv_lease_duration in effect."),
	gauge("heartbeat_interval_seconds", ofAll, "Time between two heartbeats about one request."),
	gauge("lease_extension_seconds", ofAll, "What one heartbeat adds at most."),
	gauge("context_age_seconds", ofAll, "Since the context was opened."),
	gauge("step_age_seconds", ofAll, "Since the step that wrote the page, at most 0.1 s before the last one: a context that stands still grows old."),

	// ---- leases: the blocks of this engine that others read
	gauge("leases_held", ofRequests, "Leases that hold blocks of this engine.", "held"),
	gauge("blocks_held", ofRequests, "Blocks under these leases.", "held_blocks"),
	gauge("held_bytes", ofRequests, "Bytes of these blocks over all regions; missing where the size of a block is not known."),
	gauge("leases_limit", ofRequests, "Slots for leases (requests_max); with all of them used kvl_grant answers KVL_ERR_FULL."),
	gauge("lease_slots_used", ofRequests, "Slots taken by leases held, by requests expected to end here, and by what is over and was not told, since the host does not poll.", "held", "expected", "ending", "group_expected", "group_ending"),
	gauge("exports_outstanding", ofRequests, "Leases held and requests expected to end here: what ending this engine now would lose. For autoscalers.", "held", "expected", "group_expected"),
	gauge("leases_lingering", ofRanks, "Of the leases held, those past their deadline that stay for a stock reader (stock_linger).", "lingering"),
	gauge("oldest_lease_age_seconds", ofRanks, "Age of the oldest lease held, those of a fixed life left out; missing if there is none."),
	counter("leases_granted_total", ofRequests, "Leases granted.", "lease_grants", "grants"),
	counter("ready_events_fired_total", ofRanks, "Leases whose device event (ready_event) has fired: they are offered since.", "ready_fired"),
	counter("ready_events_failed_total", ofRanks, "Leases that are never offered, since their device event could not be asked.", "ready_failed"),
	counter("leases_freed_total", ofRequests, "Leases that ended, by reason.").by("reason", append(each(record.FreedNames[:record.FreedLost], "lease_freed", "freed"), is(record.FreedNames[record.FreedLost], "freed/"+strconv.Itoa(record.FreedLost)))...),
	counter("leases_saved_total", ofRanks, "Leases whose deadline had passed, and that a heartbeat still renewed in time for the second look.", "lease_due_saved"),
	counter("expectations_lapsed_total", ofRequests, "Requests said to end here soon that were neither granted nor cancelled.", "lease_lapsed", "lapsed"),
	counter("tables_full_total", ofAll, "Times that there was no room, by where: index, leases that stock readers cannot name; readers, readers not remembered; long_ids, ids of more than 96 bytes; runs, reads; row_states, requests without a look at all rows; death_wires, readers without one.").by("table",
		is("index", "lease_index_full"), is("readers", "lease_readers_full"), is("long_ids", "lease_long_full", "beat_long_ids_full", "long_ids_full"), is("runs", "beat_runs_full", "runs_full"),
		is("row_states", "beat_row_states_full"), is("death_wires", "side_readers_full")),

	// ---- readers of this engine
	gauge("reader_leases", ofRanks, "Leases by the reader that named them last. reader: id, agent name, or hash; unnamed: nobody yet; other: what has no place of its own.").with(readerLabels...),
	gauge("reader_blocks", ofRanks, "Blocks under these leases.").with(readerLabels...),
	gauge("reader_held_bytes", ofRanks, "Bytes of these blocks.").with(readerLabels...),
	gauge("reader_oldest_lease_age_seconds", ofRanks, "Age of the oldest of these leases, those of a fixed life left out.").with(readerLabels...),
	gauge("reader_beat_age_seconds", ofRanks, "Since the reader's last heartbeat was applied.").with(readerLabels...),
	gauge("reader_least_slack_seconds", ofRanks, "Least time that was left to a deadline when a heartbeat renewed it, of the last two to four intervals.").with(readerLabels...),
	counter("reader_leases_freed_total", ofRanks, "Leases that ended while this reader was the last that had named them, by reason.").with(append(readerLabels, "reason")...),

	// ---- heartbeats
	counter("heartbeats_sent_total", ofRanks, "Requests named in heartbeats that left, once per beat.", "beat_beats"),
	counter("heartbeat_messages_sent_total", ofRanks, "Messages that carried them.", "beat_beat_batches"),
	counter("heartbeat_bytes_sent_total", ofRanks, "Bytes of these messages.", "beat_beat_bytes"),
	counter("heartbeat_messages_dropped_total", ofRanks, "Rounds of heartbeats that ended before all were sent, since the peer takes nothing in (unheard_bytes_max).", "beat_beats_dropped"),
	counter("send_failures_total", ofRanks, "Notifications that the transport refused.", "beat_send_failed"),
	counter("heartbeat_messages_received_total", ofRanks, "Messages with heartbeats that arrived.", "batches_received"),
	counter("heartbeats_received_total", ofRanks, "Requests named in them.", "beats_received"),
	counter("heartbeats_applied_total", ofRanks, "Renewals of leases of this rank, and words kept for leases that are expected.", "beats_applied"),
	counter("heartbeats_unknown_total", ofRanks, "Renewals of leases that are not held.", "lease_unknown_renew", "lease_late_renew"),
	counter("malformed_messages_total", ofRanks, "Notifications that mean nothing, or are of a kind that only newer versions know.", "malformed_native", "malformed_stock", "unknown_kinds"),
	counter("rows_read_total", ofRanks, "Reads of owners' rows that were begun, by which a reader sees that its leases live.", "beat_rows"),
	counter("rows_failed_total", ofRanks, "Reads of rows, and of a sign of life, that failed or could not be begun.", "beat_rows_failed"),
	counter("leases_gone_total", ofRequests, "Requests tracked here that were told to be lost before they were read: their lease is over, or their engine gone.", "beat_gone", "gone"),
	counter("leases_at_risk_total", ofRequests, "Times that a tracked request was told to be at risk.", "beat_at_risk", "at_risk"),
	counter("messages_given_up_total", ofRanks, "Completions and releases that never left, by why.").by("why",
		is("no_room", "beat_owed_dropped"), is("late", "beat_owed_late"), is("engine_lost", "beat_owed_lost")),
	gauge("messages_owed", ofRanks, "Completions and releases that wait to be sent.", "tracker_owed"),
	gauge("unheard_bytes_max", ofRanks, "Bytes sent to the worst engine that it has not taken in.", "tracker_unheard_max"),

	// ---- requests tracked here, and reads of their blocks
	gauge("requests_tracked", ofRequests, "Requests of this engine whose blocks lie elsewhere.", "tracker_tracked", "group_tracked"),
	gauge("reads_in_flight", ofRequests, "Reads begun and not reported.", "tracker_reading", "group_reading"),
	gauge("reads_waiting", ofRequests, "Of these, those that wait for their engine.", "tracker_waiting", "group_waiting"),
	counter("reads_started_total", ofRequests, "Reads begun.", "beat_reads", "reads"),
	counter("reads_total", ofRequests, "Reads that ended, by outcome. stale: the fence kept data of another request out; unproven: nothing could prove it.").by("outcome", each(record.ReadNames[:], "beat_outcomes", "outcomes")...),
	counter("read_bytes_total", ofRanks, "Bytes that have landed in blocks of this rank.", "read_bytes"),
	counter("transfer_failures_total", ofRanks, "Transfers that the transport reported as failed.", "read_failures"),
	counter("transfers_failed_here_total", ofRanks, "Transfers that failed, or were refused, for a reason of this rank: its memory, its device, or what it asked the transport. They say nothing of the engine that was read from.", "read_failed_here"),
	counter("transfers_late_total", ofRanks, "Transfers that ended after their outcome was told.", "read_late_ends"),
	counter("stock_reads_refused_total", ofRanks, "Reads from stock engines outside the time guard: they could not be trusted, and were not.", "beat_guard_refused"),
	counter("late_stock_reads_total", ofRanks, "Completions of stock readers after the lease had ended: each may have read blocks of another request.", "lease_late_done"),
	counter("late_native_reads_total", ofRanks, "Completions of readers of ours after the lease had ended: their fence has shown it to them, and they computed the request again.", "lease_late_done_native"),
	counter("late_stock_repeats_total", ofRanks, "Completions by the only, stock, reader of a lease that it had completed before: nothing tells a second word from a second read.", "lease_late_done_repeated"),
	gauge("reads_aside", ofRanks, "Reads that are over and whose local blocks are not given back, since bytes may still land in them.", "reads_blocks_held"),
	gauge("transfers_quarantined", ofRanks, "Transfers in quarantine after an error (quarantine_error_wait).", "reads_aside"),
	gauge("transfers_unended", ofRanks, "Transfers whose outcome is long told, and of which the transport says neither error nor done.", "reads_held"),
	gauge("transfers_abandoned", ofRanks, "Of these, those of connections that were given up: their blocks stay aside until they end, perhaps for ever.", "reads_abandoned"),

	// ---- memory
	gauge("registered_bytes", ofRanks, "Memory that the transport has: the KV cache, the board and the landing rows. It grows while a registration is under way.", "registered_bytes"),
	gauge("registering_bytes", ofRanks, "What the registration that is under way is to reach; 0: none is.", "registering_bytes"),
	gauge("asleep", ofRanks, "1: its memory was unregistered on purpose (kvl_unregister, sleep), and nobody has tried to register any since. 0 with registered_bytes 0: it was never registered, or kvl_register has failed.", "asleep"),
	gauge("regions", ofRanks, "Registered regions of the KV cache, by whether a page of each was read back as by a peer (self_read).").by("shown", is("yes", "regions_proven"), is("no", "regions_unproven")),

	// ---- engines known here, and how they are reached
	gauge("engines", ofRanks, "Remote engines by state of the connection; those that were connected count as loading while our own memory is unregistered (sleep).").by("state", is("idle", "tracker_idle"), is("loading", "tracker_loading"), is("connected", "tracker_connected"), is("broken", "tracker_broken")),
	gauge("engines_failing", ofRequests, "Known engines without a connection or unheard for an interval, or from which the last three reads have failed; 0 while our own memory is unregistered (sleep).", "tracker_failing", "group_failing"),
	gauge("engines_failing_long", ofRequests, "Of these, those that could not be for one lease duration and are missed: requests are tracked there, or were lost, given up or not read there for its trouble, two minutes and a lease duration ago at most.", "tracker_failing_long", "group_failing_long"),
	gauge("engines_failing_unused", ofRequests, "Those that could not be for one lease duration and that nobody misses, as one that was drained and closed. They are known until they are removed.", "tracker_failing_unused", "group_failing_unused"),
	gauge("engines_failing_seconds_max", ofRequests, "How long the worst of them cannot be reached.", "tracker_failing_ms", "group_failing_ms").times(1e-3),
	counter("engine_claims_total", ofAll, "Times that two engines were found under one engine_id: it keeps moving between two addresses, or goes back to the boot before.", "side_claims", "beat_flaps"),
	counter("heals_total", ofRanks, "Connections that broke and were tried anew.", "beat_heals"),
	counter("connections_made_anew_total", ofRanks, "Connections made anew since what was asked of them went on failing for a reason of this rank (transfers_failed_here_total). The engine does not count as failing.", "beat_made_anew"),
	counter("disconnects_total", ofRanks, "Sends and reads that found their peer unreachable.", "beat_disconnects"),
	counter("connections_abandoned_total", ofRanks, "Connections dropped under transfers that did not end (heal_wait).", "beat_abandons"),
	counter("connections_loaded_total", ofRanks, "Connections tried, those that could not be made, too.", "beat_loads"),
	counter("connection_failures_total", ofRanks, "Of these, those that could not be made.", "beat_loads_failed"),
	gauge("connection_seconds_max", ofRanks, "Longest time that making a connection took within the step.", "load_max_ns").times(1e-9),
	gauge("handshake_engines", ofRequests, "Engines asked over the side channel, by where the handshake stands.").by("state", each(handshakeStates, "side_client_engines")...),
	counter("handshake_attempts_total", ofRequests, "Handshakes begun.", "side_client_attempts"),
	counter("handshake_failures_total", ofRequests, "Handshakes that failed, by class.").by("class", each(handshakeClasses, "side_client_failures")...),
	counter("handshakes_served_total", ofRequests, "Handshakes of others that were answered.", "side_server_answered"),
	counter("handshakes_refused_total", ofRequests, "Handshakes of others that got no answer. malformed: the request means nothing; unregistered: of a rank whose memory is not registered yet, or not while it sleeps; unknown_rank: of one that this engine does not have; crowded: connections that were closed at once, as all places were taken.").by("why",
		is("malformed", "side_server_malformed"), is("unregistered", "side_server_unregistered"), is("unknown_rank", "side_server_unknown"), is("crowded", "side_zmtp_refused")),
	counter("owners_dead_total", ofRequests, "Engines read from whose death wires fell without a word: their processes died.", "side_owners_dead"),
	counter("owners_withdrawn_total", ofRequests, "Engines read from that gave their memory up on purpose, asleep, drained or closed, as their death wires said.", "side_owners_withdrawn"),
	counter("readers_dead_total", ofRequests, "Readers whose death wires fell without a word: their processes died.", "side_readers_dead"),
	counter("readers_withdrawn_total", ofRequests, "Readers that gave their memory up on purpose, asleep or closed, as their death wires said.", "side_readers_withdrawn"),

	// ---- remote engines by name
	gauge("remote_connected", ofAll, "1: connected to all ranks that this one talks to.").with("remote", "hash"),
	gauge("remote_state_age_seconds", ofAll, "Since the connection is in its state.").with("remote", "hash", "state"),
	gauge("remote_handshake_seconds", ofAll, "How long the last handshake took, from when the engine was known to be without a connection.").with("remote", "hash"),
	gauge("remote_handshake_failures", ofRequests, "Handshakes with it that have failed in a row, whoever steps. why: of the last, a class of handshake_failures_total; incompatible also if its maps could not be used; none if it did not fail.").with("remote", "hash", "why"),
	counter("remote_connects_total", ofAll, "Times that it was connected, broken connections that were healed, too.").with("remote", "hash"),
	gauge("remote_beat_age_seconds", ofAll, "Since the last round of heartbeats to it began.").with("remote", "hash"),
	gauge("remote_row_age_seconds", ofAll, "Since it was last heard: an answer of its rows, or a sign of life.").with("remote", "hash"),
	gauge("remote_fails", ofAll, "Failures in a row of its worst rank.").with("remote", "hash"),
	gauge("remote_missed", ofAll, "1: it counts among engines_failing, and requests are tracked there, or were lost, given up or not read there for its trouble.").with("remote", "hash"),
	gauge("remote_requests_tracked", ofAll, "Requests tracked at it.").with("remote", "hash"),
	gauge("remote_reads_in_flight", ofAll, "Reads from it in flight, those with blocks aside too.").with("remote", "hash"),
	counter("remote_read_bytes_total", ofAll, "Bytes read from it.").with("remote", "hash"),
	gauge("remote_unheard_bytes", ofAll, "Bytes sent that it has not taken in, as far as is known.").with("remote", "hash"),
	gauge("remote_clock_offset_seconds", ofAll, "Its CLOCK_MONOTONIC minus ours; missing if not known.").with("remote", "hash"),

	// ---- the step
	counter("steps_total", ofAll, "Steps.", "steps"),
	counter("steps_cut_total", ofAll, "Steps that left work to the next one, by what.").by("what",
		is("submissions", "records_cut"), is("messages", "entries_cut"), is("ends", "lease_sweep_cut"), is("looks", "lease_examine_cut"), is("pressure", "lease_pressure_cut"),
		is("deaths", "lease_gone_cut"), is("heartbeats", "beat_beats_cut"), is("completions", "beat_ends_cut"), is("rows", "beat_rows_cut"), is("walks", "beat_walks_cut"),
		is("reads", "read_posts_cut"), is("read_ends", "read_ends_cut"), is("events", "events_cut"), is("ranks", "received_cut")),
	gauge("step_max_seconds", ofAll, "Longest step of the library's thread (drive pump).", "pump_step_max_ns").times(1e-9),
	gauge("pause_max_seconds", ofAll, "Longest time that this thread slept beyond what it asked for.", "pump_pause_max_ns").times(1e-9),
	counter("overslept_total", ofAll, "Sleeps of this thread that took more than 20 ms longer than asked for.", "pump_overslept"),
	counter("muted_steps_total", ofAll, "Steps of this thread without heartbeats, since the forward loop does not pass (stall_cover).", "pump_turns_muted"),
	counter("collections_total", ofAll, "Collections of the core's heap, of all contexts of the process; no step begins one.", "go_collections"),
	gauge("heap_bytes", ofAll, "The core's heap, of all contexts of the process.", "go_heap_bytes"),
	counter("submissions_total", ofRanks, "Records of hooks taken.", "records"),
	counter("submissions_refused_total", ofRequests, "Hooks that answered KVL_ERR_FULL, by why.").by("why", is("ring_full", "refused_ring"), is("table_full", "refused_table")),
	gauge("submissions_untaken_bytes", ofAll, "Bytes of records of hooks, of a rank of what its host has said, that no step has taken: with an old step, of a context that has been told something and does not do it. With the carrier delta a rank has been told what kvl_delta_put has taken in; what waits for the next message of the engine is in neither context's.", "untaken_bytes"),
	counter("events_held_total", ofAll, "Publications put off because the completion ring was full: the host does not poll.", "events_held"),

	counter("log_records_lost_total", ofAll, "Records of the log that found no place: the host does not take them (kvl_log_take), or nobody reads its stderr.", "log_lost"),
	counter("log_records_left_out_total", ofAll, "Records of the log that came more often than its rate allows; the next line of their kind says how many.", "log_left_out"),

	// ---- ranks of an engine
	gauge("ranks_up", roleHost, "Ranks whose memory is registered.", "group_ranks_up"),
	gauge("ranks_asleep", roleHost, "Ranks that live and have unregistered their memory (sleep).", "group_ranks_asleep"),
	gauge("ranks_lost", roleHost, "Ranks that were lost.", "group_ranks_lost"),
	gauge("ranks_behind", roleHost, "Ranks that have still to be told the full state.", "group_behind"),
	gauge("misfit", roleRank, "1: the host runs with another kv_lease_duration; this rank takes no part.", "misfit"),
	gauge("host_lost", roleRank, "1: the host of this rank, or the stream to it, is gone: the rank is of no use any more, and has to be ended.", "host_lost"),
	counter("stream_gaps_total", roleRank, "Losses noticed on the stream between host and rank.", "stream_gaps"),

	// ---- what has no name of its own
	counter("internal_total", ofAll, "All other counters, by their key in kvl_stats; for bug reports, not for alerts: keys may change.").with("key"),
	gauge("internal", ofAll, "All other gauges, by their key in kvl_stats, in the units of that.").with("key"),

	// ---- the exporter of a machine
	gauge("pages", 0, "Stats pages in the folder. dead: their process is gone; old: since more than ten minutes, not shown; twice: another one has the same labels; refused: of other users, run as root to see them; unreadable: no page, or of another release; left_out: of more than 256 that live, or are gone.").with("state"),
}

var byName = func() map[string]*metric {
	all := make(map[string]*metric, len(table))
	for i := range table {
		all[table[i].name] = &table[i]
	}
	return all
}()

func helpOf(name string) string {
	if m := byName[name]; m != nil {
		return m.help
	}
	return distributions[name].help
}

// Names are those of all metrics, of a histogram without a suffix.
func Names() (all []string) {
	for i := range table {
		all = append(all, "kvlease_"+table[i].name)
	}
	for i := range distributionTable {
		all = append(all, "kvlease_"+distributionTable[i].name)
	}
	return all
}
