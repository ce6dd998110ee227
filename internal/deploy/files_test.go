package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kvlease/kvlease/dataplane/metrics"
)

// rule is one of alerts.yml.
type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func rules(t testing.TB) []rule {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "deploy", "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct{ Rules []rule }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	return file.Groups[0].Rules
}

func TestTheDashboardIsWhatIsWritten(t *testing.T) {
	want, err := Dashboard()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root(t), "deploy", "dashboard.json"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("deploy/dashboard.json is old (%v): go generate ./internal/deploy", err)
	}
}

func TestThePanelsLieBesideEachOther(t *testing.T) {
	text, err := Dashboard()
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	ids, places := map[int]string{}, map[[2]int]string{}
	for _, p := range board.Panels {
		if other, twice := ids[p.ID]; twice {
			t.Errorf("%s and %s have one id", p.Title, other)
		}
		ids[p.ID] = p.Title
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, taken := places[[2]int{x, y}]; taken || x >= 24 {
					t.Fatalf("%s lies over %s, or outside", p.Title, other)
				}
				places[[2]int{x, y}] = p.Title
			}
		}
	}
}

// What @grafana/schema 11 does not mark as optional: programs that do not know a plugin's defaults take an absent showLegend for false.
func TestPanelsHaveWhatGrafanasTypesRequire(t *testing.T) {
	text, err := Dashboard()
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title, Type string
			Panels      *[]any
			Options     struct {
				Legend *struct {
					Calcs                  *[]string
					DisplayMode, Placement string
					ShowLegend             bool
				}
			}
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		switch l := p.Options.Legend; {
		case p.Type == "row" && p.Panels == nil:
			t.Errorf("the row %s has no list of panels", p.Title)
		case p.Type == "timeseries" && (l == nil || l.Calcs == nil || l.DisplayMode == "" || l.Placement == "" || !l.ShowLegend):
			t.Errorf("%s: its legend is %+v", p.Title, l)
		}
	}
}

func TestEveryAlertHasItsRunbook(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, r := range rules(t) {
		known[r.Alert] = true
		if !strings.Contains(string(text), "\n### "+r.Alert+"\n") {
			t.Errorf("docs/operations.md has no section %s", r.Alert)
		}
		if want := "docs/operations.md#" + strings.ToLower(r.Alert); !strings.HasSuffix(r.Annotations["runbook_url"], want) {
			t.Errorf("%s: its runbook_url is %q, want the end %s", r.Alert, r.Annotations["runbook_url"], want)
		}
		if r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
			t.Errorf("%s: no severity, or no summary", r.Alert)
		}
	}
	for _, m := range regexp.MustCompile(`\n### (Kvlease\w+)\n`).FindAllStringSubmatch(string(text), -1) {
		if !known[m[1]] {
			t.Errorf("docs/operations.md speaks of %s, which is no alert", m[1])
		}
	}
}

// aggregated finds what an expression keeps of the labels, if it does not keep all.
var aggregated = regexp.MustCompile(`^\(?(?:histogram_quantile\([0-9.]+, )?(?:sum|max) by \(([^)]*)\)`)

// An engine of several ranks is as many processes: who is woken has to know which one it is.
func TestAlertsOfARankNameIt(t *testing.T) {
	named := 0
	for _, r := range rules(t) {
		kept := aggregated.FindStringSubmatch(strings.TrimSpace(r.Expr))
		if kept != nil && !strings.Contains(kept[1], "rank") || !strings.Contains(r.Annotations["summary"], "$labels.engine") {
			continue
		}
		if named++; !strings.Contains(r.Annotations["summary"], "$labels.rank") {
			t.Errorf("%s keeps the rank, and its summary does not say it: %s", r.Alert, r.Annotations["summary"])
		}
	}
	if named == 0 {
		t.Error("no alert keeps the rank")
	}
}

// One of something is one of it, in what wakes people as in what tools say.
func TestSummariesCountOneThingAsOne(t *testing.T) {
	many := regexp.MustCompile(`\$value \}\} [a-z ]*[a-z]s\b`)
	for _, r := range rules(t) {
		if s := many.FindString(r.Annotations["summary"]); s != "" {
			t.Errorf("%s: its summary says %q of one, too: %s", r.Alert, s, r.Annotations["summary"])
		}
	}
}

// expressions has every expression of alerts and dashboard looked at, with the name of what it is of.
func expressions(t *testing.T, look func(where, expr string)) {
	t.Helper()
	for _, r := range rules(t) {
		look(r.Alert, r.Expr)
	}
	for _, row := range Rows {
		for _, p := range row.Panels {
			for _, q := range p.Queries {
				look(p.Title, q.Expr)
			}
		}
	}
}

func TestExpressionsNameMetricsThatExist(t *testing.T) {
	names := map[string]bool{}
	for _, n := range metrics.Names() {
		names[n] = true
	}
	look := func(where, expr string) {
		for _, n := range regexp.MustCompile(`kvlease_[a-z0-9_]+`).FindAllString(expr, -1) {
			if !names[n] && !names[strings.TrimSuffix(n, "_bucket")] && !names[strings.TrimSuffix(n, "_count")] {
				t.Errorf("%s: there is no metric %s", where, n)
			}
		}
	}
	expressions(t, look)
}

// TestExpressionsPassByTheExporterOfVLLM: its series have the same names and no role.
func TestExpressionsPassByTheExporterOfVLLM(t *testing.T) {
	selector, found := regexp.MustCompile(`kvlease_[a-z0-9_]+(\{[^}]*\})?`), 0
	look := func(where, expr string) {
		for _, s := range selector.FindAllString(expr, -1) {
			if found++; !strings.Contains(s, `role!=""`) && !strings.HasPrefix(s, "kvlease_pages{") { // those are a machine's
				t.Errorf("%s: %s takes series without a role, too", where, s)
			}
		}
	}
	expressions(t, look)
	if found < len(rules(t)) {
		t.Errorf("%d selectors were found", found)
	}
}

func TestPromtoolTakesTheFiles(t *testing.T) {
	promtool := program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"check", "config", "prometheus.yml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = filepath.Join(root(t), "deploy")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// duration finds what is scaled: of ranges and of for.
var duration = regexp.MustCompile(`\[(\d+[smh])\]|for: (\d+[smh])`)

// scaled makes all durations of a text shorter.
func scaled(text string, by time.Duration) string {
	return duration.ReplaceAllStringFunc(text, func(s string) string {
		m := duration.FindStringSubmatch(s)
		old := m[1] + m[2]
		d, err := time.ParseDuration(old)
		if err != nil {
			panic(err)
		}
		return strings.Replace(s, old, fmt.Sprintf("%dms", (d/by).Milliseconds()), 1)
	})
}
