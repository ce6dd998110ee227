package counts

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Item is one count.
type Item struct {
	Name string
	Per  string // of what
	C    bool   // a C program, so that compiler and libc count, too
	// Tolerance is the share by which the count may grow. Where no clock and no random order is in it, counts of one binary are the same to a
	// thousandth.
	Tolerance float64

	program string   // its path below the root, in C; or the package of the benchmark
	args    []string // of the program, or of the test binary
	called  string   // function, see Profile.Of
	by      string
	per     uint64   // how many there are in the run; 0: one a call
	again   []string // other arguments: the count is what the second run takes more, by per
}

// plain is the tolerance of what depends on its inputs alone, clocked of what reads a clock or has a random key in it.
const (
	plain   = 0.01
	clocked = 0.1
)

// stretches of 500 calls each of bench/hook/hook.c.
const stretches = 20

// items are what is counted.
var items = []Item{
	{Name: "ring push + pop, 64 bytes, in C", Per: "record", C: true, Tolerance: plain, program: "bench/ring/ring_bench.c", args: []string{"20000"},
		called: "one_thread", per: 20000},
	hook("kvl_track"), hook("kvl_grant"), hook("kvl_untrack"),
	{Name: "kvl_step, nothing due, 500 leases held", Per: "step", C: true, Tolerance: clocked, program: hookProgram, args: []string{"hook", "1", "1000"},
		again: []string{"hook", "1", "41000"}, per: 40000},
	bench("renew by id, 10,000 leases", "id", "dataplane/lease", "RenewIDs", "/^leases=10000$", "lease.(*Table).RenewIDs", 5, 10000),
	bench("renew by slot, 10,000 leases", "entry", "dataplane/lease", "RenewNative", "/^leases=10000$", "lease.(*Table).RenewEntries", 5, 10000),
	bench("256 ends, both looks", "256 ends", "dataplane/lease", "SweepEnds", "", "lease.(*Table).Sweep", 20, 1),
	bench("looking for ends, nothing due", "step", "dataplane/lease", "SweepNothingDue", "/^leases=10000$", "lease.(*Table).Sweep", 2000, 1),
	bench("grant of a lease in the table", "lease", "dataplane/lease", "GrantAndComplete", "", "lease.(*Table).Grant", 2000, 1),
	bench("completion of a lease in the table", "lease", "dataplane/lease", "GrantAndComplete", "", "lease.(*Table).CompleteID", 2000, 1),
	bench("D round of 1,000 engines, 10 requests each", "request", "dataplane/heartbeat", "Round1000Engines", "/^native$", "heartbeat.(*bulk).step", 2, 10000),
	bench("step with a heartbeat of 100 stock ids", "id", "bench/plane", "Heartbeat", "/^ids=100$", "core.(*Core).Step", 100, 100),
	bench("step with a heartbeat of 10,000 stock ids", "id", "bench/plane", "Heartbeat10000", "/^leases=10000$", "core.(*Core).Step", 5, 10000),
	bench("step, 10,000 held and tracked, nothing due", "step", "bench/plane", "IdleStep", "", "plane.(*engine).step", 2000, 1),
	bench("handshake map of 61 layers, read", "map", "dataplane/wire", "Handshake", "/^read$", "wire.ParseHandshake", 100, 1),
	bench("step with a hostile message of 4 MiB", "byte", "bench/plane", "Hostile4MiB", "/^ids_of_one_byte$", "core.(*Core).Step", 1, 4<<20),
}

const hookProgram = "bench/hook/hook.c"

func hook(name string) Item {
	return Item{Name: name, Per: "call", C: true, Tolerance: plain, program: hookProgram, args: []string{"hook", fmt.Sprint(stretches), "1"}, called: name}
}

// bench counts calls of a function by Benchmark<of>, which runs n operations with each of them.
func bench(name, per, pkg, of, sub, called string, n, each uint64) Item {
	return Item{
		Name: name, Per: per, Tolerance: plain, program: pkg, called: called, by: filepath.Base(pkg) + ".Benchmark" + of, per: n * each,
		args: []string{"-test.run=^$", "-test.bench=^Benchmark" + of + "$" + sub, fmt.Sprintf("-test.benchtime=%dx", n)},
	}
}

// Items are those whose name has a text.
func Items(only string) (chosen []Item) {
	for _, it := range items {
		if strings.Contains(it.Name, only) {
			chosen = append(chosen, it)
		}
	}
	return chosen
}
