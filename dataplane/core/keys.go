package core

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/watch"
)

func entry(name, doc string, set func(*Config, json.RawMessage) error, get func(*Config) any) key {
	return key{name: name, doc: doc, set: set, get: get}
}

func str(name, doc string, f func(*Config) *string, allowed ...string) key {
	set, get := text(f, allowed...)
	return entry(name, doc, set, get)
}

func sec(name, doc string, f func(*Config) *time.Duration, least, most time.Duration) key {
	set, get := seconds(f, least, most)
	return entry(name, doc, set, get)
}

func num(name, doc string, f func(*Config) *int, least, most int) key {
	set, get := count(f, least, most)
	return entry(name, doc, set, get)
}

func yes(name, doc string, f func(*Config) *bool) key {
	set, get := flag(f)
	return entry(name, doc, set, get)
}

const (
	day            = 24 * time.Hour
	nixlPeersMax   = 8190    // cnixl's own limit
	batchBytesMost = 1 << 20 // also the least parse_max: a message of any peer of ours must be read
)

//go:generate env KVLEASE_UPDATE=1 go test -count=1 -run TestTheREADMEsTableOfKeysIsTrue .

// keys is the whole configuration. Names are vLLM's where vLLM has one.
var keys = []key{
	str("engine_id", "id of this engine, as peers and routers name it; random if empty", func(c *Config) *string { return &c.EngineID }),
	str("role", "`engine`: host and its one rank in one context; `host`: requests, no memory; `rank`: memory, agent and leases of one transfer rank", func(c *Config) *string { return &c.Role }, "engine", "host", "rank"),
	str("transport", "`nixl`, or `loopback` between contexts of one process", func(c *Config) *string { return &c.Transport }, "nixl", "loopback"),
	str("drive", "`inline`: kvl_step runs the step; `pump`: a thread of the library does", func(c *Config) *string { return &c.Drive }, "inline", "pump"),
	str("side_channel_host", "host that the transfer parameters name, and where side_channel_listen listens", func(c *Config) *string { return &c.SideChannelHost }),
	num("side_channel_port", "port that they name, and where it listens", func(c *Config) *int { return &c.SideChannelPort }, 1, 65535),
	yes("side_channel_listen", "serve our handshake there; not for ranks", func(c *Config) *bool { return &c.SideChannelListen }),
	str("compatibility_hash", "vLLM's hash of model and versions, compared with that of peers; empty: not compared", func(c *Config) *string { return &c.CompatHash }),
	yes("enforce_handshake_compat", "refuse peers of another compatibility_hash", func(c *Config) *bool { return &c.EnforceCompat }),
	num("tp_size", "transfer ranks of one stage of this engine", func(c *Config) *int { return &c.TPSize }, 1, 64),
	num("tp_rank", "role rank: which of them this is", func(c *Config) *int { return &c.TPRank }, 0, 63),
	num("pp_size", "pipeline stages of this engine; tp_size x pp_size is at most 64", func(c *Config) *int { return &c.PPSize }, 1, 64),
	num("pp_rank", "role rank: which of them this is", func(c *Config) *int { return &c.PPRank }, 0, 63),
	num("num_kv_heads", "KV heads of the model, over all ranks; 0: taken from the block lengths", func(c *Config) *int { return &c.KVHeads }, 0, 1<<16),
	str("carrier", "between host and ranks: `shm`: shared memory on one node; `process`: in one process; `delta`: kvl_delta_take and kvl_delta_put", func(c *Config) *string { return &c.Carrier }, "shm", "process", "delta"),
	str("carrier_path", "shm: Unix socket where ranks meet their host, made with mode 0600; empty: one in /dev/shm named after user and engine_id", func(c *Config) *string { return &c.CarrierPath }),
	yes("death_wire", "keep a connection to each owner, and to our readers, by which the death of a process is seen at once", func(c *Config) *bool { return &c.DeathWire }),
	num("death_wires_max", "such connections of readers at once, at most half of the descriptors that the process may have", func(c *Config) *int { return &c.DeathWiresMax }, 0, 1<<16),
	sec("wire_grace", "a reader whose connection fell may come back within this, in s", func(c *Config) *time.Duration { return &c.WireGrace }, 0, time.Minute),

	sec("kv_lease_duration", "first term of a lease, in s; interval = a sixth, extension = two thirds of it", func(c *Config) *time.Duration { return &c.Duration }, 10*time.Millisecond, day),
	yes("allow_short_leases", "allow a lease of 3 s or less; step_max must be given, too", func(c *Config) *bool { return &c.AllowShortLeases }),
	sec("step_max", "longest time between two steps that the engine promises, in s", func(c *Config) *time.Duration { return &c.StepMax }, time.Millisecond, day),
	sec("expect_max", "an expected request without a grant is forgotten after this, in s; 10 x duration", func(c *Config) *time.Duration { return &c.ExpectMax }, time.Millisecond, 10*day),
	sec("settle", "time between the two looks at a passed deadline, in s", func(c *Config) *time.Duration { return &c.Settle }, 0, time.Minute),
	sec("stall_gap", "a gap between steps longer than this counts as a stall, in s; one interval", func(c *Config) *time.Duration { return &c.StallGap }, time.Millisecond, day),
	sec("stock_linger", "blocks of a lease last renewed by a stock reader stay that much longer, in s; one extension", func(c *Config) *time.Duration { return &c.StockLinger }, 0, day),
	sec("handover_max", "stock owner: time between its grant and our arrival that is believed, in s; with the carrier delta the way from host to rank is a part of it; a third of the duration", func(c *Config) *time.Duration { return &c.HandoverMax }, 0, day),
	sec("read_timeout", "a read without an end is given up after this, in s; 4 x duration", func(c *Config) *time.Duration { return &c.ReadTimeout }, time.Millisecond, 4*day),
	sec("quarantine_error_wait", "local blocks of a read that the transport failed stay aside this long, in s; one duration, at least 30", func(c *Config) *time.Duration { return &c.QuarantineWait }, time.Millisecond, day),
	sec("heal_wait", "a broken connection is made anew after this, although a transfer of it has not ended, in s; a quarter of the extension", func(c *Config) *time.Duration { return &c.HealWait }, time.Millisecond, day),
	sec("decoder_kv_blocks_ttl", "life of a fixed lease (KVL_GRANT_FIXED) that names none, in s", func(c *Config) *time.Duration { return &c.BlocksTTL }, time.Millisecond, 10*day),
	sec("stall_cover", "pump: beats go on without a pass for this long, in s; one duration", func(c *Config) *time.Duration { return &c.StallCover }, 0, day),
	sec("fence_spin", "a step waits at most this long for fence reads, in s", func(c *Config) *time.Duration { return &c.FenceSpin }, 0, 10*time.Millisecond),
	sec("post_budget", "inline: a step posts blocks to read for about this long, in s; the rest of a long list waits for the next steps. 0: no matter how long", func(c *Config) *time.Duration { return &c.PostBudget }, 0, time.Second),
	sec("idle_tick", "inline: kvl_wait_fd fires this often while anything is held, in s; at most step_max", func(c *Config) *time.Duration { return &c.IdleTick }, time.Millisecond, time.Minute),
	yes("stock_peers", "listen to peers that do not speak kvlease", func(c *Config) *bool { return &c.StockPeers }),
	yes("all_peers_check", "promise that every reader checks the fence: leases may be taken back before any message named them", func(c *Config) *bool { return &c.AllPeersCheck }),

	num("requests_max", "leases and expectations at once", func(c *Config) *int { return &c.RequestsMax }, 1, 1<<22),
	num("tracked_max", "tracked requests at once", func(c *Config) *int { return &c.TrackedMax }, 1, 1<<22),
	num("reads_max", "reads at once", func(c *Config) *int { return &c.ReadsMax }, 1, 1<<16),
	num("read_runs_max", "runs of blocks waiting to be posted, over all reads", func(c *Config) *int { return &c.ReadRunsMax }, 1024, 1<<24),
	num("sources_max", "ranks of one engine that a read of one of our ranks takes its blocks from; engines that need more are refused", func(c *Config) *int { return &c.SourcesMax }, 1, 64),
	num("engines_max", "remote engines at once", func(c *Config) *int { return &c.EnginesMax }, 1, 1<<16),
	num("producers_max", "threads with a submission ring", func(c *Config) *int { return &c.ProducersMax }, 1, 256),
	num("ring_bytes", "capacity of a submission ring, rounded up to a power of two", func(c *Config) *int { return &c.RingBytes }, 4096, 1<<30),
	num("events_max", "events that wait for kvl_poll before the rest waits in the tables", func(c *Config) *int { return &c.EventsMax }, 64, 1<<24),
	num("long_ids_max", "leases whose id is longer than 96 bytes; one in a hundred", func(c *Config) *int { return &c.LongIDsMax }, 1, 1<<22),
	num("batch_bytes_max", "largest heartbeat message in bytes", func(c *Config) *int { return &c.BatchBytesMax }, 2048, batchBytesMost),
	num("unheard_bytes_max", "bytes sent to a peer that has not been heard since", func(c *Config) *int { return &c.UnheardBytesMax }, 4096, 1<<32),
	num("parse_max", "largest message that is read, in bytes", func(c *Config) *int { return &c.ParseMax }, batchBytesMost, 1<<26),
	num("notifs_step_max", "notifications applied in one step", func(c *Config) *int { return &c.NotifsStepMax }, 1, 1<<16),
	num("sweep_max", "leases looked at for expiry in one step", func(c *Config) *int { return &c.SweepMax }, 1, 1<<16),
	num("descs_step_max", "descriptors posted in one step", func(c *Config) *int { return &c.DescsStepMax }, 1, 1<<16),
	num("rows_step_max", "rows of peers read in one step", func(c *Config) *int { return &c.RowsStepMax }, 1, 4096),

	str("nixl_path", "libnixl_capi.so or a folder that holds it; searched for if empty", func(c *Config) *string { return &c.NixlPath }),
	str("transport_settings", "`auto`: where device memory is registered, NIXL is told which NICs are the device's, unless UCX's own variables say something; `off`: it is told nothing", func(c *Config) *string { return &c.TransportSettings }, "auto", "off"),
	num("threads", "threads that the Go core may run at once", func(c *Config) *int { return &c.Threads }, 2, 64),
	str("cpus", "list of CPUs for the threads of the core, like 0,2-3; the process's if empty", func(c *Config) *string { return &c.CPUs }),
	str("pump_priority", "of the pump's thread: `off`: as it is; `rr`: SCHED_RR, `nice`: -10, `auto`: the first of these that is permitted; what is not is counted. Above ordinary the pump waits, spinning, for locks whose holders in the transport it keeps from running: measure with `make soak` first", func(c *Config) *string { return &c.PumpPriority }, "auto", "rr", "nice", "off"),
	num("core_memory_max", "bytes of Go heap at which the core collects whatever happens", func(c *Config) *int { return &c.CoreMemoryMax }, 16<<20, 1<<40),

	str("stats_page", "folder in memory for the file in which this context shows itself to the tools of its user, named kvlease-stats.<uid>.<pid>.<n>; empty: none", func(c *Config) *string { return &c.StatsPage }),
	str("self_read", "`on`: kvl_register reads a page of each region back as a peer would, and refuses memory that cannot be read; `off`: it does not", func(c *Config) *string { return &c.SelfRead }, "on", "off"),
	str("log", "where what goes wrong is told: `stderr`: there, until the host takes the first line with kvl_log_take; `host`: to kvl_log_take alone; `off`: nowhere", func(c *Config) *string { return &c.Log }, "stderr", "host", "off"),
	str("log_level", "the least bad that is told: `error`, `warning` or `info`", func(c *Config) *string { return &c.LogLevel }, "error", "warning", "info"),
	num("trace_sample", "of the ends of leases one in so many runs through the trace site lease__freed__one: 0, none, or a power of two", func(c *Config) *int { return &c.TraceSample }, 0, 1<<30),

	num("block_size", "tokens of a block", func(c *Config) *int { return &c.BlockSize }, 1, 1<<20),
	num("device_id", "device that the handshake names where no device memory is registered", func(c *Config) *int { return &c.DeviceID }, 0, 1<<16),
	str("kv_cache_layout", "layout name that the handshake carries; equal on both sides", func(c *Config) *string { return &c.KVCacheLayout }),
	str("attn_backend_name", "attention backend that the handshake carries", func(c *Config) *string { return &c.AttnName }),
}

func defaults() *Config {
	return &Config{
		Role: "engine", Transport: "nixl", TransportSettings: "auto", Drive: "inline",
		SideChannelHost: "localhost", SideChannelPort: 5600, EnforceCompat: true,
		TPSize: 1, PPSize: 1, Carrier: "shm", DeathWire: true, DeathWiresMax: 4096, WireGrace: 500 * time.Millisecond,
		BlocksTTL: 480 * time.Second,
		Duration:  30 * time.Second, StepMax: time.Second, Settle: 50 * time.Millisecond,
		FenceSpin: 300 * time.Microsecond, PostBudget: time.Millisecond, IdleTick: 50 * time.Millisecond, StockPeers: true,
		RequestsMax: 16384, TrackedMax: 16384, ReadsMax: 1024, ReadRunsMax: 1 << 16, SourcesMax: 16, EnginesMax: 4096, ProducersMax: 8,
		RingBytes: 1 << 20, EventsMax: 1 << 16,
		BatchBytesMax: 16 << 10, UnheardBytesMax: 16 << 20, ParseMax: 4 << 20,
		NotifsStepMax: 1024, SweepMax: 256, DescsStepMax: 4096, RowsStepMax: 256,
		Threads: 4, PumpPriority: "off", CoreMemoryMax: 1 << 30, StatsPage: watch.DefaultDir, Log: "stderr", LogLevel: "warning", SelfRead: "on",
		BlockSize: 16, KVCacheLayout: "LBHNC", AttnName: "FLASH_ATTN",
	}
}

// derive fills in what follows from the duration and was not said.
func (c *Config) derive(given map[string]json.RawMessage) {
	unless := func(name string, f *time.Duration, v time.Duration) {
		if _, said := given[name]; !said {
			*f = v
		}
	}
	unless("expect_max", &c.ExpectMax, 10*c.Duration)
	unless("stall_gap", &c.StallGap, c.Interval())
	unless("stock_linger", &c.StockLinger, c.Extension())
	unless("handover_max", &c.HandoverMax, c.Duration/3)
	unless("read_timeout", &c.ReadTimeout, 4*c.Duration)
	unless("quarantine_error_wait", &c.QuarantineWait, max(c.Duration, 30*time.Second))
	unless("stall_cover", &c.StallCover, c.Duration)
	unless("idle_tick", &c.IdleTick, min(c.IdleTick, c.StepMax))
	unless("heal_wait", &c.HealWait, c.Extension()/4)
	if _, said := given["long_ids_max"]; !said {
		c.LongIDsMax = max(64, c.RequestsMax/100)
	}
	c.RingBytes = int(pow2(uint64(c.RingBytes)))
}

func pow2(n uint64) uint64 {
	p := uint64(1)
	for p < n {
		p <<= 1
	}
	return p
}

// engineIDMax is the longest id of an engine in bytes: its agents' names, which are that, a rank and an epoch, have at most 255.
const engineIDMax = 255 - len(".63.0123456789abcdef")

// check holds the rules between keys.
func (c *Config) check() error {
	if n := len(c.EngineID); n > engineIDMax || strings.IndexByte(c.EngineID, 0) >= 0 {
		return fmt.Errorf("key %q is %d bytes long, allowed: at most %d, none of them zero", "engine_id", n, engineIDMax)
	}
	if c.Duration <= 3*time.Second && (!c.AllowShortLeases || !c.stepMaxSet) {
		return fmt.Errorf("key %q is %v s: 3 s or less needs allow_short_leases and step_max, since a pass that outlives the extension loses leases", "kv_lease_duration", c.Duration.Seconds())
	}
	if 2*c.Interval()+c.StepMax >= c.Extension() {
		return fmt.Errorf("keys %q and %q: two lost beats must be survivable: 2 x interval (%v s) + step_max (%v s) must be less than the extension (%v s); raise the duration or lower step_max",
			"kv_lease_duration", "step_max", c.Interval().Seconds(), c.StepMax.Seconds(), c.Extension().Seconds())
	}
	if c.Drive == "pump" && c.StallCover < c.StepMax {
		return fmt.Errorf("keys %q and %q: %v s is less than %v s: an engine that passes as often as it promises would not be beaten for",
			"stall_cover", "step_max", c.StallCover.Seconds(), c.StepMax.Seconds())
	}
	if c.Drive == "inline" && c.IdleTick > c.StepMax {
		return fmt.Errorf("keys %q and %q: %v s is more than %v s: a loop that sleeps in kvl_wait_fd would break its promise",
			"idle_tick", "step_max", c.IdleTick.Seconds(), c.StepMax.Seconds())
	}
	if c.Transport == "nixl" && c.PeersMax() > nixlPeersMax {
		return fmt.Errorf("keys %q and %q: the transport keeps at most %d agents loaded, %d of them further ranks of engines, and engines that came back as others: at most %d engines",
			"engines_max", "transport", nixlPeersMax, c.PeersMax()-c.EnginesMax, nixlPeersMax-(c.PeersMax()-c.EnginesMax))
	}
	if err := c.checkRanks(); err != nil {
		return err
	}
	if n := c.TraceSample; n&(n-1) != 0 {
		return fmt.Errorf("key %q is %d, allowed: 0, or a power of two", "trace_sample", n)
	}
	if c.HandoverMax >= c.Duration {
		return fmt.Errorf("keys %q and %q: %v s is not less than %v s: no read from a stock owner could ever be accepted",
			"handover_max", "kv_lease_duration", c.HandoverMax.Seconds(), c.Duration.Seconds())
	}
	if least := 2 * (c.BatchBytesMax + heartbeat.NotifOverhead); c.UnheardBytesMax < least {
		return fmt.Errorf("keys %q and %q: %d bytes do not hold two heartbeats with what they cost their sender, %d bytes",
			"unheard_bytes_max", "batch_bytes_max", c.UnheardBytesMax, least)
	}
	return nil
}
