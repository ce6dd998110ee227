package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/internal/await"
	"github.com/kvlease/kvlease/internal/require"
)

// check is one run of deploy/gpu-check.sh, in a folder for temporary files that has to be empty afterwards.
type check struct {
	t         *testing.T
	cmd       *exec.Cmd
	tmp, path string // of temporary files, and the report
	said      bytes.Buffer
}

func newCheck(t *testing.T, env []string, args ...string) *check {
	t.Helper()
	c := &check{t: t, tmp: t.TempDir(), path: filepath.Join(t.TempDir(), "folder", "report.md")}
	c.cmd = exec.CommandContext(t.Context(), filepath.Join(root(t), "deploy", "gpu-check.sh"), append([]string{"--out", c.path}, args...)...)
	c.cmd.Env = append(os.Environ(), "TMPDIR="+c.tmp, "KVLEASE_CUDA=", "KVLEASE_NVML=")
	c.cmd.Env = append(c.cmd.Env, env...)
	c.cmd.Stdout, c.cmd.Stderr = &c.said, &c.said
	return c
}

// end waits for the run and answers its exit code and the report.
func (c *check) end() (code int, report string) {
	c.t.Helper()
	if err := c.cmd.Wait(); err != nil && c.cmd.ProcessState == nil {
		c.t.Fatal(err)
	}
	if left, err := os.ReadDir(c.tmp); err != nil || len(left) > 0 {
		c.t.Errorf("left in TMPDIR: %v, %v", left, err)
	}
	text, err := os.ReadFile(c.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		c.t.Fatal(err)
	}
	return c.cmd.ProcessState.ExitCode(), string(text)
}

func (c *check) run() (code int, report string) {
	c.t.Helper()
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	return c.end()
}

// rows are the steps of a report's table and what became of each.
func rows(report string) (list []string) {
	for _, m := range regexp.MustCompile(`(?m)^\| (.*) \| (.*) \| \d+ s \|$`).FindAllStringSubmatch(report, -1) {
		list = append(list, m[1]+": "+m[2])
	}
	return list
}

func TestTheCheckOfGPUsSaysWhyItDoesNotRun(t *testing.T) {
	file := func(root, name, text string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name, want string
		make       func(root string)
		args       []string
	}{
		{"no GPU", "no NVIDIA GPU on the PCI bus", func(root string) {
			file(root, "sys/bus/pci/devices/0000:1a:00.0/vendor", "0x15b3\n")
			file(root, "sys/bus/pci/devices/0000:1a:00.0/class", "0x020700\n")
		}, nil},
		{"an NVSwitch is none", "no NVIDIA GPU on the PCI bus", func(root string) {
			file(root, "sys/bus/pci/devices/0000:1a:00.0/vendor", "0x10de\n")
			file(root, "sys/bus/pci/devices/0000:1a:00.0/class", "0x068000\n")
		}, nil},
		{"no driver", "the GPU at 0000:1b:00.0 has no /dev/nvidia0: load the driver", func(root string) {
			file(root, "sys/bus/pci/devices/0000:1b:00.0/vendor", "0x10de\n")
			file(root, "sys/bus/pci/devices/0000:1b:00.0/class", "0x030200\n")
		}, nil},
		{"a flag that is none", "there is no --nonsense", nil, []string{"--nonsense"}},
		{"a step that is none", `--steps has "dance"`, nil, []string{"--fake", "--steps", "doctor,dance"}},
		{"no step", `--steps has ""`, nil, []string{"--fake", "--steps", ","}},
		{"steps with spaces between", `--steps has "doctor bench"`, nil, []string{"--fake", "--steps", "doctor bench"}},
		{"steps with lines between", "--steps has", nil, []string{"--fake", "--steps", "doctor,\tbench"}},
		{"a GPU that is hidden", `CUDA_VISIBLE_DEVICES is "-1,0", which leaves no GPU`, func(root string) { file(root, "dev/nvidia0", "") }, nil},
		{"a span that is none", "--limit is soon", nil, []string{"--fake", "--limit", "soon"}},
		{"a value that is not there", "--build needs a value", nil, []string{"--build", ""}},
		{"a folder without a build", "--build is /dev, and no kvlease is there", nil, []string{"--fake", "--build", "/dev"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if tc.make != nil {
				tc.make(dir)
			}
			c := newCheck(t, []string{"KVLEASE_GPU_CHECK_TREE=" + dir, "KVLEASE_CUDA=libcuda.so.1", "CUDA_VISIBLE_DEVICES=-1,0"}, tc.args...)
			if code, report := c.run(); code != 2 || report != "" || !strings.Contains(c.said.String(), tc.want) || strings.Count(c.said.String(), "\n") != 1 {
				t.Errorf("code %d, want 2 and %q in one line:\n%s%s", code, tc.want, c.said.String(), report)
			}
		})
	}
}

// TestPathsAreTheCallers: the script goes to its own tree, and its caller may be elsewhere.
func TestPathsAreTheCallers(t *testing.T) {
	c := newCheck(t, nil, "--fake", "--steps", "doctor", "--build", "built")
	c.cmd.Dir = t.TempDir()
	if err := os.Rename(stub(t, "exit 0"), filepath.Join(c.cmd.Dir, "built")); err != nil {
		t.Fatal(err)
	}
	c.path = filepath.Join(c.cmd.Dir, "folder", "report.md")
	c.cmd.Args = append(c.cmd.Args, "--out", "folder/report.md")
	if code, report := c.run(); code != 0 || !cmp.Equal(rows(report), []string{"Doctor: passed"}) {
		t.Errorf("code %d, %q\n%s", code, rows(report), c.said.String())
	}
}

// TestAReportThatCannotBeWrittenIsToldBeforeAnythingIsRun: the work on a node takes up to hours.
func TestAReportThatCannotBeWrittenIsToldBeforeAnythingIsRun(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	for _, out := range []string{t.TempDir(), "/proc/nowhere/report.md", "/dev/null/report.md"} {
		c := newCheck(t, nil, "--fake", "--steps", "doctor", "--build", stub(t, "touch "+ran), "--out", out)
		code, _ := c.run()
		if _, err := os.Stat(ran); err == nil || code != 2 || !strings.Contains(c.said.String(), "--out "+out+" cannot be written") || strings.Count(c.said.String(), "\n") != 1 {
			t.Errorf("%s: code %d, ran: %v\n%s", out, code, err == nil, c.said.String())
		}
	}
}

// TestAReportGoesThroughWhatIsNoFile: a pipe and stdout get all of it, and stay what they are.
func TestAReportGoesThroughWhatIsNoFile(t *testing.T) {
	built := stub(t, "exit 0")
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCheck(t, nil, "--fake", "--steps", "doctor", "--build", built, "--out", pipe)
	if code, _ := c.run(); code != 2 || !strings.Contains(c.said.String(), pipe+" is a pipe that nobody reads: start its reader first. Nothing was run") {
		t.Errorf("without a reader: code %d, %s", code, c.said.String())
	}
	c = newCheck(t, nil, "--fake", "--steps", "doctor", "--build", built, "--out", pipe)
	reader, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0) // what is written waits in the pipe
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	code, _ := c.run()
	if got, err := io.ReadAll(reader); code != 0 || err != nil || !cmp.Equal(rows(string(got)), []string{"Doctor: passed"}) {
		t.Errorf("with a reader: code %d, %v, %q\n%s", code, err, got, c.said.String())
	}
	for _, out := range []string{"/dev/stdout", "/proc/self/fd/1"} {
		c = newCheck(t, nil, "--fake", "--steps", "doctor", "--build", built, "--out", out)
		var stdout bytes.Buffer
		c.cmd.Stdout = &stdout
		if code, _ := c.run(); code != 0 || !cmp.Equal(rows(stdout.String()), []string{"Doctor: passed"}) {
			t.Errorf("%s: code %d, %q\n%s", out, code, stdout.String(), c.said.String())
		}
	}
}

// TestAReportThatFindsNoRoomIsKept, and what was there before it is, too.
func TestAReportThatFindsNoRoomIsKept(t *testing.T) {
	built := stub(t, "head -c 100000 /dev/zero | tr '\\0' x")
	dir := t.TempDir()
	outs := map[string]string{"/dev/full": ""}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8k"); err == nil {
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		outs[filepath.Join(dir, "report.md")] = "good"
	}
	for out, was := range outs {
		if was != "" {
			if err := os.WriteFile(out, []byte(was), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c := newCheck(t, nil, "--fake", "--steps", "doctor", "--build", built, "--out", out)
		err := c.cmd.Run()
		said := c.said.String()
		_, kept, _ := strings.Cut(strings.TrimSpace(said), "It is kept in ")
		text, _ := os.ReadFile(kept)
		if err == nil || c.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(said, "cannot be written to "+out+": make room there, or name another file by --out") ||
			!cmp.Equal(rows(string(text)), []string{"Doctor: passed"}) {
			t.Errorf("%s: %v, %q is kept\n%s", out, err, text, said)
		}
		if was == "" {
			continue // a device: reading it has no end
		}
		left, _ := os.ReadDir(dir)
		if text, _ := os.ReadFile(out); len(left) != 1 || string(text) != was {
			t.Errorf("%v are there, %.40q, it was %q", left, text, was)
		}
	}
}

// TestAReportNeedsNoRoomForTemporaryFiles: it is whole where steps have filled their folder, and one that is lost is not said to be kept.
func TestAReportNeedsNoRoomForTemporaryFiles(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8k"); err != nil {
		require.Skip(t, "mount", err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	env, fills := []string{"TMPDIR=" + dir, "GIT_DIR=/nonexistent"}, stub(t, `head -c 100000 /dev/zero >"$TMPDIR/full"; exit 0`)
	c := newCheck(t, env, "--fake", "--steps", "doctor,bench", "--build", fills)
	want := []string{"Doctor: passed", "Bench, host memory: passed", "Bench: left out: NIXL has no way to the memory of the fakes"}
	if code, report := c.run(); code != 0 || !cmp.Equal(rows(report), want) || strings.Count(report, "\n## ") != len(want) || !strings.Contains(report, ", commit unknown\n") {
		t.Errorf("code %d, %s\n%s", code, c.said.String(), report)
	}
	c = newCheck(t, env, "--fake", "--steps", "doctor", "--build", fills, "--out", "/dev/full")
	if code, _ := c.run(); code != 1 || !strings.Contains(c.said.String(), "It is lost, since "+dir+" has no room for it") || strings.Contains(c.said.String(), "is kept") {
		t.Errorf("code %d, %s", code, c.said.String())
	}
}

// TestTheCheckOfGPUsOnFakes runs every step that has one.
func TestTheCheckOfGPUsOnFakes(t *testing.T) {
	c := newCheck(t, nil, "--fake", "--build", filepath.Dir(tool(t)))
	code, report := c.run()
	if code != 0 {
		t.Fatalf("code %d\n%s\n%s", code, c.said.String(), report)
	}
	want := []string{
		"Build: passed", "Doctor: passed", "Demo, one GPU: passed", "Demo, two GPUs: passed", "Contexts: passed", "Limits of registration: passed",
		"Registering again: passed", "Bench, host memory: passed", "Bench: left out: NIXL has no way to the memory of the fakes",
	}
	if diff := cmp.Diff(want, rows(report)); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	for _, row := range want {
		if title, _, _ := strings.Cut(row, ": "); !strings.Contains(report, "\n## "+title+"\n") {
			t.Errorf("no section %s", title)
		}
	}
	for _, words := range []string{
		"# kvlease on fakes\n", "No GPU and no NIC was asked", "Results from real hardware are still to come", ", commit ", "2 visible",
		"--- PASS: TestAThreadHasItsOwnContextBackAfterEachCall", "--- PASS: TestTheWindow", "--- PASS: TestSleepAndWake", "--- PASS: TestReadsInFlight", "promises kept",
	} {
		if !strings.Contains(report, words) {
			t.Errorf("the report does not say %q", words)
		}
	}
	if strings.Contains(report, root(t)) || strings.Contains(report, c.tmp) {
		t.Error("the report names folders of this machine")
	}
}

// stub is a folder with a kvlease that does what a line of shell says.
func stub(t *testing.T, line string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kvlease"), []byte("#!/bin/sh\n"+line+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestABrokenStepIsRecordedAndTheOthersGoOn(t *testing.T) {
	const bench = "Bench, host memory: passed"
	none := "Bench: left out: NIXL has no way to the memory of the fakes"
	for _, tc := range []struct {
		name, line, limit string
		want              []string
		says              string
	}{
		{"one that fails", `case $1 in doctor) echo "no room" >&2; exit 3; esac`, "1m", []string{"Doctor: **failed**, exit code 3", bench, none}, "\n~~~~\nno room\n~~~~\n"},
		{"one that hangs", `case $1 in doctor) sleep 1000; esac`, "1", []string{"Doctor: **failed**: longer than 1s", bench, none}, "longer than 1s, after "},
		{
			"one that leaves a process", `case $1 in doctor) setsid sleep 1000 >/dev/null 2>&1 & esac`, "1m",
			[]string{"Doctor: **failed**, 1 processes were left and have been ended", bench, none}, "have been ended",
		},
		{"one that is not there", `exec /nonexistent`, "1m", []string{"Doctor: **failed**, exit code 127", "Bench, host memory: **failed**, exit code 127", none}, "/nonexistent"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCheck(t, nil, "--fake", "--steps", "doctor,bench", "--limit", tc.limit, "--build", stub(t, tc.line))
			code, report := c.run()
			if diff := cmp.Diff(tc.want, rows(report)); code != 1 || diff != "" || !strings.Contains(report, tc.says) {
				t.Errorf("code %d, steps (-want +got):\n%s\n%s\n%s", code, diff, c.said.String(), report)
			}
			c.nobodyLeft()
		})
	}
}

// nobodyLeft looks for processes that a step has started: they carry the folder of temporary files.
func (c *check) nobodyLeft() {
	c.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && bytes.Contains(text, []byte("GPU_CHECK_WORK="+c.tmp)) {
			c.t.Errorf("%s is left", f)
		}
	}
}

func TestTheCheckOfGPUsThatIsInterruptedReportsWhatItHas(t *testing.T) {
	begun := filepath.Join(t.TempDir(), "begun")
	c := newCheck(t, nil, "--fake", "--steps", "demo,bench", "--build", stub(t, fmt.Sprintf(`case $1 in demo) touch %s; sleep 1000; esac`, begun)))
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the demo has begun", func() bool { _, err := os.Stat(begun); return err == nil })
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	code, report := c.end()
	want := []string{
		"Demo, one GPU: **interrupted**", "Demo, two GPUs: left out: the run was interrupted", "Bench, host memory: left out: the run was interrupted",
		"Bench: left out: NIXL has no way to the memory of the fakes",
	}
	if diff := cmp.Diff(want, rows(report)); code != 1 || diff != "" {
		t.Errorf("code %d, steps (-want +got):\n%s\n%s", code, diff, c.said.String())
	}
	c.nobodyLeft()
}

// TestResultsFromHardwareAreStillToCome until a report of a real run is there: then what says otherwise has to change with it.
func TestResultsFromHardwareAreStillToCome(t *testing.T) {
	const still = "Results from real hardware are still to come"
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "gpu-report.md"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "Made on fakes") {
		t.Error("docs/gpu-report.md is a run on fakes")
	}
	if len(rows(string(text))) == 0 && !strings.Contains(string(text), still) {
		t.Error("docs/gpu-report.md is no report, and does not say that one is still to come")
	}
}
