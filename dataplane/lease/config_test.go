package lease

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDefaultsOfATableAreThoseOfItsConfig(t *testing.T) {
	for _, tc := range []struct {
		leases           int
		longIDs, readers int
	}{
		{leases: 100, longIDs: 2, readers: 1024},
		{leases: 32000, longIDs: 321, readers: 2000},
	} {
		table, err := New(Config{Duration: 48 * time.Second}, newMemory(tc.leases), [2]uint64{}, testBase, testEpoch)
		if err != nil {
			t.Fatal(err)
		}
		want := Config{
			Duration: 48 * time.Second, Extension: 32 * time.Second, Interval: 8 * time.Second, Settle: 50 * time.Millisecond,
			StallGap: 8 * time.Second, ExpectMax: 480 * time.Second, FixedTTL: 768 * time.Second, Jitter: 4 * time.Second,
			SweepMax: 256, LongIDs: tc.longIDs, Readers: tc.readers,
		}
		if diff := cmp.Diff(want, table.cfg); diff != "" {
			t.Errorf("%d leases (-want +got):\n%s", tc.leases, diff)
		}
	}
	table, err := New(Config{Duration: 48 * time.Second, Jitter: -1}, newMemory(1), [2]uint64{}, testBase, testEpoch)
	if err != nil || table.cfg.Jitter != 0 {
		t.Errorf("jitter %v, %v; want none", table.cfg.Jitter, err)
	}
}
