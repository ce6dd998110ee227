package cuda

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestKindsOfMemoryAreToldApart(t *testing.T) {
	s := newScript(t)
	d := s.open()
	s.Do("engine 1 1")
	const size = 8 << 20
	for name, want := range map[string]Pointer{
		"device":  {Kind: Device, Device: 1, RDMA: true, Context: true},
		"managed": {Kind: Managed, Device: 1},
		"pool":    {Kind: Pool, Device: 1, RDMA: true},
		"ipc":     {Kind: IPC, Device: 1, RDMA: true, Context: true},
		"vmm":     {Kind: VMM, Device: 1, RDMA: true},
		"host":    {Kind: Host, Device: 1},
	} {
		t.Run(name, func(t *testing.T) {
			addr := s.alloc(name, 1, size, 2<<20)
			want.Base, want.Bytes, want.Mapping, want.MappingBytes = addr, size, addr, size
			if name == "vmm" {
				want.Mapping, want.MappingBytes = addr+4<<20, 2<<20
			}
			got, err := d.Pointer(addr + 5<<20)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	var local byte
	if got, err := d.Pointer(uint64(uintptr(unsafe.Pointer(&local)))); err != nil || got.Kind != Unknown || got.Device != -1 {
		t.Errorf("host memory: %+v, %v", got, err)
	}
	s.Do("fail cuPointerGetAttributes 1 201") // what some drivers say of such an address
	if got, err := d.Pointer(4096); err != nil || got.Kind != Unknown || got.Device != -1 {
		t.Errorf("host memory: %+v, %v", got, err)
	}
	addr := s.alloc("device", 1, 4096, 0)
	s.Do("fail cuPointerGetAttributes 1 999")
	_, err := d.Pointer(addr)
	wants(t, err, ErrUnavailable, "cuPointerGetAttributes", "CUDA_ERROR_UNKNOWN")
	s.Do("fail cuPointerGetAttribute 1 719")
	_, err = d.Pointer(addr)
	wants(t, err, ErrUnavailable, "cuPointerGetAttribute", "CUDA_ERROR_LAUNCH_FAILED")
	if s.Do("count cuMemRelease") != 1 {
		t.Errorf("%d handles of VMM memory given back, want that of one look", s.Do("count cuMemRelease"))
	}
}

func TestWhatADeviceOffersToNICs(t *testing.T) {
	s := newScript(t)
	d := s.open()
	got, err := d.Features(1)
	want := Features{RDMA: true, RDMAWithVMM: true, FlushHost: true, Ordering: OrderingOwner, DMABuf: true, PCI: "0000:1c:00.0"}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, a := range []string{"110 0", "116 0", "117 2", "118 200", "124 0", "50 1"} {
		s.Do("attribute 1 %s", a)
	}
	got, err = d.Features(1)
	want = Features{FlushStream: true, Ordering: OrderingAll, PCI: "0001:1c:00.0"}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	s.Do("fail cuDeviceGetAttribute 3 101")
	_, err = d.Features(1)
	wants(t, err, ErrInvalid, "device 1", "cuDeviceGetAttribute", "CUDA_ERROR_INVALID_DEVICE")
}

func TestSynchronousCopiesAreSetOnTheAllocationOrTheContext(t *testing.T) {
	s := newScript(t)
	c := s.retain(0)
	own := s.alloc("device", 0, 4096, 0)
	if err := c.SyncMemops(own); err != nil || s.Do("synced %#x", own) != 1 || s.Do("flags 0") != 0 {
		t.Errorf("synced %d, flags %#x, %v", s.Do("synced %#x", own), s.Do("flags 0"), err)
	}
	for _, kind := range []string{"vmm", "pool"} {
		if err := c.SyncMemops(s.alloc(kind, 0, 2<<20, 0)); err != nil || s.Do("flags 0") != 0x80 {
			t.Errorf("%s: flags %#x, %v", kind, s.Do("flags 0"), err)
		}
	}
	if n := s.Do("count cuCtxSetFlags"); n != 1 {
		t.Errorf("flags set %d times, want once", n)
	}
}

func TestADriverBefore12_1CannotSynchronizeVMMMemory(t *testing.T) {
	if os.Getenv("KVLEASE_TEST_ENV") == "" { // the table of a library is filled once per process
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), "KVLEASE_TEST_ENV=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	s := newScript(t)
	s.Do("version 12000")
	c := s.retain(0)
	wants(t, c.SyncMemops(s.alloc("vmm", 0, 2<<20, 0)), ErrUnavailable, "cuPointerSetAttribute", "cuCtxSetFlags", "12.1", "expandable_segments")
	if err := c.SyncMemops(s.alloc("device", 0, 4096, 0)); err != nil {
		t.Error(err)
	}
}

func TestAnExportIsWholePagesAroundTheRange(t *testing.T) {
	s := newScript(t)
	c := s.retain(0)
	addr := s.alloc("device", 0, 1<<16, 0)
	e, err := c.Export(addr+5000, 5000)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(e.Fd)
	if e.Offset != 5000-4096 || e.Bytes != 8192 {
		t.Errorf("%+v, want an offset of 904 in 8192 bytes", e)
	}
	if _, err := unix.FcntlInt(uintptr(e.Fd), unix.F_GETFD, 0); err != nil {
		t.Errorf("descriptor: %v", err)
	}
}

func TestRemoteWritesAreFlushedWhereTheirOrderNeedsIt(t *testing.T) {
	for _, tc := range []struct {
		name, order, flush string
		needed             bool
		calls              int
		refused            bool
	}{
		{name: "ordered for all", order: "200", flush: "0"},
		{name: "ordered for the owner", order: "100", flush: "1"},
		{name: "not ordered", order: "0", flush: "1", needed: true, calls: 1},
		{name: "not ordered and no flush from the host", order: "0", flush: "2", needed: true, refused: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newScript(t)
			s.Do("attribute 0 118 %s", tc.order)
			s.Do("attribute 0 117 %s", tc.flush)
			c := s.retain(0)
			needed, err := c.Flush()
			if tc.refused {
				wants(t, err, ErrUnavailable, "device 0", "cuDeviceGetAttribute", "orders no writes")
			} else if err != nil {
				t.Error(err)
			}
			if n := s.Do("count cuFlushGPUDirectRDMAWrites"); needed != tc.needed || n != tc.calls {
				t.Errorf("needed %v, %d calls", needed, n)
			}
			if tc.calls > 0 {
				s.Do("fail cuFlushGPUDirectRDMAWrites 1 801")
				_, err := c.Flush()
				wants(t, err, ErrUnavailable, "cuFlushGPUDirectRDMAWrites", "CUDA_ERROR_NOT_SUPPORTED")
			}
		})
	}
}

func TestDeviceMemoryIsReachedThroughTheDriverOnly(t *testing.T) {
	s := newScript(t)
	c := s.retain(0)
	addr, err := c.Alloc(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Fill(addr, 7, 1<<16); err != nil {
		t.Fatal(err)
	}
	if err := c.CopyIn(addr+8, []byte("kv")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if err := c.CopyOut(got, addr+7); err != nil || string(got) != "\x07kv\x07" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := unix.Write(pipe(t), unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), 1)); err != unix.EFAULT {
		t.Errorf("the kernel read device memory from the host: %v, want EFAULT", err)
	}
	if err := c.Free(addr); err != nil {
		t.Error(err)
	}
	wants(t, c.CopyOut(got, addr), ErrInvalid, "cuMemcpyDtoH", "CUDA_ERROR_INVALID_VALUE")
}

func pipe(t *testing.T) int {
	var ends [2]int
	if err := unix.Pipe(ends[:]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(ends[0]); unix.Close(ends[1]) })
	return ends[1]
}

func TestAnEventFiresWhenTheWorkBeforeItIsDone(t *testing.T) {
	s := newScript(t)
	c := s.retain(0)
	stream, e := s.queue(c)
	addr := s.alloc("device", 0, 4096, 0)
	if fired, err := c.Fired(e); err != nil || !fired {
		t.Errorf("never recorded: %v, %v", fired, err)
	}
	if err := c.Fill(addr, 1, 4096); err != nil {
		t.Fatal(err)
	}
	s.Do("hold 1")
	s.Do("launch %#x 4096 9", addr)
	if err := c.Record(e, stream); err != nil {
		t.Fatal(err)
	}
	if fired, err := c.Fired(e); err != nil || fired || s.Do("byte %#x", addr) != 1 {
		t.Errorf("before the work: %v, %v", fired, err)
	}
	if err := c.Wait(stream, e); err != nil || s.Do("waits") != 1 {
		t.Errorf("%d waits, %v", s.Do("waits"), err)
	}
	s.Do("hold 0")
	if fired, err := c.Fired(e); err != nil || !fired || s.Do("byte %#x", addr) != 9 {
		t.Errorf("after it: %v, %v", fired, err)
	}
	for _, call := range []string{"cuEventRecord", "cuStreamWaitEvent", "cuStreamCreate", "cuEventCreate"} {
		s.Do("fail %s 1 719", call)
	}
	wants(t, c.Record(e, stream), ErrUnavailable, "cuEventRecord")
	wants(t, c.Wait(stream, e), ErrUnavailable, "cuStreamWaitEvent")
	_, err := c.NewStream()
	wants(t, err, ErrUnavailable, "cuStreamCreate")
	_, err = c.NewEvent()
	wants(t, err, ErrUnavailable, "cuEventCreate")
	for _, err := range []error{c.EndEvent(e), c.EndStream(stream)} {
		if err != nil {
			t.Error(err)
		}
	}
	wants(t, c.EndEvent(e), ErrInvalid, "cuEventDestroy", "CUDA_ERROR_INVALID_HANDLE")
	wants(t, c.EndStream(stream), ErrInvalid, "cuStreamDestroy", "CUDA_ERROR_INVALID_HANDLE")
}
