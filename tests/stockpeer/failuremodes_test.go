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

	"github.com/kvlease/kvlease/dataplane/core/coretest"
)

// hostStats are the counters of a host context that has no ranks yet.
func hostStats(t *testing.T) map[string]any {
	t.Helper()
	c, _ := coretest.Open(t, `{"engine_id":"H","role":"host","tp_size":2,"transport":"loopback","carrier":"process"}`, nil)
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
