package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// stories is one for each alert: what it takes, and that it takes so long.
var stories = map[string]story{
	"KvleaseEngineDown":        {map[string]string{`kvlease_up{L}`: becomes(1, 0)}, began + 15*time.Second, began + time.Minute},
	"KvleaseExporterDown":      {map[string]string{`up{L}`: becomes(1, 0)}, began + 4*time.Minute, began + 6*time.Minute},
	"KvleaseBroken":            {map[string]string{`kvlease_poisoned{L}`: becomes(0, 1)}, began - 15*time.Second, began + 15*time.Second},
	"KvleaseUnhealthy":         {map[string]string{`kvlease_healthy{L}`: becomes(1, 0)}, began + 45*time.Second, began + 90*time.Second},
	"KvleaseStandsStill":       {map[string]string{`kvlease_step_age_seconds{L}`: "0+0x11 3+3x100", `kvlease_heartbeat_interval_seconds{L}`: steady(5), `kvlease_remote_requests_tracked{L,remote="P"}`: steady(1)}, began, began + time.Minute},
	"KvleaseReaderSilent":      {map[string]string{`kvlease_reader_beat_age_seconds{L,reader="D",hash="1",kind="native"}`: "1+0x11 3+3x100", `kvlease_heartbeat_interval_seconds{L}`: steady(5), `kvlease_reader_leases{L,reader="D",hash="1",kind="native"}`: steady(1)}, began, began + time.Minute},
	"KvleaseSlackLow":          {map[string]string{`kvlease_reader_least_slack_seconds{L,reader="D",hash="1",kind="native"}`: becomes(15, 2), `kvlease_heartbeat_interval_seconds{L}`: steady(5)}, began + 15*time.Second, began + time.Minute},
	"KvleaseLeasesExpire":      {map[string]string{`kvlease_leases_freed_total{L,reason="expired"}`: grow(1), `kvlease_leases_freed_total{L,reason="completed"}`: "0+10x120"}, began - 15*time.Second, began + 3*time.Minute},
	"KvleaseReadersDie":        {map[string]string{`kvlease_readers_dead_total{L}`: becomes(0, 1)}, began - 15*time.Second, began + 15*time.Second},
	"KvleaseHeartbeatsLate":    {map[string]string{`kvlease_heartbeat_lateness_seconds_bucket{L,le="1"}`: "0+0x120", `kvlease_heartbeat_lateness_seconds_bucket{L,le="4"}`: grow(1), `kvlease_heartbeat_lateness_seconds_bucket{L,le="+Inf"}`: grow(1), `kvlease_heartbeat_interval_seconds{L}`: steady(5)}, began + time.Minute, began + 4*time.Minute},
	"KvleaseHeartbeatsFail":    {map[string]string{`kvlease_send_failures_total{L}`: grow(1)}, began + time.Minute, began + 4*time.Minute},
	"KvleaseHeartbeatsUnheard": {map[string]string{`kvlease_heartbeat_messages_dropped_total{L}`: grow(1)}, began - 15*time.Second, began + time.Minute},
	"KvleaseHeartbeatsUnknown": {map[string]string{`kvlease_heartbeats_unknown_total{L}`: grow(5), `kvlease_heartbeats_received_total{L}`: "0+10x120"}, began + 8*time.Minute, began + 14*time.Minute},
	"KvleaseEngineUnreachable": {map[string]string{`kvlease_engines_failing_long{L}`: becomes(0, 1)}, began + 45*time.Second, began + 90*time.Second},
	"KvleaseHandshakesFail":    {map[string]string{`kvlease_handshake_failures_total{L,class="silent"}`: grow(1)}, began + time.Minute, began + 4*time.Minute},
	"KvleaseReadsFail":         {map[string]string{`kvlease_reads_total{L,outcome="timeout"}`: grow(1), `kvlease_reads_total{L,outcome="ok"}`: "0+10x120"}, began + 30*time.Second, began + 3*time.Minute},
	"KvleaseReadsRefused":      {map[string]string{`kvlease_reads_total{L,outcome="stale"}`: becomes(0, 1)}, began - 15*time.Second, began + 30*time.Second},
	"KvleaseStockReadsLate":    {map[string]string{`kvlease_late_stock_reads_total{L}`: becomes(0, 1)}, began - 15*time.Second, began + 30*time.Second},
	"KvleaseBlocksAside":       {map[string]string{`kvlease_reads_aside{L}`: becomes(0, 1)}, began + 4*time.Minute, began + 6*time.Minute},
	"KvleaseTransfersNeverEnd": {map[string]string{`kvlease_transfers_abandoned{L}`: becomes(0, 1)}, began + 9*time.Minute, began + 11*time.Minute},
	"KvleaseLeasesFull":        {map[string]string{`kvlease_leases_held{L}`: becomes(10, 95), `kvlease_leases_limit{L}`: steady(100)}, began + 45*time.Second, began + 90*time.Second},
	"KvleaseNoRoom":            {map[string]string{`kvlease_tables_full_total{L,table="runs"}`: becomes(0, 1)}, began - 15*time.Second, began + 30*time.Second},
	"KvleaseStepsSlow":         {map[string]string{`kvlease_step_seconds_bucket{L,le="0.03125"}`: "0+0x120", `kvlease_step_seconds_bucket{L,le="0.125"}`: grow(10), `kvlease_step_seconds_bucket{L,le="+Inf"}`: grow(10)}, began + 4*time.Minute, began + 7*time.Minute},
	"KvleaseStalls":            {map[string]string{`kvlease_stall_gap_seconds_count{L}`: grow(1)}, began, began + 2*time.Minute},
	"KvleaseBacklog":           {map[string]string{`kvlease_steps_cut_total{L,what="messages"}`: grow(9), `kvlease_steps_total{L}`: "0+10x120"}, began + 4*time.Minute, began + 11*time.Minute},
	"KvleaseEventsHeld":        {map[string]string{`kvlease_events_held_total{L}`: grow(1)}, began + 30*time.Second, began + 3*time.Minute},
	"KvleaseRankLost":          {map[string]string{`kvlease_ranks_lost{L}`: becomes(0, 1)}, began - 15*time.Second, began + 15*time.Second},
	"KvleaseRankMisfit":        {map[string]string{`kvlease_misfit{L}`: becomes(0, 1)}, began - 15*time.Second, began + 15*time.Second},
	"KvleaseMalformed":         {map[string]string{`kvlease_malformed_messages_total{L}`: becomes(0, 1)}, began - 15*time.Second, began + 30*time.Second},
	"KvleaseMessagesGivenUp":   {map[string]string{`kvlease_messages_given_up_total{L,why="late"}`: becomes(0, 1)}, began - 15*time.Second, began + 30*time.Second},
	"KvleaseLeaseOld":          {map[string]string{`kvlease_oldest_lease_age_seconds{L}`: "590+0x11 605+15x100", `kvlease_lease_duration_seconds{L}`: steady(30)}, began - 15*time.Second, began + 15*time.Second},
}

// TestAlertsFireAfterTheirTrueDurations asks promtool about deploy/alerts.yml as it is.
func TestAlertsFireAfterTheirTrueDurations(t *testing.T) {
	type input struct {
		Series string
		Values string
	}
	type sampleOf struct {
		Labels string
		Value  int
	}
	type expr struct {
		Expr     string
		EvalTime string     `yaml:"eval_time"`
		Samples  []sampleOf `yaml:"exp_samples"`
	}
	type unit struct {
		Interval string
		Input    []input `yaml:"input_series"`
		Exprs    []expr  `yaml:"promql_expr_test"`
	}
	file := struct {
		Rules []string `yaml:"rule_files"`
		Every string   `yaml:"evaluation_interval"`
		Tests []unit
	}{Rules: []string{filepath.Join(root(t), "deploy", "alerts.yml")}, Every: "15s"}
	for _, r := range rules(t) {
		s, ok := stories[r.Alert]
		if !ok {
			t.Errorf("%s has no story", r.Alert)
			continue
		}
		u := unit{Interval: "15s"}
		for name, values := range s.series {
			u.Input = append(u.Input, input{strings.Replace(name, "{L", "{"+common, 1), values})
		}
		query := fmt.Sprintf("count by (alertname) (ALERTS{alertstate=\"firing\", alertname=%q})", r.Alert)
		u.Exprs = []expr{{Expr: query, EvalTime: s.before.String()}, {Expr: query, EvalTime: s.after.String(), Samples: []sampleOf{{fmt.Sprintf("{alertname=%q}", r.Alert), 1}}}}
		file.Tests = append(file.Tests, u)
	}
	text, err := yaml.Marshal(file)
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
