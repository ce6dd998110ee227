package ipc

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/cuda/fakecuda"
	"github.com/kvlease/kvlease/cuda/fakecuda/faketest"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// TestAPeerThatIsLoadedBeforeOurMemoryIsReadIntoIt: an engine may be tracked before there is a device to map its memory into.
func TestAPeerThatIsLoadedBeforeOurMemoryIsReadIntoIt(t *testing.T) {
	r := newRig(t)
	addr, blob, _ := owner(t, r)
	local := r.alloc(ownerBytes)
	for opens, want := range map[int]error{0: nil, 1: transport.ErrPeer} { // which open the driver refuses: it is loaded again then
		tr, err := New(&wire{}, Config{Driver: r.driver, ReadsMax: 1, DescsMax: 1})
		if err != nil {
			t.Fatal(err)
		}
		peer, err := tr.Load(blob)
		if err != nil {
			t.Fatal(err)
		}
		read := vram(peer, transport.Desc{Local: local, Remote: addr + 8, Len: 8})
		if _, err := tr.PostRead(read); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("without memory of ours: %v", err)
		}
		if err := r.ctx.Fill(local, 0, ownerBytes); err != nil {
			t.Fatal(err)
		}
		if opens > 0 {
			r.Do("fail cuIpcOpenMemHandle %d 217", opens)
		}
		if err := tr.Register([]transport.Region{{Addr: local, Bytes: ownerBytes, Mem: transport.VRAM}}); err != nil {
			t.Fatal(err)
		}
		x, err := tr.PostRead(read)
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		} else if err == nil && (ended(t, tr, x) != transport.Done || r.Do("byte %#x", local) != 2 || r.Do("byte %#x", local+8) != 0 || tr.Release(x) != nil) {
			t.Errorf("bytes %d and %d", r.Do("byte %#x", local), r.Do("byte %#x", local+8))
		}
		if err := errors.Join(tr.Drop(peer), tr.Close()); err != nil {
			t.Error(err)
		}
	}
	if opened, closed := r.Do("count cuIpcOpenMemHandle"), r.Do("count cuIpcCloseMemHandle"); opened != 2 || closed != 1 {
		t.Errorf("opened %d times, one of them in vain, closed %d times", opened, closed)
	}
}

func TestWhatCannotBeSharedIsNotRegistered(t *testing.T) {
	r := newRig(t)
	tr, local := newReader(t, r)
	for name, region := range map[string]transport.Region{
		"another device's": {Addr: local, Bytes: 8, Device: 1, Mem: transport.VRAM},
		"past its end":     {Addr: local, Bytes: ownerBytes + 1, Mem: transport.VRAM},
		"none":             {Addr: 4096, Bytes: 8, Mem: transport.VRAM},
	} {
		if err := tr.Register([]transport.Region{{Addr: 4096, Bytes: 4096}, region}); !errors.Is(err, transport.ErrInvalid) || len(tr.regions) != 1 || len(tr.inner.(*wire).registered) != 0 {
			t.Errorf("%s: %v, %d regions, %d of the wire", name, err, len(tr.regions), len(tr.inner.(*wire).registered))
		}
	}
}

// TestARefusedRegistrationHoldsNoContext: whichever function of the driver refuses, or the wire does. What refuses to let go leaves what it holds.
func TestARefusedRegistrationHoldsNoContext(t *testing.T) {
	s := faketest.New(t)
	driver, err := cuda.Open(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	refused := map[string]bool{}
	for _, symbol := range append(cuda.Symbols(), "") { // "": the wire
		symbol = strings.TrimSuffix(symbol, "_v2")
		for call := 1; call <= 2; call++ { // one for each region
			s.Do("reset")
			s.Do("engine 0 1")
			addr, err := fakecuda.Alloc(s.Path, "device", 0, 4*ownerBytes, 0)
			if err != nil {
				t.Fatal(err)
			}
			w := &wire{}
			tr, err := New(w, Config{Driver: driver, ReadsMax: 1, DescsMax: 1})
			if err != nil {
				t.Fatal(err)
			}
			regions := []transport.Region{{Addr: 4096, Bytes: 4096}, {Addr: addr, Bytes: 8, Mem: transport.VRAM}, {Addr: addr + ownerBytes, Bytes: 8, Mem: transport.VRAM}}
			if symbol == "" {
				w.refuse = transport.ErrInvalid
			} else {
				s.Do("fail %s %d 999", symbol, call)
			}
			err = tr.Register(regions)
			refused[symbol] = refused[symbol] || err != nil
			if n := s.Do("retains 0"); err != nil && n != 1 {
				t.Errorf("%q, call %d: held %d times after %v, want the engine's hold only", symbol, call, n, err)
			}
			w.refuse = nil
			if err != nil {
				err = tr.Register(regions)
			}
			if n := s.Do("retains 0"); err != nil || n != 2 {
				t.Errorf("%q, call %d: registered once more: %v, held %d times", symbol, call, err, n)
			}
			if err := tr.Close(); err != nil {
				t.Error(err)
			}
			if n := s.Do("retains 0"); n != 1 && symbol != "cuDevicePrimaryCtxRelease" {
				t.Errorf("%q, call %d: held %d times after Close", symbol, call, n)
			}
		}
	}
	for _, symbol := range []string{"", "cuDevicePrimaryCtxRetain", "cuStreamCreate", "cuPointerGetAttributes", "cuIpcGetMemHandle"} {
		if !refused[symbol] {
			t.Errorf("a registration that %q refuses was not seen", symbol)
		}
	}
}
