package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/bench"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/standin"
)

func TestTheBenchMeasuresOverRealNIXL(t *testing.T) {
	builtPrograms(t)
	picture := filepath.Join(t.TempDir(), "bench.svg")
	code, stdout, stderr := tool(t, nil, "bench", "--block", "4K", "--count", "1,4", "--rounds", "1", "--samples", "2", "--burst", "20", "--json", "--svg", picture)
	var r bench.Result
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK {
		t.Fatalf("code %d, %v\n%s\n%s", code, err, stdout, stderr)
	}
	if r.Transport != "nixl" || r.Library == "" || r.Version != version || len(r.Reads) != 2 || len(r.Notifications.Burst) != 2 {
		t.Errorf("it says %+v", r)
	}
	for _, read := range r.Reads {
		for _, w := range read.Ways {
			if w.Us.Low <= 0 || w.GBs.Median <= 0 || w.Way != bench.WayCopy && w.FirstUs == nil {
				t.Errorf("%d x %d: %+v", read.Count, read.Block, w)
			}
		}
	}
	drawn, err := os.Open(picture)
	if err != nil {
		t.Fatal(err)
	}
	defer drawn.Close()
	for x := xml.NewDecoder(drawn); ; {
		if _, err := x.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
	}
}

// childrenOf are the processes that pid has started and that live.
func childrenOf(t *testing.T, pid int) []string {
	t.Helper()
	var all []string
	files, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "children"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if list, err := os.ReadFile(f); err == nil {
			all = append(all, strings.Fields(string(list))...)
		}
	}
	return all
}

func TestCtrlCAndAClosedTerminalEndTheBenchAndItsOwner(t *testing.T) {
	builtPrograms(t)
	for _, by := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP} {
		t.Run(by.String(), func(t *testing.T) { endsWithItsOwner(t, by) })
	}
}

func endsWithItsOwner(t *testing.T, by syscall.Signal) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "bench", "--rounds", "1000")
	cmd.Env = append(os.Environ(), envTool+"=1")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, by) // else a test under nohup hands on that it is ignored
	err := cmd.Start()
	signal.Stop(caught)
	if err != nil {
		t.Fatal(err)
	}
	var owner []string
	for end := time.Now().Add(standin.Longest); len(owner) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		owner = childrenOf(t, cmd.Process.Pid)
	}
	if err := cmd.Process.Signal(by); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	if len(owner) != 1 || cmd.ProcessState.ExitCode() != exitFailed || !strings.Contains(said.String(), "interrupted") {
		t.Errorf("owner %v, %v\n%s", owner, err, said.String())
	}
	for _, pid := range owner {
		if _, err := os.Stat(filepath.Join("/proc", pid)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("process %s is still there: %v", pid, err)
		}
	}
}

func TestASignalThatNohupHasIgnoredStaysIgnored(t *testing.T) {
	for _, nohup := range []bool{true, false} {
		if got := endings(func(os.Signal) bool { return nohup }); slices.Contains(got, os.Signal(syscall.SIGHUP)) == nohup || !slices.Contains(got, os.Interrupt) {
			t.Errorf("ignored: %v, and it ends by %v", nohup, got)
		}
	}
}

func TestTheBenchRefusesWhatItCannotDo(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		code       int
		args       []string
	}{
		{"no NIXL", "(make deps fetches one; --nixl names one)", exitFailed, []string{"--nixl", "/nonexistent"}},
		{"a size that is none", `--block has "16Q", wanted: bytes, as 65536, 64K or 1M`, exitUsage, []string{"--block", "16Q"}},
		{"a size that wraps", `--block has "4294967296M"`, exitUsage, []string{"--block", "4294967296M"}},
		{"no blocks", "--count has 0, allowed: 1 to 16384", exitUsage, []string{"--count", "0"}},
		{"keys that are none", "--config needs a JSON object of keys", exitUsage, []string{"--config", "[]"}},
		{"memory that is not built in", `--memory is "tape", allowed: dram, vram`, exitUsage, []string{"--memory", "tape"}},
		{"a GPU for host memory", "--device is for --memory of a device", exitUsage, []string{"--device", "1"}},
		{"a third GPU", "--device is [0 1 2], wanted: one GPU or two", exitUsage, []string{"--device", "0,1,2", "--memory", "vram"}},
		{"a picture that cannot be written", "/nonexistent/b.svg cannot be written: no such file or directory; make its folder first, or name another file by --svg", exitFailed, []string{"--svg", "/nonexistent/b.svg"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := tool(t, nil, append([]string{"bench"}, tc.args...)...)
			if code != tc.code || stdout != "" || !strings.Contains(stderr, tc.want) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("code %d, want %d with %q in one line\n%s\n%s", code, tc.code, tc.want, stdout, stderr)
			}
		})
	}
}

func TestTheBenchSaysWhatDeviceMemoryLacks(t *testing.T) {
	builtPrograms(t)
	t.Setenv("KVLEASE_CUDA", filepath.Join(t.TempDir(), "libcuda.so.1"))
	code, stdout, stderr := tool(t, nil, "bench", "--memory", "vram", "--device", "0,1")
	if code != exitFailed || stdout != "" || !strings.Contains(stderr, "libcuda.so.1") || strings.Contains(stderr, "make deps") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("code %d\n%s\n%s", code, stdout, stderr)
	}
}

func TestTheBenchSaysWhatNIXLThatIsHereLacks(t *testing.T) {
	builtPrograms(t)
	t.Setenv("UCX_TLS", "none")
	code, stdout, stderr := tool(t, nil, "bench", "--rounds", "1")
	if code != exitFailed || stdout != "" || !strings.Contains(stderr, "UCX_TLS=none") || strings.Contains(stderr, "make deps") {
		t.Errorf("code %d\n%s\n%s", code, stdout, stderr)
	}
}
