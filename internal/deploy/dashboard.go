// Package deploy makes the Grafana dashboard of deploy/ and holds what is there against a real Prometheus.
package deploy

import (
	"encoding/json"
	"fmt"
)

//go:generate go run ./cmd -o ../../deploy/dashboard.json

// Panel is one picture: a time series, or a number.
type Panel struct {
	Title, Unit, Text string
	Number            bool
	Queries           []Query
}

// Query is one expression with the name that its series get.
type Query struct{ Expr, Legend string }

// Row is a heading with its panels, three beside each other.
type Row struct {
	Title  string
	Panels []Panel
}

// only chooses series. What vLLM's own exporter shows under the same names has no role, and an engine's number for its name.
const only = `engine=~"$engine", role!=""`

func one(expr, legend string) []Query { return []Query{{expr, legend}} }

// sum adds up a counter's rate.
func sum(by, metric string) string {
	return fmt.Sprintf(`sum by (%s) (rate(kvlease_%s{%s}[$__rate_interval]))`, by, metric, only)
}

// quantile is one of a histogram, from classic buckets or from native ones: a server has the one or the other.
func quantile(q float64, by, metric string) string {
	return fmt.Sprintf("histogram_quantile(%[1]v, sum by (le, %[2]s) (rate(kvlease_%[3]s_bucket{%[4]s}[$__rate_interval])))\nor histogram_quantile(%[1]v, sum by (%[2]s) (rate(kvlease_%[3]s{%[4]s}[$__rate_interval])))",
		q, by, metric, only)
}

func quantiles(metric string, qs ...float64) (list []Query) {
	for _, q := range qs {
		list = append(list, Query{quantile(q, "engine", metric), fmt.Sprintf("{{engine}} p%v", q*100)})
	}
	return list
}

// named gives readers of ours the name of their engine, which an owner knows by its hash only.
func named(metric, agg string) []Query {
	return []Query{
		{fmt.Sprintf(`%s by (engine, reader_engine) (kvlease_%s{%s, kind="native"} * on (hash) group_left (reader_engine) label_replace(max by (engine, hash) (kvlease_engine_info{role!=""}), "reader_engine", "$1", "engine", "(.+)"))`, agg, metric, only), "{{engine}}: {{reader_engine}}"},
		{fmt.Sprintf(`%s by (engine, reader) (kvlease_%s{%s} unless on (hash) kvlease_engine_info{role!=""})`, agg, metric, only), "{{engine}}: {{reader}}"},
	}
}

// Rows are the whole dashboard.
var Rows = []Row{
	{"Leases", []Panel{
		{Title: "Engines up", Number: true, Queries: one(`sum(kvlease_up{`+only+`, role!="rank"})`, "")},
		{Title: "Engines gone", Number: true, Text: "Their process is gone, their stats page is left, for ten minutes at most.", Queries: one(`count(kvlease_up{`+only+`, role!="rank"} == 0) or vector(0)`, "")},
		{Title: "Exports outstanding", Number: true, Text: "Leases held and requests expected: what ending the engines now would lose.", Queries: one(`sum(kvlease_exports_outstanding{`+only+`})`, "")},
		{Title: "Leases held", Queries: one(`sum by (engine) (kvlease_leases_held{`+only+`})`, "{{engine}}")},
		{Title: "Slots for leases", Text: "Those of leases that are over are used until the engine polls their ends.", Queries: []Query{{`sum by (engine) (kvlease_lease_slots_used{` + only + `})`, "{{engine}} used"}, {`sum by (engine) (kvlease_leases_limit{` + only + `})`, "{{engine}} of"}}},
		{Title: "Leases by reader", Queries: named("reader_leases", "max")},
		{Title: "Bytes held by reader", Unit: "bytes", Queries: named("reader_held_bytes", "sum")},
		{Title: "Bytes held", Unit: "bytes", Queries: one(`sum by (engine) (kvlease_held_bytes{`+only+`})`, "{{engine}}")},
		{Title: "Oldest lease", Unit: "s", Queries: one(`max by (engine) (kvlease_oldest_lease_age_seconds{`+only+`})`, "{{engine}}")},
		{Title: "Ends by reason", Unit: "ops", Queries: one(sum("engine, reason", "leases_freed_total"), "{{engine}} {{reason}}")},
		{Title: "Life of leases", Unit: "s", Queries: quantiles("lease_seconds", 0.5, 0.99)},
	}},
	{"Heartbeats", []Panel{
		{Title: "Renewals", Unit: "ops", Text: "One request in one heartbeat each.", Queries: []Query{
			{sum("engine", "heartbeats_sent_total"), "{{engine}} sent"}, {sum("engine", "heartbeats_applied_total"), "{{engine}} applied"}, {sum("engine", "heartbeats_unknown_total"), "{{engine}} of no lease"}}},
		{Title: "Messages", Unit: "ops", Queries: []Query{{sum("engine", "heartbeat_messages_sent_total"), "{{engine}} sent"}, {sum("engine", "heartbeat_messages_received_total"), "{{engine}} received"}}},
		{Title: "Time left when renewed", Unit: "s", Text: "The lower, the closer blocks are to being lost.", Queries: quantiles("deadline_slack_seconds", 0.01, 0.5)},
		{Title: "Least time left by reader", Unit: "s", Queries: named("reader_least_slack_seconds", "min")},
		{Title: "Last heartbeat of each reader", Unit: "s", Queries: named("reader_beat_age_seconds", "max")},
		{Title: "Heartbeats late", Unit: "s", Queries: quantiles("heartbeat_lateness_seconds", 0.5, 0.99)},
		{Title: "From a dead reader's last heartbeat to its blocks free", Unit: "s", Queries: quantiles("reclaim_seconds", 0.5, 0.99)},
		{Title: "Bytes that a peer has not taken in", Unit: "bytes", Queries: one(`max by (engine) (kvlease_unheard_bytes_max{`+only+`})`, "{{engine}}")},
	}},
	{"Reads", []Panel{
		{Title: "Reads by outcome", Unit: "ops", Queries: one(sum("engine, outcome", "reads_total"), "{{engine}} {{outcome}}")},
		{Title: "Bytes read", Unit: "Bps", Queries: one(sum("engine", "read_bytes_total"), "{{engine}}")},
		{Title: "Bytes read by owner", Unit: "Bps", Queries: one(sum("engine, remote", "remote_read_bytes_total"), "{{engine}} from {{remote}}")},
		{Title: "Time of a read", Unit: "s", Queries: quantiles("read_seconds", 0.5, 0.99)},
		{Title: "Time of its fence", Unit: "s", Queries: quantiles("read_fence_seconds", 0.5, 0.99)},
		{Title: "Requests", Queries: []Query{{`sum by (engine) (kvlease_requests_tracked{` + only + `})`, "{{engine}} tracked"}, {`sum by (engine) (kvlease_reads_in_flight{` + only + `})`, "{{engine}} being read"}, {`sum by (engine) (kvlease_reads_waiting{` + only + `})`, "{{engine}} wait for their engine"}}},
		{Title: "Connections by state", Queries: one(`sum by (engine, state) (kvlease_engines{`+only+`})`, "{{engine}} {{state}}")},
		{Title: "Handshakes by state", Queries: one(`sum by (engine, state) (kvlease_handshake_engines{`+only+`})`, "{{engine}} {{state}}")},
		{Title: "Time to a connection", Unit: "s", Queries: quantiles("handshake_seconds", 0.5, 0.99)},
		{Title: "Last sign of each owner", Unit: "s", Queries: one(`max by (engine, remote) (kvlease_remote_row_age_seconds{`+only+`})`, "{{engine}}: {{remote}}")},
	}},
	{"Trouble", []Panel{
		{Title: "Not healthy", Number: true, Queries: one(`count(kvlease_healthy{`+only+`} == 0) or vector(0)`, "")},
		{Title: "Engines that cannot be reached", Text: "Nobody misses those without requests, as one that was closed in order.", Queries: []Query{{`sum by (engine) (kvlease_engines_failing{` + only + `})`, "{{engine}}"}, {`sum by (engine) (kvlease_engines_failing_unused{` + only + `})`, "{{engine}} of these without requests"}}},
		{Title: "Since the last step", Unit: "s", Queries: one(`max by (engine, role, rank) (kvlease_step_age_seconds{`+only+`})`, "{{engine}} {{role}} {{rank}}")},
		{Title: "Step", Unit: "s", Queries: quantiles("step_seconds", 0.5, 0.99)},
		{Title: "Stalls, of ten minutes", Queries: one("max by (engine) (increase(kvlease_stall_gap_seconds_count{"+only+"}[10m])\nor histogram_count(increase(kvlease_stall_gap_seconds{"+only+"}[10m])))", "{{engine}}")},
		{Title: "Steps that left work", Unit: "ops", Queries: one(sum("engine, what", "steps_cut_total"), "{{engine}} {{what}}")},
		{Title: "Late stock reads, of ten minutes", Text: "Stock readers have no fence: each may have answered with another request's blocks.", Queries: one(`sum by (engine) (increase(kvlease_late_stock_reads_total{`+only+`}[10m]))`, "{{engine}}")},
		{Title: "Other late completions, of ten minutes", Text: "Readers with kvlease know that what they have read is worth nothing; of a stock reader it is most often a second word.", Queries: []Query{{`sum by (engine) (increase(kvlease_late_native_reads_total{` + only + `}[10m]))`, "{{engine}} with kvlease"}, {`sum by (engine) (increase(kvlease_late_stock_repeats_total{` + only + `}[10m]))`, "{{engine}} repeated"}}},
		{Title: "Device events", Unit: "ops", Text: "Leases are offered when the event behind their blocks has fired, and never if it cannot be asked.", Queries: []Query{{sum("engine", "ready_events_fired_total"), "{{engine}} fired"}, {sum("engine", "ready_events_failed_total"), "{{engine}} could not be asked"}}},
		{Title: "Refused reads, of ten minutes", Text: "The fence threw the data away; the requests are computed again.", Queries: one(`sum by (engine, outcome) (increase(kvlease_reads_total{`+only+`, outcome=~"stale|unproven"}[10m]))`, "{{engine}} {{outcome}}")},
		{Title: "Blocks aside", Text: "Reads whose bytes may still land, and transfers that do not end.", Queries: []Query{{`sum by (engine) (kvlease_reads_aside{` + only + `})`, "{{engine}} reads"}, {`sum by (engine) (kvlease_transfers_quarantined{` + only + `})`, "{{engine}} in quarantine"}, {`sum by (engine) (kvlease_transfers_abandoned{` + only + `})`, "{{engine}} for ever"}}},
		{Title: "Messages", Unit: "ops", Queries: []Query{{sum("engine", "send_failures_total"), "{{engine}} refused"}, {sum("engine", "messages_given_up_total"), "{{engine}} given up"}, {sum("engine", "malformed_messages_total"), "{{engine}} unreadable"}}},
		{Title: "Tables full, of ten minutes", Queries: one(`sum by (engine, table) (increase(kvlease_tables_full_total{`+only+`}[10m]))`, "{{engine}} {{table}}")},
		{Title: "Hooks refused, of ten minutes", Text: "Each answered KVL_ERR_FULL and did nothing.", Queries: one(`sum by (engine, why) (increase(kvlease_submissions_refused_total{`+only+`}[10m]))`, "{{engine}} {{why}}")},
		{Title: "Submission ring", Unit: "bytes", Queries: quantiles("ring_depth_bytes", 0.5, 0.99)},
		{Title: "From a hook to the step", Unit: "s", Queries: quantiles("submission_seconds", 0.5, 0.99)},
		{Title: "Heap of the core", Unit: "bytes", Queries: one(`max by (engine, role, rank) (kvlease_heap_bytes{`+only+`})`, "{{engine}} {{role}} {{rank}}")},
	}},
}

type object = map[string]any

// Dashboard is the JSON that Grafana imports.
func Dashboard() ([]byte, error) {
	var panels []object
	y, id := 0, 0
	next := func() int { id++; return id }
	for _, row := range Rows {
		panels = append(panels, object{"id": next(), "type": "row", "title": row.Title, "collapsed": false, "panels": []any{}, "gridPos": object{"x": 0, "y": y, "w": 24, "h": 1}})
		y++
		x, height := 0, 0
		for _, p := range row.Panels {
			w, h := 8, 8
			if p.Number {
				h = 4
			}
			if x+w > 24 || height != 0 && h != height {
				x, y, height = 0, y+height, 0
			}
			height = h
			panels = append(panels, p.json(next(), object{"x": x, "y": y, "w": w, "h": h}))
			x += w
		}
		y += height
	}
	variable := func(name, label, kind string, query any) object {
		return object{"name": name, "label": label, "type": kind, "query": query}
	}
	engine := variable("engine", "Engine", "query", object{"query": "label_values(kvlease_up{role!=\"\"}, engine)", "refId": "engine"})
	engine["datasource"], engine["refresh"], engine["multi"], engine["includeAll"], engine["allValue"] = source, 2, true, true, ".*"
	engine["definition"], engine["sort"], engine["current"] = "label_values(kvlease_up{role!=\"\"}, engine)", 1, object{"text": "All", "value": "$__all"}
	out, err := json.MarshalIndent(object{
		"title": "kvlease", "uid": "kvlease", "tags": []string{"kvlease"}, "schemaVersion": 38, "editable": true, "graphTooltip": 1, "refresh": "15s",
		"time": object{"from": "now-1h", "to": "now"}, "panels": panels,
		"templating": object{"list": []object{variable("datasource", "Data source", "datasource", "prometheus"), engine}},
	}, "", " ")
	return append(out, '\n'), err
}

var source = object{"type": "prometheus", "uid": "${datasource}"}

func (p *Panel) json(id int, at object) object {
	kind, options := "timeseries", object{"legend": object{"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []any{}}, "tooltip": object{"mode": "multi", "sort": "desc"}}
	if p.Number {
		kind, options = "stat", object{"reduceOptions": object{"calcs": []string{"lastNotNull"}}}
	}
	var targets []object
	for i, q := range p.Queries {
		targets = append(targets, object{"refId": string(rune('A' + i)), "expr": q.Expr, "legendFormat": q.Legend, "datasource": source})
	}
	unit := p.Unit
	if unit == "" {
		unit = "short"
	}
	return object{
		"id": id, "type": kind, "title": p.Title, "description": p.Text, "gridPos": at, "datasource": source, "targets": targets, "options": options,
		"fieldConfig": object{"defaults": object{"unit": unit, "min": 0}, "overrides": []any{}},
	}
}
