package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/doctor"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/node"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/ports"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/standin"
	machines "github.com/kvlease/kvlease/cuda/fabric/machine"
	"github.com/kvlease/kvlease/cuda/fakecuda"
	"github.com/kvlease/kvlease/cuda/fakenvml"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/internal/await"
	"github.com/kvlease/kvlease/internal/kernel"
	"github.com/kvlease/kvlease/internal/require"
)

// examine runs the doctor as a process and gives its report and its lines by name.
func examine(t *testing.T, wantCode int, args ...string) (*doctor.Report, map[string]doctor.Result) {
	t.Helper()
	code, stdout, stderr := tool(t, nil, append([]string{"doctor", "--json"}, args...)...)
	r := &doctor.Report{}
	if err := json.Unmarshal([]byte(stdout), r); err != nil || code != wantCode {
		t.Fatalf("code %d, want %d; %v\n%s\n%s", code, wantCode, err, stdout, stderr)
	}
	lines := map[string]doctor.Result{}
	for _, l := range r.Results {
		lines[l.Name] = l
	}
	return r, lines
}

func TestTheDoctorIsRightAboutThisMachine(t *testing.T) {
	r, lines := examine(t, exitOK, "--no-load")
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	if got := lines["processors"].Value; !strings.HasPrefix(got, fmt.Sprintf("%d of ", set.Count())) || (lines["processors"].State == doctor.Pass) != (set.Count() >= 4) {
		t.Errorf("processors: %q, the kernel says %d", got, set.Count())
	}
	var files, coreSize, locked unix.Rlimit
	for which, l := range map[int]*unix.Rlimit{unix.RLIMIT_NOFILE: &files, unix.RLIMIT_CORE: &coreSize, unix.RLIMIT_MEMLOCK: &locked} {
		if err := unix.Getrlimit(which, l); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.ReplaceAll(lines["open files"].Value, ",", ""); files.Max < 1<<62 && !strings.HasPrefix(got, fmt.Sprint(files.Max)) {
		t.Errorf("open files: %q, the kernel says %d", got, files.Max)
	}
	if got := lines["locked memory"].Value; (locked.Cur == unix.RLIM_INFINITY) != (got == "unlimited") {
		t.Errorf("locked memory: %q, the kernel says %d", got, locked.Cur)
	}
	pattern, _ := os.ReadFile("/proc/sys/kernel/core_pattern")
	if wantWarn := coreSize.Cur == 0 && !strings.HasPrefix(string(pattern), "|"); (lines["core files"].State == doctor.Warn) != wantWarn {
		t.Errorf("core files: %+v, limit %d, pattern %q", lines["core files"], coreSize.Cur, pattern)
	}
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil {
		t.Fatal(err)
	}
	if got := lines["/dev/shm"]; (got.State == doctor.Pass) != (st.Blocks == 0 || st.Bavail*uint64(st.Bsize) >= 1<<30) {
		t.Errorf("/dev/shm: %+v, the kernel says %d blocks of %d", got, st.Bavail, st.Bsize)
	}
	if source, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource"); err == nil &&
		!strings.HasPrefix(lines["clock source"].Value, strings.TrimSpace(string(source))) {
		t.Errorf("clock source: %q, the kernel says %q", lines["clock source"].Value, source)
	}
	if r.Kernel != kernel.Release() {
		t.Errorf("kernel %q", r.Kernel)
	}
	if _, err := os.Stat("/sys/class/infiniband"); errors.Is(err, os.ErrNotExist) && lines["GPU memory to NICs"].State != doctor.Skip {
		t.Errorf("here is no RDMA: %+v", lines["GPU memory to NICs"])
	}
}

func TestTheDoctorLoadsNIXLAsAnEngineWould(t *testing.T) {
	builtPrograms(t)
	_, lines := examine(t, exitOK)
	if l := lines["UCX"]; l.State != doctor.Pass || !strings.Contains(l.Value, "an agent opened in") {
		t.Errorf("%+v", l)
	}
	if l := lines["copies"]; l.State != doctor.Pass || !strings.HasPrefix(l.Value, "one NIXL and one UCX") {
		t.Errorf("%+v", l)
	}
}

func TestTheDoctorLooksAtAnotherProcess(t *testing.T) {
	p := startPair(t, require.Shm(t), nil, []string{"UCX_HANDLE_ERRORS=bt"})
	pid := p.cmd.Process.Pid
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 512, Max: 4096}, nil); err != nil {
		require.Skip(t, "root", err.Error())
	}
	r, lines := examine(t, exitFailed, "--no-load", "--pid", fmt.Sprint(pid))
	if l := lines["open files"]; r.PID != fmt.Sprint(pid) || l.State != doctor.Fail || l.Value != "512" {
		t.Errorf("process %s: %+v", r.PID, l)
	}
	if l := lines["UCX_HANDLE_ERRORS"]; l.State != doctor.Warn || l.Value != "bt" {
		t.Errorf("%+v", l)
	}
	if l := lines["copies"]; l.State != doctor.Skip || !strings.Contains(l.Value, "in process "+r.PID) {
		t.Errorf("%+v", l)
	}
	code, stdout, stderr := tool(t, nil, "doctor", "--pid", "999999999")
	if code != exitUsage || stdout != "" || !strings.Contains(stderr, "there is no process 999999999") {
		t.Errorf("code %d, %q, %q", code, stdout, stderr)
	}
}

func TestTheDoctorShakesHandsWithPeers(t *testing.T) {
	free, err := ports.Free(2)
	if err != nil {
		t.Fatal(err)
	}
	there, nobody := fmt.Sprintf("127.0.0.1:%d", free), fmt.Sprintf("127.0.0.1:%d", free+1)
	standin.RunTested(t, node.Config{EngineID: "P", Listen: there, Role: "prefill", Context: "engine", TP: 1, Drive: "inline", Layers: 2, Blocks: 32,
		PassTime: time.Millisecond, Lease: 30 * time.Second}, core.Loopback(loopback.NewHub()))
	_, lines := examine(t, exitFailed, "--no-load", "--peer", there, "--peer", nobody)
	if l := lines[there]; l.State != doctor.Pass || !strings.HasPrefix(l.Value, "engine P, kvlease, TP 1, PP 1; handshake in ") {
		t.Errorf("%+v", l)
	}
	if l := lines[nobody]; l.State != doctor.Fail || !strings.Contains(l.Fix, "nobody listens there") {
		t.Errorf("%+v", l)
	}
}

// fakeGPUs makes the tool see the GPUs of a machine; its NICs are those that are here.
func fakeGPUs(t *testing.T, name string) {
	t.Helper()
	library, err := fakenvml.Build(t.TempDir(), "libfakenvml.so")
	require.Compiled(t, err)
	m, err := machines.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KVLEASE_NVML", library)
	t.Setenv("KVL_FAKE_NVML", strings.Join(m.Script(), ";"))
}

func TestTheDoctorAsksTheDriversAPI(t *testing.T) {
	library, err := fakecuda.Build(t.TempDir(), "libfakecuda.so")
	require.Compiled(t, err)
	t.Setenv("KVLEASE_CUDA", library)
	t.Setenv("KVL_FAKE_CUDA", "devices 2")
	_, stdout, stderr := tool(t, nil, "doctor", "--no-load")
	for _, want := range []string{"driver for 12.8, " + library + "; 2 visible", "device 1 "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s%s", want, stdout, stderr)
		}
	}
	t.Setenv("KVL_FAKE_CUDA", "fail cuInit 1 100")
	_, lines := examine(t, exitFailed, "--no-load")
	if l := lines["CUDA"]; l.State != doctor.Fail || !strings.Contains(l.Value, "CUDA_ERROR_NO_DEVICE") || !strings.Contains(l.Fix, "--gpus all") {
		t.Errorf("%+v", l)
	}
}

func TestTheDoctorTellsFourGPUsFromNone(t *testing.T) {
	code, stdout, stderr := tool(t, nil, "doctor", "--env", "0", "--nvml", "/nowhere/libnvidia-ml.so.1")
	if code != exitFailed || stdout != "" || !strings.Contains(stderr, "GPU 0: no NVIDIA management library: ") ||
		!strings.Contains(stderr, "/nowhere/libnvidia-ml.so.1: ") {
		t.Errorf("code %d, %q, %q", code, stdout, stderr)
	}
	fakeGPUs(t, "far-socket")
	_, stdout, stderr = tool(t, nil, "doctor", "--no-load")
	for _, want := range []string{"535.161.07, CUDA 12.2", "4 GPUs", "GPU 3 ", "NVIDIA A100-PCIE-40GB at 0000:66:00.0"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s%s", want, stdout, stderr)
		}
	}
	if code, _, stderr := tool(t, nil, "doctor", "--env", "4"); code != exitFailed || !strings.Contains(stderr, "there is no GPU 4") {
		t.Errorf("code %d, %q", code, stderr)
	}
}

// TestALibraryOfNVIDIAsThatIsNamedAndIsNoneFails also where there is no GPU: who has named it wants it asked.
func TestALibraryOfNVIDIAsThatIsNamedAndIsNoneFails(t *testing.T) {
	none := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if err := os.WriteFile(none, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	cut := none + ".cut" // as after a copy onto a full disk: the loader would die of it
	if err := os.WriteFile(cut, self[:len(self)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{none, none + ".away", cut} {
		code, stdout, stderr := tool(t, nil, "doctor", "--no-load", "--nvml", file)
		if code != exitFailed || !strings.Contains(stdout, "--nvml or KVLEASE_NVML names is none: "+file) || !strings.Contains(stdout, "or neither") {
			t.Errorf("code %d\n%s\n%s", code, stdout, stderr)
		}
	}
}

// TestASignalEndsADoctorWhoseLibraryStandsStill: what else there is to say is said, once the other library has been given up as well.
func TestASignalEndsADoctorWhoseLibraryStandsStill(t *testing.T) {
	cuda, err := fakecuda.Build(t.TempDir(), "libfakecuda.so")
	require.Compiled(t, err)
	management, err := fakenvml.Build(t.TempDir(), "libfakenvml.so")
	require.Compiled(t, err)
	for library, env := range map[string][]string{
		cuda:       {"KVL_FAKE_CUDA=slow cuInit 600000"},
		management: {"KVL_FAKE_NVML=slow Init_v2 600000"},
	} {
		cmd := exec.Command(os.Args[0], "doctor", "--no-load")
		cmd.Env = append(append(os.Environ(), envTool+"=1", "KVLEASE_CUDA="+cuda, "KVLEASE_NVML="+management), env...)
		var said, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		await.True(t, "it is in the library", func() bool { // by now it has signals handed to it
			maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
			return err == nil && strings.Contains(string(maps), library)
		})
		cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err == nil || !strings.Contains(errs.String(), "interrupted: ") || !strings.Contains(said.String(), "interrupted before its library had answered") || !strings.Contains(said.String(), "kvlease trace") {
			t.Errorf("%s: %v, %s\n%s", env, err, errs.String(), said.String())
		}
	}
}
