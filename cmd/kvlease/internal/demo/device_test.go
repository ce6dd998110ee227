package demo

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/cuda/fakecuda"
)

// fakeDevices is a configuration with caches in the memory of a fake driver, whose work takes its time.
func fakeDevices(t *testing.T, scenes string, filter func(spec, []byte) []byte) Config {
	t.Helper()
	driver, err := fakecuda.Build(t.TempDir(), "libfakecuda.so")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KVLEASE_CUDA", driver)
	if _, err := fakecuda.Control(driver, "work 2"); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, scenes, filter)
	cfg.Memory, cfg.Device = MemoryFakeCUDA, Device{Of: [2]int{0, 1}, Reads: readsIPC, Driver: driver}
	return cfg
}

// All but j: what holds a device holds both ends of a process.
func TestTheScenesKeepTheirPromisesWithDeviceMemoryOverLoopback(t *testing.T) {
	cfg := fakeDevices(t, "abcdefghik", nil)
	result, story := kept(t, cfg)
	if !result.Kept || len(result.Promises) < 120 || result.Memory != MemoryFakeCUDA {
		t.Errorf("kept %v, %d promises, memory %s", result.Kept, len(result.Promises), result.Memory)
	}
	for _, call := range []string{"cuIpcGetMemHandle", "cuMemcpyDtoDAsync", "cuEventQuery", "cuPointerSetAttribute", "cuCtxPushCurrent"} {
		if n, err := fakecuda.Control(cfg.Device.Driver, "count "+call); err != nil || n == 0 {
			t.Errorf("%s was called %d times, %v", call, n, err)
		}
	}
	for _, word := range []string{"replaced here", "cuda_ipc", "stand-ins", "the host cannot touch"} {
		if !strings.Contains(story, word) {
			t.Errorf("the story does not say %q", word)
		}
	}
}

func TestRunsOnDevicesAreStandInsWithTheWaysThatUCXNeeds(t *testing.T) {
	list := []variant{{drive: "pump", ucxTLS: "tcp", p: "c", d: "node"}, {drive: "inline", p: "node", d: "c"}}
	for _, tc := range []struct {
		name string
		cfg  Config
		want []variant
		said []string
	}{
		{"host memory", Config{Memory: MemoryDRAM}, list, nil},
		{"GPUs", Config{Memory: MemoryVRAM, Device: Device{Reads: "transport"}},
			[]variant{{drive: "pump", ucxTLS: "tcp,cuda_copy", p: "node", d: "node"}, {drive: "inline", p: "node", d: "node"}}, []string{"C programs"}},
		{"a fake", Config{Memory: MemoryFakeCUDA, Device: Device{Reads: readsIPC, Machine: "/m", Driver: "/f.so"}},
			[]variant{{drive: "pump", ucxTLS: "tcp", p: "node", d: "node"}, {drive: "inline", p: "node", d: "node"}},
			[]string{"a fake (/f.so)", "NIXL's part", "made up", "C programs"}},
	} {
		if diff := cmp.Diff(tc.want, tc.cfg.played(list), cmp.AllowUnexported(variant{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
		replaced := tc.cfg.replaced()
		if len(replaced) != len(tc.said) {
			t.Fatalf("%s: %q", tc.name, replaced)
		}
		for i, word := range tc.said {
			if !strings.Contains(replaced[i], word) {
				t.Errorf("%s: %q does not say %q", tc.name, replaced[i], word)
			}
		}
	}
	if list[0].p != "c" {
		t.Error("the scenes themselves were changed")
	}
}

func TestADeviceThatIsLostFailsItsRunWithTheDriversReason(t *testing.T) {
	cfg := fakeDevices(t, "a", nil)
	cfg.Lease, cfg.together = 600*time.Millisecond, 1
	if _, err := fakecuda.Control(cfg.Device.Driver, "dies 1 cuMemcpyDtoH 5 719"); err != nil { // D looks at what it has read
		t.Fatal(err)
	}
	result, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	err = result.Verdict()
	for _, word := range []string{"D (decode", "read r1 (ok), and cannot look at it", "cuMemcpyDtoH", "CUDA_ERROR_LAUNCH_FAILED", "Remedy: "} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not say %q", err, word)
		}
	}
}

func TestAnEngineWhoseCoreBreaksFailsItsRunWithTheReason(t *testing.T) {
	var driver string
	cfg := fakeDevices(t, "a", func(s spec, line []byte) []byte {
		if s.name == "D" && bytes.Contains(line, []byte(`"engine_up"`)) { // somebody resets P's device
			_, _ = fakecuda.Control(driver, "destroy 0")
		}
		return line
	})
	driver, cfg.Lease, cfg.together = cfg.Device.Driver, 600*time.Millisecond, 1
	result, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	err = result.Verdict()
	for _, word := range []string{"the core of P (prefill", "is broken", "CUDA_ERROR_CONTEXT_IS_DESTROYED"} {
		if err == nil || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "goroutine") {
			t.Errorf("%v does not say %q", err, word)
		}
	}
	if len(result.Promises) != 0 {
		t.Errorf("%d promises of runs whose engine broke", len(result.Promises))
	}
}
