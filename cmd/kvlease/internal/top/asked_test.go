package top

import (
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/metrics"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/internal/require"
)

// To a step an engine that answers no handshake is as idle as one that nobody has asked.
func TestAnEngineThatAnswersNoHandshakeIsNotIdle(t *testing.T) {
	for _, tc := range []struct {
		name       string
		connection string
		tracked    uint64
		age        time.Duration
		asked      watch.Asked
		page, url  string // states
		level      Level
		words      string
		role       string
		missed     bool // requests have been lost there
	}{
		{"nobody asks it", "idle", 0, 0, watch.Asked{}, "idle", "idle", Fine, "", "engine", false},
		{"it is asked for the first time", "idle", 0, 0, watch.Asked{State: "fetching"}, asking, "idle", Fine, "", "engine", false},
		{"it does not answer", "idle", 2, 0, watch.Asked{State: "failed", Fails: 7, Why: "unreachable"}, failing, failing, Warn, "P, which has blocks of 2 tracked requests, cannot be asked: 7 handshakes have failed (unreachable)", "engine", false},
		{"it is asked again", "idle", 0, 0, watch.Asked{State: "fetching", Fails: 1, Why: "silent"}, failing, failing, Note, "", "engine", false},
		{"it does not fit", "idle", 1, 0, watch.Asked{State: "incompatible", Fails: 1, Why: "incompatible"}, unfit, unfit, Warn, "P, which has blocks of 1 tracked request, does not fit this engine: handshake_misfit in its log", "engine", false},
		{"its connection is broken", "broken", 1, 0, watch.Asked{State: "failed", Fails: 1, Why: "hung_up"}, "broken", "broken", Alarm, "P, which has blocks of 1 tracked request, is broken and cannot be asked: 1 handshake has failed (hung_up)", "engine", false},
		{"its connection holds", "connected", 1, 0, watch.Asked{State: "failed", Fails: 1, Why: "silent"}, "connected", "connected", Fine, "", "engine", false},
		{"it held when we came to rest", "connected", 0, time.Minute, watch.Asked{State: "failed", Fails: 3, Why: "unreachable"}, failing, failing, Note, "", "engine", false},
		{"it does not fit, and what was asked of it is lost", "idle", 0, 0, watch.Asked{State: "incompatible", Fails: 1, Why: "incompatible"}, unfit, unfit, Warn, "P does not fit this engine: handshake_misfit in its log", "engine", true},
		{"another answers, and what was asked of it is lost", "idle", 0, 0, watch.Asked{State: "failed", Fails: 2, Why: "wrong_engine"}, failing, failing, Warn, "P cannot be asked: 2 handshakes have failed (wrong_engine)", "engine", true},
		{"the host asks it", "idle", 0, 0, watch.Asked{}, byHost, byHost, Fine, "", "rank", false},
		{"the host asks it for what is tracked there", "idle", 2, 0, watch.Asked{}, byHost, byHost, Warn, "P, which has blocks of 2 tracked requests, is not connected: the host of this rank asks it", "rank", false},
		{"the host has its maps", "connected", 1, 0, watch.Asked{}, "connected", "connected", Fine, "", "rank", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := require.Shm(t)
			now := core.Now()
			w, why, err := watch.New(&watch.Spec{Dir: dir, Remotes: 32, Head: watch.Head{Role: tc.role, Engine: "D", Opened: now, Duration: 30 * time.Second, Interval: 5 * time.Second}})
			if err != nil || why != nil {
				t.Fatal(err, why)
			}
			defer w.Close()
			w.PutRemote(0, &watch.Remote{Engine: 1, ID: "P", Hash: 5, State: tc.connection, Since: now, Tracked: tc.tracked, LastBeat: now, LastRow: now, Missed: tc.missed})
			w.FinishRemotes(1)
			if tc.asked.State != "" {
				w.PutAsked([]watch.AskedRow{{Engine: 1, Asked: tc.asked}})
			}
			if !w.Publish(&watch.Live{Stepped: now.Add(-tc.age)}) {
				t.Fatal("not published")
			}
			srv := httptest.NewServer(metrics.Handler(metrics.Machine(dir)))
			defer srv.Close()
			for _, from := range []struct {
				cfg   Config
				state string
			}{{Config{Dir: dir}, tc.page}, {Config{URLs: []string{srv.URL + "/metrics"}}, tc.url}} {
				s := newSource(&from.cfg)
				defer s.close()
				r, err := s.read(t.Context())
				if err != nil || len(r.Engines) != 1 || len(r.Engines[0].Peers) != 1 {
					t.Fatalf("%+v: %v", r, err)
				}
				e := r.Engines[0]
				if p := e.Peers[0]; p.State != from.state || p.Level != tc.level || p.AskFails != tc.asked.Fails || p.AskWhy != tc.asked.Why {
					t.Errorf("%s: want %q, level %d: %+v", e.Source, from.state, tc.level, p)
				}
				if got := len(e.Trouble) > 0; got != (tc.words != "") || got && !slices.Contains(e.Trouble, tc.words) {
					t.Errorf("%s: want %q: %q", e.Source, tc.words, e.Trouble)
				}
			}
		})
	}
}
