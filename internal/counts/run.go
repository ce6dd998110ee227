package counts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// ErrNoValgrind is what Runner.Check answers where there is none.
var ErrNoValgrind = errors.New("there is no valgrind; remedy: apt-get install valgrind")

// errKilled is a run that somebody traced meanwhile: valgrind does not go past the kernel's breakpoints at trace sites.
var errKilled = errors.New("a tracer attached to what is counted")

// Bounds of one run under valgrind, which takes some seconds on a calm machine.
const (
	runMax    = 3 * time.Minute
	memoryMax = 4 << 30
	tries     = 3 // where calls were lost, see Profile.Of
)

// Runner builds what is counted and runs it.
type Runner struct {
	Root  string   // of the repository
	Libs  string   // where `make build` put the libraries
	Out   string   // for binaries and profiles
	Flags []string // of go test -c, -overlay for one
}

// Check says whether valgrind can be run.
func (r *Runner) Check() error {
	if _, err := exec.LookPath("valgrind"); err != nil {
		return ErrNoValgrind
	}
	return nil
}

// Tools are what counts depend on beside the source. A profile of other tools is no worse, but another one.
func (r *Runner) Tools() map[string]string {
	first := func(name string, args ...string) string {
		out, err := exec.Command(name, args...).Output()
		if err != nil {
			return "unknown"
		}
		line, _, _ := strings.Cut(string(out), "\n")
		return strings.TrimSpace(line)
	}
	// valgrind shows programs one of a few processors, by what the real one can do.
	simd := "without avx2"
	if cpu, err := os.ReadFile("/proc/cpuinfo"); err != nil || runtime.GOARCH != "amd64" {
		simd = "any"
	} else if strings.Contains(string(cpu), " avx2 ") {
		simd = "avx2"
	}
	return map[string]string{
		"arch": runtime.GOARCH, "cpu": simd, "go": first("go", "env", "GOVERSION"), "cc": first("cc", "--version"), "libc": first("getconf", "GNU_LIBC_VERSION"),
		"valgrind": first("valgrind", "--version"),
	}
}

// job is one run of a program.
type job struct {
	program string
	args    []string
	main    bool // count the first thread alone
}

func (j job) String() string { return fmt.Sprint(j.program, j.args, j.main) }

func (it *Item) jobs() []job {
	if it.again != nil {
		return []job{{it.program, it.args, true}, {it.program, it.again, true}}
	}
	return []job{{it.program, it.args, false}}
}

// Count counts the items that are chosen, as many runs at a time as there are processors. It fails if one cannot be built or run, or if a function was
// never called.
func (r *Runner) Count(ctx context.Context, chosen []Item) (map[string]float64, error) {
	if err := os.MkdirAll(r.Out, 0o755); err != nil {
		return nil, err
	}
	var jobs []job
	binaries := make(map[string]string)
	profiles := make(map[string]*Profile) // by job
	add := func(j job) error {
		if _, known := profiles[j.String()]; known {
			return nil
		}
		profiles[j.String()] = nil
		jobs = append(jobs, j)
		if binaries[j.program] != "" {
			return nil
		}
		var err error
		binaries[j.program], err = r.build(ctx, j.program)
		return err
	}
	for i := range chosen {
		for _, j := range chosen[i].jobs() {
			if err := add(j); err != nil {
				return nil, err
			}
		}
	}
	out := make(map[string]float64)
	for try := 1; ; try++ {
		if err := r.run(ctx, jobs, binaries, profiles); err != nil {
			return nil, err
		}
		var lost error
		jobs = nil
		for i := range chosen {
			it := &chosen[i]
			n, err := it.from(profiles)
			if err != nil {
				lost = errors.Join(lost, err)
				jobs = append(jobs, it.jobs()...)
			}
			out[it.Name] = n
		}
		if lost == nil || try == tries {
			return out, lost
		}
	}
}

// run puts the profiles of jobs into profiles.
func (r *Runner) run(ctx context.Context, jobs []job, binaries map[string]string, profiles map[string]*Profile) error {
	var (
		mu     sync.Mutex
		wg     sync.WaitGroup
		failed error
		turns  = make(chan struct{}, runtime.NumCPU())
	)
	for i, j := range jobs {
		wg.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			p, err := r.profile(ctx, fmt.Sprintf("%d.callgrind", i), binaries[j.program], j)
			for try := 1; errors.Is(err, errKilled) && try < tries; try++ {
				p, err = r.profile(ctx, fmt.Sprintf("%d.callgrind", i), binaries[j.program], j)
			}
			mu.Lock()
			defer mu.Unlock()
			profiles[j.String()], failed = p, errors.Join(failed, err)
		})
	}
	wg.Wait()
	return failed
}

// from takes an item's count out of the profiles of its runs.
func (it *Item) from(profiles map[string]*Profile) (float64, error) {
	jobs := it.jobs()
	p := profiles[jobs[0].String()]
	if it.again != nil {
		q := profiles[jobs[1].String()]
		if calls := q.Of(it.called).N - p.Of(it.called).N; !near(calls, it.per) {
			return 0, it.lost(calls, it.per)
		}
		return (float64(q.But(it.but)) - float64(p.But(it.but))) / float64(it.per), nil
	}
	c := p.Of(it.called, it.except...)
	if !near(c.N, it.calls) {
		return 0, it.lost(c.N, it.calls)
	}
	return float64(c.Instructions) / float64(it.per), nil
}

// near leaves a call in a hundred: Go's scheduler, which works by the clock, may take a goroutine off where a function begins. That begins once more, which
// callgrind counts, or it is not counted since it seems to be below itself.
func near(seen, want uint64) bool {
	return max(seen, want)-min(seen, want) <= want/100
}

func (it *Item) lost(seen, want uint64) error {
	return fmt.Errorf("%s: %d calls of %s were seen, not about %d: it has another name, is inlined or called otherwise now, and items.go must say what to count",
		it.Name, seen, it.called, want)
}

// build makes a C program, or the test binary of a package.
func (r *Runner) build(ctx context.Context, program string) (string, error) {
	binary := filepath.Join(r.Out, strings.NewReplacer("/", "-", ".c", "").Replace(program))
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"test", "-c", "-o", binary}, r.Flags...), "./"+program)...)
	if strings.HasSuffix(program, ".c") { // as bench/run.py does
		cmd = exec.CommandContext(ctx, "cc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Icmd/libkvlease/include", "-Iringbuf/include", program, "-o", binary,
			"-L"+r.Libs, "-lkvlease", "-ldl", "-Wl,-rpath,"+r.Libs, "-pthread")
	}
	cmd.Dir = r.Root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", program, err, out)
	}
	return binary, nil
}

// profile runs a binary under callgrind. Go gets one thread for its own code and no signals that interrupt loops, and collects nothing meanwhile: what is
// left are the instructions of the functions. Names of C are bound at the start, not at the first call.
func (r *Runner) profile(ctx context.Context, name, binary string, j job) (*Profile, error) {
	file := filepath.Join(r.Out, name)
	threads, read := "no", file
	if j.main {
		threads, read = "yes", file+"-01"
	}
	ctx, cancel := context.WithTimeout(ctx, runMax)
	defer cancel()
	// With a bound: callgrind remembers each jump between the parts of a function as a call, and what spins takes the machine's memory.
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", fmt.Sprintf(`ulimit -v %d && exec valgrind --tool=callgrind --separate-threads=%s --callgrind-out-file="$0" "$@"`, memoryMax>>10,
		threads), file, binary}, j.args...)...)
	cmd.Dir = r.Root
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1", "GOGC=off", "LD_BIND_NOW=1",
		"KVLEASE_CORE="+filepath.Join(r.Libs, "libkvlease-core.so"))
	if out, err := cmd.CombinedOutput(); err != nil {
		if strings.Contains(string(out), "(SIGTRAP)") {
			return nil, fmt.Errorf("%w: %s\n%s", errKilled, j, out)
		}
		return nil, fmt.Errorf("valgrind %s: %w\n%s", j, err, out)
	}
	f, err := os.Open(read)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := ReadCallgrind(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", j, err)
	}
	return p, nil
}
