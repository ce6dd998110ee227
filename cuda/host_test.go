package cuda

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"github.com/kvlease/kvlease/cuda/fakecuda/faketest"
)

func TestADevicesAddressIsNoHostMemory(t *testing.T) {
	s := newScript(t)
	s.open()
	t.Setenv("KVLEASE_CUDA", s.Path)
	own := make([]byte, 4096)
	regions := func(addr uint64) []Region {
		return []Region{{Addr: uint64(uintptr(unsafe.Pointer(&own[0]))), Bytes: 4096, Name: "layer.0"}, {Addr: addr, Bytes: 1 << 20, Name: "layer.1"}}
	}
	for _, kind := range []string{"device", "vmm", "pool", "ipc"} {
		wants(t, CheckHost(regions(s.alloc(kind, 1, 1<<20, 0))), ErrInvalid, `region 1 ("layer.1"`, "of device 1", "host memory was said", "KVL_MEM_VRAM")
	}
	wants(t, CheckHost(regions(s.alloc("managed", 1, 1<<20, 0))), ErrInvalid, "layer.1", "managed memory", "cudaMalloc")
	device := s.alloc("device", 0, 1<<20, 0)
	wants(t, CheckHost(regions(device-(1<<20)+16)), ErrInvalid, "device memory of device 0") // its end
	if err := CheckHost(regions(s.alloc("host", 0, 1<<20, 0))); err != nil {
		t.Errorf("pinned host memory: %v", err)
	}
	for _, code := range []int{3, 719} { // not begun, lost: nobody who tells host memory
		s.Do("fail cuPointerGetAttributes 1 %d", code)
		if err := CheckHost(regions(device)); err != nil {
			t.Errorf("a driver that answers %d: %v", code, err)
		}
	}
}

func TestADriverIsNeitherLoadedNorBegunForHostMemory(t *testing.T) {
	if os.Getenv("KVLEASE_TEST_ENV") == "" { // a process without a driver
		s := newScript(t)
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), "KVLEASE_TEST_ENV=1", "KVLEASE_CUDA="+s.Path)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	own := make([]byte, 4096)
	regions := []Region{{Addr: uint64(uintptr(unsafe.Pointer(&own[0]))), Bytes: 4096}}
	mapped := func() bool {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(maps), os.Getenv("KVLEASE_CUDA"))
	}
	if err := CheckHost(regions); err != nil || mapped() {
		t.Fatalf("%v, loaded %v", err, mapped())
	}
	s := &script{&faketest.Script{TB: t, Path: os.Getenv("KVLEASE_CUDA")}}
	s.Do("reset") // loads it, as UCX's module does in an engine without device memory
	if err := CheckHost(regions); err != nil || s.Do("count cuInit") != 0 || s.Do("count cuPointerGetAttributes") == 0 {
		t.Errorf("%v, begun %d times, asked %d times", err, s.Do("count cuInit"), s.Do("count cuPointerGetAttributes"))
	}
}
