package metrics

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/dataplane/watch"
)

// The connector for vLLM reports some metrics in vLLM's exporter. Both may stand in one Prometheus, so a name means the same in both:
// kind, keys of kvl_stats, label values and text.
func TestANameOfTheVLLMConnectorMeansTheSameHere(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "python", "src", "kvlease", "vllm", "stats.py"))
	if err != nil {
		t.Fatal(err)
	}
	lists := map[string][]string{}
	quoted := regexp.MustCompile(`"([^"]*)"`)
	strs := func(s string) (out []string) {
		for _, m := range quoted.FindAllStringSubmatch(s, -1) {
			out = append(out, m[1])
		}
		return out
	}
	for _, m := range regexp.MustCompile(`(?m)^(REASONS|READS) = \((.*)\)$`).FindAllStringSubmatch(string(text), -1) {
		lists[m[1]] = strs(m[2])
	}
	same := 0
	for _, m := range regexp.MustCompile(`(?m)^    Metric\("kvlease_(\w+)", "(\w+)", \(([^)]*)\), "([^"]*)"(.*)\),$`).FindAllStringSubmatch(string(text), -1) {
		name, kind, keys, help, rest := m[1], m[2], strs(m[3]), m[4], m[5]
		ours := byName[name]
		if kind == "counter" {
			ours = byName[name+"_total"]
		}
		if ours == nil {
			if byName[name] != nil {
				t.Errorf("kvlease_%s is a %s there and not here", name, kind)
			}
			continue // only vLLM's side can know it
		}
		same++
		if (kind == "counter") != (ours.kind == watch.Counter) {
			t.Errorf("kvlease_%s is a %s there, a %v here", name, kind, ours.kind)
		}
		if help != ours.help && !strings.HasPrefix(ours.help, strings.TrimSuffix(help, ".")) {
			t.Errorf("kvlease_%s is there: %q; here: %q", name, help, ours.help)
		}
		for _, key := range keys {
			if !slices.ContainsFunc(ours.parts, func(p part) bool {
				return slices.ContainsFunc(p.keys, func(k string) bool { k, _, _ = strings.Cut(k, "/"); return k == key })
			}) {
				t.Errorf("kvlease_%s is made from %s there and not here", name, key)
			}
		}
		for list, values := range lists {
			if !strings.Contains(rest, "values="+list) {
				continue
			}
			var here []string
			for _, p := range ours.parts {
				here = append(here, p.value)
			}
			slices.Sort(here)
			slices.Sort(values)
			if !slices.Equal(here, values) {
				t.Errorf("kvlease_%s has values %v there, %v here", name, values, here)
			}
		}
	}
	if same < 15 {
		t.Errorf("%d metrics of both were found, want most of them: has the file another form?", same)
	}
}
