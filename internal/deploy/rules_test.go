package deploy

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// story is a run of series, one value each 15 s in promtool's notation, and when an alert fires in it.
type story struct {
	series map[string]string // name and own labels to values; {L} stands for the labels of the context
	before time.Duration     // the alert does not fire yet
	after  time.Duration     // now it does
}

const common = `instance="m",job="kvlease",engine="E",role="engine",rank="0",pid="1",context="1"`

// steady is a value that does not change, grow one that grows by so much a sample, from the third minute on.
func steady(v float64) string { return fmt.Sprintf("%vx120", fmt.Sprintf("%v+0", v)) }

func grow(by float64) string { return fmt.Sprintf("0+0x12 %v+%vx100", by, by) }

// becomes is a gauge that changes in the third minute.
func becomes(from, to float64) string { return fmt.Sprintf("%v+0x11 %v+0x110", from, to) }

const began = 3 * time.Minute // when a story's fault begins

const stepAge = `kvlease_step_age_seconds{L}`

// steps makes a story one of an engine that steps.
func steps(series map[string]string) map[string]string {
	series[stepAge], series[`kvlease_heartbeat_interval_seconds{L}`] = steady(0.1), steady(5)
	return series
}

// stories is one for each alert: what it takes, and that it takes so long.
var stories = map[string]story{
	"KvleaseEngineDown":        {map[string]string{`kvlease_up{L}`: becomes(1, 0)}, began + 15*time.Second, began + time.Minute},
	"KvleaseExporterDown":      {map[string]string{`up{L}`: becomes(1, 0)}, began + 4*time.Minute, began + 6*time.Minute},
	"KvleasePagesUnseen":       {map[string]string{`kvlease_pages{instance="m",job="kvlease",state="refused"}`: becomes(0, 1)}, began + 4*time.Minute, began + 6*time.Minute},
	"KvleaseBroken":            {map[string]string{`kvlease_poisoned{L}`: becomes(0, 1)}, began - 15*time.Second, began + 15*time.Second},
	"KvleaseUnhealthy":         {steps(map[string]string{`kvlease_healthy{L}`: becomes(1, 0)}), began + 45*time.Second, began + 90*time.Second},
	"KvleaseStandsStill":       {map[string]string{`kvlease_step_age_seconds{L}`: "0+0x11 3+3x100", `kvlease_heartbeat_interval_seconds{L}`: steady(5), `kvlease_leases_held{L}`: steady(1)}, began, began + time.Minute}, // a host has no rows of readers
	"KvleaseReaderSilent":      {steps(map[string]string{`kvlease_reader_beat_age_seconds{L,reader="D",hash="1",kind="native"}`: "1+0x11 3+3x100", `kvlease_reader_leases{L,reader="D",hash="1",kind="native"}`: steady(1)}), began, began + time.Minute},
	"KvleaseSlackLow":          {steps(map[string]string{`kvlease_reader_least_slack_seconds{L,reader="D",hash="1",kind="native"}`: becomes(15, 2)}), began + 15*time.Second, began + time.Minute},
	"KvleaseLeasesExpire":      {map[string]string{`kvlease_leases_freed_total{L,reason="expired"}`: grow(1), `kvlease_leases_freed_total{L,reason="completed"}`: "0+10x120"}, began + 30*time.Second, began + 3*time.Minute},
	"KvleaseReadersDie":        {map[string]string{`kvlease_readers_dead_total{L}`: becomes(0, 1)}, began - 15*time.Second, began + 15*time.Second},
	"KvleaseHeartbeatsLate":    {map[string]string{`kvlease_heartbeat_lateness_seconds_bucket{L,le="1"}`: "0+0x120", `kvlease_heartbeat_lateness_seconds_bucket{L,le="4"}`: grow(1), `kvlease_heartbeat_lateness_seconds_bucket{L,le="+Inf"}`: grow(1), `kvlease_heartbeat_interval_seconds{L}`: steady(5)}, began + 5*time.Minute, began + 8*time.Minute},
	"KvleaseHeartbeatsFail":    {map[string]string{`kvlease_send_failures_total{L}`: grow(1)}, began + 150*time.Second, began + 4*time.Minute},
	"KvleaseHeartbeatsUnheard": {map[string]string{`kvlease_heartbeat_messages_dropped_total{L}`: grow(1)}, began - 15*time.Second, began + time.Minute},
	"KvleaseHeartbeatsUnknown": {map[string]string{`kvlease_heartbeats_unknown_total{L}`: grow(5), `kvlease_heartbeats_received_total{L}`: "0+10x120"}, began + 8*time.Minute, began + 14*time.Minute},
	"KvleaseEngineUnreachable": {steps(map[string]string{`kvlease_engines_failing_long{L}`: becomes(0, 1)}), began + 45*time.Second, began + 90*time.Second},
	"KvleaseHandshakesFail":    {steps(map[string]string{`kvlease_handshake_failures_total{L,class="silent"}`: grow(1), `kvlease_engines_failing_long{L}`: becomes(0, 1)}), began + 150*time.Second, began + 4*time.Minute},
	"KvleaseEngineTwice":       {map[string]string{`kvlease_engine_claims_total{L}`: becomes(0, 1)}, began - 15*time.Second, began + 30*time.Second},
	"KvleaseReadsFail":         {map[string]string{`kvlease_reads_total{L,outcome="timeout"}`: grow(1), `kvlease_reads_total{L,outcome="ok"}`: "0+10x120"}, began + 30*time.Second, began + 3*time.Minute},
	"KvleaseReadsRefused":      {map[string]string{`kvlease_reads_total{L,outcome="stale"}`: becomes(0, 1)}, began - 15*time.Second, began + 30*time.Second},
	"KvleaseStockReadsLate":    {map[string]string{`kvlease_late_stock_reads_total{L}`: becomes(0, 1)}, began - 15*time.Second, began + 30*time.Second},
	"KvleaseBlocksAside":       {map[string]string{`kvlease_reads_aside{L}`: becomes(0, 1)}, began + 4*time.Minute, began + 6*time.Minute},
	"KvleaseTransfersNeverEnd": {map[string]string{`kvlease_transfers_abandoned{L}`: becomes(0, 1)}, began + 9*time.Minute, began + 11*time.Minute},
	"KvleaseLeasesFull":        {map[string]string{`kvlease_lease_slots_used{L}`: becomes(10, 95), `kvlease_leases_limit{L}`: steady(100)}, began + 45*time.Second, began + 90*time.Second},
	"KvleaseHooksRefused":      {map[string]string{`kvlease_submissions_refused_total{L,why="ring_full"}`: becomes(0, 1)}, began - 15*time.Second, began + 15*time.Second},
	"KvleaseNoRoom":            {map[string]string{`kvlease_tables_full_total{L,table="runs"}`: becomes(0, 1)}, began - 15*time.Second, began + 30*time.Second},
	"KvleaseStepsSlow":         {map[string]string{`kvlease_step_seconds_bucket{L,le="0.03125"}`: "0+0x120", `kvlease_step_seconds_bucket{L,le="0.125"}`: grow(10), `kvlease_step_seconds_bucket{L,le="+Inf"}`: grow(10)}, began + 5*time.Minute, began + 8*time.Minute},
	"KvleaseStalls":            {map[string]string{`kvlease_stall_gap_seconds_count{L}`: grow(1)}, began, began + 2*time.Minute},
	"KvleaseBacklog":           {map[string]string{`kvlease_steps_cut_total{L,what="messages"}`: grow(9), `kvlease_steps_total{L}`: "0+10x120"}, began + 5*time.Minute, began + 12*time.Minute},
	"KvleaseEventsHeld":        {map[string]string{`kvlease_events_held_total{L}`: grow(1)}, began + 150*time.Second, began + 4*time.Minute},
	"KvleaseLogLost":           {map[string]string{`kvlease_log_records_lost_total{L}`: becomes(0, 1)}, began - 15*time.Second, began + 30*time.Second},
	"KvleaseRankLost":          {map[string]string{`kvlease_ranks_lost{L}`: becomes(0, 1)}, began - 15*time.Second, began + 15*time.Second},
	"KvleaseHostLost":          {map[string]string{`kvlease_host_lost{L}`: becomes(0, 1)}, began + 45*time.Second, began + 90*time.Second},
	"KvleaseRankMisfit":        {map[string]string{`kvlease_misfit{L}`: becomes(0, 1)}, began - 15*time.Second, began + 15*time.Second},
	"KvleaseMemoryMissing":     {steps(map[string]string{`kvlease_registered_bytes{L}`: becomes(1e9, 0), `kvlease_leases_held{L}`: steady(0), `kvlease_requests_tracked{L}`: steady(1)}), began + 105*time.Second, began + 150*time.Second},
	"KvleaseMalformed":         {map[string]string{`kvlease_malformed_messages_total{L}`: becomes(0, 1)}, began - 15*time.Second, began + 30*time.Second},
	"KvleaseMessagesGivenUp":   {map[string]string{`kvlease_messages_given_up_total{L,why="late"}`: becomes(0, 1)}, began - 15*time.Second, began + 30*time.Second},
	"KvleaseLeaseOld":          {map[string]string{`kvlease_reader_oldest_lease_age_seconds{L,reader="D",hash="1",kind="native"}`: "590+0x11 605+15x100", `kvlease_lease_duration_seconds{L}`: steady(30)}, began - 15*time.Second, began + 15*time.Second},
}

// once is a counter that counts one thing in the third minute, and nothing after it.
func once() string { return becomes(0, 1) }

// late is one observation of a histogram in the third minute beyond what an alert allows, among few others.
func late(name, fine, bad string) map[string]string {
	few, all := "0+1x120", "0+1x11 13+1x110"
	return map[string]string{name + `_bucket{L,le="` + fine + `"}`: few, name + `_bucket{L,le="` + bad + `"}`: all, name + `_bucket{L,le="+Inf"}`: all}
}

func with(series map[string]string, name, values string) map[string]string {
	series[name] = values
	return series
}

// lone are things that happen once on a calm night, or as they should, and are no reason to wake anybody.
var lone = map[string]map[string]string{
	"KvleaseLeasesExpire":      {`kvlease_leases_freed_total{L,reason="expired"}`: once(), `kvlease_leases_freed_total{L,reason="completed"}`: "0+0x20 1+0x100"},
	"KvleaseHeartbeatsLate":    with(late("kvlease_heartbeat_lateness_seconds", "1", "4"), `kvlease_heartbeat_interval_seconds{L}`, steady(5)),
	"KvleaseHeartbeatsFail":    {`kvlease_send_failures_total{L}`: once()},
	"KvleaseHeartbeatsUnknown": {`kvlease_heartbeats_unknown_total{L}`: once(), `kvlease_heartbeats_received_total{L}`: once()},
	"KvleaseHandshakesFail":    steps(map[string]string{`kvlease_handshake_failures_total{L,class="unreachable"}`: once(), `kvlease_engines_failing_long{L}`: steady(1)}),
	"KvleaseReadsFail":         {`kvlease_reads_total{L,outcome="timeout"}`: once(), `kvlease_reads_total{L,outcome="ok"}`: "0+0x20 1+0x100"},
	"KvleaseStepsSlow":         late("kvlease_step_seconds", "0.03125", "0.125"),
	"KvleaseStalls":            {`kvlease_stall_gap_seconds_count{L}`: once(), `kvlease_stall_gap_seconds_count{` + rank(1) + `}`: once(), `kvlease_stall_gap_seconds_count{` + rank(2) + `}`: once(), `kvlease_stall_gap_seconds_count{` + rank(3) + `}`: once()},
	"KvleaseBacklog":           {`kvlease_steps_cut_total{L,what="messages"}`: once(), `kvlease_steps_total{L}`: once()},
	"KvleaseEventsHeld":        {`kvlease_events_held_total{L}`: once()},
	// Blocks for a next turn (KVL_GRANT_FIXED) are held as long as decoder_kv_blocks_ttl says, and nobody renews them.
	"KvleaseLeaseOld": {`kvlease_reader_oldest_lease_age_seconds{L,reader="unnamed",hash="",kind="unnamed"}`: "0+15x120", `kvlease_lease_duration_seconds{L}`: steady(30)},
}

// rank has the labels of another rank of the same engine.
func rank(n int) string { return strings.Replace(common, `rank="0"`, fmt.Sprintf(`rank="%d"`, n), 1) }

// window finds the ranges of an expression.
var window = regexp.MustCompile(`\[(\d+[smh])\]`)

// TestWhatHappensOnceAlarmsNobody: a range remembers one event for as long as it is, so an alert that waits less than that, or not at
// all, fires for every single one. Each alert over a range either waits longer, or is about single events.
func TestWhatHappensOnceAlarmsNobody(t *testing.T) {
	var tests []unit
	for _, r := range rules(t) {
		for _, m := range window.FindAllStringSubmatch(r.Expr, -1) {
			wait, _ := time.ParseDuration(r.For)
			if looks, err := time.ParseDuration(m[1]); err != nil || wait > 0 && wait <= looks {
				t.Errorf("%s: for %v says nothing over a range of %v (%v)", r.Alert, wait, looks, err)
			}
		}
		if series, ok := lone[r.Alert]; ok {
			tests = append(tests, unitOf(series, expr{Expr: everFired(r.Alert), EvalTime: "25m"}))
		}
	}
	if len(tests) != len(lone) {
		t.Errorf("%d of %d alerts are there", len(tests), len(lone))
	}
	promtoolAgrees(t, tests)
}

// everFired brings a sample if an alert has fired in the first 25 minutes of a story.
func everFired(alert string) string {
	return fmt.Sprintf("count by (alertname) (count_over_time(ALERTS{alertstate=\"firing\", alertname=%q}[25m]))", alert)
}

// ofSteps are the alerts about what only a step finds out: of an engine that makes none its page shows what was true once.
var ofSteps = []string{"KvleaseUnhealthy", "KvleaseReaderSilent", "KvleaseSlackLow", "KvleaseEngineUnreachable", "KvleaseHandshakesFail", "KvleaseMemoryMissing"}

// TestWhatAnEngineShowedLastAlarmsNobody: one that is driven inline makes no step while it has nothing to do, for hours. If it holds leases
// or tracks requests meanwhile KvleaseStandsStill says so.
func TestWhatAnEngineShowedLastAlarmsNobody(t *testing.T) {
	var tests []unit
	for _, alert := range ofSteps {
		series := maps.Clone(stories[alert].series)
		series[stepAge] = "0+0x11 15+15x110"
		tests = append(tests, unitOf(series, expr{Expr: everFired(alert), EvalTime: "25m"}))
	}
	promtoolAgrees(t, tests)
}

// TestWhoWasToldOfSomethingStandsStill: what the hooks have said no step has taken, so nothing else shows it. Who sleeps gives up what it
// had, and may rest with it.
func TestWhoWasToldOfSomethingStandsStill(t *testing.T) {
	const alert = "KvleaseStandsStill"
	rests := func(more map[string]string) map[string]string {
		more[stepAge], more[`kvlease_heartbeat_interval_seconds{L}`] = "0+0x11 15+15x110", steady(5)
		for _, name := range []string{"leases_held", "requests_tracked", "submissions_untaken_bytes"} {
			if key := "kvlease_" + name + "{L}"; more[key] == "" {
				more[key] = steady(0)
			}
		}
		return more
	}
	wakes := func(registering, age string) map[string]string {
		more := rests(map[string]string{
			`kvlease_submissions_untaken_bytes{L}`: "64x14 0x110", `kvlease_requests_tracked{L}`: steady(1), `kvlease_asleep{L}`: "1x11 0x120",
			`kvlease_registered_bytes{L}`: "0x11 5e8x3 1e9x110", `kvlease_registering_bytes{L}`: registering,
		})
		more[stepAge] = age
		return more
	}
	fires := expr{Expr: everFired(alert), EvalTime: "25m", Samples: []sampleOf{{fmt.Sprintf("{alertname=%q}", alert), 1}}}
	calm := expr{Expr: everFired(alert), EvalTime: "25m"}
	promtoolAgrees(t, []unit{
		unitOf(rests(map[string]string{}), calm),
		unitOf(rests(map[string]string{`kvlease_submissions_untaken_bytes{L}`: steady(64), `kvlease_registered_bytes{L}`: steady(1e9)}), fires),
		unitOf(rests(map[string]string{`kvlease_submissions_untaken_bytes{L}`: steady(64), `kvlease_ranks_up{L}`: steady(2)}), fires),
		unitOf(rests(map[string]string{`kvlease_requests_tracked{L}`: steady(1), `kvlease_registered_bytes{L}`: steady(1e9)}), fires),
		unitOf(rests(map[string]string{`kvlease_submissions_untaken_bytes{L}`: steady(64), `kvlease_requests_tracked{L}`: steady(1), `kvlease_registered_bytes{L}`: steady(0), `kvlease_asleep{L}`: steady(1)}), calm),
		unitOf(rests(map[string]string{`kvlease_submissions_untaken_bytes{L}`: steady(64), `kvlease_requests_tracked{L}`: steady(1), `kvlease_ranks_up{L}`: steady(0), `kvlease_ranks_asleep{L}`: steady(2)}), calm),
		unitOf(rests(map[string]string{`kvlease_requests_tracked{L}`: steady(1), `kvlease_registered_bytes{L}`: steady(0), `kvlease_asleep{L}`: steady(0)}), fires),
		unitOf(rests(map[string]string{`kvlease_requests_tracked{L}`: steady(1), `kvlease_ranks_up{L}`: steady(0), `kvlease_ranks_asleep{L}`: steady(0)}), fires),
		unitOf(rests(map[string]string{`kvlease_leases_held{L}`: steady(1), `kvlease_registered_bytes{L}`: steady(0), `kvlease_asleep{L}`: steady(1)}), fires),
		// It wakes: the loop is in kvl_register, for a minute, and steps on behind it. One that does not come out of it stands still.
		unitOf(wakes("0x11 1e9x3 0x110", "0+15x14 0x110"), calm),
		unitOf(wakes("0x11 1e9x110", "0+15x130"), fires),
	})
}

// TestARankThatDoesNotTakeWhatItsHostSaysStandsStill: while that has leases or requests, wherever it is. Else what waits is good to know, and
// the rank may rest with it.
func TestARankThatDoesNotTakeWhatItsHostSaysStandsStill(t *testing.T) {
	const alert = "KvleaseStandsStill"
	rests := func(untaken, tracked float64) map[string]string {
		ofRank := strings.Replace(common, `role="engine"`, `role="rank"`, 1)
		ofHost := strings.NewReplacer(`role="engine"`, `role="host"`, `instance="m"`, `instance="n"`).Replace(common)
		return map[string]string{
			`kvlease_step_age_seconds{` + ofRank + `}`: "0+0x11 15+15x110", `kvlease_heartbeat_interval_seconds{` + ofRank + `}`: steady(5),
			`kvlease_submissions_untaken_bytes{` + ofRank + `}`: steady(untaken), `kvlease_registered_bytes{` + ofRank + `}`: steady(1e9), `kvlease_asleep{` + ofRank + `}`: steady(0),
			`kvlease_leases_held{` + ofHost + `}`: steady(0), `kvlease_requests_tracked{` + ofHost + `}`: steady(tracked),
		}
	}
	fires := expr{Expr: everFired(alert), EvalTime: "25m", Samples: []sampleOf{{fmt.Sprintf("{alertname=%q}", alert), 1}}}
	calm := expr{Expr: everFired(alert), EvalTime: "25m"}
	promtoolAgrees(t, []unit{unitOf(rests(64, 1), fires), unitOf(rests(64, 0), calm), unitOf(rests(0, 1), calm)})
}

// TestASleepMissesNoMemory: it was given up on purpose, with what was tracked, by all ranks. Who grants leases meanwhile has blocks that nobody
// can read, and a rank that has lost its memory while others have theirs has not been put to sleep.
func TestASleepMissesNoMemory(t *testing.T) {
	const alert = "KvleaseMemoryMissing"
	asleep := func(more map[string]string) map[string]string {
		series := steps(map[string]string{`kvlease_registered_bytes{L}`: becomes(1e9, 0), `kvlease_asleep{L}`: becomes(0, 1), `kvlease_leases_held{L}`: steady(0), `kvlease_requests_tracked{L}`: steady(1)})
		maps.Copy(series, more)
		return series
	}
	fires := expr{Expr: everFired(alert), EvalTime: "25m", Samples: []sampleOf{{fmt.Sprintf("{alertname=%q}", alert), 1}}}
	calm := expr{Expr: everFired(alert), EvalTime: "25m"}
	promtoolAgrees(t, []unit{
		unitOf(asleep(nil), calm),
		unitOf(asleep(map[string]string{`kvlease_asleep{L}`: steady(0)}), fires),
		unitOf(asleep(map[string]string{`kvlease_leases_held{L}`: steady(1)}), fires),
		unitOf(asleep(map[string]string{`kvlease_asleep{` + rank(1) + `}`: steady(0)}), fires),
	})
}

// TestABrokenEngineIsUnhealthyAlthoughItDoesNotStep: it cannot.
func TestABrokenEngineIsUnhealthyAlthoughItDoesNotStep(t *testing.T) {
	const alert = "KvleaseUnhealthy"
	series := maps.Clone(stories[alert].series)
	series[stepAge], series[`kvlease_poisoned{L}`] = "0+0x11 15+15x110", becomes(0, 1)
	promtoolAgrees(t, []unit{unitOf(series, expr{Expr: everFired(alert), EvalTime: "25m", Samples: []sampleOf{{fmt.Sprintf("{alertname=%q}", alert), 1}}})})
}

// TestHandshakesThatNobodyWaitsForAlarmNobody: an owner that was closed in order is asked until its reader forgets it.
func TestHandshakesThatNobodyWaitsForAlarmNobody(t *testing.T) {
	const alert = "KvleaseHandshakesFail"
	series := maps.Clone(stories[alert].series)
	series[`kvlease_engines_failing_long{L}`] = steady(0)
	promtoolAgrees(t, []unit{unitOf(series, expr{Expr: everFired(alert), EvalTime: "25m"})})
}

// counted are the alerts that want more than some events, all at once: so many are too few, and one more is enough.
var counted = map[string]struct {
	few    int
	series func(n int) map[string]string
}{
	"KvleaseLeasesExpire": {4, func(n int) map[string]string {
		return map[string]string{`kvlease_leases_freed_total{L,reason="expired"}`: becomes(0, float64(n)), `kvlease_leases_freed_total{L,reason="completed"}`: "0+1x120"}
	}},
	"KvleaseReadsFail": {4, func(n int) map[string]string {
		return map[string]string{`kvlease_reads_total{L,outcome="timeout"}`: becomes(0, float64(n)), `kvlease_reads_total{L,outcome="ok"}`: "0+1x120"}
	}},
	"KvleaseStalls": {2, func(n int) map[string]string {
		return map[string]string{`kvlease_stall_gap_seconds_count{L}`: becomes(0, float64(n))}
	}},
}

// TestAlertsCountEvents: increase() brings a little more than there were, which is not to make enough of too few.
func TestAlertsCountEvents(t *testing.T) {
	var tests []unit
	for alert, c := range counted {
		few := unitOf(c.series(c.few), expr{Expr: everFired(alert), EvalTime: "25m"})
		enough := unitOf(c.series(c.few+1), expr{Expr: everFired(alert), EvalTime: "25m", Samples: []sampleOf{{fmt.Sprintf("{alertname=%q}", alert), 1}}})
		few.Interval, enough.Interval = "14s", "14s" // beside the evaluations, as scrapes are: else nothing is left to extrapolate
		tests = append(tests, few, enough)
	}
	promtoolAgrees(t, tests)
}

// TestTheExporterOfVLLMAlarmsNobody: under the same names it has gauges that are 0 until a pass comes, and no role. Its engine has a stats
// page beside it, which says what is wrong.
func TestTheExporterOfVLLMAlarmsNobody(t *testing.T) {
	var tests []unit
	for alert, s := range stories {
		if alert == "KvleasePagesUnseen" {
			continue // of a machine, not of a context
		}
		tests = append(tests, unitAs(`instance="m",job="vllm",model_name="tiny",engine="0"`, s.series, expr{Expr: everFired(alert), EvalTime: "25m"}))
	}
	promtoolAgrees(t, tests)
}

type (
	input struct {
		Series string
		Values string
	}
	sampleOf struct {
		Labels string
		Value  int
	}
	expr struct {
		Expr     string
		EvalTime string     `yaml:"eval_time"`
		Samples  []sampleOf `yaml:"exp_samples"`
	}
	unit struct {
		Interval string
		Input    []input `yaml:"input_series"`
		Exprs    []expr  `yaml:"promql_expr_test"`
	}
)

func unitOf(series map[string]string, exprs ...expr) unit { return unitAs(common, series, exprs...) }

// unitAs gives the series these labels.
func unitAs(labels string, series map[string]string, exprs ...expr) unit {
	u := unit{Interval: "15s", Exprs: exprs}
	for name, values := range series {
		u.Input = append(u.Input, input{strings.Replace(name, "{L", "{"+labels, 1), values})
	}
	return u
}

// promtoolAgrees runs tests of deploy/alerts.yml as it is.
func promtoolAgrees(t *testing.T, tests []unit) {
	t.Helper()
	text, err := yaml.Marshal(struct {
		Rules []string `yaml:"rule_files"`
		Every string   `yaml:"evaluation_interval"`
		Tests []unit
	}{[]string{filepath.Join(root(t), "deploy", "alerts.yml")}, "15s", tests})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(program(t, "promtool"), "test", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("promtool test rules: %v\n%s", err, out)
	}
}

// TestAlertsFireAfterTheirTrueDurations asks promtool.
func TestAlertsFireAfterTheirTrueDurations(t *testing.T) {
	var tests []unit
	for _, r := range rules(t) {
		s, ok := stories[r.Alert]
		if !ok {
			t.Errorf("%s has no story", r.Alert)
			continue
		}
		query := fmt.Sprintf("count by (alertname) (ALERTS{alertstate=\"firing\", alertname=%q})", r.Alert)
		tests = append(tests, unitOf(s.series,
			expr{Expr: query, EvalTime: s.before.String()},
			expr{Expr: query, EvalTime: s.after.String(), Samples: []sampleOf{{fmt.Sprintf("{alertname=%q}", r.Alert), 1}}}))
	}
	promtoolAgrees(t, tests)
}
