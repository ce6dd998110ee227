package tracing

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/probe"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/internal/require"
)

// targetEnv makes this test program a process that says for each line whether somebody is attached, until its stdin ends.
const targetEnv = "KVLEASE_TEST_TRACE_TARGET"

func TestMain(m *testing.M) {
	if os.Getenv(targetEnv) != "" {
		fmt.Println("ready")
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			fmt.Println(trace.Process().On(trace.StallGap))
		}
		return
	}
	os.Exit(m.Run())
}

// needProbe skips where nothing can be traced.
func needProbe(t *testing.T) {
	t.Helper()
	if err := probe.Check(); err != nil {
		require.Skip(t, "ebpf", err.Error())
	}
}

// running is a trace beside the test.
type running struct {
	t    *testing.T
	out  lockedBuffer
	stop context.CancelFunc
	done chan error
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start begins a trace that prints often, and returns when it has printed once: by then it is attached.
func start(t *testing.T, cfg Config) *running {
	t.Helper()
	needProbe(t)
	ctx, stop := context.WithCancel(t.Context())
	r := &running{t: t, stop: stop, done: make(chan error, 1)}
	if cfg.Every == 0 {
		cfg.Every = 50 * time.Millisecond
	}
	go func() { r.done <- Run(ctx, cfg, &r.out) }()
	t.Cleanup(stop)
	r.until(func(out string) bool { return out != "" })
	return r
}

// until waits for something in what the trace prints.
func (r *running) until(fits func(out string) bool) {
	r.t.Helper()
	for late := time.Now().Add(longest); !fits(r.out.String()); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(late) {
			r.t.Fatalf("waited in vain; printed last is\n%s", last(r.out.String()))
		}
		select {
		case err := <-r.done:
			r.t.Fatalf("the trace has ended: %v\n%s", err, last(r.out.String()))
		default:
		}
	}
}

// end stops the trace and gives what it has printed last, as a line.
func (r *running) end() string {
	r.t.Helper()
	r.stop()
	select {
	case err := <-r.done:
		if err != nil {
			r.t.Fatal(err)
		}
	case <-time.After(longest):
		r.t.Fatal("the trace does not end")
	}
	return last(r.out.String())
}

func last(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}

// printed is what --json prints.
type printed struct {
	Files    []string
	Series   []seriesJSON
	Counters map[string]uint64
	Outliers []Outlier
}

func parse(t *testing.T, line string) *printed {
	t.Helper()
	var p printed
	if err := json.Unmarshal([]byte(line), &p); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	return &p
}

func (p *printed) row(stage probe.Stage, from, to string) seriesJSON {
	for _, s := range p.Series {
		if s.Stage == stage.Key() && s.From == from && s.To == to {
			return s
		}
	}
	return seriesJSON{}
}

// Two clocks over the same reads: the library's, which it tells with each event, and the probe's.
func TestReadTimesAgreeWithTheLibrarysOwn(t *testing.T) {
	dir := require.Shm(t)
	r := start(t, Config{PIDs: []int{os.Getpid()}, Pages: dir, JSON: true, Outliers: time.Millisecond})
	p, d := pair(t, slowReads(loopback.NewHub(), 15*time.Millisecond), dir)
	const reads = 20
	var says time.Duration
	for i := range reads {
		says += d.read(p, fmt.Sprint("r", i))
	}
	r.until(func(out string) bool { return parse(t, last(out)).row(probe.Read, "D", "P").N >= reads })
	got := parse(t, r.end())
	all := got.row(probe.Read, "D", "P")
	if all.N != reads {
		t.Fatalf("%d reads were timed, %d made: %+v", all.N, reads, got)
	}
	off := float64(all.SumNs)/float64(says) - 1
	t.Logf("%d reads: the library says %v in all, the probe %v (%+.2f %%)", reads, says, time.Duration(all.SumNs), 100*off)
	if off < -0.1 || off > 0.1 {
		t.Errorf("%.1f %% apart", 100*off)
	}
	parts := uint64(0)
	for _, stage := range []probe.Stage{probe.Arrived, probe.Fenced, probe.Reported} {
		row := got.row(stage, "D", "P")
		if row.N != reads {
			t.Errorf("%v: %d times", stage, row.N)
		}
		parts += row.SumNs
	}
	if parts != all.SumNs {
		t.Errorf("the parts take %d ns, the whole %d ns", parts, all.SumNs)
	}
	for _, c := range []string{"read_points_without_post", "spans_lost", "seen_mismatches", "extended_without_seen", "hooks_skipped", "outliers_lost", "evicted", "kernel_misses"} {
		if n, ok := got.Counters[c]; n != 0 || !ok {
			t.Errorf("%s: %d", c, n)
		}
	}
	told := 0
	for _, o := range got.Outliers {
		if o.Stage == probe.Read.Key() {
			told++
			if o.From != "D" || o.To != "P" || o.TookNs < int64(30*time.Millisecond) || o.PID != uint32(os.Getpid()) || time.Since(o.At) > time.Hour {
				t.Errorf("%+v", o)
			}
		}
	}
	if told != reads {
		t.Errorf("%d of the reads are told as outliers", told)
	}
}

// Two clocks over the same steps: the library's in its stats page, whose last state is written at the close, and the probe's.
func TestStepTimesAgreeWithTheLibrarysOwn(t *testing.T) {
	dir := require.Shm(t)
	r := start(t, Config{PIDs: []int{os.Getpid()}, Pages: dir, JSON: true})
	d := startEngine(t, slowly(loopback.NewHub(), 0, 2*time.Millisecond), dir, "decode", "D", "")
	paths, err := watch.List(dir)
	if err != nil || len(paths) != 1 {
		t.Fatalf("pages: %v, %v", paths, err)
	}
	page, err := watch.Open(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	r.until(func(out string) bool { return parse(t, last(out)).row(probe.Step, "D", "").N >= 150 })
	if err := d.Quit(); err != nil {
		t.Error(err)
	}
	got := parse(t, r.end()).row(probe.Step, "D", "")
	var s watch.Snapshot
	if err := page.Read(&s); err != nil {
		t.Fatal(err)
	}
	h := s.Histogram("step_time")
	if h == nil || h.Count() == 0 {
		t.Fatalf("the page has no step times: %+v", s.Histograms)
	}
	off := float64(got.SumNs)/1e9/h.Sum - 1
	t.Logf("the library says %.1f ms of %d steps, the probe %.1f ms of %d (%+.2f %%)", h.Sum*1e3, h.Count(), float64(got.SumNs)/1e6, got.N, 100*off)
	if got.N+2 < h.Count() || got.N > h.Count()+2 { // those of opening and closing
		t.Errorf("%d steps were timed, the library counts %d", got.N, h.Count())
	}
	if off < -0.1 || off > 0.1 {
		t.Errorf("%.1f %% apart", 100*off)
	}
}

func TestHeartbeatsAreFollowedFromDToPByTheNamesOfTheEngines(t *testing.T) {
	dir := require.Shm(t)
	r := start(t, Config{PIDs: []int{os.Getpid()}, Pages: dir, JSON: true, Engines: []string{"D"}})
	p, d := pair(t, slowReads(loopback.NewHub(), 0), dir)
	d.hold(p, "r1")
	r.until(func(out string) bool {
		return parse(t, last(out)).row(probe.Renewed, "D", "P").N >= 2
	})
	got := parse(t, r.end())
	for _, stage := range []probe.Stage{probe.Posted, probe.Seen, probe.Extended, probe.Renewed, probe.Slack} {
		if n := got.row(stage, "D", "P").N; n < 2 {
			t.Errorf("%v: %d times", stage, n)
		}
	}
	if n := got.row(probe.Drained, "D", "").N; n < 1 {
		t.Errorf("hooks of D: %d", n)
	}
	if n := got.row(probe.Step, "D", "").N; n < 10 {
		t.Errorf("steps of D: %d", n)
	}
	if n := got.row(probe.Step, "P", "").N; n != 0 {
		t.Errorf("P was not asked for, and has %d steps", n)
	}
	for _, c := range []string{"posts_unseen", "seen_without_post", "seen_mismatches", "extended_without_seen", "posts_without_step"} {
		if n, ok := got.Counters[c]; n != 0 || !ok {
			t.Errorf("%s: %d", c, n)
		}
	}
}

func TestAThreadIsNoProcess(t *testing.T) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks { // Go has several
		tid, err := strconv.Atoi(task.Name())
		if err != nil || tid == os.Getpid() {
			continue
		}
		if _, err := openProcess(tid); err == nil || !strings.Contains(err.Error(), "is a thread") {
			t.Errorf("%d: %v", tid, err)
		}
		return
	}
	t.Error("this process has one thread")
}

func TestATraceEndsWithItsProcessesAndSaysSo(t *testing.T) {
	needProbe(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd, in, _ := target(t, self)
	r := start(t, Config{PIDs: []int{cmd.Process.Pid}, Every: 20 * time.Millisecond})
	in.Close()
	select {
	case err := <-r.done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(longest):
		t.Fatal("the trace goes on")
	}
	for _, want := range []string{fmt.Sprintf("process %d has ended", cmd.Process.Pid), "1 file\n"} {
		if end := r.out.String(); !strings.Contains(end[strings.LastIndex(end, "kvlease trace:"):], want) {
			t.Errorf("%q is not in %s", want, end)
		}
	}
	cmd.Wait()
	if err := Run(t.Context(), Config{PIDs: []int{cmd.Process.Pid}}, io.Discard); !errors.Is(err, probe.ErrGone) {
		t.Errorf("a process that has gone: %v", err)
	}
}

func TestAPictureIsDrawnAtTheEnd(t *testing.T) {
	needProbe(t)
	file := filepath.Join(t.TempDir(), "t.svg")
	if err := Run(t.Context(), Config{PIDs: []int{os.Getpid()}, SVG: file, For: 20 * time.Millisecond}, io.Discard); err != nil {
		t.Fatal(err)
	}
	wellFormed(t, file)
	err := Run(t.Context(), Config{PIDs: []int{os.Getpid()}, SVG: filepath.Join(file, "x"), For: 20 * time.Millisecond}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "x cannot be written: ") {
		t.Errorf("%v", err)
	}
}

func wellFormed(t *testing.T, file string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dec := xml.NewDecoder(f)
	for {
		if _, err := dec.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
