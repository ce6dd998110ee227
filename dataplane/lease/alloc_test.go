package lease

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/internal/require"
)

func TestNoCallAllocates(t *testing.T) {
	r := newRig(t, 1024, func(c *Config) { c.StockLinger = time.Second })
	ids := make([][]byte, 300)
	entries := make([]Entry, 300)
	out := make([]Outcome, 300)
	long := []byte(strings.Repeat("l", 300))
	g := record.Grant{Blocks: 8}
	agent := []byte("agent")
	for i := range ids {
		ids[i] = []byte(fmt.Sprintf("request-%d", i))
	}
	unknown := [][]byte{[]byte("unknown")}
	round := 0
	got := testing.AllocsPerRun(200, func() {
		round++
		for i, id := range ids {
			if i%3 == 0 {
				g.Lease, _ = r.take(record.Expected)
				r.t.Expect(g.Lease, id, r.now)
				r.t.RenewIDs(ids[i:i+1], agentD, r.now, nil)
				r.t.CompleteID(id, agent, 2, r.now)
				r.mem.Slots[g.Lease.Slot()].State = record.State(g.Lease.Use(), record.Granted)
			} else {
				g.Lease, _ = r.take(record.Granted)
			}
			r.t.Grant(&g, id, r.now)
			entries[i] = r.entry(g.Lease)
		}
		h, _ := r.take(record.Granted)
		g.Lease = h
		r.t.Grant(&g, long, r.now)
		r.t.RenewEntries(entries, engineD, r.now, out)
		r.t.RenewIDs(ids[:100], agentD, r.now, out)
		r.t.RenewIDs(unknown, agentD, r.now, nil)
		r.t.TryID(long, agentD, r.now)
		for _, e := range entries[:100] {
			r.t.Renew(e, engineE, r.now)
			r.t.Complete(e, engineD.at(1), 3, r.now)
		}
		for i := range 50 {
			r.t.Release(entries[100+i], engineD, r.now)
			r.t.CompleteID(ids[i], agent, 1, r.now)
		}
		r.t.Revoke(h, r.now)
		r.t.Pressure(100, r.now)
		r.t.EngineGone(engineD.Engine, engineD.Epoch, r.now)
		r.t.NextDue(r.now)
		for r.t.Held()+r.t.Ending() > 0 {
			r.now = r.now.Add(200 * time.Millisecond)
			r.t.Sweep(r.now, tick, 0, 0)
			for {
				if _, ok := r.t.NextEnd(); !ok {
					break
				}
				r.t.PopEnd()
			}
		}
	})
	if got != 0 {
		t.Errorf("%v allocations a round", got)
	}
	if round < 200 || r.c.Freed[record.FreedExpired] == 0 || r.c.Freed[record.FreedReleased] == 0 || r.c.Kept == 0 {
		t.Errorf("the round does not try everything: %+v", *r.c)
	}
}

// resident gives the pages of this process in bytes.
func resident(t *testing.T) int64 {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		require.Skip(t, "procfs", err.Error())
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(raw), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

func TestAMillionLeasesStayWithinTheirMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes a second and 256 MiB")
	}
	const n = 1_000_000
	before := resident(t)
	r := benchTable(t, n)
	var id []byte
	for i := range 100_000 { // ends and the ids remembered of them
		id = benchID(id, uint64(i))
		r.t.CompleteID(id, []byte("agent"), 1, r.now)
		r.t.PopEnd()
	}
	if r.c.Freed[record.FreedCompleted] != 100_000 || r.c.IndexFull != 0 {
		t.Fatalf("counters %+v", *r.c)
	}
	grown := resident(t) - before

	x := r.t
	tables := 0 +
		len(r.mem.Slots)*int(unsafe.Sizeof(record.Slot{})) +
		len(r.mem.Rows)*int(unsafe.Sizeof(record.Row{})) +
		len(x.hot)*int(unsafe.Sizeof(hot{})) +
		len(x.granted)*8 +
		(len(x.timed.links)+len(x.worth.links))*int(unsafe.Sizeof(link{})) +
		(len(x.index.entries)+len(x.graves.index.entries))*int(unsafe.Sizeof(entry{})) +
		len(x.graves.ring)*8 +
		len(x.readers.pool)*int(unsafe.Sizeof(reader{})) +
		len(x.wheel.full)*8
	// Long ids are address space until the first one is used; 64-byte ids use none.
	t.Logf("tables %.1f bytes a lease, resident growth %.1f, address space of long ids %.1f",
		float64(tables)/n, float64(grown)/n, float64(len(x.long.bytes)+4*x.long.free.Left())/n)
	if tables > 256*n {
		t.Errorf("tables take %d bytes a lease, want at most 256", tables/n)
	}
	if !raceEnabled && grown > 256*n { // the race detector keeps its own memory beside ours
		t.Errorf("the process grew by %d bytes a lease, want at most 256", grown/n)
	}
}
