package top

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/standin"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/metrics"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/internal/require"
)

func until(t *testing.T, s *source, what string, fits func(r *Reading) bool) *Reading {
	t.Helper()
	for late := time.Now().Add(standin.Longest); ; time.Sleep(20 * time.Millisecond) {
		r, err := s.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if fits(&r) {
			return &r
		}
		if time.Now().After(late) {
			var out strings.Builder
			writeText(&out, r, &Config{})
			t.Fatalf("waited for: %s\n%s", what, out.String())
		}
	}
}

func find(r *Reading, name string) *Engine {
	for _, e := range r.Engines {
		if e.Name == name {
			return e
		}
	}
	return &Engine{}
}

func peerOf(e *Engine, name string) *Peer {
	for i := range e.Peers {
		if e.Peers[i].Name == name {
			return &e.Peers[i]
		}
	}
	return &Peer{}
}

func beats(r *Reading) bool {
	p, d := find(r, "P"), find(r, "D")
	k := peerOf(p, "D")
	return p.Beats != nil && *p.Beats > 0 && d.Beats != nil && *d.Beats > 0 && k.Leases == 2 && k.Slack != nil && k.Beat != nil && peerOf(d, "P").Leases == 2 && peerOf(d, "P").State == "connected" && peerOf(d, "P").Heard != nil
}

func TestEnginesAndTheirPeersAreJoinedOverAllPages(t *testing.T) {
	dir := require.Shm(t)
	p, d := standin.TestedPair(t, dir, "r1", "r2")
	s := newSource(&Config{Dir: dir})
	defer s.close()
	r := until(t, s, "heartbeats, and a reader with a name", beats)
	e, k := find(r, "P"), peerOf(find(r, "P"), "D")
	if e.State != Fit || e.Leases != 2 || e.Blocks != 4 || e.Bytes == 0 || k.Bytes != e.Bytes || k.State != "beats" || k.Level != Fine || *k.Slack <= 0 || *k.Slack > 3*time.Second {
		t.Errorf("%+v %+v", e, k)
	}
	if g := find(r, "D"); g.Tracked != 2 || g.Reads != 0 || g.Level != Fine || g.Beat == nil {
		t.Errorf("%+v", g)
	}
	if err := errors.Join(d.Read(p, "r1"), d.Read(p, "r2")); err != nil {
		t.Fatal(err)
	}
	until(t, s, "no leases, and bytes read", func(r *Reading) bool {
		return find(r, "P").Leases == 0 && find(r, "D").Rate > 0 && peerOf(find(r, "D"), "P").Rate > 0
	})
	until(t, s, "rates to end with what made them", func(r *Reading) bool { return find(r, "D").Rate == 0 })
	late, err := standin.NewHub(dir, 3*time.Second).Start("prefill", "late", "")
	if err != nil {
		t.Fatal(err)
	}
	defer late.Quit()
	until(t, s, "an engine that came", func(r *Reading) bool { return find(r, "late").State == Fit })
}

func TestAContextThatWasClosedLeavesTheTable(t *testing.T) {
	dir := require.Shm(t)
	hub := standin.NewHub(dir, 3*time.Second)
	e, err := hub.Start("prefill", "short", "")
	if err != nil {
		t.Fatal(err)
	}
	s := newSource(&Config{Dir: dir})
	defer s.close()
	until(t, s, "its page", func(r *Reading) bool { return len(r.Engines) == 1 })
	if err := e.Quit(); err != nil {
		t.Fatal(err)
	}
	until(t, s, "its end", func(r *Reading) bool { return len(r.Engines) == 0 && len(s.machine.open) == 0 && len(s.rates.of) == 0 })
}

// pageOf writes a page of this process.
func pageOf(t *testing.T, dir string, n int, head watch.Head, live watch.Live, readers ...watch.ReaderRow) {
	t.Helper()
	head.Context, head.Opened = n, core.Now()
	w, why, err := watch.New(&watch.Spec{Dir: dir, Head: head, Readers: watch.ReadersMax, Remotes: 32, Step: []watch.Desc{{Name: "held", Kind: watch.Gauge}, {Name: "held_blocks", Kind: watch.Gauge}}})
	if err != nil || why != nil {
		t.Fatal(err, why)
	}
	t.Cleanup(w.Close)
	for i := range readers {
		w.PutReader(i, &readers[i])
		w.Values()[0] += readers[i].Leases
		w.Values()[1] += readers[i].Blocks
	}
	w.SetReaders(len(readers))
	if !w.Publish(&live) {
		t.Fatal("not published")
	}
}

func TestWhatStandsStillOrIsBrokenIsInTrouble(t *testing.T) {
	dir := require.Shm(t)
	now := core.Now()
	head := watch.Head{Role: "engine", Duration: 30 * time.Second, Interval: 5 * time.Second, Extension: 20 * time.Second}
	named := func(name string) watch.Head { h := head; h.Engine = name; return h }
	holds := watch.ReaderRow{Number: 3, Native: true, Hash: 0xabc, Epoch: 1, Leases: 2, Blocks: 8, LastBeat: now.Add(-7 * time.Second), LeastSlack: 14 * time.Second}
	pageOf(t, dir, 1, named("stands"), watch.Live{Stepped: now.Add(-7 * time.Second)}, holds)
	pageOf(t, dir, 2, named("rests"), watch.Live{Stepped: now.Add(-7 * time.Second)})
	pageOf(t, dir, 3, named("poisoned"), watch.Live{Stepped: now, Poisoned: true}, holds)
	pageOf(t, dir, 4, named("drains"), watch.Live{Stepped: now, Draining: true}, holds)
	pageOf(t, dir, 5, named("\x1b[31mred\u202e"), watch.Live{Stepped: now}, watch.ReaderRow{Number: 2, Other: true, Leases: 1})
	s := newSource(&Config{Dir: dir})
	defer s.close()
	r, err := s.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]State{}
	for _, e := range r.Engines {
		got[e.Name] = e.State
	}
	want := map[string]State{"stands": Still, "rests": Idle, "poisoned": Broken, "drains": Drains, "\x1b[31mred\u202e": Fit}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if k := find(&r, "stands").Peers; len(k) != 1 || k[0].Name != "engine 0000000000000abc" || *k[0].Slack > 13*time.Second || k[0].State != unheard {
		t.Errorf("%+v", k)
	}
	if k := find(&r, "\x1b[31mred\u202e").Peers; len(k) != 1 || k[0].Name != "all others" {
		t.Errorf("%+v", k)
	}
	var out, object strings.Builder
	if err := errors.Join(writeText(&out, r, &Config{}), writeJSON(&object, r)); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{out.String(), object.String()} {
		if strings.ContainsAny(text, "\x1b\u202e") {
			t.Errorf("a name acts on the terminal: %q", text)
		}
	}
}

// shown is a page with one value more, as top shows it, by its page and by its metrics.
func shown(t *testing.T, head watch.Head, live watch.Live, name string, v uint64) []*Engine {
	t.Helper()
	return shownAll(t, head, live, map[string]uint64{name: v})
}

func shownAll(t *testing.T, head watch.Head, live watch.Live, values map[string]uint64) []*Engine {
	t.Helper()
	dir := require.Shm(t)
	head.Opened = core.Now()
	names := slices.Sorted(maps.Keys(values))
	var descs []watch.Desc
	for _, name := range names {
		descs = append(descs, watch.Desc{Name: name, Kind: watch.Gauge})
	}
	w, why, err := watch.New(&watch.Spec{Dir: dir, Head: head, Step: descs})
	if err != nil || why != nil {
		t.Fatal(err, why)
	}
	t.Cleanup(w.Close)
	for i, name := range names {
		w.Values()[i] = values[name]
	}
	if !w.Publish(&live) {
		t.Fatal("not published")
	}
	srv := httptest.NewServer(metrics.Handler(metrics.Machine(dir)))
	t.Cleanup(srv.Close)
	var list []*Engine
	for _, cfg := range []*Config{{Dir: dir}, {URLs: []string{srv.URL + "/metrics"}}} {
		s := newSource(cfg)
		t.Cleanup(s.close)
		r, err := s.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r.Engines...)
	}
	return list
}

func TestWhatRanksComeToIsInTrouble(t *testing.T) {
	for _, tc := range []struct {
		role, value, words string
	}{
		{"host", "group_ranks_lost", "2 ranks are lost: the engine has to be started again"},
		{"rank", "misfit", "its host has another kv_lease_duration: this rank takes nothing"},
	} {
		head := watch.Head{Role: tc.role, Engine: "E", TP: 4, PP: 1, Duration: 30 * time.Second, Interval: 5 * time.Second}
		list := shown(t, head, watch.Live{Stepped: core.Now()}, tc.value, 2)
		if len(list) != 2 {
			t.Fatalf("%s: %d contexts", tc.role, len(list))
		}
		for _, e := range list {
			if e.Level != Alarm || !slices.Equal(e.Trouble, []string{tc.words}) {
				t.Errorf("%s of %s: level %d, %q", tc.role, e.Source, e.Level, e.Trouble)
			}
		}
	}
}

// Its peers count as failing nowhere: it is not they who are away.
func TestWhoHasRequestsAndNoMemoryIsInTrouble(t *testing.T) {
	const words = "no memory is registered: nobody can read from it, and it reads nothing"
	for _, tc := range []struct {
		name   string
		role   string
		values map[string]uint64
		age    time.Duration
		want   bool
	}{
		{"an engine", "engine", map[string]uint64{"tracker_tracked": 1, "registered_bytes": 0}, 0, true},
		{"a host", "host", map[string]uint64{"held": 1, "group_ranks_up": 0}, 0, true},
		{"a rank", "rank", map[string]uint64{"reads_aside": 0, "registered_bytes": 0}, 0, false},
		{"with memory", "engine", map[string]uint64{"tracker_tracked": 1, "registered_bytes": 64}, 0, false},
		{"without memory, and nothing to do", "engine", map[string]uint64{"tracker_tracked": 0, "registered_bytes": 0}, 0, false},
		{"asleep, with what it has lost", "engine", map[string]uint64{"tracker_tracked": 1, "registered_bytes": 0, "asleep": 1}, 0, false},
		{"a host whose rank sleeps", "host", map[string]uint64{"group_tracked": 1, "group_ranks_up": 0, "group_ranks_asleep": 1}, 0, false},
	} {
		head := watch.Head{Role: tc.role, Engine: "E", TP: 1, PP: 1, Duration: 30 * time.Second, Interval: 5 * time.Second}
		list := shownAll(t, head, watch.Live{Stepped: core.Now().Add(-tc.age)}, tc.values)
		if len(list) != 2 {
			t.Fatalf("%s: %d contexts", tc.name, len(list))
		}
		for _, e := range list {
			if got := slices.Contains(e.Trouble, words); got != tc.want || tc.want && e.Level != Warn {
				t.Errorf("%s of %s: %q, level %d", tc.name, e.Source, e.Trouble, e.Level)
			}
		}
	}
}

// Nothing but a step takes what hooks say. Who sleeps has given up what it had, and may rest.
func TestWhoWasToldOfSomethingAndDoesNotStepStandsStill(t *testing.T) {
	for _, tc := range []struct {
		name   string
		role   string
		values map[string]uint64
		want   State
	}{
		{"told", "engine", map[string]uint64{"untaken_bytes": 64, "registered_bytes": 1 << 20}, Still},
		{"told, a host", "host", map[string]uint64{"untaken_bytes": 64, "group_ranks_up": 2}, Still},
		{"not told", "engine", map[string]uint64{"untaken_bytes": 0, "registered_bytes": 1 << 20}, Idle},
		{"tracks", "engine", map[string]uint64{"tracker_tracked": 1, "registered_bytes": 1 << 20}, Still},
		{"never had memory", "engine", map[string]uint64{"tracker_tracked": 1, "registered_bytes": 0, "asleep": 0}, Still},
		{"asleep", "engine", map[string]uint64{"untaken_bytes": 64, "tracker_tracked": 1, "registered_bytes": 0, "asleep": 1}, Sleeps},
		{"asleep, a host", "host", map[string]uint64{"untaken_bytes": 64, "group_tracked": 1, "group_ranks_up": 0, "group_ranks_asleep": 1}, Sleeps},
		{"asleep, a host that never had them all", "host", map[string]uint64{"group_tracked": 1, "group_ranks_up": 0, "group_ranks_asleep": 0}, Still},
		{"holds without memory", "engine", map[string]uint64{"held": 1, "registered_bytes": 0}, Still},
	} {
		head := watch.Head{Role: tc.role, Engine: "E", TP: 1, PP: 1, Duration: 30 * time.Second, Interval: 5 * time.Second}
		list := shownAll(t, head, watch.Live{Stepped: core.Now().Add(-time.Minute)}, tc.values)
		if len(list) != 2 {
			t.Fatalf("%s: %d contexts", tc.name, len(list))
		}
		for _, e := range list {
			if told := slices.Contains(e.Trouble, "64 bytes of what its hooks were told no step has taken"); e.State != tc.want || told != (tc.want == Still && tc.values["untaken_bytes"] > 0) {
				t.Errorf("%s of %s: %s, want %s; %q", tc.name, e.Source, e.State, tc.want, e.Trouble)
			}
		}
	}
}

// What a rank has not taken of its host's words counts while that holds or wants something, or is not known here.
func TestARankThatDoesNotTakeWhatItsHostSaysStandsStill(t *testing.T) {
	of := func(role string, tracked, untaken uint64, age time.Duration, alive bool) *Engine {
		return &Engine{Role: role, Name: "E", Hash: "1", Tracked: tracked, Untaken: untaken, Age: age, alive: alive, Interval: 5 * time.Second, key: role}
	}
	const words = "64 bytes of what its host has said no step has taken"
	for _, tc := range []struct {
		name string
		host *Engine
		want State
	}{
		{"its host tracks a request", of("host", 1, 0, 0, true), Still},
		{"its host wants nothing", of("host", 0, 0, 0, true), Idle},
		{"its host is elsewhere", nil, Still},
		{"its host is dead", of("host", 0, 0, 0, false), Still},
	} {
		rank := of("rank", 0, 64, time.Minute, true)
		list := []*Engine{rank}
		if tc.host != nil {
			list = append(list, tc.host)
		}
		calmRanks(list)
		rank.judge()
		if rank.State != tc.want || slices.Contains(rank.Trouble, words) != (tc.want == Still) {
			t.Errorf("%s: %s, want %s; %q", tc.name, rank.State, tc.want, rank.Trouble)
		}
	}
	list := shownAll(t, watch.Head{Role: "rank", Engine: "E", TP: 2, PP: 1, Interval: 5 * time.Second}, watch.Live{Stepped: core.Now().Add(-time.Minute)}, map[string]uint64{"untaken_bytes": 64})
	for _, e := range list {
		if e.State != Still || !slices.Contains(e.Trouble, words) {
			t.Errorf("%s: %s; %q", e.Source, e.State, e.Trouble)
		}
	}
}

// A planned sleep is no alarm, though the engine steps on, has requests that its host has not untracked, and is connected to nobody.
func TestASleepIsNoTrouble(t *testing.T) {
	dir := require.Shm(t)
	now := core.Now()
	names := []string{"registered_bytes", "asleep", "tracker_tracked", "held"}
	spec := &watch.Spec{Dir: dir, Remotes: 32, Head: watch.Head{Role: "engine", Engine: "D", Opened: now, Duration: 30 * time.Second, Interval: 5 * time.Second}}
	for _, name := range names {
		spec.Step = append(spec.Step, watch.Desc{Name: name, Kind: watch.Gauge})
	}
	w, why, err := watch.New(spec)
	if err != nil || why != nil {
		t.Fatal(err, why)
	}
	defer w.Close()
	w.PutRemote(0, &watch.Remote{Engine: 1, ID: "P", State: "asleep", Since: now, Tracked: 2})
	w.FinishRemotes(1)
	srv := httptest.NewServer(metrics.Handler(metrics.Machine(dir)))
	defer srv.Close()
	for _, tc := range []struct {
		held  uint64
		level Level
		words []string
	}{{0, Fine, []string{}}, {1, Warn, []string{"it was put to sleep, and has been given leases since: nobody can read them"}}} {
		copy(w.Values(), []uint64{0, 1, 2, tc.held})
		if !w.Publish(&watch.Live{Stepped: core.Now()}) {
			t.Fatal("not published")
		}
		for _, cfg := range []*Config{{Dir: dir}, {URLs: []string{srv.URL + "/metrics"}}} {
			s := newSource(cfg)
			defer s.close()
			r, err := s.read(t.Context())
			if err != nil || len(r.Engines) != 1 {
				t.Fatalf("%+v: %v", r, err)
			}
			e := r.Engines[0]
			if e.State != Sleeps || e.Level != tc.level || !slices.Equal(e.Trouble, tc.words) || len(e.Peers) != 1 || e.Peers[0].State != "asleep" || e.Peers[0].Level != Fine {
				t.Errorf("%s, %d leases: %s, level %d, %q, %+v", e.Source, tc.held, e.State, e.Level, e.Trouble, e.Peers)
			}
		}
	}
}

func TestWhatTheLogHasLostIsSaid(t *testing.T) {
	head := watch.Head{Role: "engine", Engine: "E", TP: 1, PP: 1, Duration: 30 * time.Second, Interval: 5 * time.Second}
	list := shown(t, head, watch.Live{Stepped: core.Now()}, "log_lost", 7)
	if len(list) != 2 {
		t.Fatalf("%d contexts", len(list))
	}
	for _, e := range list {
		if e.LogLost != 7 || e.Level != Note || !slices.Equal(e.Trouble, []string{"7 records of its log are lost: nobody takes them, or too seldom"}) {
			t.Errorf("%s: %d, level %d, %q", e.Source, e.LogLost, e.Level, e.Trouble)
		}
	}
}

// An engine that is driven inline makes no step while no request comes: what its last one found may be long over.
func TestOneThatRestsIsIdleWhateverItsLastStepHasFound(t *testing.T) {
	head := watch.Head{Role: "engine", Engine: "E", TP: 1, PP: 1, Duration: 30 * time.Second, Interval: 5 * time.Second}
	for age, want := range map[time.Duration]State{0: Cut, time.Minute: Idle} {
		for _, e := range shown(t, head, watch.Live{Stepped: core.Now().Add(-age)}, "healthy", 0) {
			if e.State != want {
				t.Errorf("%v after its step %s is %s, want %s", age, e.Source, e.State, want)
			}
		}
	}
}

func TestTheDeadAreShownForTenMinutes(t *testing.T) {
	for ago, want := range map[time.Duration]int{9 * time.Minute: 1, 11 * time.Minute: 0} {
		list := shown(t, watch.Head{Role: "engine", Engine: "E"}, watch.Live{Closed: true, Stepped: core.Now().Add(-ago)}, "held", 0)
		n := 0
		for _, e := range list {
			if e.State == Dead {
				n++
			}
		}
		if n != 2*want {
			t.Errorf("%v after the last step %d of 2 show it: %+v", ago, n, list)
		}
	}
}

func TestThreeHundredContextsAreReadAtOnce(t *testing.T) {
	dir := require.Shm(t)
	const n = 300
	for i := range n {
		pageOf(t, dir, i, watch.Head{Role: "engine", Engine: fmt.Sprintf("engine-%03d", i), Duration: 30 * time.Second, Interval: 5 * time.Second}, watch.Live{Stepped: core.Now()})
	}
	s := newSource(&Config{Dir: dir})
	defer s.close()
	for range 2 {
		r, err := s.read(t.Context())
		if err != nil || len(r.Engines) != n || len(r.Notes) != 0 {
			t.Fatalf("%d of %d, %v, %v", len(r.Engines), n, r.Notes, err)
		}
	}
}

// What the metrics of a machine say is what its pages say.
func TestMetricsOfAMachineShowTheSameAsItsPages(t *testing.T) {
	dir := require.Shm(t)
	standin.TestedPair(t, dir, "r1", "r2")
	server, err := metrics.Listen("127.0.0.1:0", metrics.Machine(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	url, err := ParseURL(server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	pages, far := newSource(&Config{Dir: dir}), newSource(&Config{URLs: []string{url}})
	defer pages.close()
	defer far.close()
	here, there := until(t, pages, "heartbeats by pages", beats), until(t, far, "heartbeats by metrics", beats)
	for _, name := range []string{"P", "D"} {
		want, got := *find(here, name), *find(there, name)
		got.Source, got.Beats, got.Beaten, want.Source, want.Beats, want.Beaten = "", nil, 0, "", nil, 0
		moving := cmp.Options{cmpopts.IgnoreUnexported(Engine{}, Peer{}), cmpopts.IgnoreTypes(time.Duration(0), new(time.Duration)), cmpopts.IgnoreFields(Engine{}, "Peers", "Trouble", "Level"), cmpopts.IgnoreFields(Peer{}, "Address", "Level", "Unheard", "Asked")}
		if diff := cmp.Diff(want, got, moving); diff != "" {
			t.Errorf("%s by pages and by metrics:\n%s", name, diff)
		}
		named := func(e *Engine) (list []Peer) {
			for _, p := range e.Peers {
				if p.Leases > 0 {
					list = append(list, p)
				}
			}
			return list
		}
		if diff := cmp.Diff(named(&want), named(&got), moving); diff != "" {
			t.Errorf("peers of %s:\n%s", name, diff)
		}
		if want.Duration != got.Duration || want.Interval != got.Interval || want.Extension != got.Extension {
			t.Errorf("%+v %+v", want, got)
		}
	}
}

func TestAURLThatDoesNotAnswerIsALineOfItsOwn(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + closed.Addr().String() + "/metrics"
	closed.Close()
	answer := func(f http.HandlerFunc) string {
		s := httptest.NewServer(f)
		t.Cleanup(s.Close)
		return s.URL
	}
	urls := map[string]string{
		nobody: "refused",
		answer(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusTeapot) }):        "418",
		answer(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>\x1b[2J{{{") }):             "no text of Prometheus",
		answer(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "other_metric 1\n") }):             "no metrics of kvlease",
		answer(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "kvlease_up{engine=\"x\"} 1\n") }): "no metrics of kvlease",
		answer(func(w http.ResponseWriter, _ *http.Request) {
			for line := []byte("# " + strings.Repeat("x", 1<<16) + "\n"); ; {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		}): "longer than 1 MiB",
	}
	cfg := &Config{}
	for u := range urls {
		cfg.URLs = append(cfg.URLs, u)
	}
	s := newSource(cfg)
	defer s.close()
	for _, r := range s.remotes {
		r.most = 1 << 20
	}
	r, err := s.read(t.Context())
	if err != nil || len(r.Engines) != len(urls) {
		t.Fatalf("%d, %v", len(r.Engines), err)
	}
	for u, says := range urls {
		i := slices.IndexFunc(r.Engines, func(e *Engine) bool { return e.Source == u })
		e := r.Engines[i]
		if e.State != Missing || e.Level != Alarm || len(e.Trouble) != 1 || !strings.Contains(e.Trouble[0], says) {
			t.Errorf("%s: %+v, want %q", u, e, says)
		}
	}
	var out strings.Builder
	if err := writeText(&out, r, cfg); err != nil || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%v, %q", err, out.String())
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if r, err := s.read(ctx); err != nil || len(r.Engines) != len(urls) {
		t.Errorf("after the end: %d, %v", len(r.Engines), err)
	}
}

// One URL may have more contexts than are shown: what is left out is said, and is the same at each look.
func TestWhatAURLHasBeyondItsContextsIsSaid(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := range 5 {
			for _, name := range []string{"healthy", "up", "leases_held"} {
				fmt.Fprintf(w, "kvlease_%s{engine=\"E%d\",role=\"engine\",rank=\"0\"} 1\n", name, i)
			}
		}
	}))
	defer srv.Close()
	for most, note := range map[int]string{5: "", 4: ": 1 context is left out, this shows 4", 2: ": 3 contexts are left out, this shows 2"} {
		s := newSource(&Config{URLs: []string{srv.URL + "/metrics"}})
		defer s.close()
		s.remotes[0].engines = most
		for range 20 {
			r, err := s.read(t.Context())
			if err != nil || len(r.Engines) != most || find(&r, "E0").Leases != 1 || (len(r.Notes) == 0) != (note == "") || note != "" && !strings.HasSuffix(r.Notes[0], note) {
				t.Fatalf("at most %d: %d engines, %q, %v", most, len(r.Engines), r.Notes, err)
			}
		}
	}
}
