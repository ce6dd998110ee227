package core

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/internal/stats"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/internal/require"
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
	side := c.page.side // its goroutine shows the same twice a second: one after the other
	side.halt()
	side.stop, side.done = make(chan struct{}), make(chan struct{})
	side.start(c.page.out)
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

// A value that shares its name with another one hides it from kvl_stats, from metrics, and from whoever asks the page by name.
func TestEachValueOfThePageHasANameOfItsOwn(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	host := f.team("P", 2, 1)
	p, _, _ := newSideLab(t).met()
	for _, c := range []*Core{host.core, host.ranks[0].core, p.core} {
		s := shown(t, c)
		have := map[string]bool{}
		for i := range s.Values {
			name := s.Values[i].Name + "[" + s.Values[i].Label + "]"
			if have[name] {
				t.Errorf("%s: there are two %s", s.Role, name)
			}
			have[name] = true
		}
		if _, ok := s.Value("side_readers_dead", ""); !ok && s.Role == "engine" {
			t.Error("the page does not show the side channel")
		}
	}
}

// helpSources are the structs whose fields are the values, each with the prefix of their names.
var helpSources = []struct{ prefix, file, name string }{
	{"", "core/stats.go", "ownGauges"}, {"", "core/stats.go", "stateGauges"}, {"", "core/stats.go", "planeGauges"}, {"", "core/stats.go", "rankGauges"}, {"pump_", "core/stats.go", "pumpGauges"},
	{"", "plane.go", "Counters"}, {"lease_", "lease/outcome.go", "Counters"},
	{"beat_", "heartbeat/counters.go", "Counters"}, {"tracker_", "heartbeat/counters.go", "Gauges"},
	{"read_", "read/watch.go", "Counters"}, {"reads_", "read/watch.go", "Gauges"},
	{"link_", "link.go", "LinkCounters"}, {"stream_", "stream/stream.go", "Counters"}, {"pump_", "core/pump.go", "PumpCounters"},
	{"", "group/counters.go", "Counters"}, {"group_", "group/counters.go", "Gauges"}, {"rank_", "group/counters.go", "RankStats"},
	{"side_", "core/sidechannel_stats.go", "SideCounters"}, {"side_client_", "handshake/stats.go", "Stats"}, {"side_client_", "core/sidechannel_stats.go", "ClientCounters"},
	{"side_server_", "core/sidechannel_stats.go", "ServedCounters"}, {"side_zmtp_", "zmtp/stats.go", "Stats"},
	{"side_readers_", "deathwire/server_stats.go", "ServerStats"}, {"side_owners_", "deathwire/client.go", "ClientStats"}, {"go_", "core/page_side.go", "GoValues"},
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

// sums are held leases as the values say, and the sum over the readers: the same.
func sums(t *testing.T, s *watch.Snapshot) (held uint64) {
	t.Helper()
	held, _ = s.Value("held", "")
	blocks, _ := s.Value("held_blocks", "")
	leases, under := uint64(0), uint64(0)
	for _, r := range s.Readers {
		leases, under = leases+r.Leases, under+r.Blocks
	}
	if leases != held || under != blocks {
		t.Errorf("%d leases and %d blocks are held, the readers have %d and %d", held, blocks, leases, under)
	}
	return held
}

func TestThePageShowsWhoHoldsWhatAndHowLongItTook(t *testing.T) {
	l := newLab(t, `{}`)
	_, remote := l.grant("r1", 7, blocks(0, 8))
	l.grant("r2", 8, blocks(8, 4))
	track := l.track(remote, "d-r1", 70)
	l.run(12*time.Second, 30*time.Millisecond)
	s := shown(t, l.p.core)
	if sums(t, s) != 2 || len(s.Readers) != 3 {
		t.Fatalf("readers are %+v", s.Readers)
	}
	if r := s.Readers[0]; !r.Unnamed || r.Leases != 1 || r.Blocks != 4 || r.Oldest == 0 {
		t.Errorf("waiting for a reader: %+v", r)
	}
	bytes := uint64(labLayers * labBlockLen)
	if r := s.Readers[2]; !r.Native || r.Hash != wire.EngineHash([]byte("D")) || r.Epoch != l.d.core.mem.Epoch || r.Leases != 1 || r.Blocks != 8 || r.Bytes != 8*bytes ||
		l.now.Sub(r.LastBeat) > 6*time.Second || r.LeastSlack < 13*time.Second || r.LeastSlack > 35*time.Second {
		t.Errorf("the reader is %+v", r)
	}
	d := shown(t, l.d.core)
	if len(d.Remotes) != 1 {
		t.Fatalf("%d engines", len(d.Remotes))
	}
	if r := d.Remotes[0]; r.ID != "P" || r.Hash != wire.EngineHash([]byte("P")) || r.State != "connected" || !r.Native || r.Epoch != l.p.core.mem.Epoch || r.Ranks != 1 || r.Tracked != 1 ||
		r.Connects != 1 || l.now.Sub(r.LastBeat) > 6*time.Second || l.now.Sub(r.LastRow) > 6*time.Second || r.Bytes != 0 || r.Engine != l.peer {
		t.Errorf("the engine is %+v", r)
	}
	l.read(track, blocks(0, 8), blocks(0, 8))
	l.run(time.Second, 30*time.Millisecond)
	s, d = shown(t, l.p.core), shown(t, l.d.core)
	if sums(t, s) != 1 || s.Readers[2].Completed != 1 || d.Remotes[0].Bytes != 8*bytes {
		t.Errorf("readers %+v, engine %+v", s.Readers, d.Remotes[0])
	}
	if len(s.Ends) != 1 || s.Ends[0].ID != "r1" || s.Ends[0].Reason != "completed" || s.Ends[0].User != 7 || s.Ends[0].Blocks != 8 || s.Ends[0].Reader.Hash != wire.EngineHash([]byte("D")) {
		t.Errorf("ends are %+v", s.Ends)
	}
	for _, tc := range []struct {
		of   *watch.Snapshot
		name string
		n    uint64
	}{
		{s, "slack", 3}, {s, "lease_life", 1}, {s, "reclaim_time", 0}, {s, "stall", 0}, {s, "batch_size", 4}, {s, "drain_time", 2}, {s, "ring_depth", 1},
		{d, "beat_late", 3}, {d, "handshake_time", 1}, {d, "read_time", 1}, {d, "fence_time", 1}, {d, "drain_time", 1},
	} {
		if h := tc.of.Histogram(tc.name); h == nil || h.Count() != tc.n {
			t.Errorf("%s %s counts %+v, want %d", tc.of.Engine, tc.name, h, tc.n)
		}
	}
	if steps, _ := s.Value("steps", ""); s.Histogram("step_time").Count() != steps {
		t.Errorf("%d step times of %d steps", s.Histogram("step_time").Count(), steps)
	}
}

// A reader of ours says who it is by a hash: its agent's name tells its id, or it is the id of an engine that this one reads from.
func TestAReaderOfOursHasItsName(t *testing.T) {
	for _, tc := range []struct {
		name    string
		foreign bool // another implementation: its agent is named as it likes
		reads   bool // P reads from D
		want    string
	}{
		{name: "by its agent", want: "D"}, {name: "by nothing", foreign: true}, {name: "by the engine", foreign: true, reads: true, want: "D"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, `{}`)
			if tc.reads {
				l.connect(l.p, l.d)
			}
			_, remote := l.grant("r1", 7, blocks(0, 8))
			if tc.foreign {
				a, peer := third(t, l)
				msg := wire.AppendHeader(nil, &wire.Header{Kind: wire.Renew, Engine: wire.EngineHash([]byte("D")), Epoch: 9, Count: 1})
				if err := a.Send(peer, wire.AppendEntry(msg, remote.Slot, remote.Generation, remote.Key)); err != nil {
					t.Fatal(err)
				}
			} else {
				l.track(remote, "d-r1", 70)
			}
			l.run(time.Second, 30*time.Millisecond)
			if r := shown(t, l.p.core).Readers[2]; r.Name != tc.want || !r.Native {
				t.Errorf("the reader is %+v, want it called %q", r, tc.want)
			}
		})
	}
}

func TestAHostsPageShowsItsEnginesAndRanks(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	p, one := f.team("P", 2, 1), f.team("O", 1, 1)
	f.name(p, one)
	f.turns(100)
	s := shown(t, p.core)
	if len(s.Remotes) != 1 || s.Remotes[0].ID != "O" || s.Remotes[0].State != "connected" || s.Remotes[0].Connects != 1 {
		t.Errorf("engines are %+v", s.Remotes)
	}
	if up, _ := s.Value("rank_1_registered", ""); up != 1 || s.BlockBytes == 0 {
		t.Errorf("rank 1 is registered: %d, a block has %d bytes", up, s.BlockBytes)
	}
	if r := shown(t, p.ranks[1].core); r.Role != "rank" || r.Rank != 1 || r.BlockBytes == 0 || s.BlockBytes != 2*r.BlockBytes || len(r.Remotes) != 1 {
		t.Errorf("the rank shows %+v", r.Head)
	}
}

func TestThePageGoesWithItsContext(t *testing.T) {
	dir := require.Shm(t)
	l := newLab(t, `{"stats_page":"`+dir+`"}`)
	list, err := watch.List(dir)
	if err != nil || len(list) != 2 {
		t.Fatalf("%v %v", list, err)
	}
	path, why := l.p.core.PagePath()
	p, err := watch.Open(path)
	if err != nil || why != nil {
		t.Fatal(err, why)
	}
	defer p.Close()
	var s watch.Snapshot
	l.run(time.Second, 30*time.Millisecond)
	if err := p.Read(&s); err != nil || s.Closed || !s.Alive || l.now.Sub(s.Stepped) > pageEvery+30*time.Millisecond {
		t.Errorf("%+v %v", s.Head, err)
	}
	at := s.Published
	l.run(time.Second, 30*time.Millisecond)
	if err := p.Read(&s); err != nil || s.Published < at+7 || s.Published > at+10 {
		t.Errorf("%d states in a second: %v", s.Published-at, err)
	}
	if err := l.p.core.Close(time.Second); err != nil {
		t.Fatal(err)
	}
	if err := p.Read(&s); err != nil || !s.Closed || s.Alive {
		t.Errorf("after its close: %+v %v", s.Head, err)
	}
	if list, _ = watch.List(dir); len(list) != 1 || list[0] == path {
		t.Errorf("pages are %v", list)
	}
	if _, err := l.p.core.Page(); !errors.Is(err, ErrClosed) {
		t.Errorf("a page of a closed context: %v", err)
	}
}

func TestAContextOpensWithoutAFolderForItsPage(t *testing.T) {
	for name, dir := range map[string]string{"no such folder": "/dev/shm/none", "a disk": "/proc", "none is wanted": ""} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, `{"stats_page":"`+dir+`"}`)
			l.run(time.Second, 30*time.Millisecond)
			s := shown(t, l.p.core)
			hidden, _ := s.Value("stats_page_hidden", "")
			path, why := l.p.core.PagePath()
			if path != "" || (why != nil) != (dir != "") || (hidden == 1) != (dir != "") {
				t.Errorf("path %q, why %v, hidden %d", path, why, hidden)
			}
		})
	}
}

func TestABlocksBytesAreThoseOfAllRegions(t *testing.T) {
	for _, tc := range []struct {
		name    string
		regions [][2]int64 // block length, group
		want    uint64
	}{
		{"every group has them", [][2]int64{{100, -1}, {50, -1}}, 150},
		{"one group", [][2]int64{{100, 0}, {50, 0}}, 150},
		{"two groups: a mean", [][2]int64{{100, 0}, {50, 1}, {10, -1}}, 85},
		{"none", nil, 0},
	} {
		var m blockMean
		for _, r := range tc.regions {
			m.add(uint64(r[0]), r[1])
		}
		if got := m.bytes(); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}
