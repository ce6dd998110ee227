package top

import (
	"errors"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/metrics"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/internal/require"
)

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
		{"rank", "host_lost", "its host is lost: nothing new comes, and this process has to be ended"},
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

// Requests at an engine that does not fit are lost as they come, so that nearly always none is tracked there.
func TestWhoIsCutOffSaysFromWhom(t *testing.T) {
	for _, tc := range []struct {
		state, why, words string
		fails             uint64
	}{
		{unfit, "incompatible", "P does not fit this engine: handshake_misfit in its log", 2},
		{failing, "wrong_engine", "P cannot be asked: 2 handshakes have failed (wrong_engine)", 2},
		{"broken", "", "P is broken", 0},
	} {
		e := &Engine{Role: "engine", alive: true, sick: true, Interval: 5 * time.Second, Extension: 20 * time.Second}
		e.Peers = []Peer{{Name: "P", Kind: Reads, State: tc.state, AskFails: tc.fails, AskWhy: tc.why}}
		if e.judge(); e.State != Cut || len(e.Trouble) != 2 || e.Trouble[1] != tc.words {
			t.Errorf("%s: %s, %q", tc.state, e.State, e.Trouble)
		}
		e.sick, e.Peers[0].Missed = false, true
		if e.judge(); e.Level != Warn || len(e.Trouble) != 1 || e.Trouble[0] != tc.words {
			t.Errorf("%s, others can be reached, and requests were lost there: level %d, %q", tc.state, e.Level, e.Trouble)
		}
		e.Peers[0].Missed = false
		if e.judge(); e.Level != Note || len(e.Trouble) != 0 {
			t.Errorf("%s, and others can be reached: level %d, %q", tc.state, e.Level, e.Trouble)
		}
	}
}

// What was heard last may be another rank, and who answers heartbeats may fail every read: the connection holds in both.
func TestWhoFailsThoughSomethingOfItIsHeardIsInTrouble(t *testing.T) {
	const fails = "fails: a rank of it is not heard, or reads from it bring nothing"
	now := time.Duration(0)
	for _, tc := range []struct {
		name    string
		tracked uint64
		missed  bool
		age     time.Duration // since our last step
		heard   time.Duration
		level   Level
		words   []string
	}{
		{"it does not fail", 2, false, 0, 0, Fine, []string{}},
		{"requests wait for it", 2, true, 0, 0, Warn, []string{"P, which has blocks of 2 tracked requests, " + fails}},
		{"requests were lost there", 0, true, 0, 0, Warn, []string{"P " + fails}},
		{"nothing of it is heard", 2, true, 0, time.Minute, Warn, []string{"P, which has blocks of 2 tracked requests, has not been heard lately"}},
		{"we rest, and it may be over", 0, true, time.Minute, 0, Fine, []string{}},
	} {
		e := &Engine{Role: "engine", alive: true, Tracked: tc.tracked, Age: tc.age, Interval: 5 * time.Second, Extension: 20 * time.Second}
		e.Peers = []Peer{{Name: "P", Kind: Reads, State: "connected", Leases: tc.tracked, Missed: tc.missed, Beat: &now, Heard: &tc.heard}}
		for range 2 { // the second look judges what the first one left
			if e.judge(); e.Level != tc.level || !slices.Equal(e.Trouble, tc.words) {
				t.Errorf("%s: level %d, %q", tc.name, e.Level, e.Trouble)
			}
		}
		if tc.missed && tc.age == 0 {
			e.sick = true
			if e.judge(); e.State != Cut || len(e.Trouble) != 2 || e.Trouble[1] != tc.words[0] {
				t.Errorf("%s, and no other can be reached: %s, %q", tc.name, e.State, e.Trouble)
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
