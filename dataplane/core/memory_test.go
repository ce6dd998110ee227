package core

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/internal/require"
)

// resident is this process's resident memory in bytes.
func resident(t *testing.T) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		require.Skip(t, "procfs", err.Error())
	}
	pages, err := strconv.ParseInt(string(bytes.Fields(data)[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// Tables are as large as the configuration allows, and most engines use little of them: what nobody has used is no memory yet.
func TestAnOpenedContextHasTouchedLittleOfItsTables(t *testing.T) {
	debugFree()
	before := resident(t)
	l := &lab{t: t, now: 1 << 40, hub: loopback.NewHub(), size: smallLoopback}
	p := l.node("P", "{}")
	l.stepOne(p)
	const most = 12 << 20 // the race detector keeps its own beside it
	if grown := resident(t) - before; grown > most {
		t.Errorf("an idle context takes %.1f MiB, want at most %d", float64(grown)/(1<<20), most>>20)
	} else {
		t.Logf("an idle context takes %.1f MiB", float64(grown)/(1<<20))
	}
	runtime.KeepAlive(l)
}

// A million leases with 64-byte ids, granted, renewed and ended, all their ends waiting at once: board, slots, index, rings
// and events together.
func TestAMillionLeasesStayWithin256MiBOfTheProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes seconds and 256 MiB")
	}
	const leases = 1_000_000
	debugFree()
	before := resident(t)
	l := &lab{t: t, now: 1 << 40, hub: loopback.NewHub(), size: smallLoopback}
	p := l.node("P", fmt.Sprintf(`{"requests_max":%d,"tracked_max":64,"reads_max":8,"read_runs_max":1024,"engines_max":8,"parse_max":1048576}`, leases))
	opened := resident(t) - before
	var id [64]byte
	copy(id[:], "cmpl-00000000-0000-0000-0000-000000000000-0-8f3a9c1d-aaaaaaaaaaaaaaaa")
	for i := range leases {
		for n, at := i, 16; at >= 5; n, at = n/10, at-1 {
			id[at] = byte('0' + n%10) // no garbage of the test's own in what it measures
		}
		if i%1000 == 0 {
			l.advance(time.Microsecond)
			l.stepOne(p)
		}
		if _, err := p.host.Grant(host.Grant{ID: id[:], Blocks: 16, User: uint64(i)}, l.now); err != nil {
			t.Fatalf("grant %d: %v", i, err)
		}
	}
	l.stepOne(p)
	if held := p.core.leases.Held(); held != leases {
		t.Fatalf("%d leases held, want %d", held, leases)
	}
	granted := resident(t) - before
	l.advance(40 * time.Second)
	for range 4 * leases / p.core.cfg.SweepMax {
		l.advance(time.Millisecond)
		if err := p.core.Step(); err != nil {
			t.Fatal(err)
		}
	}
	if held := p.core.leases.Held(); held != 0 {
		t.Fatalf("%d leases never expired", held)
	}
	ended := resident(t) - before
	var evs [1024]record.Event
	freed := 0
	for {
		n := p.host.Poll(evs[:], l.now)
		if n == 0 && p.core.leases.Ending() == 0 {
			break
		}
		freed += n
		l.advance(time.Millisecond)
		if err := p.core.Step(); err != nil {
			t.Fatal(err)
		}
	}
	if freed != leases {
		t.Errorf("%d freed events, want %d", freed, leases)
	}
	t.Logf("resident growth a lease: %d bytes opened, %d granted, %d with every end waiting", opened/leases, granted/leases, ended/leases)
	if ended > 256<<20 {
		t.Errorf("a million leases cost %d MiB, want at most 256", ended>>20)
	}
	runtime.KeepAlive(l)
}
