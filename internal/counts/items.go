package counts

import (
	"fmt"
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
	calls   uint64   // how often it is called in the run, but for except
	except  []string // callers that prepare
	per     uint64   // how many there are in the run
	// again are the arguments of a second run: the count is what its first thread takes more, by per, without the functions' own instructions whose
	// names begin with but.
	again []string
	but   string
}

// plain is the tolerance of what depends on its inputs alone, timed of what has the clock in it: steps note how long they took, and Go's runtime works by it.
// Both leave room for other machines: a libc chooses its functions by the processor.
const (
	plain = 0.05
	timed = 0.10
)

// stretches of 500 calls each of bench/hook/hook.c.
const stretches = 20

// items are what is counted.
var items = []Item{
	{Name: "ring push + pop, 64 bytes, in C", Per: "record", C: true, Tolerance: plain, program: "bench/ring/ring_bench.c", args: []string{"20000"},
		called: "one_thread", calls: 1, per: 20000},
	hook("kvl_track", 0), hook("kvl_grant", 500), hook("kvl_untrack", 0),
	{Name: "kvl_step but for what dataplane does itself", Per: "step", C: true, Tolerance: timed, program: hookProgram, args: []string{"hook", "1", "1000"},
		called: "core.(*Core).StepAt", again: []string{"hook", "1", "41000"}, per: 40000, but: "github.com/kvlease/kvlease/dataplane"},
	bench("renew by id, 10,000 leases", "id", "dataplane/lease", "RenewIDs/^leases=10000$", 5, 10000, "lease.(*Table).RenewIDs", 157),
	bench("renew by slot, 10,000 leases", "entry", "dataplane/lease", "RenewNative/^leases=10000$", 5, 10000, "lease.(*Table).RenewEntries", 1, "lease.(*Table).Renew"),
	bench("256 ends, both looks", "256 ends", "dataplane/lease", "SweepEnds", 20, 1, "lease.(*Table).Sweep", 2),
	bench("looking for ends, nothing due", "step", "dataplane/lease", "SweepNothingDue/^leases=10000$", 2000, 1, "lease.(*Table).Sweep", 1, "lease.(*rig).step"),
	bench("grant of a lease in the table", "lease", "dataplane/lease", "GrantAndComplete", 2000, 1, "lease.(*Table).Grant", 1),
	bench("completion of a lease in the table", "lease", "dataplane/lease", "GrantAndComplete", 2000, 1, "lease.(*Table).CompleteID", 1),
	bench("D round of 1,000 engines, 10 requests each", "request", "dataplane/heartbeat", "Round1000Engines/^native$", 2, 10000, "heartbeat.(*bulk).step", 500,
		"heartbeat.newBulkOf"),
	bench("step with a heartbeat of 100 stock ids", "id", "bench/plane", "Heartbeat/^ids=100$", 100, 100, step, 1, prepares),
	bench("step with a heartbeat of 10,000 stock ids", "id", "bench/plane", "Heartbeat10000/^leases=10000$", 5, 10000, step, 1, prepares),
	bench("step, 10,000 held and tracked, nothing due", "step", "bench/plane", "IdleStep", 2000, 1, step, 1, prepares),
	bench("step's look at 256 producers that say nothing", "step", "dataplane/submit", "DrainNothing", 2000, 1, "submit.(*Sources).Drain", 1),
	bench("handshake map of 61 layers, read", "map", "dataplane/wire", "Handshake/^read$", 100, 1, "wire.ParseHandshake", 1),
	bench("step with a hostile message of 4 MiB", "byte", "bench/plane", "Hostile4MiB/^ids_of_one_byte$", 1, 4<<20, step, 130, prepares),
}

// Of bench/plane: what is counted, and by whom it is called before.
const (
	step     = "core.(*Core).Step"
	prepares = "plane.(*engine).step"
)

const hookProgram = "bench/hook/hook.c"

// hook counts a function of which more are called than in the stretches.
func hook(name string, more uint64) Item {
	n := stretches*500 + more
	return Item{Name: name, Per: "call", C: true, Tolerance: plain, program: hookProgram, args: []string{"hook", fmt.Sprint(stretches), "1"}, called: name, calls: n, per: n}
}

// bench counts a function that Benchmark<of> calls so often in each of its n operations; there are `each` of what is counted in an operation.
func bench(name, per, pkg, of string, n, each uint64, called string, calls uint64, except ...string) Item {
	top, sub, _ := strings.Cut(of, "/")
	pattern := "^Benchmark" + top + "$"
	if sub != "" {
		pattern += "/" + sub
	}
	tolerance := plain
	if called == step {
		tolerance = timed
	}
	return Item{
		Name: name, Per: per, Tolerance: tolerance, program: pkg, called: called, calls: n * calls, except: except, per: n * each,
		args: []string{"-test.run=^$", "-test.bench=" + pattern, fmt.Sprintf("-test.benchtime=%dx", n)},
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
