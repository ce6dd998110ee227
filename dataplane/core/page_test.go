package core

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/dataplane/internal/stats"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/watch"
)

// shown reads a context's page after a step.
func shown(t *testing.T, c *Core) *watch.Snapshot {
	t.Helper()
	p, err := c.Page()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := new(watch.Snapshot)
	c.mu.Lock()
	c.show(c.now)
	c.mu.Unlock()
	c.page.side.show(c.page.out) // its goroutine does the same twice a second
	if err := p.Read(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// What kvl_stats tells stands in the page under the same names and with the same numbers, and nothing else.
func TestThePageHoldsWhatTheStatisticsHold(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	p := f.team("P", 2, 1)
	one := f.team("O", 1, 1)
	f.turns(50)
	for _, c := range []*Core{p.core, p.ranks[0].core, one.core} {
		s := shown(t, c)
		var want map[string]any
		if err := json.Unmarshal(c.Stats(), &want); err != nil {
			t.Fatal(err)
		}
		have := map[string]bool{}
		for _, v := range s.Values {
			have[v.Name] = true
			w, ok := want[v.Name]
			if list, many := w.([]any); many {
				var i int
				fmt.Sscan(v.Label, &i)
				w = list[i]
			}
			if b, is := w.(bool); is {
				w = 0.0
				if b {
					w = 1.0
				}
			}
			if n, is := w.(float64); !ok || is && uint64(n) != v.V && !strings.HasPrefix(v.Name, "go_") && v.Name != "stats_page_failed" {
				t.Errorf("%s %s %s: %d in the page, the statistics say %v", s.Role, v.Name, v.Label, v.V, w)
			}
			if v.Help == "" {
				t.Errorf("%s has no help text: run go generate", v.Name)
			}
		}
		for name := range want {
			if !have[name] && name != "side_failing" { // a list of texts
				t.Errorf("%s: %s is not in the page", s.Role, name)
			}
		}
		if s.Role != c.cfg.Role || s.Engine != c.cfg.EngineID || s.Rank != c.cfg.Rank() || s.Epoch != c.mem.Epoch || !s.Alive || s.PID != os.Getpid() {
			t.Errorf("the head is %+v", s.Head)
		}
	}
}

// helpSources are the structs whose fields are the values, each with the prefix of their names.
var helpSources = []struct{ prefix, file, name string }{
	{"", "core/stats.go", "ownGauges"}, {"", "core/stats.go", "planeGauges"}, {"", "core/stats.go", "rankGauges"}, {"pump_", "core/stats.go", "pumpGauges"},
	{"", "plane.go", "Counters"}, {"lease_", "lease/outcome.go", "Counters"},
	{"beat_", "heartbeat/counters.go", "Counters"}, {"tracker_", "heartbeat/counters.go", "Gauges"},
	{"read_", "read/watch.go", "Counters"}, {"reads_", "read/watch.go", "Gauges"},
	{"link_", "link.go", "LinkCounters"}, {"stream_", "stream/stream.go", "Counters"}, {"pump_", "core/pump.go", "PumpCounters"},
	{"", "group/counters.go", "Counters"}, {"group_", "group/counters.go", "Gauges"}, {"rank_", "group/counters.go", "RankStats"},
	{"side_", "core/sidechannel_stats.go", "SideCounters"}, {"side_client_", "handshake/stats.go", "Stats"}, {"side_client_", "core/sidechannel_stats.go", "ClientCounters"},
	{"side_server_", "core/sidechannel_stats.go", "ServedCounters"}, {"side_zmtp_", "zmtp/stats.go", "Stats"},
	{"side_readers_", "deathwire/server.go", "ServerStats"}, {"side_owners_", "deathwire/client.go", "ClientStats"}, {"go_", "core/page_side.go", "GoValues"},
}

// The help texts are the comments of the fields, so that there is one place to say what is counted. A field without one is called by its
// name in words.
func TestTheHelpTextsOfThePageAreTheCommentsOfItsFields(t *testing.T) {
	help := map[string]string{}
	for _, src := range helpSources {
		fields := structFields(t, filepath.Join("..", src.file), src.name)
		for name, comment := range fields {
			name = src.prefix + name
			if comment == "" && help[name] == "" {
				comment = strings.ReplaceAll(strings.TrimPrefix(name, src.prefix), "_", " ")
			}
			if comment != "" {
				if old := help[name]; old != "" && old != comment && src.prefix != "side_client_" {
					comment = old + "; of a host: " + comment
				}
				help[name] = comment
			}
		}
	}
	var lines []string
	for name, text := range help {
		lines = append(lines, name+"\t"+text+"\n")
	}
	slices.Sort(lines)
	want := strings.Join(lines, "")
	if os.Getenv("KVLEASE_UPDATE") != "" {
		if err := os.WriteFile("page_help.txt", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if pageHelpText != want {
		t.Error("page_help.txt is not what the fields say: run go generate ./dataplane/core")
	}
}

// structFields gives the exported fields of a struct under their names in the statistics, with their comments.
func structFields(t *testing.T, path, name string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != name {
			return true
		}
		before := ""
		for _, f := range spec.Type.(*ast.StructType).Fields.List {
			text := strings.Join(strings.Fields(f.Comment.Text()), " ")
			if rest, ok := strings.CutPrefix(text, "of these, "); ok && before != "" {
				text = before + ": " + rest
			} else if text != "" {
				before = text
			}
			for _, id := range f.Names {
				if id.IsExported() {
					fields[stats.Name(id.Name)] = text
				}
			}
		}
		return false
	})
	if len(fields) == 0 {
		t.Fatalf("%s has no struct %s", path, name)
	}
	return fields
}
