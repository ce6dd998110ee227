package probe

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/trace"
)

const isAMD64 = runtime.GOARCH == "amd64"

// D is an engine that reads, P one that owns; numbers of two contexts of one process.
const engineD, engineP, ctxD, ctxP = 0xd0d0d0d0d0d0d0d0, 0xb0b0b0b0b0b0b0b0, 1, 2

func TestAMessageIsTimedFromTheHookToTheRenewalAtAnotherProcess(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	d, owner := startHost(t), startHost(t)
	attach(t, p, fs, d.pid)
	attach(t, p, fs, owner.pid)

	const number = 7
	d.fire(trace.HookSubmit, ctxD, 3, 100, 1)
	d.fire(trace.HookSubmit, ctxD, 3, 164, 1)
	d.fire(trace.HookSubmit, ctxD, 3, 228, 1)
	d.fire(trace.StepBegin, ctxD, 0, 0, 0)
	d.fire(trace.HookDrained, ctxD, 3, 164, 2)
	d.fire(trace.BatchPosted, engineD, engineP, 1<<32|2, number<<32|5)
	d.fire(trace.StepEnd, ctxD, 0, 2, 0)
	owner.fire(trace.StepBegin, ctxP, 0, 0, 0)
	owner.fire(trace.NotificationSeen, engineD, engineP, 1<<32|2, number<<32|5)
	owner.fire(trace.BatchExtended, engineD, engineP, number<<32|4, 1_000_000)
	owner.fire(trace.StepEnd, ctxP, 0, 1, 0)
	owner.fire(trace.StallGap, ctxP, 5_000_000, 1_000_000, 0)

	s := read(t, p)
	ctx := func(h *host, n uint64) uint64 { return uint64(h.pid)<<32 | n }
	got := map[Stage]uint64{}
	for i := range s.Series {
		got[s.Series[i].Stage] += s.Series[i].Count
	}
	want := map[Stage]uint64{Drained: 2, Posted: 1, Seen: 1, Extended: 1, Renewed: 1, Slack: 1, Step: 2, Stall: 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counts by stage (-want +got):\n%s", diff)
	}
	if n := s.series(Drained, ctx(d, ctxD), 0).Count; n != 2 {
		t.Errorf("%d hooks of D were drained", n)
	}
	seen, extended, renewed := s.series(Seen, engineD, engineP), s.series(Extended, engineD, engineP), s.series(Renewed, engineD, engineP)
	if seen.Sum+extended.Sum != renewed.Sum || seen.Sum == 0 || extended.Sum == 0 {
		t.Errorf("posted to seen %d ns and seen to extended %d ns, in all %d ns", seen.Sum, extended.Sum, renewed.Sum)
	}
	if h := s.series(Slack, engineD, engineP); h.Sum != 1_000_000 || h.Max != 1_000_000 {
		t.Errorf("slack: %d ns, most %d", h.Sum, h.Max)
	}
	if h := s.series(Stall, ctx(owner, ctxP), 0); h.Sum != 5_000_000 {
		t.Errorf("stall gap: %d ns", h.Sum)
	}
	counters := s.Counters
	if counters.Hits != 12 {
		t.Errorf("%d hits", counters.Hits)
	}
	counters.Hits = 0
	if diff := cmp.Diff(Counters{}, counters); diff != "" {
		t.Errorf("something was lost or not paired (-want +got):\n%s", diff)
	}
	want2 := []Alias{{Context{uint32(d.pid), ctxD}, engineD}, {Context{uint32(owner.pid), ctxP}, engineP}}
	slices.SortFunc(s.Aliases, func(a, b Alias) int { return int(a.Context.Number) - int(b.Context.Number) })
	if diff := cmp.Diff(want2, s.Aliases); diff != "" {
		t.Errorf("aliases (-want +got):\n%s", diff)
	}
}

func TestAReadIsTimedFromItsPostToItsEvent(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	d := startHost(t)
	attach(t, p, fs, d.pid)
	for track := uint64(10); track < 13; track++ {
		d.fire(trace.ReadPosted, ctxD, track, engineP, 4096)
	}
	d.fire(trace.DataArrived, ctxD, 10, engineP, 0)
	d.fire(trace.FenceChecked, ctxD, 10, trace.FenceEqual, 0)
	d.fire(trace.ReadReported, ctxD, 10, 0, 5)
	d.fire(trace.DataArrived, ctxD, 11, engineP, 0)
	d.fire(trace.FenceChecked, ctxD, 11, trace.FenceStale, 0)
	d.fire(trace.ReadReported, ctxD, 11, 2, 5)
	d.fire(trace.ReadReported, ctxD, 12, 3, 5) // timed out: nothing arrived
	d.fire(trace.ReadReported, ctxD, 13, 3, 0) // nothing was posted
	d.fire(trace.ReadReported, ctxD, 14, 3, 9) // posted before we came

	s := read(t, p)
	from := uint64(d.pid)<<32 | ctxD
	for stage, want := range map[Stage]uint64{Arrived: 2, Fenced: 2, Reported: 2, Read: 1, ReadFailed: 2} {
		if n := s.series(stage, from, engineP).Count; n != want {
			t.Errorf("%v: %d, wanted %d", stage, n, want)
		}
	}
	parts := s.series(Arrived, from, engineP).Sum + s.series(Fenced, from, engineP).Sum + s.series(Reported, from, engineP).Sum
	if all := s.series(Read, from, engineP).Sum; all == 0 || parts <= all { // parts are of two reads
		t.Errorf("one read took %d ns, the parts of two %d ns", all, parts)
	}
	if s.Counters.ReadNoPost != 1 {
		t.Errorf("%d reads without a post, wanted 1", s.Counters.ReadNoPost)
	}
}

func TestWhatDoesNotGoTogetherIsCountedAndNotTimed(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	d := startHost(t)
	attach(t, p, fs, d.pid)
	d.fire(trace.BatchPosted, engineD, engineP, 0, 1<<32|5) // no step
	d.fire(trace.BatchPosted, engineD, engineP, 0, 1<<32|5) // the same number again: nobody saw the first
	d.fire(trace.NotificationSeen, engineD, engineP, 0, 1<<32|6)
	d.fire(trace.NotificationSeen, engineD, engineP, 0, 9<<32|6)
	d.fire(trace.BatchExtended, engineD, engineP, 5<<32|5, 1<<63-1)
	d.fire(trace.StepEnd, ctxD, 0, 0, 0)
	d.fire(trace.BatchPosted, engineD, engineP, 0, 2<<32|5)
	d.fire(trace.NotificationSeen, engineD, engineP, 0, 2<<32|0) // stock text: not counted yet
	for i := range uint64(70) {
		d.fire(trace.HookSubmit, ctxD, 0, i, 0)
	}
	s := read(t, p)
	got := s.Counters
	got.Hits = 0
	want := Counters{PostNoStep: 3, PostUnseen: 1, SeenDiffers: 1, SeenNoPost: 1, ExtendedNoSeen: 1, StepNoBegin: 1, HooksSkipped: 6}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
	if len(s.Series) != 1 || s.series(Seen, engineD, engineP).Count != 1 {
		t.Errorf("series: %+v", s.Series)
	}
}

// What is on its way beyond what is kept is forgotten and counted, pairs of engines beyond what is kept are one.
func TestTooMuchAtATimeIsCountedAndTotalsStay(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	d := startHost(t)
	attach(t, p, fs, d.pid)
	reads := p.objects.LruReads.MaxEntries()
	if got := d.number("posts 0 %d", reads+5000); got != uint64(reads)+5000 {
		t.Fatalf("%d posts", got)
	}
	s := read(t, p)
	if s.Counters.Evicted < 5000 || s.Counters.Evicted > uint64(reads) {
		t.Errorf("%d evicted of %d reads, %d are kept", s.Counters.Evicted, reads+5000, reads)
	}
	pairs := uint64(p.objects.Histograms.MaxEntries()) + 100
	if got := d.number("gaps 0 %d", pairs); got != pairs {
		t.Fatalf("%d gaps", got)
	}
	s = read(t, p)
	var all, other uint64
	for i := range s.Series {
		if e := &s.Series[i]; e.Stage == Stall {
			all += e.Count
			if e.From == 0 {
				other += e.Count
			}
		}
	}
	if all != pairs || other < 100 || s.Counters.Folded != other || s.Counters.ValuesLost != 0 {
		t.Errorf("%d of %d spans, %d of them in the series for others, %+v", all, pairs, other, s.Counters)
	}
}

func TestTheClockOfTheProbeAgreesWithTheProcesss(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	d := startHost(t)
	attach(t, p, fs, d.pid)
	for _, tc := range []struct {
		what  string
		stage Stage
		to    uint64
	}{{"steps", Step, 0}, {"spans", Read, 77}} {
		const n = 200
		said := d.number("%s 0 %d 300000", tc.what, n)
		h := read(t, p).series(tc.stage, uint64(d.pid)<<32|1, tc.to)
		if h.Count != n {
			t.Errorf("%v: %d timed, %d were made", tc.stage, h.Count, n)
		}
		t.Logf("%v: %d of %v, the process says %v", tc.stage, h.Count, h.Mean(), time.Duration(said/n))
		if off := float64(h.Sum)/float64(said) - 1; off < -0.1 || off > 0.1 {
			t.Errorf("%v: the probe's sum is %d ns, the process's %d ns", tc.stage, h.Sum, said)
		}
	}
}

func TestOutliersAreToldAndThoseThatFindNoRoomCounted(t *testing.T) {
	p, fs := open(t, Config{Outliers: 20 * time.Millisecond}), newFiles(t)
	d := startHost(t)
	attach(t, p, fs, d.pid)
	d.fire(trace.StallGap, ctxD, 19_999_999, 0, 4)
	d.fire(trace.StallGap, ctxD, 20_000_000, 0, 4)
	got, err := p.Outlier(time.Now().Add(10 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if got.Ago <= 0 || got.Ago > time.Minute || got.Thread == 0 {
		t.Errorf("%+v", got)
	}
	want := Outlier{
		Stage: Stall, From: uint64(d.pid)<<32 | ctxD, Context: Context{uint32(d.pid), ctxD}, Took: 20 * time.Millisecond, What: 4, PID: uint32(d.pid),
		Ago: got.Ago, Thread: got.Thread,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outlier (-want +got):\n%s", diff)
	}
	if _, err := p.Outlier(time.Now().Add(time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no more: %v", err)
	}

	const n = 10_000 // more than the ring holds
	if got := d.number("gaps 0 %d", n); got != n {
		t.Fatalf("%d gaps", got)
	}
	told := uint64(0)
	for {
		if _, err := p.Outlier(time.Now().Add(time.Millisecond)); err != nil {
			break
		}
		told++
	}
	if lost := read(t, p).Counters.OutliersLost; lost == 0 || told+lost != n {
		t.Errorf("%d told and %d lost of %d", told, lost, n)
	}
}

func TestDetachLeavesNopsAndSemaphoresAsTheyWere(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	d := startHost(t)
	files, detach := attach(t, p, fs, d.pid)
	if len(files) != 1 || len(files[0].Sites) != int(trace.Count) {
		t.Fatalf("%+v", files)
	}
	for i := range files[0].Sites {
		s := &files[0].Sites[i]
		if _, semaphore := d.site(files[0], s); (semaphore == 1) != timed[s.Site] {
			t.Errorf("%v: semaphore %d while attached", s.Site, semaphore)
		}
	}
	d.number("steps 0 1000 0") // the nops become calls
	detach()
	d.quiet(files)
	if got := d.say("fire 0 2 1 0 0 0"); got != "off" {
		t.Errorf("after detach the site is %s", got)
	}

	// A tracer that is killed does not ask to detach.
	again, err := fs.Of(d.pid)
	if err != nil {
		t.Fatal(err)
	}
	killed := attachElsewhere(t, d.pid)
	if _, semaphore := d.site(again[0], &again[0].Sites[trace.StepBegin]); semaphore != 1 {
		t.Fatalf("the other process is not attached: semaphore %d", semaphore)
	}
	killed()
	d.quiet(again)
}

func TestAProcessIsTracedAloneAndByAllItsThreads(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	d, other := startHost(t), startHost(t)
	attach(t, p, fs, d.pid)
	if got := other.say("fire 0 %d 1 0 0 0", trace.StepBegin); got != "off" {
		t.Errorf("a process that is not traced has its site %s", got)
	}
	if got := d.say("elsewhere 0 %d 1 9 0 0", trace.StallGap); got != "on" {
		t.Errorf("on another thread the site is %s", got)
	}
	if h := read(t, p).series(Stall, uint64(d.pid)<<32|1, 0); h.Count != 1 {
		t.Errorf("the other thread's hit was counted %d times", h.Count)
	}
}

func TestSeveralFilesOfOneProcessAndCopiesAreFound(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	lib := fixture(t, "libsites.so")
	copied := filepath.Join(t.TempDir(), "libsites copy.so")
	text, err := os.ReadFile(lib)
	if err == nil {
		err = os.WriteFile(copied, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := startHost(t, lib, copied)
	files, detach := attach(t, p, fs, d.pid)
	if len(files) != 2 {
		t.Fatalf("%d files", len(files))
	}
	for i := range 2 {
		if got := d.say("fire %d %d 1 9 0 0", i, trace.StallGap); got != "on" {
			t.Errorf("library %d: %s", i, got)
		}
	}
	if h := read(t, p).series(Stall, uint64(d.pid)<<32|1, 0); h.Count != 2 {
		t.Errorf("%d hits", h.Count)
	}
	detach()
	d.quiet(files)
}

func TestALibraryIsTracedInProcessesThatStartLater(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	lib := fixture(t, "libsites.so")
	f, err := fs.Library(lib)
	if err != nil {
		t.Fatal(err)
	}
	before := startHost(t)
	a, err := p.Attach(f, 0)
	if err != nil {
		t.Fatal(err)
	}
	later := startHost(t)
	for i, h := range []*host{before, later} {
		h.fire(trace.StallGap, 1, 9, 0, 0)
		if n := read(t, p).series(Stall, uint64(h.pid)<<32|1, 0).Count; n != 1 {
			t.Errorf("process %d: %d hits", i, n)
		}
	}
	all, _, err := fs.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []*host{before, later} {
		i := slices.IndexFunc(all, func(p Process) bool { return p.PID == h.pid })
		if i < 0 || len(all[i].Files) != 1 || all[i].Files[0] != f {
			t.Errorf("process %d is not among %+v, or not with the library's file", h.pid, all)
		}
	}
	if slices.ContainsFunc(all, func(p Process) bool { return p.PID == os.Getpid() }) {
		t.Error("this process is among them")
	}
	if err := a.Detach(); err != nil {
		t.Error(err)
	}
	before.quiet([]*File{f})
	later.quiet([]*File{f})
}

func TestALibraryThatWasReplacedOnDiskIsStillTheOneThatIsMapped(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	text, err := os.ReadFile(fixture(t, "libsites.so"))
	if err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(t.TempDir(), "libkvlease-test.so")
	if err := os.WriteFile(lib, text, 0o644); err != nil {
		t.Fatal(err)
	}
	old := startHost(t, lib)
	if err := os.WriteFile(lib+".new", text, 0o644); err == nil {
		err = os.Rename(lib+".new", lib)
	}
	if err != nil {
		t.Fatal(err)
	}
	fresh := startHost(t, lib)
	files, _ := attach(t, p, fs, old.pid)
	freshFiles, err := fs.Of(fresh.pid)
	if err != nil {
		t.Fatal(err)
	}
	if files[0] == freshFiles[0] || files[0].Path != lib {
		t.Errorf("the old process maps %+v, the new one %+v", files[0], freshFiles[0])
	}
	old.fire(trace.StallGap, 1, 9, 0, 0)
	if got := fresh.say("fire 0 %d 1 9 0 0", trace.StallGap); got != "off" {
		t.Errorf("the new library's site is %s", got)
	}
}

func TestATargetThatIsKilledOrEndsWhileAttachedLeavesNothing(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	for _, end := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		d, other := startHost(t), startHost(t)
		files, detach := attach(t, p, fs, d.pid)
		attach(t, p, fs, other.pid)
		d.fire(trace.StallGap, 1, 9, 0, 0)
		d.cmd.Process.Signal(end)
		d.cmd.Wait()
		if n := read(t, p).series(Stall, uint64(d.pid)<<32|1, 0).Count; n != 1 {
			t.Errorf("%v: %d hits are left of it", end, n)
		}
		other.fire(trace.StallGap, 1, 9, 0, 0)
		detach()
		if _, err := fs.Of(d.pid); !errors.Is(err, ErrGone) {
			t.Errorf("%v: its files: %v", end, err)
		}
		if _, err := p.Attach(files[0], d.pid); !errors.Is(err, ErrGone) {
			t.Errorf("%v: attach: %v", end, err)
		}
	}
}

func TestAProcessInAnotherMountNamespaceIsTracedByItsOuterNumber(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	if os.Geteuid() != 0 {
		t.Skip("root is missing: mounts and namespaces are made here")
	}
	inside := filepath.Join(t.TempDir(), "inside")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", `mount -t tmpfs none "$1" && cp "$2" "$1/lib.so" && exec "$3" "$1/lib.so"`, "sh",
		inside, fixture(t, "libsites.so"), fixture(t, "host"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // for the death signal
	defer runtime.UnlockOSThread()
	d := hostOf(t, cmd)
	if _, err := os.Stat(filepath.Join(inside, "lib.so")); err == nil {
		t.Fatal("the library is to be seen from outside")
	}
	files, detach := attach(t, p, fs, d.pid)
	d.fire(trace.StallGap, 1, 9, 0, 0)
	if n := read(t, p).series(Stall, uint64(d.pid)<<32|1, 0).Count; n != 1 {
		t.Errorf("%d hits", n)
	}
	detach()
	d.quiet(files)
}

func TestAProcessWithoutSitesIsToldSo(t *testing.T) {
	fs := newFiles(t)
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	within(t, func() string { // until it is cat
		if exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid)); !strings.Contains(exe, "cat") && !strings.Contains(exe, "coreutils") {
			return exe
		}
		return ""
	})
	if _, err := fs.Of(cmd.Process.Pid); !errors.Is(err, ErrNoSites) {
		t.Errorf("%v", err)
	}
	if _, err := fs.Library("/proc/self/exe"); !errors.Is(err, ErrNoSites) && err != io.EOF {
		t.Errorf("%v", err)
	}
}
