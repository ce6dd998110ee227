package heartbeat

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/wire"
)

func TestDefaultsOfATrackerAreThoseOfItsConfig(t *testing.T) {
	for _, tc := range []struct{ tracks, owed, longIDs, rowStates int }{
		{tracks: 100, owed: 1024, longIDs: 64, rowStates: 1024},
		{tracks: 64000, owed: 16000, longIDs: 1000, rowStates: 64000},
	} {
		got := Config{Self: Identity{Epoch: 1}, Duration: 48 * time.Second, Tracks: tc.tracks}
		if err := got.setDefaults(); err != nil {
			t.Fatal(err)
		}
		want := Config{
			Self: Identity{Epoch: 1}, Duration: 48 * time.Second, Tracks: tc.tracks, Shape: topology.Shape{TP: 1, PP: 1},
			Engines: 4096, Links: 4096, SourcesMax: topology.RanksMax, Owed: tc.owed, RunsMax: 262144, RowStates: tc.rowStates, LongIDs: tc.longIDs,
			HealWait: 8 * time.Second, HandoverMax: 16 * time.Second, ReadTimeout: 192 * time.Second, DriftPPM: 500,
			BatchBytesMax: 16384, BatchesStepMax: 32, EndsStepMax: 32, RowsStepMax: 256, EventsStepMax: 256, UnheardBytesMax: 16 << 20,
		}
		if diff := cmp.Diff(want, got, cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Nonce" }, cmp.Ignore())); diff != "" {
			t.Errorf("%d tracks (-want +got):\n%s", tc.tracks, diff)
		}
	}
	many := Config{Self: Identity{Epoch: 1}, Duration: time.Second, Tracks: 1, Engines: 5000}
	if err := many.setDefaults(); err != nil || many.Links != 5000 {
		t.Errorf("%d links for 5,000 engines, %v; want as many", many.Links, err)
	}
}

func TestBoundsOfATrackerHoldAtTheirEdges(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Config)
		ok     bool
	}{
		{"as many tracking slots as there may be", func(c *Config) { c.Tracks = 1 << 24 }, true},
		{"one more", func(c *Config) { c.Tracks = 1<<24 + 1 }, false},
		{"as many engines as there may be", func(c *Config) { c.Engines = 1 << 20 }, true},
		{"one more engine", func(c *Config) { c.Engines = 1<<20 + 1 }, false},
		{"messages for the longest id and its count", func(c *Config) { c.BatchBytesMax = wire.IDMax + 16 }, true},
		{"messages a byte shorter", func(c *Config) { c.BatchBytesMax = wire.IDMax + 15 }, false},
		{"messages as long as peers read", func(c *Config) { c.BatchBytesMax = wire.ParseMax }, true},
		{"messages a byte longer", func(c *Config) { c.BatchBytesMax = wire.ParseMax + 1 }, false},
		{"the shortest duration", func(c *Config) { c.Duration = 1 }, true},
		{"no duration", func(c *Config) { c.Duration = 0 }, false},
	} {
		cfg := Config{Self: Identity{Epoch: 1}, Duration: time.Second, Tracks: 1}
		tc.change(&cfg)
		if err := cfg.setDefaults(); (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestTheTimesOfAPeerComeFromItsDurationAndOurs(t *testing.T) {
	c := Config{Self: Identity{Epoch: 1}, Duration: 30500 * time.Millisecond, Tracks: 1}
	if err := c.setDefaults(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name      string
		got, want times
	}{
		{"a peer with a longer term", c.nativeTimes(60 * time.Second), times{
			duration: 60 * time.Second, extension: 40 * time.Second, interval: c.Duration / 6, drift: 20 * time.Millisecond, margin: c.Duration/12 + 20*time.Millisecond,
		}},
		{"a peer with a shorter one", c.nativeTimes(12 * time.Second), times{
			duration: 12 * time.Second, extension: 8 * time.Second, interval: 2 * time.Second, drift: 4 * time.Millisecond, margin: 1004 * time.Millisecond,
		}},
		{"a stock peer: ours in whole seconds", c.stockTimes(), times{
			duration: 30 * time.Second, extension: 20 * time.Second, interval: c.Duration / 6, drift: 10 * time.Millisecond, margin: c.Duration/12 + 10*time.Millisecond,
		}},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, tc.got, tc.want)
		}
	}
}
