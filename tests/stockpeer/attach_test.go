package stockpeer

import (
	"bytes"
	"crypto/sha3"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/internal/require"
)

// `kvlease attach` beside a stock prefill engine.

// attached runs the tool against the engine's side channel and gives what it says.
func attached(t *testing.T, p *peer, args ...string) (said report) {
	t.Helper()
	tool := filepath.Join(buildFolder(), "kvlease")
	if _, err := os.Stat(tool); err != nil {
		require.Skip(t, "core", "no kvlease: run make build")
	}
	addr := fmt.Sprintf("127.0.0.1:%d", int(p.ready.num("port")))
	cmd := exec.CommandContext(t.Context(), tool, append([]string{"attach", addr, "--json"}, args...)...)
	cmd.Env = append(os.Environ(), "KVLEASE_NIXL="+filepath.Join(root, "third_party", "nixl"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kvlease %v: %v: %s", cmd.Args[1:], err, stderr.String())
	}
	if err := json.Unmarshal(out, &said); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return said
}

func at(t *testing.T, r report, keys ...string) report {
	t.Helper()
	for _, key := range keys {
		next, ok := r[key].(map[string]any)
		if !ok {
			t.Fatalf("no %s in %v", key, r)
		}
		r = next
	}
	return r
}

// content is what a stand-in holds of a request in one block of a layer.
func content(id string, layer, position int) []byte {
	return sha3.SumSHAKE128(fmt.Appendf(nil, "%s|%d|%d", id, layer, position), 4096)
}

func TestAnAttachShowsAStockEngineAndTellsItNothing(t *testing.T) {
	p := stock(t, "prefill", "P")
	p.do("prefill", "id", "r1", "blocks", []int{3, 4, 9})
	for range 2 { // its listener is as it was
		r := attached(t, p)
		if r.text("engine_id") != "P" || r.text("speaks") != "stock" || r.text("compatibility_hash") != compatibilityHash {
			t.Errorf("%v", r)
		}
		k := r["ranks"].([]any)[0].(map[string]any)
		if regions := k["regions"].([]any); len(regions) != 2 || report(regions[1].(map[string]any)).text("name") != "layer.1" {
			t.Errorf("regions %v", k["regions"])
		}
		if n := at(t, k, "read").num("n"); n != 10 {
			t.Errorf("%v reads, want 10", n)
		}
		if ahead, most := r.num("clock_ahead_ms"), r.num("clock_error_max_ms"); ahead > most || -ahead > most { // one machine has one clock
			t.Errorf("clock %v ± %v ms", ahead, most)
		}
	}
	p.none("beat", "", interval)
	p.none("late", "", interval)
	freed(p, "r1", "expired")
}

// unhurried makes leases of a stock engine long enough for a tool that has to be started first: 15 s.
var unhurried = []string{"--second", "0.5"}

func TestAnAttachReadsAStockRequestAndLeavesOrCompletesIt(t *testing.T) {
	eachTransport(t, func(t *testing.T, _ string) {
		p := stock(t, "prefill", "P", unhurried...)
		file := paramsFile(t, throughRouter(t, p.do("prefill", "id", "r1", "blocks", []int{3, 4, 9})))
		out := filepath.Join(t.TempDir(), "blocks")
		q := at(t, attached(t, p, "--params", file, "--for", "500ms", "--interval", "100ms", "--out", out), "request")
		if q["native"] != false || q.num("beats") < 2 || q["applied"] != nil || at(t, q, "read")["proven"] != false {
			t.Errorf("%v", q)
		}
		var want []byte
		for layer := range 2 {
			for position := range 3 {
				want = append(want, content("r1", layer, position)...)
			}
		}
		if data, err := os.ReadFile(out); err != nil || !bytes.Equal(data, want) {
			t.Errorf("other bytes than the request's: %v", err)
		}
		if beat := p.wait("beat", ""); len(beat["known"].([]any)) != 1 {
			t.Errorf("%v", beat)
		}
		reported(p, "r1", 0)
		attached(t, p, "--params", file, "--complete")
		freed(p, "r1", "completed")
		reported(p, "r1", 1)
	})
}

func TestAnAttachKeepsAStockRequestForAsLongAsItBeats(t *testing.T) {
	const second = 200 * time.Millisecond
	p := stock(t, "prefill", "P", "--second", fmt.Sprint(second.Seconds()))
	granted := p.do("prefill", "id", "r1", "blocks", []int{3, 4, 9})
	attached(t, p, "--params", paramsFile(t, throughRouter(t, granted)), "--for", (40 * second).String(), "--interval", (5 * second).String())
	if end := freed(p, "r1", "expired"); end.at()-granted.at() < 40*second { // a lease is 30 of its seconds
		t.Errorf("it was kept for %v", end.at()-granted.at())
	}
}

func paramsFile(t *testing.T, params report) string {
	t.Helper()
	line, err := json.Marshal(params)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "params.json")
	if err := os.WriteFile(file, line, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}
