package cuda

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/internal/child"
)

// envOwner is the fake of a process that owns device memory, as an engine beside this one does.
const envOwner = "KVLEASE_TEST_IPC_OWNER"

const sharedBytes = 3 * 512 // behind another allocation of 512 bytes: not at a page's begin

// actOwner prints the handle of memory of its own, reads a byte's offset and a value for it, a line each, and answers what it finds there. It
// ends with stdin.
func actOwner(lib string) error {
	d, err := Open(lib)
	if err != nil {
		return err
	}
	c, err := d.Make(0)
	if err != nil {
		return err
	}
	if _, err := c.Alloc(512); err != nil {
		return err
	}
	addr, err := c.Alloc(sharedBytes)
	if err != nil {
		return err
	}
	h, err := c.Share(addr + 700)
	if err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(h[:]))
	for {
		var at uint64
		var value byte
		if _, err := fmt.Scanln(&at, &value); err != nil {
			return nil
		}
		var had [1]byte
		if err := c.CopyOut(had[:], addr+at); err != nil {
			return err
		}
		if err := c.Fill(addr+at, value, 1); err != nil {
			return err
		}
		fmt.Println(had[0])
	}
}

// owner is such a process.
type owner struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	handle Shared
}

func newOwner(t *testing.T, s *script) *owner {
	t.Helper()
	o := &owner{t: t, cmd: exec.Command(os.Args[0])}
	o.cmd.Env = append(os.Environ(), envOwner+"="+s.Path)
	o.cmd.Stderr = os.Stderr
	in, out := child.Pipes(t, o.cmd)
	o.in, o.out = in, bufio.NewReader(out)
	if err := o.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.end)
	n, err := hex.Decode(o.handle[:], []byte(o.line()))
	if err != nil || n != len(o.handle) {
		t.Fatalf("%d bytes of a handle: %v", n, err)
	}
	return o
}

func (o *owner) line() string {
	o.t.Helper()
	line, err := o.out.ReadString('\n')
	if err != nil {
		o.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func (o *owner) set(at uint64, value byte) (had string) {
	o.t.Helper()
	fmt.Fprintln(o.in, at, value)
	return o.line()
}

func (o *owner) end() {
	o.in.Close()
	_ = o.cmd.Wait() // again after a test has ended it
}

func TestMemoryOfAnotherProcessIsReadByItsHandle(t *testing.T) {
	s := newScript(t)
	o := newOwner(t, s)
	c := s.retain(0)
	base, err := c.OpenShared(o.handle)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.OpenShared(o.handle); err != nil || again != base {
		t.Errorf("opened again: %#x, %v, want %#x", again, err, base)
	}
	if at, err := c.driver.Pointer(base + 5); err != nil || at.Base != base || at.Bytes != sharedBytes || at.Kind != IPC {
		t.Errorf("%+v, %v", at, err)
	}
	own, err := c.Alloc(sharedBytes)
	if err != nil {
		t.Fatal(err)
	}
	stream, event := s.queue(c)
	o.set(0, 11)
	o.set(sharedBytes-1, 22)
	list := []Copy{{own + 100, base, 1}, {own + 200, base + sharedBytes - 1, 1}}
	if n, err := c.Copies(stream, list, event); err != nil || n != 2 {
		t.Fatalf("%d copies, %v", n, err)
	}
	if fired, err := c.Fired(event); err != nil || !fired || s.Do("byte %#x", own+100) != 11 || s.Do("byte %#x", own+200) != 22 {
		t.Errorf("fired %v, %v, bytes %d and %d", fired, err, s.Do("byte %#x", own+100), s.Do("byte %#x", own+200))
	}
	if n, err := c.Copies(stream, []Copy{{base + 1, own + 200, 1}, {base, own, sharedBytes + 1}}, event); n != 1 {
		t.Errorf("a copy past an end: %d begun, %v", n, err)
	} else {
		wants(t, err, ErrInvalid, "cuMemcpyDtoDAsync", "CUDA_ERROR_INVALID_VALUE")
	}
	if had := o.set(1, 0); had != "22" {
		t.Errorf("the owner finds %s where this process wrote", had)
	}
	for range 2 { // it was opened twice
		if err := c.CloseShared(base); err != nil {
			t.Error(err)
		}
	}
	wants(t, c.CloseShared(base), ErrInvalid, "cuIpcCloseMemHandle")
	if at, err := c.driver.Pointer(base); err != nil || at.Kind != Unknown {
		t.Errorf("after it was closed: %+v, %v", at, err)
	}
}

func TestWhatCannotBeSharedOrOpenedIsSaid(t *testing.T) {
	s := newScript(t)
	c := s.retain(0)
	_, err := c.Share(s.alloc("vmm", 0, 4096, 0))
	wants(t, err, ErrInvalid, "cuIpcGetMemHandle")
	own, err := c.Alloc(512)
	if err != nil {
		t.Fatal(err)
	}
	h, err := c.Share(own)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.OpenShared(h)
	wants(t, err, ErrUnavailable, "cuIpcOpenMemHandle", "CUDA_ERROR_INVALID_CONTEXT", "this very process")
	_, err = c.OpenShared(Shared{})
	wants(t, err, ErrInvalid, "cuIpcOpenMemHandle", "CUDA_ERROR_INVALID_HANDLE")
	o := newOwner(t, s)
	s.Do("fail cuIpcOpenMemHandle 1 217")
	_, err = c.OpenShared(o.handle)
	wants(t, err, ErrUnavailable, "cuIpcOpenMemHandle", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "topo -p2p")
	o.end()
	_, err = c.OpenShared(o.handle)
	wants(t, err, ErrInvalid, "cuIpcOpenMemHandle", "CUDA_ERROR_INVALID_HANDLE", "is gone")
}

func TestMemoryThatIsOpenedOutlivesItsOwner(t *testing.T) {
	s := newScript(t)
	o := newOwner(t, s)
	c := s.retain(0)
	base, err := c.OpenShared(o.handle)
	if err != nil {
		t.Fatal(err)
	}
	o.set(9, 99)
	if err := o.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	o.end()
	got := make([]byte, 1)
	if err := c.CopyOut(got, base+9); err != nil || got[0] != 99 {
		t.Errorf("%d, %v", got[0], err)
	}
}

func TestWorkThatTakesItsTimeIsThereWhenItsEventHasFired(t *testing.T) {
	s := newScript(t)
	c := s.retain(0)
	addr, err := c.Alloc(1 << 10)
	if err != nil {
		t.Fatal(err)
	}
	stream, event := s.queue(c)
	if err := c.Fill(addr, 7, 512); err != nil {
		t.Fatal(err)
	}
	s.Do("work 1")
	if _, err := c.Copies(stream, []Copy{{addr + 512, addr, 512}}, event); err != nil {
		t.Fatal(err)
	}
	for fired := false; !fired; {
		if fired, err = c.Fired(event); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 512)
	if err := c.CopyOut(got, addr+512); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{7}, 512)) {
		t.Errorf("after the event: %v, %v", got[:4], err)
	}
	s.Do("work 3600000")
	if err := c.Fill(addr, 8, 512); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Copies(stream, []Copy{{addr + 512, addr, 512}}, event); err != nil {
		t.Fatal(err)
	}
	if fired, err := c.Fired(event); err != nil || fired || s.Do("byte %#x", addr+512) != 7 {
		t.Errorf("an hour early: fired %v, %v, the byte is %d", fired, err, s.Do("byte %#x", addr+512))
	}
	s.Do("hold 0") // all that is held is done
	if fired, err := c.Fired(event); err != nil || !fired || s.Do("byte %#x", addr+512) != 8 {
		t.Errorf("let go: fired %v, %v, the byte is %d", fired, err, s.Do("byte %#x", addr+512))
	}
}

func TestWorkIsHeldWhileAFileIsThere(t *testing.T) {
	s := newScript(t)
	c := s.retain(0)
	addr, err := c.Alloc(512)
	if err != nil {
		t.Fatal(err)
	}
	event, err := c.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "held")
	s.Do("held %s", file)
	for _, held := range []bool{true, false} {
		if held {
			err = os.WriteFile(file, nil, 0o600)
		} else {
			err = os.Remove(file)
		}
		if err == nil {
			_, err = c.Copies(0, []Copy{{addr, addr + 256, 256}}, event)
		}
		if err != nil {
			t.Fatal(err)
		}
		if fired, err := c.Fired(event); err != nil || fired == held {
			t.Errorf("held %v: fired %v, %v", held, fired, err)
		}
	}
}

func TestADeviceDiesAtACall(t *testing.T) {
	s := newScript(t)
	c := s.retain(0)
	addr, err := c.Alloc(512)
	if err != nil {
		t.Fatal(err)
	}
	s.Do("dies 0 cuMemcpyDtoH 3 719")
	got := make([]byte, 1)
	for i := range 4 {
		err := c.CopyOut(got, addr)
		if dead := i >= 2; dead != (err != nil) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	wants(t, c.Fill(addr, 1, 1), ErrUnavailable, "CUDA_ERROR_LAUNCH_FAILED")
}

func TestACopyOfAListAllocatesNothing(t *testing.T) {
	s := newScript(t)
	c := s.retain(0)
	addr, err := c.Alloc(1 << 10)
	if err != nil {
		t.Fatal(err)
	}
	event, err := c.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	list := []Copy{{addr + 512, addr, 512}}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := c.Copies(0, list, event); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAHostThatTouchesDeviceMemoryFalls(t *testing.T) {
	s := newScript(t)
	for _, kind := range []string{"own", "shared"} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), envTouch+"="+kind, envOwner+"="+s.Path)
		if kind == "shared" {
			h := newOwner(t, s).handle
			cmd.Env = append(cmd.Env, envHandle+"="+hex.EncodeToString(h[:]))
		}
		said, err := cmd.CombinedOutput()
		// Go's runtime tells of the signal and its address, then exits with 2.
		if err == nil || !bytes.Contains(said, []byte("SIGSEGV")) || !bytes.Contains(said, []byte("touching")) {
			t.Errorf("%s memory: %v\n%.600s", kind, err, said)
		}
	}
}
