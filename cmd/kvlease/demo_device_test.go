package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/demo"
	"github.com/kvlease/kvlease/internal/require"
)

// deviceDemo runs the tool that `make build` has made, with KV caches on a fake device and a script of faults.
func deviceDemo(t *testing.T, program, script string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(program, slices.Concat([]string{"demo", "--memory", "fakecuda", "--svg", filepath.Join(t.TempDir(), "demo.svg")}, args)...)
	cmd.Env = append(os.Environ(), "KVL_FAKE_CUDA="+script)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func builtWithFake(t *testing.T) (program string) {
	t.Helper()
	program = builtPrograms(t).Node[0]
	if _, err := fakeDriver(program); err != nil {
		require.Skip(t, "nixl", err.Error())
	}
	return program
}

// TestTheScenesHoldOverRealNIXLWithMemoryThatTheHostCannotTouch: an engine that touches a block from the host would fall (package cuda's tests
// show that it does), and a fallen engine fails its run. b kills one, c stops one past its lease, j has a read that does not end.
func TestTheScenesHoldOverRealNIXLWithMemoryThatTheHostCannotTouch(t *testing.T) {
	code, out, story := deviceDemo(t, builtWithFake(t), "", "--only", "bcj", "--json")
	var result demo.Result
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, story)
	}
	if code != exitOK || !result.Kept || len(result.Promises) < 45 || len(result.Skipped) != 0 {
		t.Errorf("exit code %d, kept %v, %d promises, skipped: %q\n%s", code, result.Kept, len(result.Promises), result.Skipped, story)
	}
	never := 0
	for _, p := range result.Promises {
		if strings.HasPrefix(p.What, "wrong bytes") || strings.HasPrefix(p.What, "requests with wrong data") {
			never++
		}
	}
	if never < 8 || result.Memory != demo.MemoryFakeCUDA || len(result.Replaced) != 4 {
		t.Errorf("%d promises about wrong bytes, memory %s, replaced: %q", never, result.Memory, result.Replaced)
	}
}

func TestWhatAScriptedDriverDoesEndsTheDemoWithItsReason(t *testing.T) {
	program := builtWithFake(t)
	loads := make([]string, 60) // the plane tries again and again
	for i := range loads {
		loads[i] = fmt.Sprintf("fail cuIpcOpenMemHandle %d 217", i+1)
	}
	for _, tc := range []struct {
		name, script string
		code         int
		words        []string
	}{
		{"out of memory", "memory 0 0x100000", exitFailed, []string{"the KV cache", "cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", "gpu_memory_utilization"}},
		{"no memory for the context", "fail cuDevicePrimaryCtxRetain 1 2", exitFailed, []string{"cuDevicePrimaryCtxRetain", "CUDA_ERROR_OUT_OF_MEMORY"}},
		{"no peer memory", "attribute 0 124 0", exitFailed, []string{"no dma-buf", "nvidia_peermem"}},
		{"a lost device", "lost 0 719", exitFailed, []string{"CUDA_ERROR_LAUNCH_FAILED", "Xid"}},
		{"a device that is lost when P writes", "dies 0 cuEventQuery 3 719", exitFailed, []string{"P (prefill", "refused grant r2: its blocks were not written before its lease ended", "CUDA_ERROR_LAUNCH_FAILED", "Xid"}},
		{"a device that is lost when D meets P", "dies 0 cuIpcOpenMemHandle 1 719", exitFailed, []string{"D (decode", "CUDA_ERROR_LAUNCH_FAILED", "Xid"}},
		{"devices that cannot reach each other", strings.Join(loads, ";"), exitFailed, []string{`"engine_up" for P`, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "topo -p2p"}},
		{"no current context", "fail cuCtxPushCurrent 100 201", exitFailed, []string{"cuCtxPushCurrent", "CUDA_ERROR_INVALID_CONTEXT"}},
		{"an old driver", "version 11080", exitFailed, []string{"CUDA 11.8", "12.0", "525.60.13"}},
		{"a missing symbol", "missing cuFlushGPUDirectRDMAWrites", exitFailed, []string{"no symbol cuFlushGPUDirectRDMAWrites"}},
		{"no device", "devices 0", exitFailed, []string{"device 0", "CUDA_VISIBLE_DEVICES"}},
		{"a script with a slip", "memroy 0 0x100000", exitFailed, []string{"KVL_FAKE_CUDA", `"memroy 0 0x100000" is not understood`}},
		{"a script that names no call of the driver's", "fail cuMemAlocc 1 2", exitFailed, []string{`"fail cuMemAlocc 1 2" is not understood`}},
		{"devices that cannot reach each other once", "fail cuIpcOpenMemHandle 1 217", exitOK, []string{"refused D something", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "topo -p2p"}},
		{"a failure that the scene does not come to", "fail cuIpcCloseMemHandle 1 999", exitFailed, []string{"fail cuIpcCloseMemHandle 1 999", "do not come to it"}},
		{"a slow registration", "slow cuPointerSetAttribute 400;slow cuIpcGetMemHandle 400", exitOK, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			code, out, stderr := deviceDemo(t, program, tc.script, "--only", "b")
			if code != tc.code {
				t.Errorf("exit code %d, want %d\n%s\n%s", code, tc.code, stderr, out)
			}
			for _, w := range tc.words {
				if !strings.Contains(stderr+out, w) { // an overcome failure is part of the story
					t.Errorf("%q does not say %q", stderr+out, w)
				}
			}
		})
	}
}

// Without cuda/ipc in front NIXL is asked: its UCX has no way to the fake's memory, and must not go there in software.
func TestNIXLWithoutAWayToDevicesEndsTheDemoWithThatReason(t *testing.T) {
	program := builtWithFake(t)
	driver, err := fakeDriver(program)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "demo", "--memory", "vram", "--only", "b", "--svg", filepath.Join(t.TempDir(), "demo.svg"))
	cmd.Env = append(os.Environ(), "KVLEASE_CUDA="+driver)
	said, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != exitFailed || !strings.Contains(string(said), "of them device memory") || !strings.Contains(string(said), "Remedy: a UCX with its module for CUDA") {
		t.Errorf("%v\n%s", err, said)
	}
}

func TestArgumentsAboutDevicesAreHeldAgainstTheMemory(t *testing.T) {
	for _, tc := range []struct {
		args  []string
		names string
	}{
		{[]string{"demo", "--device", "1"}, "--memory of a device"},
		{[]string{"demo", "--memory", "vram", "--device", "1,2,3"}, "one GPU or two"},
		{[]string{"demo", "--memory", "vram", "--device=-1"}, "one GPU or two"},
		{[]string{"demo", "--memory", "hbm"}, `"dram","vram","fakecuda"`},
		{[]string{"node", "--device", "1"}, "--memory vram"},
		{[]string{"node", "--device-reads", "ipc"}, "--memory vram"},
		{[]string{"node", "--memory", "vram", "--device=-1"}, "count from 0"},
	} {
		if code, _, stderr := tool(t, nil, tc.args...); code != exitUsage || !strings.Contains(stderr, tc.names) {
			t.Errorf("%v: exit code %d, %q does not say %q", tc.args, code, stderr, tc.names)
		}
	}
}
