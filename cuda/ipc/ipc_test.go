package ipc

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/internal/child"
)

// wire stands for a transport that reaches other processes: it takes any metadata.
type wire struct {
	transport.Nobody
	agents     int
	registered []transport.Region
	refuse     error
	sends      error
}

func (w *wire) Send(transport.Peer, []byte) error { return w.sends }

func (w *wire) Register(r []transport.Region) error {
	w.registered = append(w.registered, r...)
	return w.refuse
}
func (w *wire) Unregister([]transport.Region) error { return nil }
func (w *wire) Metadata() ([]byte, error)           { return []byte("of the wire"), nil }
func (w *wire) Load(blob []byte) (transport.Peer, error) {
	if string(blob) != "of the wire" {
		return 0, fmt.Errorf("%q: %w", blob, transport.ErrInvalid)
	}
	w.agents++
	return transport.Peer(w.agents), w.refuse
}

// envOwner is the fake of a process that owns device memory. It prints its metadata and ends with stdin.
const (
	envOwner   = "KVLEASE_TEST_IPC_OWNER"
	ownerBytes = 8192
)

func actOwner(lib string) error {
	d, err := cuda.Open(lib)
	if err != nil {
		return err
	}
	ctx, err := d.Make(0)
	if err != nil {
		return err
	}
	addr, err := ctx.Alloc(2 * ownerBytes)
	if err != nil {
		return err
	}
	for i := range uint64(2) {
		if err := ctx.Fill(addr+i*ownerBytes, byte(i+1), ownerBytes); err != nil {
			return err
		}
	}
	t, err := New(&wire{}, Config{Driver: d, ReadsMax: 1, DescsMax: 1})
	if err != nil {
		return err
	}
	regions := []transport.Region{{Addr: 4096, Bytes: 4096}, {Addr: addr + ownerBytes, Bytes: ownerBytes, Mem: transport.VRAM}}
	if err := t.Register(regions); err != nil {
		return err
	}
	blob, err := t.Metadata()
	if err != nil {
		return err
	}
	fmt.Println(regions[1].Addr, hex.EncodeToString(blob))
	_, _ = fmt.Scanln()
	return nil
}

// owner starts such a process; end kills it.
func owner(t *testing.T, r *rig) (addr uint64, blob []byte, end func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envOwner+"="+r.Path)
	cmd.Stderr = os.Stderr
	in, out := child.Pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(func() { in.Close(); end() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var text string
	if _, err := fmt.Sscan(line, &addr, &text); err != nil {
		t.Fatal(err)
	}
	if blob, err = hex.DecodeString(text); err != nil {
		t.Fatal(err)
	}
	return addr, blob, end
}

func newReader(t *testing.T, r *rig) (tr *Transport, local uint64) {
	t.Helper()
	tr, err := New(&wire{}, Config{Driver: r.driver, ReadsMax: 4, DescsMax: 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.Close() })
	local = r.alloc(ownerBytes)
	if err := r.ctx.Fill(local, 0, ownerBytes); err != nil { // what an allocation has in it is anybody's
		t.Fatal(err)
	}
	if err := tr.Register([]transport.Region{{Addr: local, Bytes: ownerBytes, Mem: transport.VRAM}}); err != nil {
		t.Fatal(err)
	}
	return tr, local
}

func ended(t *testing.T, tr *Transport, x transport.Xfer) transport.Status {
	t.Helper()
	xs, out := []transport.Xfer{x}, []transport.Status{transport.Pending}
	for out[0] == transport.Pending { // ends with the test's time
		tr.PollReads(xs, out, 1000)
	}
	return out[0]
}

func vram(p transport.Peer, descs ...transport.Desc) *transport.ReadSpec {
	return &transport.ReadSpec{Peer: p, LocalMem: transport.VRAM, RemoteMem: transport.VRAM, Descs: descs}
}

func TestDeviceMemoryOfAnotherProcessIsReadAndNothingElseOfIt(t *testing.T) {
	r := newRig(t)
	addr, blob, end := owner(t, r)
	tr, local := newReader(t, r)
	if n := len(tr.inner.(*wire).registered); n != 0 {
		t.Errorf("the wire was given %d regions of device memory", n)
	}
	peer, err := tr.Load(blob)
	if err != nil {
		t.Fatal(err)
	}
	x, err := tr.PostRead(vram(peer, transport.Desc{Local: local + 8, Remote: addr + ownerBytes - 4, Len: 4}))
	if err != nil || ended(t, tr, x) != transport.Done || r.Do("byte %#x", local+8) != 2 || r.Do("byte %#x", local+12) != 0 {
		t.Errorf("%v, bytes %d and %d", err, r.Do("byte %#x", local+8), r.Do("byte %#x", local+12))
	}
	if err := tr.Release(x); err != nil {
		t.Error(err)
	}
	for name, spec := range map[string]*transport.ReadSpec{
		"before its region, in its allocation": vram(peer, transport.Desc{Local: local, Remote: addr - 1, Len: 2}),
		"past its region":                      vram(peer, transport.Desc{Local: local, Remote: addr + ownerBytes - 1, Len: 2}),
		"past ours":                            vram(peer, transport.Desc{Local: local + ownerBytes - 1, Remote: addr, Len: 2}),
		"that wraps":                           vram(peer, transport.Desc{Local: local, Remote: addr + 1, Len: ^uint64(0)}),
		"into host memory":                     {Peer: peer, RemoteMem: transport.VRAM, Descs: []transport.Desc{{Local: 4096, Remote: addr, Len: 8}}},
		"of host memory":                       {Peer: peer, LocalMem: transport.VRAM, Descs: []transport.Desc{{Local: local, Remote: 4096, Len: 8}}},
		"of nobody":                            vram(peer+1, transport.Desc{Local: local, Remote: addr, Len: 8}),
		"of nothing":                           vram(peer),
	} {
		if x, err := tr.PostRead(spec); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("a read %s: %d, %v", name, x, err)
		}
	}
	end()
	x, err = tr.PostRead(vram(peer, transport.Desc{Local: local, Remote: addr, Len: 8}))
	if err != nil || ended(t, tr, x) != transport.Done { // the fence behind it tells that the owner is gone
		t.Errorf("after its death: %v", err)
	}
	if err := errors.Join(tr.Abandon(peer), tr.Release(x)); err != nil || r.Do("count cuIpcCloseMemHandle") != 1 {
		t.Errorf("%v, closed %d times", err, r.Do("count cuIpcCloseMemHandle"))
	}
	if _, err := tr.Load(blob); err == nil || !strings.Contains(err.Error(), "is gone") {
		t.Errorf("loaded after its death: %v", err)
	}
}

func TestTheDriversFailuresEndAReadAndLeakNothing(t *testing.T) {
	r := newRig(t)
	addr, blob, _ := owner(t, r)
	tr, local := newReader(t, r)
	r.Do("fail cuIpcOpenMemHandle 1 217")
	if _, err := tr.Load(blob); !errors.Is(err, transport.ErrUnavailable) || !strings.Contains(err.Error(), "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED") {
		t.Errorf("no peer access: %v", err)
	}
	tr.inner.(*wire).refuse = transport.ErrFull
	if _, err := tr.Load(blob); !errors.Is(err, transport.ErrFull) || r.Do("count cuIpcCloseMemHandle") != 1 {
		t.Errorf("refused by the wire: %v, closed %d times", err, r.Do("count cuIpcCloseMemHandle"))
	}
	tr.inner.(*wire).refuse = nil
	peer, err := tr.Load(blob)
	if err != nil {
		t.Fatal(err)
	}
	two := vram(peer, transport.Desc{Local: local, Remote: addr, Len: 8}, transport.Desc{Local: local + 64, Remote: addr + 128, Len: 8})
	for _, script := range []string{"fail cuEventCreate 1 2", "fail cuMemcpyDtoDAsync 1 719", "lost 0 719"} {
		r.Do("%s", script)
		if x, err := tr.PostRead(two); !errors.Is(err, transport.ErrUnavailable) || x != 0 {
			t.Errorf("%s: %d, %v", script, x, err)
		}
		r.Do("lost 0 0")
	}
	for _, script := range []string{"fail cuMemcpyDtoDAsync 2 719", "fail cuEventRecord 1 719", "fail cuEventQuery 1 719"} {
		r.Do("%s", script)
		x, err := tr.PostRead(two)
		if err != nil || ended(t, tr, x) != transport.FailedHere {
			t.Errorf("%s: %v, want a failed read: a part of it may land", script, err)
		}
		if err := tr.Drop(peer); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("%s: dropped under an open read: %v", script, err)
		}
		if err := tr.Release(x); err != nil {
			t.Errorf("%s: %v", script, err)
		}
	}
	if len(tr.free) != len(tr.slots) {
		t.Errorf("%d of %d reads are free", len(tr.free), len(tr.slots))
	}
	r.Do("lost 0 719")
	if err := errors.Join(tr.Drop(peer), tr.Close()); err != nil {
		t.Errorf("a lost device stands in the way of the end: %v", err)
	}
	r.Do("lost 0 0")
}

// TestWhoDiesBeforeItIsToldOfAReadIsNotReadFromAnyMore: the bytes come without the owner, and the notification is the first to miss it.
func TestWhoDiesBeforeItIsToldOfAReadIsNotReadFromAnyMore(t *testing.T) {
	r := newRig(t)
	addr, blob, end := owner(t, r)
	tr, local := newReader(t, r)
	peer, err := tr.Load(blob)
	if err != nil {
		t.Fatal(err)
	}
	read := vram(peer, transport.Desc{Local: local, Remote: addr, Len: 8})
	read.Notif = []byte("done")
	r.Do("work 5")
	x, err := tr.PostRead(read)
	if err != nil {
		t.Fatal(err)
	}
	end() // in the middle of it
	tr.inner.(*wire).sends = transport.ErrPeer
	if st := ended(t, tr, x); st != transport.Failed {
		t.Errorf("a read whose owner could not be told is %v", st)
	}
	if y, err := tr.PostRead(read); !errors.Is(err, transport.ErrPeer) {
		t.Errorf("another read of the dead: %d, %v", y, err)
	}
	if err := errors.Join(tr.Release(x), tr.Abandon(peer)); err != nil || r.Do("count cuIpcCloseMemHandle") != 1 || len(tr.free) != len(tr.slots) {
		t.Errorf("%v, closed %d times, %d of %d reads are free", err, r.Do("count cuIpcCloseMemHandle"), len(tr.free), len(tr.slots))
	}
}

// TestANotificationThatThisSideCannotSendSpeaksAgainstNobody, and the next read of that owner is posted.
func TestANotificationThatThisSideCannotSendSpeaksAgainstNobody(t *testing.T) {
	r := newRig(t)
	addr, blob, _ := owner(t, r)
	tr, local := newReader(t, r)
	peer, err := tr.Load(blob)
	if err != nil {
		t.Fatal(err)
	}
	read := vram(peer, transport.Desc{Local: local, Remote: addr, Len: 8})
	read.Notif = []byte("read")
	for sends, want := range map[error]transport.Status{transport.ErrInvalid: transport.FailedHere, nil: transport.Done} {
		tr.inner.(*wire).sends = sends
		x, err := tr.PostRead(read)
		if err != nil || ended(t, tr, x) != want || tr.Release(x) != nil {
			t.Errorf("a notification with %v: %v, want status %v", sends, err, want)
		}
	}
}
