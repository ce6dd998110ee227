package deploy

// operand is a part of an alert's expression that a person can look at while nothing is wrong.
type operand struct {
	expr string // white space as one blank; empty: shown by another alert's
	want want
}

// quiet says it for every alert.
var quiet = map[string]operand{
	"KvleaseEngineDown":        {`kvlease_up{role!=""}`, want{1, 1, "D", "it lives"}},
	"KvleaseExporterDown":      {`up{job=~"kvlease|kvlease-engines"}`, want{1, 1, "", "it is scraped"}},
	"KvleasePagesUnseen":       {`sum by (instance, state) (kvlease_pages{state=~"refused|unreadable|twice|left_out"})`, want{0, 0, "unreadable", "both are shown"}},
	"KvleaseBroken":            {`kvlease_poisoned{role!=""}`, want{0, 0, "P", "it works"}},
	"KvleaseUnhealthy":         {`kvlease_healthy{role!=""}`, want{1, 1, "D", "it reaches P"}},
	"KvleaseStandsStill":       {`kvlease_step_age_seconds{role!=""}`, want{0, 1, "D", "it steps every 10 ms"}},
	"KvleaseReaderSilent":      {`kvlease_reader_beat_age_seconds{role!="", kind="native"}`, want{0, 2, "P", "D beats every second"}},
	"KvleaseSlackLow":          {`kvlease_reader_least_slack_seconds{role!=""}`, want{1, 6.8, "P", "heartbeats come in time"}},
	"KvleaseLeasesExpire":      {`sum by (instance, engine) (rate(kvlease_leases_freed_total{role!=""}[5m]))`, want{0.1, 200, "P", "leases end as completed"}},
	"KvleaseReadersDie":        {`sum by (instance, engine) (increase(kvlease_readers_dead_total{role!=""}[10m]))`, want{0, 0, "P", "nobody has died"}},
	"KvleaseHeartbeatsLate":    {`min by (instance, engine) (kvlease_heartbeat_interval_seconds{role!=""})`, want{1, 1, "D", "a sixth of 6 s"}},
	"KvleaseHeartbeatsFail":    {`sum by (instance, engine, role, rank, pid, context) (rate(kvlease_send_failures_total{role!=""}[2m]))`, want{0, 0, "D", "all are taken"}},
	"KvleaseHeartbeatsUnheard": {`sum by (instance, engine, role, rank, pid, context) (increase(kvlease_heartbeat_messages_dropped_total{role!=""}[5m]))`, want{0, 0, "D", "P takes in what comes"}},
	"KvleaseHeartbeatsUnknown": {`sum by (instance, engine) (rate(kvlease_heartbeats_received_total{role!=""}[5m]))`, want{0.5, 500, "P", "one for each request and second"}},
	"KvleaseEngineUnreachable": {`kvlease_engines_failing_long{role!=""}`, want{0, 0, "D", "P can be reached"}},
	"KvleaseHandshakesFail":    {`sum by (instance, engine, class) (rate(kvlease_handshake_failures_total{role!=""}[2m]))`, want{0, 0, "D unreachable", "P answers"}},
	"KvleaseEngineTwice":       {`sum by (instance, engine) (increase(kvlease_engine_claims_total{role!=""}[10m]))`, want{0, 0, "D", "each has an id of its own"}},
	"KvleaseReadsFail":         {`sum by (instance, engine) (rate(kvlease_reads_total{role!=""}[5m]))`, want{0.1, 200, "D", "D reads some each second"}},
	"KvleaseReadsRefused":      {`sum by (instance, engine) (increase(kvlease_reads_total{role!="", outcome=~"stale|unproven"}[10m]))`, want{0, 0, "D", "none came late"}},
	"KvleaseStockReadsLate":    {`sum by (instance, engine) (increase(kvlease_late_stock_reads_total{role!=""}[10m]))`, want{0, 0, "P", "D has a fence"}},
	"KvleaseBlocksAside":       {`kvlease_reads_aside{role!=""}`, want{0, 0, "D", "all reads end"}},
	"KvleaseTransfersNeverEnd": {`kvlease_transfers_abandoned{role!=""}`, want{0, 0, "D", "all reads end"}},
	"KvleaseLeasesFull":        {`kvlease_lease_slots_used{role!=""} / kvlease_leases_limit{role!=""}`, want{1e-5, 0.1, "P", "some of thousands"}},
	"KvleaseHooksRefused":      {`sum by (instance, engine, role, rank, pid, context, why) (increase(kvlease_submissions_refused_total{role!=""}[5m]))`, want{0, 0, "P ring_full", "there is room"}},
	"KvleaseNoRoom":            {`sum by (instance, engine, table) (increase(kvlease_tables_full_total{role!=""}[10m]))`, want{0, 0, "P index", "there is room"}},
	"KvleaseStepsSlow":         {``, want{}}, // the panel Step asks the same
	"KvleaseStalls":            {``, want{}}, // so does Stalls
	"KvleaseBacklog":           {`sum by (instance, engine, role, rank, pid, context) (rate(kvlease_steps_total{role!=""}[5m]))`, want{10, 200, "P", "a pass takes 10 ms"}},
	"KvleaseEventsHeld":        {`sum by (instance, engine, role, rank, pid, context) (rate(kvlease_events_held_total{role!=""}[2m]))`, want{0, 0, "P", "it polls"}},
	"KvleaseLogLost":           {`sum by (instance, engine, role, rank, pid, context) (increase(kvlease_log_records_lost_total{role!=""}[10m]))`, want{0, 0, "P", "its stderr takes all"}},
	"KvleaseRankLost":          {``, want{}}, // there are no ranks here
	"KvleaseHostLost":          {``, want{}},
	"KvleaseRankMisfit":        {``, want{}},
	"KvleaseMemoryMissing":     {`kvlease_registered_bytes{role!=""}`, want{1e5, 1e12, "P", "it is registered"}},
	"KvleaseMalformed":         {`sum by (instance, engine, role, rank, pid, context) (increase(kvlease_malformed_messages_total{role!=""}[10m]))`, want{0, 0, "P", "D speaks as we do"}},
	"KvleaseMessagesGivenUp":   {`sum by (instance, engine, role, rank, pid, context) (increase(kvlease_messages_given_up_total{role!="", why!="engine_lost"}[10m]))`, want{0, 0, "D", "P takes in what comes"}},
	"KvleaseLeaseOld":          {`kvlease_reader_oldest_lease_age_seconds{role!="", kind!="unnamed"}`, want{0.05, 60, "P", "each waits for some requests"}},
}
