package top

import (
	"context"
	"errors"
	"fmt"
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
