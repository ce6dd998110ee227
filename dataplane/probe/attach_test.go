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

	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/internal/require"
)

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
	if err = os.WriteFile(lib+".new", text, 0o644); err == nil {
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
		require.Skip(t, "root", "mounts and namespaces are made here")
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
