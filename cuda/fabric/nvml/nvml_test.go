package nvml

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/cuda/fabric"
)

func TestEachFailureOfTheManagementLibraryHasItsOwnMessage(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		want         error
		words        []string
	}{
		{"no kernel module", "fail Init_v2 1 9", fabric.ErrNoDriver, []string{"driver is not loaded"}},
		{"a library of another version", "fail Init_v2 1 18", fabric.ErrMismatch, []string{"another version than the kernel module"}},
		{"no rights to the devices", "fail Init_v2 1 4", fabric.ErrNoRights, []string{"may not open"}},
		{"a status that nobody has heard of", "fail Init_v2 1 777", nil, []string{"nvmlInit_v2: NVML status 777"}},
		{"an old driver", "driver 470.82.01 11040", fabric.ErrOldDriver, []string{"470.82.01, CUDA 11.4", "525.60.13"}},
		{"versions that are not told", "fail SystemGetDriverVersion 1 999", nil, []string{"nvmlSystemGetDriverVersion", "unknown error"}},
		{"a count that is rubbish", "counts 4000000000 0", nil, []string{"4000000000 GPUs"}},
		{"no count", "fail DeviceGetCount_v2 1 15", fabric.ErrLost, []string{"nvmlDeviceGetCount_v2: ", "fallen off the bus"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, "no-nic")
			l.tell("%s", tc.script)
			a, err := Look(l.library, 0)
			if err == nil || len(a.GPUs) != 0 {
				t.Fatalf("%v, %d GPUs", err, len(a.GPUs))
			}
			if tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("%v is not %v", err, tc.want)
			}
			contains(t, "error", err.Error(), tc.words...)
			l.tell("driver 550.54.15 12040")
			l.tell("counts 2 0")
			if h := l.look(); len(h.GPUs) != 2 {
				t.Errorf("afterwards %d GPUs are seen", len(h.GPUs))
			}
		})
	}
}

func TestALibraryThatIsNotThereIsNamed(t *testing.T) {
	if out := lookElsewhere(t, "driver 470.82.01 11040"); !strings.Contains(out, fabric.ErrOldDriver.Error()) {
		t.Errorf("the process that looks says %q", out)
	}
	l := newLab(t, "no-nic")
	l.look()
	const elsewhere = "/nowhere/libnvidia-ml.so.1"
	if _, err := Look(elsewhere, 0); !errors.Is(err, fabric.ErrOther) {
		t.Errorf("a second library in one process: %v, want %v", err, fabric.ErrOther)
	}
	bound.Lock()
	was := bound.path
	bound.path = ""
	bound.Unlock()
	_, err := Look(elsewhere, 0)
	bound.Lock()
	bound.path = was
	bound.Unlock()
	if !errors.Is(err, fabric.ErrNoLibrary) || !strings.Contains(err.Error(), "/nowhere/libnvidia-ml.so.1") {
		t.Errorf("%v, want the loader's words", err)
	}
}

func TestASymbolThatTheLibraryLacksEndsNoProcess(t *testing.T) {
	const gpus = "gpu 0 0000:01:00.0 A"
	for _, tc := range []struct {
		symbol, want string
	}{
		{"nvmlInit_v2", "nvmlInit_v2"},
		{"nvmlErrorString", "has no nvmlErrorString"},
		{"nvmlDeviceGetHandleByIndex_v2", "has no nvmlDeviceGetHandleByIndex_v2"},
		{"nvmlSystemGetCudaDriverVersion_v2", fabric.ErrOldDriver.Error()},
		{"nvmlDeviceGetPciInfo_v3", "gpu: 0 nvmlDeviceGetPciInfo_v3: " + fabric.ErrSymbol.Error()},
		{"nvmlDeviceGetRemappedRows", "gpu: 0 <nil> [nvmlDeviceGetRemappedRows]"},
		{"nvmlDeviceGetFieldValues", "gpu: 0 <nil> [nvmlDeviceGetFieldValues]"},
		{"nvmlDeviceGetMigMode", "gpu: 0 <nil> [nvmlDeviceGetMigMode]"},
		{"nvmlDeviceGetName", "gpu: 0 <nil> [nvmlDeviceGetName]"}, // which instances are asked for, too, as for the next two
		{"nvmlDeviceGetUUID", "gpu: 0 <nil> [nvmlDeviceGetUUID]"},
		{"nvmlDeviceGetMemoryInfo", "gpu: 0 <nil> [nvmlDeviceGetMemoryInfo]"},
	} {
		t.Run(tc.symbol, func(t *testing.T) {
			script := gpus
			if tc.symbol != "nvmlDeviceGetMigMode" {
				script += ";mig 0 1 1;instance 0 0 X 1"
			}
			contains(t, "said", lookElsewhere(t, script, tc.symbol), tc.want)
		})
	}
}

func TestALostGPUIsToldAndTheOthersAreLookedAt(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		want         error
		trouble      string
	}{
		{"gone from the start", "lost 1 1", fabric.ErrLost, "lost"},
		{"gone in the middle of the questions", "fail DeviceGetBAR1MemoryInfo 2 15", fabric.ErrLost, "lost"},
		{"waiting for a reset", "fail DeviceGetHandleByIndex_v2 2 16", fabric.ErrReset, "must be reset"},
		{"a question that fails for no known reason", "fail DeviceGetMemoryInfo 2 999", nil, "nvmlDeviceGetMemoryInfo"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, "far-socket")
			l.tell("%s", tc.script)
			h := l.look()
			if len(h.GPUs) != 4 || h.GPUs[0].Err != nil || h.GPUs[2].Err != nil || h.GPUs[2].BAR1.Total != 64<<30 {
				t.Fatalf("%+v", h.GPUs)
			}
			if err := h.GPUs[1].Err; err == nil || tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
			troubles := h.GPUs[1].Troubles()
			if len(troubles) == 0 || !troubles[0].Fatal || troubles[0].Fix == "" {
				t.Fatalf("%+v", troubles)
			}
			contains(t, "trouble", troubles[0].What, tc.trouble)
		})
	}
}

func TestWhatAilsAGPUIsSaidWithItsRemedy(t *testing.T) {
	for _, tc := range []struct {
		name, script, what string
		fatal              bool
	}{
		{"uncorrected errors", "ecc 0 1 1 7", "7 uncorrected ECC errors", true},
		{"ECC switched off", "ecc 0 0 0 0", "ECC is off", false},
		{"a row that could not be remapped", "remap 0 0 3 0 1", "could not be remapped", true},
		{"a row that waits", "remap 0 1 0 1 0", "waits to be remapped", false},
		{"an action that the driver asks for", "recovery 0 2", "reboot the node", true},
		{"an action that is newer than we are", "recovery 0 77", "action 77", true},
		{"a change of MIG", "mig 0 0 1", "change of MIG", false},
		{"the GPU fell off the bus", "xid 0 79", "Xid 79, the GPU has fallen off the bus", true},
		{"a program's error", "xid 0 31", "Xid 31, an application's error", false},
		{"an Xid that we do not know", "xid 0 600", "Xid 600", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, "no-nic")
			l.watch = time.Nanosecond
			l.tell("%s", tc.script)
			h := l.look()
			got := h.GPUs[0].Troubles()
			if h.Unwatched != nil || len(got) != 1 || got[0].Fatal != tc.fatal || !strings.Contains(got[0].What, tc.what) || got[0].Why == "" || got[0].Fix == "" {
				t.Errorf("%+v, %v", got, h.Unwatched)
			}
			if len(h.GPUs[1].Troubles()) != 0 {
				t.Errorf("the other GPU has %+v", h.GPUs[1].Troubles())
			}
		})
	}
}

func TestAHealthyGPUHasNoTrouble(t *testing.T) {
	h := newLab(t, "eight-by-eight").look()
	for i := range h.GPUs {
		if got := h.GPUs[i].Troubles(); len(got) != 0 || len(h.GPUs[i].Untold) != 0 {
			t.Errorf("GPU %d: %+v, untold %q", i, got, h.GPUs[i].Untold)
		}
	}
	if h.Driver.String() != "550.54.15, CUDA 12.4" || h.GPUs[7].BAR1 != (fabric.Room{Total: 128 << 30, Free: 128 << 30, Told: true}) || h.GPUs[7].Name != "NVIDIA H100 80GB HBM3" {
		t.Errorf("%v, %+v", h.Driver, h.GPUs[7])
	}
}

func TestXidsThatCannotBeWaitedForAreNoError(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		want         string
	}{
		{"no event set", "fail EventSetCreate 1 4", "nvmlEventSetCreate"},
		{"a wait that fails", "fail EventSetWait_v2 1 999", "nvmlEventSetWait_v2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, "no-nic")
			l.watch = time.Nanosecond
			l.tell("%s", tc.script)
			if h := l.look(); h.Unwatched == nil || !strings.Contains(h.Unwatched.Error(), tc.want) || len(h.GPUs) != 2 {
				t.Errorf("%v, %d GPUs", h.Unwatched, len(h.GPUs))
			}
		})
	}
	l := newLab(t, "no-nic")
	l.watch = time.Nanosecond
	l.tell("fail DeviceRegisterEvents 1 3")
	l.tell("fail DeviceRegisterEvents 2 3")
	l.tell("xid 0 79")
	if h := l.look(); h.Unwatched != nil || len(h.GPUs[0].Xids) != 0 {
		t.Errorf("GPUs without events: %v, %v", h.Unwatched, h.GPUs[0].Xids)
	}
}

func TestTheLibraryIsClosedAsOftenAsItIsOpened(t *testing.T) {
	l := newLab(t, "no-nic")
	for range 3 {
		l.look()
	}
	if opened, closed := l.tell("count Init_v2"), l.tell("count Shutdown"); opened != 3 || closed != 3 {
		t.Errorf("opened %d times, closed %d times", opened, closed)
	}
	l.tell("fail Shutdown 1 999")
	if _, err := Look(l.library, 0); err == nil || !strings.Contains(err.Error(), "999") {
		t.Errorf("a close that fails: %v", err)
	}
}

func TestMIGIsASwitchOfAGPU(t *testing.T) {
	l := newLab(t, "no-nic")
	l.tell("mig 0 1 1")
	l.tell("mig 1 -1 -1")
	h := l.look()
	if got := h.GPUs[0].MIG; got != (fabric.Mode{Has: true, Now: true, Next: true}) {
		t.Errorf("%+v", got)
	}
	if h.GPUs[1].MIG.Has || !slices.Contains(h.GPUs[1].Untold, "nvmlDeviceGetMigMode") {
		t.Errorf("%+v, %q", h.GPUs[1].MIG, h.GPUs[1].Untold)
	}
}

func TestInstancesOfAGPUInMIGMode(t *testing.T) {
	l := newLab(t, "no-nic")
	for _, line := range []string{"mig 0 1 1", "instance 0 0 NVIDIA_L40S_MIG_1g.12gb 10737418240", "instance 0 3 NVIDIA_L40S_MIG_3g.48gb 42949672960", "mig 1 0 0", "instance 1 0 X 1"} {
		l.tell("%s", line)
	}
	h := l.look()
	want := []fabric.Instance{
		{Name: "NVIDIA L40S MIG 1g.12gb", UUID: "MIG-0000fa4e-0000-0000-0000-000000000000", Memory: fabric.Room{Total: 10 << 30, Free: 10 << 30, Told: true}},
		{Name: "NVIDIA L40S MIG 3g.48gb", UUID: "MIG-0000fa4e-0000-0000-0003-000000000000", Memory: fabric.Room{Total: 40 << 30, Free: 40 << 30, Told: true}},
	}
	if diff := cmp.Diff(want, h.GPUs[0].Parts); diff != "" || len(h.GPUs[0].Troubles()) != 0 {
		t.Errorf("instances (-want +got):\n%s%+v", diff, h.GPUs[0].Troubles())
	}
	before := l.tell("count DeviceGetMigDeviceHandleByIndex")
	l.tell("counts 2 1000000")
	if many := l.look().GPUs[0].Parts; len(many) != 2 || l.tell("count DeviceGetMigDeviceHandleByIndex")-before > 1000 {
		t.Errorf("a GPU of which a million instances are counted has %d, after %d questions", len(many), l.tell("count DeviceGetMigDeviceHandleByIndex")-before)
	}
	l.tell("counts 2 0")
	if h.GPUs[1].Parts != nil {
		t.Errorf("a GPU whose MIG is off has %+v", h.GPUs[1].Parts)
	}
	l.tell("mig 1 1 1")
	l.tell("fail DeviceGetMigDeviceHandleByIndex 8 4") // the first of GPU 1: no rights
	if g := l.look().GPUs[1]; g.Err == nil || !errors.Is(g.Err, fabric.ErrNoRights) {
		t.Errorf("without the rights: %+v", g)
	}
	for _, symbol := range []string{"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"} {
		contains(t, "said", lookElsewhere(t, "gpu 0 0000:01:00.0 A;mig 0 1 1", symbol), "gpu: 0 <nil> ["+fabric.PartsSymbol+"]")
	}
}
