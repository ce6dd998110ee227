package hardware

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/dataplane/core"
)

// current reports whether a device's context is current on this thread.
func (g *rig) current(c *cuda.Context) bool {
	g.t.Helper()
	pushed, err := c.Enter()
	if err == nil && pushed {
		err = c.Leave()
	}
	if err != nil {
		g.t.Fatal(err)
	}
	return !pushed
}

// TestAContextIsNeverMadeForTheEngine comes first in its process: nobody has begun with the device yet.
func TestAContextIsNeverMadeForTheEngine(t *testing.T) {
	g := newRig(t)
	if _, err := g.driver.Retain(0); !errors.Is(err, cuda.ErrUnavailable) || !strings.Contains(err.Error(), "no primary context") {
		t.Fatalf("before the engine has begun: %v, want no primary context", err)
	}
	engine, err := g.driver.Make(0)
	if err != nil {
		t.Fatal(err)
	}
	held, err := g.driver.Retain(0)
	if err != nil {
		t.Fatalf("after it has: %v", err)
	}
	if err := errors.Join(engine.Release(), held.Release()); err != nil {
		t.Error(err)
	}
	if _, err := g.driver.Retain(0); !errors.Is(err, cuda.ErrUnavailable) {
		t.Errorf("after both holds were given up: %v, want no primary context", err)
	}
}

func TestAThreadHasItsOwnContextBackAfterEachCall(t *testing.T) {
	g := newRig(t)
	engine := g.begin(0)
	c := g.open("P")
	list := []core.Region{region(g.alloc(engine, 4*block), 4, 0)}
	call := func(want string, on func() bool) {
		t.Helper()
		for _, f := range []struct {
			name string
			do   func() error
		}{{"Register", func() error { return c.Register(list) }}, {"Step", c.Step}, {"Unregister", c.Unregister}} {
			if err := f.do(); err != nil {
				t.Fatalf("%s: %v\n%s", f.name, err, c.Broken())
			}
			if !on() {
				t.Errorf("after %s the thread has not %s", f.name, want)
			}
		}
	}
	call("none", func() bool { return !g.current(engine) })
	if _, err := engine.Enter(); err != nil { // as an engine's own thread has it
		t.Fatal(err)
	}
	call("the engine's", func() bool { return g.current(engine) })
	other, err := g.driver.Make(1)
	if err != nil {
		t.Logf("one GPU: %v", err)
	} else {
		if _, err := other.Enter(); err != nil {
			t.Fatal(err)
		}
		call("that of the other GPU", func() bool { return g.current(other) && !g.current(engine) })
		if err := errors.Join(other.Leave(), other.Release()); err != nil {
			t.Error(err)
		}
	}
	if !g.current(engine) {
		t.Error("at the end the thread has not the engine's context")
	}
	if err := engine.Leave(); err != nil {
		t.Error(err)
	}
}

func TestRegisteredMemoryOutlivesTheEnginesOwnHold(t *testing.T) {
	g := newRig(t)
	engine, err := g.driver.Make(0)
	if err != nil {
		t.Fatal(err)
	}
	addr, err := engine.Alloc(4 * block)
	if err == nil {
		err = engine.Fill(addr, 7, 4*block)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := g.open("P")
	if err := c.Register([]core.Region{region(addr, 4, 0)}); err != nil {
		t.Fatal(err)
	}
	if err := engine.Release(); err != nil {
		t.Fatal(err)
	}
	again, err := g.driver.Retain(0)
	if err != nil {
		t.Fatalf("the context went with the engine's hold: %v", err)
	}
	var page [block]byte
	if err := again.CopyOut(page[:], addr+3*block); err != nil || page[0] != 7 || page[block-1] != 7 {
		t.Errorf("%d and %d, %v; want 7", page[0], page[block-1], err)
	}
	if err := errors.Join(c.Step(), c.Unregister(), again.Free(addr), again.Release()); err != nil {
		t.Error(err)
	}
	if !g.real && g.Do("active 0") != 0 { // a UCX of the machine's may hold one of its own
		t.Errorf("the context is held %d times at the end", g.Do("retains 0"))
	}
}
