package stockpeer

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// hostStats are the counters of a host context that has no ranks yet.
func hostStats(t *testing.T) map[string]any {
	t.Helper()
	cfg, err := core.ParseConfig([]byte(`{"engine_id":"H","role":"host","tp_size":2,"transport":"loopback","carrier":"process"}`))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := core.NewMemory(cfg.Sizes())
	if err != nil {
		t.Fatal(err)
	}
	c, err := core.Open(cfg, mem, map[string]core.OpenTransport{"loopback": core.Loopback(loopback.NewHub())}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(0); err != nil {
			t.Error(err)
		}
	}()
	stats := map[string]any{}
	if err := json.Unmarshal(c.Stats(), &stats); err != nil {
		t.Fatal(err)
	}
	return stats
}

func TestTheCountersThatFailureModesNamesExist(t *testing.T) {
	f, err := os.Open(filepath.Join(root, "docs", "failure-modes.md"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	engine, host := ours(t, "P", nil).do("stats")["stats"].(map[string]any), hostStats(t)
	key := regexp.MustCompile("`([a-z0-9_]+)(?:\\[([0-9]+)\\])?`")
	found := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		seen, ok := strings.CutPrefix(lines.Text(), "- Seen: ")
		if !ok {
			continue
		}
		for _, m := range key.FindAllStringSubmatch(seen, -1) {
			found++
			where := engine
			switch {
			case strings.HasPrefix(seen, "host "):
				where = host
			case strings.HasPrefix(seen, "rank "):
				continue // a rank's context needs a host's
			}
			v, ok := where[m[1]]
			if list, _ := v.([]any); ok && m[2] != "" {
				at, _ := strconv.Atoi(m[2])
				ok = at < len(list)
			}
			if !ok {
				t.Errorf("kvl_stats has no %s: %s", m[0], lines.Text())
			}
		}
	}
	if found < 60 {
		t.Errorf("%d keys found", found)
	}
}
