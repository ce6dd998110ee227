package deploy

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/internal/require"
)

// TestTheDemoIsSeen plays two scenes of kvlease demo, C programs among their engines, while a Prometheus scrapes the pages of this
// machine: every engine of the demo is seen, the death of the one that is killed, and what its leases come to.
func TestTheDemoIsSeen(t *testing.T) {
	demo := tool(t)
	for _, file := range []string{filepath.Join(filepath.Dir(demo), "examples", "prefill"), "/dev/shm"} {
		if _, err := os.Stat(file); err != nil {
			require.Skip(t, "nixl", "no "+file+": run make build")
		}
	}
	dir := t.TempDir()
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	alerts, err := os.ReadFile(filepath.Join(root(t), "deploy", "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	// A scrape takes the pages of whatever else runs here, too, and may take no longer than its interval.
	config := fmt.Sprintf("global: {scrape_interval: 300ms, evaluation_interval: 100ms}\nrule_files: [alerts.yml]\nscrape_configs:\n- job_name: kvlease\n  static_configs: [{targets: [%q]}]\n", addr)
	for name, text := range map[string]string{"alerts.yml": scaled(string(alerts), speed), "prometheus.yml": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start(t, tool(t), "export", "--listen", addr)
	srv := newServer(t, "classic", filepath.Join(dir, "prometheus.yml"))
	until(t, "the machine is scraped", func() string {
		list, err := srv.ask(`kvlease_pages`)
		if err != nil || len(list) == 0 {
			return fmt.Sprint(list, err)
		}
		return ""
	})

	cmd := exec.CommandContext(t.Context(), demo, "demo", "--only", "bc", "--lease", "3s", "--svg", filepath.Join(dir, "demo.svg"))
	cmd.Env = append(os.Environ(), "KVLEASE_CORE="+filepath.Join(filepath.Dir(demo), "libkvlease-core.so"), "NO_COLOR=1")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(pipe)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the demo: %v\n%s", err, said)
	}
	seen := func(what, expr string) {
		t.Helper()
		until(t, what, func() string {
			list, err := srv.ask(expr)
			if err != nil || len(list) == 0 {
				return fmt.Sprintf("%v %v\n%s", list, err, expr)
			}
			return ""
		})
	}
	pids := regexp.MustCompile(`\(pid (\d+)\)`).FindAllStringSubmatch(string(said), -1)
	if len(pids) < 8 {
		t.Fatalf("the demo names %d processes:\n%s", len(pids), said)
	}
	var all []string
	for _, pid := range pids {
		all = append(all, pid[1])
		seen("engine "+pid[1], fmt.Sprintf(`max_over_time(kvlease_up{pid=%q}[5m]) == 1`, pid[1]))
	}
	ours := `pid=~"` + strings.Join(all, "|") + `"`
	seen("a killed D", `min_over_time(kvlease_up{engine="D", `+ours+`}[5m]) == 0`)
	seen("leases that expired", `max_over_time(kvlease_leases_freed_total{engine="P", reason="expired", `+ours+`}[5m]) >= 1`)
	seen("a read that the fence refused", `max_over_time(kvlease_reads_total{engine="D", outcome="stale", `+ours+`}[5m]) == 1`)
	seen("the alert of the crash", `max_over_time(ALERTS{alertname="KvleaseEngineDown", alertstate="firing", `+ours+`}[5m])`)
	seen("the alert of the stop", `max_over_time(ALERTS{alertname="KvleaseStandsStill", alertstate="firing", engine="D", `+ours+`}[5m])`)
}
