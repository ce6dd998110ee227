package cuda

import (
	"errors"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// everything does once what this package does with a driver, as far as each lets it, and gives all refusals. It ends as it began.
func everything(s *script) (refusals []error) {
	refuse := func(err error) bool {
		if err != nil {
			refusals = append(refusals, err)
		}
		return err == nil
	}
	d, err := Open(s.Path)
	if !refuse(err) {
		return refusals
	}
	_, err = d.Devices()
	refuse(err)
	_, err = d.Features(0)
	refuse(err)
	s.Do("engine 0 1")
	device, vmm := s.alloc("device", 0, 1<<20, 0), s.alloc("vmm", 0, 2<<20, 0)
	if h, err := d.Hold([]Region{{Addr: device, Bytes: 1 << 20, Name: "layer.0"}, {Addr: vmm, Bytes: 2 << 20, Name: "layer.1"}}, open64); refuse(err) {
		pushed, err := h.Enter()
		if refuse(err) && pushed {
			refuse(h.Leave())
		}
		refuse(h.Flush())
		refuse(h.Release())
	}
	c, err := d.Retain(0)
	if !refuse(err) {
		return refusals
	}
	defer func() { refuse(c.Release()) }()
	if e, err := c.Export(device, 4096); refuse(err) {
		_ = unix.Close(e.Fd)
	}
	if shared, err := c.Share(device); refuse(err) {
		if base, err := c.OpenShared(shared); err == nil { // of this very process it is refused, with a reason of its own
			refuse(c.CloseShared(base))
		} else if !strings.Contains(err.Error(), "this very process") {
			refuse(err)
		}
	}
	if addr, err := c.Alloc(4096); refuse(err) {
		refuse(c.Fill(addr, 1, 4096))
		refuse(c.CopyIn(addr, []byte("kv")))
		refuse(c.CopyOut(make([]byte, 2), addr))
		stream, err := c.NewStream()
		if refuse(err) {
			if event, err := c.NewEvent(); refuse(err) {
				refuse(c.Record(event, stream))
				refuse(c.Wait(stream, event))
				_, err := c.Copies(stream, []Copy{{From: addr, To: addr + 2048, Bytes: 16}}, event)
				refuse(err)
				_, err = c.Fired(event)
				refuse(err)
				refuse(c.EndEvent(event))
			}
			refuse(c.EndStream(stream))
		}
		refuse(c.Free(addr))
	}
	return refusals
}

// borne are functions whose failure is no refusal, with the reason.
var borne = map[string]string{
	"cuMemRetainAllocationHandle": "then the memory is not VMM",
	"cuMemRelease":                "nothing can be done about a handle that does not go",
	"cuIpcCloseMemHandle":         "a process cannot open its own memory; ipc_test.go fails it in another one",
}

// TestEachFunctionOfTheDriverThatFailsIsToldByItsNameAndCode: none is called without a look at what it answers.
func TestEachFunctionOfTheDriverThatFailsIsToldByItsNameAndCode(t *testing.T) {
	s := newScript(t)
	symbols := append(Symbols(), "cuCtxSetFlags")
	t.Run("none", func(t *testing.T) {
		if got := everything(s); len(got) != 0 {
			t.Fatalf("without a failure: %v", got)
		}
	})
	for _, symbol := range symbols {
		symbol = strings.TrimSuffix(symbol, "_v2")
		t.Run(symbol, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			s.Do("reset")
			if symbol == "cuFlushGPUDirectRDMAWrites" {
				s.Do("attribute 0 118 0") // else nobody needs it
			}
			s.Do("fail %s 1 999", symbol)
			got := everything(s)
			if n := s.Do("retains 0"); n > 1 && symbol != "cuDevicePrimaryCtxRelease" { // the engine's alone, once it has begun
				t.Errorf("the device's context is held %d times", n)
			}
			if _, ok := borne[symbol]; ok {
				for _, err := range got {
					if strings.Contains(err.Error(), symbol+":") {
						t.Errorf("%v, though it is borne", err)
					}
				}
				return
			}
			if symbol == "cuGetProcAddress" { // refuses a name, and the name is told
				if len(got) != 1 || !strings.Contains(got[0].Error(), "no symbol cuInit") {
					t.Errorf("%v", got)
				}
				return
			}
			if !slices.ContainsFunc(got, func(err error) bool {
				var e *Error
				return errors.As(err, &e) && e.Call == symbol && e.Code == 999 && strings.Contains(err.Error(), symbol+": CUDA_ERROR_UNKNOWN: ") && strings.Contains(err.Error(), "Remedy: ")
			}) {
				t.Errorf("nobody says that it failed: %v", got)
			}
			if n := s.Do("current"); n != 99 {
				t.Errorf("the thread is left with the context of device %d", n)
			}
		})
	}
}

// TestEachWayToFailOfTheFakeEndsInItsOwnMessage walks the commands of the fake that make something go wrong.
func TestEachWayToFailOfTheFakeEndsInItsOwnMessage(t *testing.T) {
	s := newScript(t)
	for _, tc := range []struct {
		command, script string // the first word of the script's lines
		words           []string
	}{
		{"fail", "fail cuMemAlloc 1 2", []string{"cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY", "not that much memory free"}},
		{"version", "version 11080", []string{"serves CUDA 11.8", "525.60.13"}},
		{"missing", "missing cuMemAlloc", []string{"no symbol cuMemAlloc"}},
		{"devices", "", []string{"device 1", "there is no such device", "CUDA_VISIBLE_DEVICES"}},
		{"attribute", "attribute 0 116 0;attribute 0 124 0", []string{"neither GPUDirect RDMA nor dma-buf"}},
		{"attribute", "attribute 0 124 0", []string{"no dma-buf, and nvidia_peermem is not loaded"}}, // no peer memory
		{"attribute", "attribute 0 110 0", []string{"no GPUDirect RDMA for VMM memory", "layer.1"}},
		{"attribute", "attribute 0 117 0;attribute 0 118 0", []string{"orders no writes of NICs"}},
		{"memory", "memory 0 3145728", []string{"cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"}}, // what two regions take
		{"engine", "", []string{"no primary context", "register after the engine has begun"}},
		{"lost", "lost 0 719", []string{"CUDA_ERROR_LAUNCH_FAILED", "device was lost"}},
		{"dies", "dies 0 cuMemcpyDtoH 2 214", []string{"cuMemcpyDtoH: CUDA_ERROR_ECC_UNCORRECTABLE", "out of service"}},
		{"destroy", "", []string{"CUDA_ERROR_CONTEXT_IS_DESTROYED", "before cudaDeviceReset"}},
		{"rdma", "", []string{"that GPUDirect RDMA cannot take"}},
		{"hole", "", []string{"nothing is mapped"}},
		{"alloc", "", []string{"managed memory"}},
	} {
		t.Run(tc.command+" "+tc.script, func(t *testing.T) {
			s.Do("reset")
			var got []error
			d, err := Open(s.Path)
			if err != nil {
				t.Fatal(err)
			}
			check := func(addr uint64) { _, err = d.Check([]Region{{Addr: addr, Bytes: 4 << 20}}, open64) }
			switch tc.command {
			case "engine":
				_, err = d.Retain(0)
			case "devices":
				s.Do("devices 1")
				_, err = d.Retain(1)
			case "destroy":
				c := s.retain(0)
				s.Do("destroy 0")
				_, err = c.Enter()
			case "rdma":
				addr := s.alloc("device", 0, 4<<20, 0)
				s.Do("rdma %#x 0", addr)
				check(addr)
			case "hole":
				addr := s.alloc("vmm", 0, 4<<20, 2<<20)
				s.Do("hole %#x 0x200000", addr+2<<20)
				check(addr)
			case "alloc":
				check(s.alloc("managed", 0, 4<<20, 0))
			default:
				for line := range strings.SplitSeq(tc.script, ";") {
					s.Do("%s", line)
				}
				got = everything(s)
			}
			if err != nil {
				got = append(got, err)
			}
			text := errors.Join(got...).Error()
			for _, w := range append(tc.words, "Remedy: ") {
				if !strings.Contains(text, w) {
					t.Errorf("%q does not say %q", text, w)
				}
			}
		})
	}
}

// harmless are commands of the fake that make nothing fail, with the test that uses them for what they are.
var harmless = []string{
	"count", "gate", "active", "retains", "flags", "base", "current", "synced", "byte", "waits", "reset", // they tell, or let wait
	"slow", "hold", "held", "work", "launch", // they take their time: hold_test.go, memory_test.go, ipc_test.go
}

// A new command comes with a message, or with a reason why it has none.
func TestNoWayToFailOfTheFakeIsLeftOut(t *testing.T) {
	text, err := os.ReadFile("fakecuda/src/script.c")
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(text), "*/")
	walked, err := os.ReadFile("scripted_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	for _, m := range regexp.MustCompile(`(?m)^ \*   ([a-z]+)\b`).FindAllStringSubmatch(head, -1) {
		commands = append(commands, m[1])
		if !slices.Contains(harmless, m[1]) && !strings.Contains(string(walked), "\t\t{\""+m[1]+"\", ") {
			t.Errorf("nothing is told of %s", m[1])
		}
	}
	if len(commands) < 20 {
		t.Errorf("commands %q", commands)
	}
}
