package cnixl

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/internal/require"
)

// The connections between two processes are reset while READs are in flight: the peer is abandoned and loaded again, and every
// byte can be read. A handle is released only after its read has ended.
//
// Over TCP the peer's software answers READs, and UCX may abort the peer where it was answering (README.md says how often): that is
// no failure of ours, and another peer is tried. KVLEASE_RESETS asks for more resets of one connection than 1.
func TestAConnectionResetUnderReadsHealsByAbandonAndLoad(t *testing.T) {
	if !alone(t, "UCX_TLS=tcp") {
		return
	}
	haveNIXL(t)
	if _, err := exec.LookPath("ss"); err != nil {
		require.Skip(t, "ss", "no ss (package iproute2) to reset a connection with")
	}
	if os.Geteuid() != 0 {
		require.Skip(t, "root", "resetting a connection with ss -K needs it")
	}
	resets := 1
	if s := os.Getenv("KVLEASE_RESETS"); s != "" {
		var err error
		if resets, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	const peers = 8
	for n := range peers {
		if survived := resetUnderReads(t, fmt.Sprintf("decode-%d", n), resets); survived {
			t.Logf("healed; UCX had aborted %d peers", n)
			return
		}
	}
	t.Errorf("%d peers did not survive a reset", peers)
}

// resetUnderReads reports false if the peer's process has ended.
func resetUnderReads(t *testing.T, agent string, resets int) bool {
	c := connect(t, agent, 4<<20)
	lives := func() bool {
		c.r.mu.Lock()
		defer c.r.mu.Unlock()
		return c.r.end == nil
	}
	var open []transport.Xfer
	failed, done := 0, 0
	look := func() {
		left := open[:0]
		for _, x := range open {
			switch status(c.a, x, 0) {
			case transport.Pending:
				left = append(left, x)
				continue
			case transport.Done:
				done++
			default:
				failed++
			}
			if err := c.a.Release(x); err != nil {
				t.Fatal(err)
			}
		}
		open = left
	}
	for round := range resets {
		fill := byte(round%250 + 1)
		c.r.do("fill " + strconv.Itoa(int(fill)))
		for range 4 {
			if x, err := c.a.PostRead(c.r.readSpec(c.to, c.mem, 64)); err == nil {
				open = append(open, x)
			}
		}
		if n := resetConnections(t, c.r.cmd.Process.Pid); n == 0 {
			require.Skip(t, "inet-diag-destroy", "ss -K found or could reset no connection (CONFIG_INET_DIAG_DESTROY)")
		}
		waitUntil(t, "a send to fail", func() bool {
			look()
			return errors.Is(c.a.Send(c.to, []byte("HB:x")), transport.ErrPeer)
		})
		// A first connection may be refused while the other side takes in the reset: that is what the back-off of healing is for.
		healed := false
		for try := time.Millisecond; !healed; try *= 2 {
			if err := c.a.Abandon(c.to); err != nil {
				t.Fatal(err)
			}
			for loaded := false; !loaded; { // a peer that is gone cannot be loaded
				if !lives() {
					return false
				}
				var err error
				c.to, err = c.a.Load(c.r.hello.Blob)
				loaded = err == nil
			}
			if x, err := c.a.PostRead(c.r.readSpec(c.to, c.mem, 4)); err == nil {
				healed = c.ends(x) == transport.Done && bytes.Count(c.mem, []byte{fill}) == c.size
				if err := c.a.Release(x); err != nil {
					t.Fatal(err)
				}
			}
			if !healed && try > waitMax/8 {
				t.Fatalf("round %d: not healed", round)
			}
			if !healed {
				<-time.After(try)
			}
		}
	}
	if !lives() {
		return false
	}
	waitUntil(t, "the reads of the old connection to end", func() bool { look(); return len(open) == 0 })
	t.Logf("%d reads that were open at a reset failed, %d had landed", failed, done)
	if err := c.a.Drop(c.to); err != nil {
		t.Fatal(err)
	}
	if err := c.a.Close(); err != nil {
		t.Fatal(err)
	}
	return true
}

// The reads are open because the peer is stopped; then its connections are reset, and it goes on. The reads fail, and this process
// can drop all of it, whether UCX lets the peer live or not (README.md: mostly not).
func TestReadsThatAreOpenAtAResetFail(t *testing.T) {
	if !alone(t, "UCX_TLS=tcp") {
		return
	}
	haveNIXL(t)
	if _, err := exec.LookPath("ss"); err != nil {
		require.Skip(t, "ss", "no ss (package iproute2) to reset a connection with")
	}
	if os.Geteuid() != 0 {
		require.Skip(t, "root", "resetting a connection with ss -K needs it")
	}
	c := connect(t, "decode", 4<<20)
	c.r.do("fill 5")
	c.r.signal(syscall.SIGSTOP)
	var open []transport.Xfer
	for range 4 {
		open = append(open, c.post(64))
	}
	if n := resetConnections(t, c.r.cmd.Process.Pid); n == 0 {
		require.Skip(t, "inet-diag-destroy", "ss -K found or could reset no connection (CONFIG_INET_DIAG_DESTROY)")
	}
	failed := 0
	for _, x := range open {
		if c.ends(x) == transport.Failed {
			failed++
		}
	}
	if failed == 0 {
		t.Error("no read was open at the reset")
	}
	if err := c.a.Abandon(c.to); err != nil {
		t.Fatal(err)
	}
	c.r.signal(syscall.SIGCONT)
	var err error
	if c.to, err = c.a.Load(c.r.hello.Blob); err == nil {
		if x, err := c.a.PostRead(c.r.readSpec(c.to, c.mem, 4)); err == nil {
			open = append(open, x)
			healed := c.ends(x) == transport.Done && bytes.Count(c.mem, []byte{5}) == c.size
			t.Logf("a read over a new connection: %v", healed)
		}
	}
	for _, x := range open {
		if err := c.a.Release(x); err != nil {
			t.Fatal(err)
		}
	}
	if c.to != 0 {
		if err := c.a.Drop(c.to); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.a.Close(); err != nil {
		t.Fatal(err)
	}
}
