package metrics

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/internal/require"
)

// contextsOf are one context of each role, and what they say: keys of kvl_stats as the page writes them.
func contextsOf(t *testing.T) map[string]*core.Core {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	carrier := `"carrier":"delta","tp_size":2`
	all := map[string]*core.Core{
		"engine": open(t, fmt.Sprintf(`{"engine_id":"E","transport":"loopback","drive":"pump","stats_page":"","side_channel_host":"127.0.0.1","side_channel_port":%d,"side_channel_listen":true}`, port)),
		"host":   open(t, `{"engine_id":"H","role":"host","stats_page":"",`+carrier+`}`),
		"rank":   open(t, `{"engine_id":"H","role":"rank","transport":"loopback","stats_page":"",`+carrier+`}`),
	}
	return all
}

func keysOf(t *testing.T, c *core.Core) []string {
	var all map[string]any
	if err := json.Unmarshal(c.Stats(), &all); err != nil {
		t.Fatal(err)
	}
	var keys []string
	for key, v := range all {
		switch v := v.(type) {
		case []any:
			for i := range v {
				if _, number := v[i].(float64); number {
					keys = append(keys, key+"/"+strconv.Itoa(i))
				}
			}
		case float64, bool:
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func TestEveryKeyOfTheTableIsOneOfKvlStats(t *testing.T) {
	have := map[string]map[string]bool{}
	for role, c := range contextsOf(t) {
		have[role] = map[string]bool{}
		for _, key := range keysOf(t, c) {
			have[role][key] = true
		}
	}
	for _, m := range table {
		roles := map[string]bool{}
		for _, p := range m.parts {
			for _, key := range p.keys {
				there := false
				for role, keys := range have {
					if keys[key] {
						there = true
						if m.of.has(role) {
							roles[role] = true
						}
					}
				}
				if !there {
					t.Errorf("kvlease_%s is made from %s, which no context has", m.name, key)
				}
			}
		}
		if len(m.parts) > 0 && len(roles) == 0 {
			t.Errorf("kvlease_%s: no context of its roles has any of its keys", m.name)
		}
	}
}

func TestNoKeyOfKvlStatsIsTakenTwice(t *testing.T) {
	seen := map[string]string{}
	parts := []string{"held", "expected", "group_expected"} // of several sums
	for _, m := range table {
		for _, p := range m.parts {
			for _, key := range p.keys {
				if other := seen[key]; other != "" && !slices.Contains(parts, key) {
					t.Errorf("%s stands in kvlease_%s and in kvlease_%s", key, other, m.name)
				}
				seen[key] = m.name
			}
		}
	}
}

func TestNamesFollowPrometheusConventions(t *testing.T) {
	for role, c := range contextsOf(t) {
		page, err := c.Page()
		if err != nil {
			t.Fatal(err)
		}
		defer page.Close()
		problems, err := promlint.NewWithMetricFamilies(gather(t, Own(page))).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s: %s", role, p.Metric, p.Text)
		}
	}
	for _, m := range table {
		if total := strings.HasSuffix(m.name, "_total"); total != (m.kind == watch.Counter) {
			t.Errorf("kvlease_%s is a %v", m.name, m.kind)
		}
		if !strings.HasSuffix(m.help, ".") {
			t.Errorf("kvlease_%s: its help is no sentence: %q", m.name, m.help)
		}
	}
}

func TestTwoEnginesOfOneProcessAreToldApart(t *testing.T) {
	dir := require.Shm(t)
	for _, id := range []string{"one", "two"} {
		c := open(t, fmt.Sprintf(`{"engine_id":%q,"transport":"loopback","stats_page":%q}`, id, dir))
		page, err := c.Page()
		if err != nil {
			t.Fatal(err)
		}
		defer page.Close()
		if diff := cmp.Diff(map[string]float64{id + ",engine,0": 0}, series(gather(t, Own(page)), "leases_held", "engine", "role", "rank")); diff != "" {
			t.Errorf("the context's own (-want +got):\n%s", diff)
		}
	}
	all := gather(t, Machine(dir))
	pid := strconv.Itoa(os.Getpid())
	if diff := cmp.Diff(map[string]float64{"one," + pid: 1, "two," + pid: 1}, series(all, "up", "engine", "pid")); diff != "" { // shows C77.2
		t.Errorf("up (-want +got):\n%s", diff)
	}
	if got := series(all, "pages", "state"); got["alive"] != 2 {
		t.Errorf("pages %v, want two alive", got)
	}
}

func TestHostAndRanksOfAnEngineAreNotCountedTwice(t *testing.T) {
	for role, c := range contextsOf(t) {
		page, err := c.Page()
		if err != nil {
			t.Fatal(err)
		}
		defer page.Close()
		all := gather(t, Own(page))
		if got := len(series(all, "leases_held", "role")); (got == 1) != (role != "rank") {
			t.Errorf("%s has kvlease_leases_held: %d", role, got)
		}
		if got := len(series(all, "heartbeats_sent_total", "role")); (got == 1) != (role != "host") {
			t.Errorf("%s has kvlease_heartbeats_sent_total: %d", role, got)
		}
	}
}

func TestWhatHasANameIsNotShownOnceMoreByItsKey(t *testing.T) {
	for role, c := range contextsOf(t) {
		page, err := c.Page()
		if err != nil {
			t.Fatal(err)
		}
		defer page.Close()
		var s watch.Snapshot
		if err := page.Read(&s); err != nil {
			t.Fatal(err)
		}
		all := gather(t, Own(page))
		byKey := series(all, "internal", "key")
		for _, tc := range []struct{ key, name string }{
			{"poisoned", "poisoned"}, {"draining", "draining"}, {"kv_lease_duration_ms", "lease_duration_seconds"},
			{"interval_ms", "heartbeat_interval_seconds"}, {"extension_ms", "lease_extension_seconds"},
		} {
			_, there := s.Value(tc.key, "")
			_, twice := byKey[tc.key]
			if once := len(series(all, tc.name, "role")); !there || once != 1 || twice {
				t.Errorf("%s: on the page: %v, kvlease_%s: %d, by its key, too: %v", role+" "+tc.key, there, tc.name, once, twice)
			}
		}
	}
}

func TestEveryHistogramOfAPageIsShown(t *testing.T) {
	shown := map[string]bool{}
	for role, c := range contextsOf(t) {
		page, err := c.Page()
		if err != nil {
			t.Fatal(err)
		}
		defer page.Close()
		var s watch.Snapshot
		if err := page.Read(&s); err != nil {
			t.Fatal(err)
		}
		for _, h := range s.Histograms {
			if distributions[h.Name] == nil {
				t.Errorf("%s: no metric for the histogram %s", role, h.Name)
				continue
			}
			shown[h.Name] = shown[h.Name] || distributions[h.Name].of.has(role)
		}
	}
	for _, d := range distributionTable {
		if !shown[d.page] {
			t.Errorf("kvlease_%s: no context of its roles has %s", d.name, d.page)
		}
	}
}

func TestAValueWithoutANameStandsUnderItsKey(t *testing.T) {
	spec := engineSpec("E")
	spec.Step = []watch.Desc{
		{Name: "brand_new", Kind: watch.Counter}, {Name: "level", Kind: watch.Gauge}, {Name: "brand_new", Kind: watch.Counter},
		{Name: "lease_freed", Label: strconv.Itoa(record.FreedExpired), Kind: watch.Counter}, {Name: "steps", Kind: watch.Counter},
		{Name: "side_client_failures", Label: strconv.Itoa(int(handshake.Silent)), Kind: watch.Counter},
	}
	page := pageOf(t, spec, func(w *watch.Writer) { copy(w.Values(), []uint64{7, ^uint64(0), 9, 3, 5, 6}) })
	all := gather(t, Own(page))
	for _, tc := range []struct {
		name, label, value string
		want               float64
	}{
		{"internal_total", "key", "brand_new", 7},
		{"internal", "key", "level", -1},
		{"leases_freed_total", "reason", "expired", 3},
		{"steps_total", "role", "engine", 5},
		{"handshake_failures_total", "class", "silent", 6},
	} {
		if got := series(all, tc.name, tc.label)[tc.value]; got != tc.want {
			t.Errorf("kvlease_%s{%s=%q} is %v, want %v", tc.name, tc.label, tc.value, got, tc.want)
		}
	}
}

// A page of another user may say anything; the scrape of the machine goes on.
func TestAHostilePageBreaksNoScrape(t *testing.T) {
	dir := require.Shm(t)
	bad := engineSpec("E\xff\"\n{}")
	bad.Dir, bad.Provider, bad.Hash = dir, "\xff", wire.EngineHash([]byte("good"))
	bad.Step = []watch.Desc{{Name: "\xff"}, {Name: `"\xff"`}} // one as a label
	for i := range 3000 {
		bad.Step = append(bad.Step, watch.Desc{Name: strings.Repeat("\xff{", i%7), Label: "\n", Kind: watch.Kind(i)})
	}
	bad.Histograms = []watch.Desc{{Name: "go_info"}, {Name: "step_time"}, {Name: "step_time"}}
	bad.Readers, bad.Remotes = watch.ReadersMax, watch.RemotesMax
	w, why, err := watch.New(bad)
	if err != nil || why != nil {
		t.Fatal(err, why)
	}
	defer w.Close()
	for i := range watch.ReadersMax {
		w.PutReader(i, &watch.ReaderRow{Number: 1 + uint64(i), Unnamed: i%3 == 0, Other: i%3 == 1})
	}
	w.SetReaders(watch.ReadersMax)
	w.PutRemote(0, &watch.Remote{Engine: 1, ID: "other"})
	for i := 1; i < watch.RemotesMax; i++ {
		w.PutRemote(i, &watch.Remote{Engine: 1 + uint64(i), Hash: uint64(i % 2), ID: []string{"other", "\x1b]0;\a", `"\x1b]0;\a"`}[i%3]})
	}
	w.FinishRemotes(watch.RemotesMax)
	w.Publish(&watch.Live{Stepped: 1 << 62})
	// What another user's process has that has the same number in another namespace: all labels are the same, and it is gone.
	name := filepath.Base(w.Path())
	twin, err := os.ReadFile(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint64(twin[40:], 1) // words of the head in watch/format.go: namespace and user
	binary.LittleEndian.PutUint64(twin[48:], uint64(os.Getuid()+1))
	if err := os.WriteFile(filepath.Join(dir, strings.Replace(name, fmt.Sprintf(".%d.", os.Getuid()), fmt.Sprintf(".%d.", os.Getuid()+1), 1)), twin, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kvlease-stats.0.1.1"), []byte("KVLSTATS"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := engineSpec("good")
	good.Dir = dir
	pageOf(t, good, nil)
	all := gather(t, Machine(dir))
	if got := series(all, "up", "engine"); got["good"] != 1 || len(got) != 2 {
		t.Errorf("up %v", got)
	}
	hashes := series(all, "engine_info", "hash")
	if len(hashes) != 2 || hashes[wire.HashText(bad.Hash)] != 1 {
		t.Errorf("hashes of engines %v, want one of the good one and another one", hashes)
	}
	for _, f := range all {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if strings.ContainsFunc(l.GetValue(), func(r rune) bool { return !strconv.IsPrint(r) }) {
					t.Fatalf("%s has the label %q for a terminal to obey", f.GetName(), l.GetValue())
				}
			}
		}
	}
	if got := series(all, "pages", "state"); got["unreadable"] != 1 || got["twice"] != 1 {
		t.Errorf("pages %v, want one unreadable, and one that is there twice", got)
	}
}

func TestAPageWhoseProcessIsGoneIsDown(t *testing.T) {
	dir := require.Shm(t)
	spec := engineSpec("gone")
	spec.Dir = dir
	w, why, err := watch.New(spec)
	if err != nil || why != nil {
		t.Fatal(err, why)
	}
	w.Publish(&watch.Live{Closed: true, Stepped: core.Now()}) // what a context says of itself at last
	all := gather(t, Machine(dir))
	if diff := cmp.Diff(map[string]float64{"gone": 0}, series(all, "up", "engine")); diff != "" {
		t.Errorf("up (-want +got):\n%s", diff)
	}
	if got := series(all, "engine_info", "engine"); len(got) != 0 {
		t.Errorf("it still has %v", got)
	}
	w.Publish(&watch.Live{Closed: true, Stepped: core.Now() - clock.Instant(11*time.Minute)})
	all = gather(t, Machine(dir))
	if got := series(all, "up", "engine"); len(got) != 0 || series(all, "pages", "state")["old"] != 1 {
		t.Errorf("eleven minutes later there is still %v; pages %v", got, series(all, "pages", "state"))
	}
	w.Close()
}

// Whatever has crashed again and again, what lives is seen.
func TestPagesOfTheDeadCrowdNobodyOut(t *testing.T) {
	dir := require.Shm(t)
	for i := range shownMax + 2 {
		spec := engineSpec(fmt.Sprint("E", i))
		spec.Dir, spec.Context = dir, i+1
		w, why, err := watch.New(spec)
		if err != nil || why != nil {
			t.Fatal(err, why)
		}
		defer w.Close()
		w.Publish(&watch.Live{Closed: i <= shownMax, Stepped: core.Now()})
	}
	all := gather(t, Machine(dir))
	if up := series(all, "up", "engine"); up[fmt.Sprint("E", shownMax+1)] != 1 || len(up) != shownMax+1 {
		t.Errorf("%d contexts are shown, the one that lives: %v", len(up), up[fmt.Sprint("E", shownMax+1)])
	}
	if got := series(all, "pages", "state"); got["alive"] != 1 || got["dead"] != shownMax || got["left_out"] != 1 {
		t.Errorf("pages %v", got)
	}
}

func TestOneReaderOfTwoBootsIsOneRow(t *testing.T) {
	now := core.Now()
	e := emitter{snap: &watch.Snapshot{Head: watch.Head{Role: "engine", BlockBytes: 10, Stepped: now}}}
	e.snap.Readers = []watch.Reader{
		{Unnamed: true, Leases: 1, LeastSlack: -1},
		{Hash: 0xab, Epoch: 1, Native: true, Leases: 2, Blocks: 4, Bytes: 40, Oldest: now - 5e9, LastBeat: now - 9e9, LeastSlack: 3 * time.Second, Expired: 1},
		{Hash: 0xab, Epoch: 2, Native: true, Leases: 3, Blocks: 5, Bytes: 50, Oldest: now - 2e9, LastBeat: now - 1e9, LeastSlack: -1, Completed: 2},
		{Name: "agent\xff", Leases: 4, LeastSlack: -1},
		{Other: true, Leases: 8, LeastSlack: -1},
	}
	all := collect(t, &e, e.readers)
	want := map[string]float64{"unnamed,,unnamed": 1, "00000000000000ab,00000000000000ab,native": 5, `"agent\xff",,stock`: 4, "other,,other": 8}
	if diff := cmp.Diff(want, series(all, "reader_leases", "reader", "hash", "kind")); diff != "" {
		t.Errorf("leases (-want +got):\n%s", diff)
	}
	for name, want := range map[string]float64{
		"reader_held_bytes": 90, "reader_oldest_lease_age_seconds": 5, "reader_beat_age_seconds": 1, "reader_least_slack_seconds": 3,
	} {
		if got := series(all, name, "kind")["native"]; got != want {
			t.Errorf("kvlease_%s is %v, want %v", name, got, want)
		}
	}
	if got := series(all, "oldest_lease_age_seconds")[""]; got != 5 {
		t.Errorf("the oldest lease of all is %v s old, want 5", got)
	}
	if got := series(all, "reader_leases_freed_total", "kind", "reason"); got["native,expired"] != 1 || got["native,completed"] != 2 {
		t.Errorf("ends %v", got)
	}
	e.snap.Readers = []watch.Reader{
		{Hash: 1, Epoch: 1, Native: true, Completed: 1, Released: 2, Revoked: 3, Expired: 4, Poisoned: 5, Duplicate: 6, Closed: 7},
		{Hash: 1, Epoch: 2, Native: true, Completed: 1, Released: 2, Revoked: 3, Expired: 4, Poisoned: 5, Duplicate: 6, Closed: 7},
	}
	want = map[string]float64{}
	for reason := record.FreedCompleted; reason <= record.FreedClosed; reason++ { // what the lease table counts by reader
		want[record.FreedNames[reason]] = map[string]float64{"completed": 2, "released": 4, "revoked": 6, "expired": 8, "poisoned": 10, "duplicate": 12, "closed": 14}[record.FreedNames[reason]]
	}
	if diff := cmp.Diff(want, series(collect(t, &e, e.readers), "reader_leases_freed_total", "reason")); diff != "" {
		t.Errorf("ends by reason (-want +got):\n%s", diff)
	}
}

func TestRemotesPastTheLimitAreFolded(t *testing.T) {
	e := emitter{snap: &watch.Snapshot{Head: watch.Head{Role: "engine"}}}
	for i := range remotesMax + 10 {
		e.snap.Remotes = append(e.snap.Remotes, watch.Remote{ID: fmt.Sprint("P", i), State: "connected", Tracked: 1, Bytes: 2})
	}
	all := collect(t, &e, e.remotes)
	tracked := series(all, "remote_requests_tracked", "remote")
	if len(tracked) != remotesMax+1 || tracked["other"] != 10 {
		t.Errorf("%d rows, other has %v; want %d and 10", len(tracked), tracked["other"], remotesMax+1)
	}
	bytes := series(all, "remote_read_bytes_total", "remote")
	e.snap.Remotes = e.snap.Remotes[1:] // one goes, and another one gets its row
	for remote, n := range series(collect(t, &e, e.remotes), "remote_read_bytes_total", "remote") {
		if before, ok := bytes[remote]; ok && n < before {
			t.Errorf("the bytes read from %s went back from %v to %v", remote, before, n)
		}
	}
	e.snap.Remotes = append(e.snap.Remotes, watch.Remote{ID: "other", Hash: 1, Tracked: 1})
	if got := series(collect(t, &e, e.remotes), "remote_requests_tracked")[""]; got != remotesMax+10 {
		t.Errorf("requests of all are %v, one engine is called other", got)
	}
}

func TestAFolderThatIsNotThereIsAnError(t *testing.T) {
	if _, err := Machine(filepath.Join(t.TempDir(), "none")).Gather(); !errors.Is(err, os.ErrNotExist) && (err == nil || !strings.Contains(err.Error(), "no such file")) {
		t.Errorf("gathered: %v", err)
	}
}
