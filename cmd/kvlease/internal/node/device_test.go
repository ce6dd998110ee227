package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cuda/fakecuda"
	"github.com/kvlease/kvlease/cuda/fakecuda/faketest"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// device is a fake driver for the engines of one test, which may outlive it; do gives it a command.
func device(t *testing.T) (do func(format string, args ...any) int) {
	t.Helper()
	path, err := fakecuda.Build(t.TempDir(), "libfakecuda.so")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KVLEASE_CUDA", path)
	return (&faketest.Script{TB: t, Path: path}).Do
}

func onDevices(t *testing.T, lease time.Duration) (p, d *rig) {
	hub := loopback.NewHub()
	p = newRig(t, hub, Config{Role: "prefill", EngineID: "P", Lease: lease, Memory: MemoryVRAM, Reads: ReadsIPC, Watch: true})
	d = newRig(t, hub, Config{Role: "decode", EngineID: "D", Lease: lease, Memory: MemoryVRAM, Reads: ReadsIPC, Device: 1})
	d.must(jsonl.Command{Cmd: "engine", EngineID: "P", Handshake: p.must(jsonl.Command{Cmd: "handshake"}).Handshake})
	d.event("engine_up")
	return p, d
}

func TestAGrantIsAnsweredOnceADeviceHasWrittenItsBlocks(t *testing.T) {
	do := device(t)
	p, d := onDevices(t, 30*time.Second)
	do("hold 1")
	p.asked++
	p.raw(fmt.Sprintf(`{"cmd":"grant","n":%d,"id":"r1","blocks":[5,6,9]}`, p.asked))
	grant := p.asked
	for range 3 { // each in a pass of its own
		p.must(jsonl.Command{Cmd: "stats"})
	}
	for _, r := range p.events {
		if r.Re == grant {
			t.Fatalf("answered while its blocks are not written: %+v", r)
		}
	}
	do("hold 0")
	granted := p.next("the answer to grant", func(r *jsonl.Report) bool { return r.Re == grant })
	if granted.Refused() || len(granted.Params) == 0 || granted.TimeNS == 0 {
		t.Fatalf("%+v", granted)
	}
	d.must(jsonl.Command{Cmd: "track", ID: "r1", Params: granted.Params})
	d.must(jsonl.Command{Cmd: "read", ID: "r1"})
	if done := d.event("read_done"); done.Error != "" || done.BadBytes == nil || *done.BadBytes != 0 || done.Bytes != 3*2*16384 {
		t.Errorf("read: %+v", done)
	}
	if freed := p.event("freed"); freed.Reason != "completed" {
		t.Errorf("freed: %+v", freed)
	}
	for i, r := range []*rig{d, p} {
		r.raw(`{"cmd":"quit"}`)
		r.event("bye")
		if err := <-r.ended; err != nil || do("retains %d", 1-i) != 0 {
			t.Errorf("%v, the context is held %d times", err, do("retains %d", 1-i))
		}
	}
}

func TestALeaseThatEndsBeforeItsBlocksAreWrittenIsRefused(t *testing.T) {
	do := device(t)
	p, _ := onDevices(t, 900*time.Millisecond)
	for i, tc := range []struct {
		script string
		words  []string
	}{
		{"hold 1", []string{"not written before its lease ended"}},
		{"lost 0 719", []string{"not written before its lease ended", "cuEventQuery", "CUDA_ERROR_LAUNCH_FAILED", "Xid"}},
	} {
		do("hold 1")
		p.asked++
		p.raw(fmt.Sprintf(`{"cmd":"grant","n":%d,"id":"r%d","blocks":[%d]}`, p.asked, i, i))
		p.must(jsonl.Command{Cmd: "stats"})
		do("%s", tc.script)
		refused := p.next("the answer to grant", func(r *jsonl.Report) bool { return r.Re == p.asked-1 })
		if !refused.Refused() {
			t.Fatalf("%s: %+v", tc.script, refused)
		}
		for _, w := range tc.words {
			if !strings.Contains(refused.Error, w) {
				t.Errorf("%s: %q does not say %q", tc.script, refused.Error, w)
			}
		}
		if freed := p.event("freed"); freed.Reason != "expired" {
			t.Errorf("%s: freed: %+v", tc.script, freed)
		}
		do("lost 0 0")
		do("hold 0")
	}
}

func TestADeviceThatIsLostUnderAReadIsTold(t *testing.T) {
	do := device(t)
	p, d := onDevices(t, 30*time.Second)
	granted := p.must(jsonl.Command{Cmd: "grant", ID: "r1", Blocks: []uint32{1}})
	d.must(jsonl.Command{Cmd: "track", ID: "r1", Params: granted.Params})
	do("hold 1")
	d.must(jsonl.Command{Cmd: "read", ID: "r1"})
	do("lost 1 719")
	failed := d.event("read_failed")
	if failed.BlocksHeld == nil || !*failed.BlocksHeld || failed.HandedOut == nil || *failed.HandedOut != 0 {
		t.Errorf("%+v, want blocks that are held: copies may still land", failed)
	}
	do("lost 1 0")
	do("hold 0")
}

func TestDeviceMemoryIsRegisteredAgain(t *testing.T) {
	do := device(t)
	p, d := onDevices(t, 30*time.Second)
	if n := do("count cuIpcGetMemHandle"); n != 2 {
		t.Errorf("%d handles, want one for each engine: its layers touch", n)
	}
	p.must(jsonl.Command{Cmd: "unregister"})
	p.must(jsonl.Command{Cmd: "register"})
	d.must(jsonl.Command{Cmd: "engine", EngineID: "P", Handshake: p.must(jsonl.Command{Cmd: "handshake"}).Handshake})
	granted := p.must(jsonl.Command{Cmd: "grant", ID: "r1", Blocks: []uint32{1, 2}})
	d.must(jsonl.Command{Cmd: "track", ID: "r1", Params: granted.Params})
	d.event("engine_up")
	d.must(jsonl.Command{Cmd: "read", ID: "r1"})
	if done := d.event("read_done"); done.BadBytes == nil || *done.BadBytes != 0 {
		t.Errorf("read: %+v", done)
	}
}

func loopbacks() map[string]core.OpenTransport {
	return map[string]core.OpenTransport{"loopback": core.Loopback(loopback.NewHub())}
}

func TestADeviceThatIsNotThereEndsAnEngine(t *testing.T) {
	do := device(t)
	for script, words := range map[string][]string{
		"memory 0 0x100000": {"cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", "gpu_memory_utilization"},
		"devices 0":         {"device 0", "CUDA_VISIBLE_DEVICES"},
		"lost 0 719":        {"CUDA_ERROR_LAUNCH_FAILED", "Xid"},
		"active 0":          nil, // the control: nothing fails
	} {
		do("reset")
		do("%s", script)
		cfg := Config{Role: "prefill", Drive: "inline", Transport: "loopback", Lease: 30 * time.Second, Layers: 1, Blocks: 128, PassTime: time.Millisecond, Memory: MemoryVRAM, Reads: ReadsIPC}
		err := Run(t.Context(), cfg, loopbacks(), strings.NewReader(""), &strings.Builder{}, "test")
		if len(words) == 0 && err != nil {
			t.Errorf("%s: %v", script, err)
		}
		for _, w := range words {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v does not say %q", script, err, w)
			}
		}
	}
}
