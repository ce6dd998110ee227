package metrics

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

//go:generate env KVLEASE_UPDATE=1 go test -count=1 -run TestThePageOfMetricsIsTrue .

const (
	tableBegin = "<!-- made by go generate -->\n"
	tableEnd   = "<!-- end -->\n"
)

// rolesText says which contexts have a metric.
func rolesText(c contexts) string {
	var list []string
	for _, role := range []string{"engine", "host", "rank"} {
		if c.has(role) {
			list = append(list, role)
		}
	}
	if len(list) == 3 {
		return "all"
	}
	return strings.Join(list, ", ")
}

func tableOfMetrics() string {
	var b bytes.Buffer
	fmt.Fprint(&b, tableBegin, "| metric | labels | contexts | |\n|---|---|---|---|\n")
	for i := range table {
		m := &table[i]
		labels := "`" + strings.Join(m.labels, "` `") + "`"
		if len(m.labels) == 0 {
			labels = ""
		} else if len(m.parts) > 0 {
			var values []string
			for _, p := range m.parts {
				values = append(values, p.value)
			}
			labels += ": " + strings.Join(values, ", ")
		}
		fmt.Fprintf(&b, "| `kvlease_%s` | %s | %s | %s |\n", m.name, labels, rolesText(m.of), m.help)
	}
	fmt.Fprint(&b, "\nDistributions:\n\n| metric | classic buckets | contexts | |\n|---|---|---|---|\n")
	for i := range distributionTable {
		d := &distributionTable[i]
		fmt.Fprintf(&b, "| `kvlease_%s` | 2^%d to 2^%d | %s | %s |\n", d.name, d.from, d.to, rolesText(d.of), d.help)
	}
	fmt.Fprint(&b, tableEnd)
	return b.String()
}

func TestThePageOfMetricsIsTrue(t *testing.T) {
	file := filepath.Join("..", "..", "docs", "metrics.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), tableBegin)
	_, after, ended := strings.Cut(rest, tableEnd)
	if !ok || !ended {
		t.Fatalf("%s has no place for the table: %q to %q", file, tableBegin, tableEnd)
	}
	want := before + tableOfMetrics() + after
	if want == string(text) {
		return
	}
	if os.Getenv("KVLEASE_UPDATE") == "" {
		t.Fatalf("%s is old: go generate ./dataplane/metrics", file)
	}
	if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
