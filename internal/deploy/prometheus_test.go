package deploy

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlease/kvlease/internal/require"
)

const (
	lease    = 6 * time.Second // heartbeats come every second
	speed    = 50              // how much faster than in deploy/ time goes for rules: 5m is 6 s
	interval = "[6s]"          // what Grafana would fill in for $__rate_interval
)

const beatEvery = lease / 6 // between heartbeats

// aboutTime are the alerts that a machine may bring about that does something else.
var aboutTime = map[string]bool{
	"KvleaseStandsStill": true, "KvleaseReaderSilent": true, "KvleaseSlackLow": true, "KvleaseHeartbeatsLate": true, "KvleaseStepsSlow": true, "KvleaseStalls": true,
}

// want is what a person would expect of an expression while P and D work.
type want struct {
	least, most float64
	of          string // a series that must be there: label values in any order, empty: any
	why         string
}

// calm says it for every query of the dashboard, in its order.
var calm = map[string][]want{
	"Engines up":                    {{2, 2, "", "P and D"}},
	"Engines gone":                  {{0, 0, "", "nobody has died"}},
	"Exports outstanding":           {{4, 64, "", "the requests that wait, four at least"}},
	"Leases held":                   {{4, 64, "P", "the same: D holds none"}},
	"Slots for leases":              {{4, 64, "P", "the same: P polls all ends"}, {65, 1e6, "P", "some thousands"}},
	"Leases by reader":              {{4, 64, "P D", "D has named them all, and P's hash of it is joined to its name"}, {0, 64, "P unnamed", "those that D has not named yet"}},
	"Bytes held by reader":          {{4 * 2 * 65536, 64 * 2 * 65536, "P D", "two blocks of 64 KiB each"}, {0, 64 * 2 * 65536, "P unnamed", "as above"}},
	"Bytes held":                    {{4 * 2 * 65536, 64 * 2 * 65536, "P", "two blocks of 64 KiB each"}},
	"Oldest lease":                  {{0.05, 60, "P", "each waits for some requests"}},
	"Ends by reason":                {{0.1, 200, "P completed", "D reads some each second"}},
	"Life of leases":                {{0.01, 60, "P", "as long as they wait"}, {0.01, 60, "P", "as long as they wait"}},
	"Renewals":                      {{0.5, 500, "D", "D sends one for each request and second"}, {0.5, 500, "P", "and P applies them"}, {0, 50, "P", "a beat may meet a completion"}},
	"Messages":                      nil, // two panels have this title: see calmMessages
	"Time left when renewed":        {{1, 6.8, "P", "heartbeats come each second, four before the end"}, {2, 6.8, "P", "the same"}},
	"Least time left by reader":     {{1, 6.8, "P D", "the same"}, {0, 0, "-", "a reader without a lease of a name has none"}},
	"Last heartbeat of each reader": {{0, 2.5, "P D", "each second"}, {0, 0, "-", "nobody else has sent one"}},
	"Heartbeats late":               {{0, 1, "D", "by at most some passes of 10 ms"}, {0, 1, "D", "the same"}},
	"From a dead reader's last heartbeat to its blocks free": nil, // after the crash
	"Bytes that a peer has not taken in":                     {{0, 1 << 20, "D", "P takes in what comes"}},
	"Reads by outcome":                                       {{0.1, 200, "D ok", "all reads end well"}},
	"Bytes read":                                             {{0.1 * 2 * 65536, 1e9, "D", "two blocks of 64 KiB each"}},
	"Bytes read by owner":                                    {{0.1 * 2 * 65536, 1e9, "D P", "from P"}},
	"Time of a read":                                         {{0, 2, "D", "passes of 10 ms; 0 where one step saw both"}, {0, 2, "D", "the same"}},
	"Time of its fence":                                      {{0, 2, "D", "0 where one step saw both"}, {0, 2, "D", "the same"}},
	"Requests":                                               {{4, 64, "D", "those that wait"}, {0, 8, "D", "one now and then"}, {0, 8, "D", "none: P is connected"}},
	"Connections by state":                                   {{1, 1, "D connected", "P"}},
	"Handshakes by state":                                    {{1, 1, "D ready", "P"}},
	"Time to a connection":                                   nil, // once, at the start: asked over all time
	"Last sign of each owner":                                {{0, 3, "D P", "its rows are read"}},
	"Not healthy":                                            {{0, 0, "", "all are"}},
	"Engines that cannot be reached":                         {{0, 0, "D", "P can"}, {0, 0, "D", "P can"}},
	"Since the last step":                                    {{0, 3, "P", "passes of 10 ms; the page is written ten times a second"}},
	"Step":                                                   {{1e-7, 0.5, "P", "microseconds"}, {1e-7, 0.5, "P", "the same"}},
	"Stalls, of ten minutes":                                 {{0, 50, "P", "none, but for the machine's"}},
	"Steps that left work":                                   {{0, 0, "P messages", "nothing is left"}},
	"Late stock reads, of ten minutes":                       {{0, 0, "P", "D has a fence"}},
	"Other late completions, of ten minutes":                 {{0, 0, "P", "all come in time"}, {0, 0, "P", "D has kvlease, and says it once"}},
	"Device events":                                          {{0, 0, "P", "there is no device"}, {0, 0, "P", "there is no device"}},
	"Refused reads, of ten minutes":                          {{0, 0, "D stale", "none came late"}},
	"Blocks aside":                                           {{0, 0, "D", "all reads end"}, {0, 0, "D", "all reads end"}, {0, 0, "D", "all reads end"}},
	"Tables full, of ten minutes":                            {{0, 0, "P index", "there is room"}},
	"Hooks refused, of ten minutes":                          {{0, 0, "P ring_full", "there is room"}},
	"Submission ring":                                        {{1, 1 << 20, "P", "a grant is some 100 bytes"}, {1, 1 << 20, "P", "the same"}},
	"From a hook to the step":                                {{0, 1, "P", "the same pass"}, {0, 1, "P", "the same pass"}},
	"Heap of the core":                                       {{1 << 20, 4 << 30, "P", "megabytes"}},
}

// calmMessages are those of "Messages" in the rows Heartbeats and Trouble.
var calmMessages = map[string][]want{
	"Heartbeats": {{0.5, 20, "D", "one a second"}, {0.5, 20, "P", "one a second"}},
	"Trouble":    {{0, 0, "D", "none"}, {0, 0, "D", "none"}, {0, 0, "P", "none"}},
}

func expected(row, panel string) []want {
	if panel == "Messages" {
		return calmMessages[row]
	}
	return calm[panel]
}

// seen says what is wrong with an answer; "" if nothing.
func (w *want) seen(list []sample) string {
	if w.of == "-" {
		return ""
	}
	var other []string
	for _, s := range list {
		values := slices.Collect(maps.Values(s.Metric))
		fits := true
		for _, label := range strings.Fields(w.of) {
			fits = fits && slices.Contains(values, label)
		}
		if fits && s.V >= w.least && s.V <= w.most {
			return ""
		}
		other = append(other, fmt.Sprintf("%v %g", s.Metric, s.V))
	}
	return fmt.Sprintf("want %g to %g of %q (%s), got %v", w.least, w.most, w.of, w.why, other)
}

// query makes an expression of the dashboard one that Prometheus can answer in this test.
func query(expr string) string {
	return strings.ReplaceAll(scaled(strings.ReplaceAll(expr, "$engine", ".*"), speed), "[$__rate_interval]", interval)
}

// stage is P, D, an exporter and two servers, one that knows native histograms.
type stage struct {
	t       *testing.T
	dir     string
	pair    pair
	servers []*server
	metrics string // URL
	waiting []string
	made    int
}

func newStage(t *testing.T) *stage {
	s := watching(t)
	s.pair.begin(t, s.dir, "P")
	d := newEngine(t, s.dir, "D", lease, "--role", "decode")
	s.answers("D is seen", `kvlease_handshake_attempts_total`, want{0, 0, "D", "it knows nobody yet"}, nil) // so that what follows is an increase
	s.pair.connect(d)
	return s
}

// watching has the servers and the exporter, and no engine yet.
func watching(t *testing.T) *stage {
	s := &stage{t: t}
	promtool := program(t, "promtool")
	s.dir = require.Shm(t)
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	s.metrics = "http://" + addr + "/metrics"
	start(t, tool(t), "export", "--listen", addr, "--dir", s.dir)
	until(t, "the exporter listens", func() string {
		if _, err := http.Get(s.metrics); err != nil {
			return err.Error()
		}
		return ""
	})

	conf := t.TempDir()
	alerts, err := os.ReadFile(filepath.Join(root(t), "deploy", "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(root(t), "deploy", "prometheus.yml"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(strings.Replace(string(config), `"127.0.0.1:9478"`, `"`+addr+`"`, 1), "15s", "200ms")
	for name, data := range map[string]string{"alerts.yml": scaled(string(alerts), speed), "prometheus.yml": text} {
		if err := os.WriteFile(filepath.Join(conf, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(conf, "prometheus.yml")
	if out, err := exec.Command(promtool, "check", "config", file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.servers = []*server{newServer(t, "classic", file), newServer(t, "native", file, "--enable-feature=native-histograms")}
	return s
}

// turn lets a request come, and the one that waits longest be read once more than some wait.
func (s *stage) turn() {
	s.made++
	id := fmt.Sprint("r", s.made)
	s.pair.request(id, 2)
	if s.waiting = append(s.waiting, id); len(s.waiting) > 8 {
		s.pair.read(s.waiting[0])
		s.waiting = s.waiting[1:]
	}
}

// firing are the alerts that fire, as "Name engine".
func firing(t testing.TB, srv *server) map[string]bool {
	list, err := srv.ask(`ALERTS{alertstate="firing"}`)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, a := range list {
		all[a.Metric["alertname"]+" "+a.Metric["engine"]] = true
	}
	return all
}

// fires waits until all of these have fired on every server, at any time since the scene began; step goes on meanwhile.
func (s *stage) fires(scene string, step func(), wanted ...string) {
	s.t.Helper()
	missing := map[string]bool{}
	for _, srv := range s.servers {
		for _, w := range wanted {
			missing[srv.name+": "+w] = true
		}
	}
	until(s.t, "alerts of "+scene, func() string {
		if step != nil {
			step()
		}
		for _, srv := range s.servers {
			for a := range firing(s.t, srv) {
				delete(missing, srv.name+": "+a)
			}
		}
		if len(missing) == 0 {
			return ""
		}
		return fmt.Sprintf("missing %v; firing %v", slices.Sorted(maps.Keys(missing)), slices.Sorted(maps.Keys(firing(s.t, s.servers[0]))))
	})
}

// answers waits until an expression brings what is wanted, on every server.
func (s *stage) answers(name, expr string, w want, step func()) {
	s.t.Helper()
	until(s.t, name, func() string {
		if step != nil {
			step()
		}
		for _, srv := range s.servers {
			list, err := srv.ask(expr)
			if err != nil {
				s.t.Fatalf("%s: %s: %v\n%s", srv.name, name, err, expr)
			}
			if why := w.seen(list); why != "" {
				return srv.name + ": " + why + "\n" + expr
			}
		}
		return ""
	})
}

// TestDashboardAndAlertsOverARealPrometheus: two engines over NIXL, an exporter, and two Prometheus servers that scrape it. While both
// engines work every expression brings what a person would expect and no alert fires; then D crashes, then another D stops.
func TestDashboardAndAlertsOverARealPrometheus(t *testing.T) {
	s := newStage(t)

	for range 12 {
		s.turn()
	}
	for _, row := range Rows {
		for _, p := range row.Panels {
			wanted := expected(row.Title, p.Title)
			for i, q := range p.Queries {
				if wanted != nil {
					s.answers(fmt.Sprintf("%s, query %d", p.Title, i), query(q.Expr), wanted[i], s.turn)
				}
			}
		}
	}
	for _, q := range quantiles("handshake_seconds", 0.5, 0.99) { // the only one was at the start
		s.answers("Time to a connection", strings.ReplaceAll(query(q.Expr), interval, "[10m]"), want{1e-4, 30, "D", "a handshake over TCP and a connection inside NIXL"}, s.turn)
	}
	for _, r := range rules(t) { // the left side of each is there, and tells why it is quiet
		w, ok := quiet[r.Alert]
		if !ok {
			t.Errorf("%s: nobody says what its operand is while all is well", r.Alert)
			continue
		}
		if w.expr == "" {
			continue
		}
		if !strings.Contains(strings.Join(strings.Fields(r.Expr), " "), w.expr) {
			t.Errorf("%s: %s is no part of its expression", r.Alert, w.expr)
		}
		s.answers(r.Alert, scaled(w.expr, speed), w.want, s.turn)
	}
	for _, srv := range s.servers {
		all := firing(t, srv)
		if late := max(s.pair.p.late(), s.pair.d.late()); late > beatEvery/4 { // then alerts about time are right
			t.Logf("the machine let an engine wait for %v", late)
			maps.DeleteFunc(all, func(a string, _ bool) bool { return aboutTime[strings.Fields(a)[0]] })
		}
		if len(all) > 0 {
			t.Errorf("%s: while all is well these fire: %v", srv.name, slices.Sorted(maps.Keys(all)))
		}
	}
	s.checkMetrics()
	if t.Failed() {
		return
	}

	s.answers("D has named all that waits", `max by (engine) (kvlease_reader_leases{kind="native"})`, want{float64(len(s.waiting)), float64(len(s.waiting)), "P", "else its death says nothing of the rest"}, nil)
	s.pair.d.cmd.Process.Signal(syscall.SIGKILL)
	s.fires("the crash of D", nil, "KvleaseEngineDown D", "KvleaseReadersDie P")
	for _, q := range quantiles("reclaim_seconds", 0.5, 0.99) {
		s.answers("the time from its last heartbeat to its blocks free", strings.ReplaceAll(query(q.Expr), interval, "[10m]"), want{0.01, lease.Seconds() + 5, "P", "at most a lease"}, nil)
	}
	s.answers("Engines gone", query(Rows[0].Panels[1].Queries[0].Expr), want{1, 1, "", "D"}, nil)

	s.waiting = nil
	s.pair.connect(newEngine(t, s.dir, "D2", lease, "--role", "decode"))
	s.pair.request("too-late", 2)
	for range 5 { // single leases that run out are no alert
		s.turn()
	}
	s.answers("the leases of D2", `max by (engine, reader_engine) (kvlease_reader_leases{kind="native"} * on (hash) group_left (reader_engine) label_replace(max by (engine, hash) (kvlease_engine_info), "reader_engine", "$1", "engine", "(.+)"))`, want{6, 6, "P D2", "all of them"}, nil)
	s.pair.d.stop()
	s.fires("the stop of D2", nil, "KvleaseStandsStill D2", "KvleaseReaderSilent P", "KvleaseLeasesExpire P")
	s.pair.p.await("the end of the lease", func(r *report) bool { return r.Ev == "freed" && r.ID == "too-late" })
	s.pair.d.send("read", map[string]any{"id": "too-late"})
	s.pair.d.cmd.Process.Signal(syscall.SIGCONT)
	s.fires("D2 reads too late", nil, "KvleaseReadsRefused D2")
}

// checkMetrics holds what is exported against promtool.
func (s *stage) checkMetrics() {
	resp, err := http.Get(s.metrics)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(program(s.t, "promtool"), "check", "metrics")
	cmd.Stdin = strings.NewReader(string(text))
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		s.t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
	if id := regexp.MustCompile(`"r\d+"`).FindString(string(text)); id != "" {
		s.t.Errorf("the id of a request is exported: %s", id)
	}
}
