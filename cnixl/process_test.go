package cnixl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/internal/require"
)

// decodeSide is an agent of this process with memory and a loaded peer in another one.
func decodeSide(t *testing.T, agent string, r *remote, size int) (a *Agent, mem []byte, to transport.Peer) {
	t.Helper()
	a = realNIXL(t, Config{Agent: agent})
	mem = memory(size)
	if err := a.Register([]transport.Region{{Addr: address(mem), Bytes: uint64(size)}}); err != nil {
		t.Fatal(err)
	}
	to, err := a.Load(r.hello.Blob)
	if err != nil {
		t.Fatal(err)
	}
	return a, mem, to
}

func status(a *Agent, x transport.Xfer, spin time.Duration) transport.Status {
	out := []transport.Status{transport.Failed}
	a.PollReads([]transport.Xfer{x}, out, int64(spin))
	return out[0]
}

func (r *remote) readSpec(to transport.Peer, mem []byte, pieces int) *transport.ReadSpec {
	size := uint64(len(mem) / pieces)
	spec := &transport.ReadSpec{Peer: to}
	for i := range uint64(pieces) {
		spec.Descs = append(spec.Descs, transport.Desc{Local: address(mem) + i*size, Remote: r.hello.Addr + i*size, Len: size})
	}
	return spec
}

func TestTwoProcessesTalkAndRead(t *testing.T) {
	for _, tls := range []string{"", "tcp"} {
		t.Run("UCX_TLS="+tls, func(t *testing.T) {
			env := []string{}
			if tls != "" {
				env = append(env, "UCX_TLS="+tls)
			}
			if !alone(t, env...) {
				return
			}
			haveNIXL(t)
			const size = 8 << 20
			r := startPeer(t, peerSetup{Agent: "prefill", Bytes: size})
			a, mem, to := decodeSide(t, "decode", r, size)
			own, err := a.Metadata()
			if err != nil {
				t.Fatal(err)
			}
			text, _ := json.Marshal(own)
			r.do("load " + string(text))
			const total = 500
			for i := range total {
				if err := a.Send(to, fmt.Appendf(nil, "HB:request-%d", i)); err != nil {
					t.Fatal(err)
				}
			}
			r.until("all heartbeats", func() bool { return len(r.notifs) == total })
			for i, n := range r.notifs {
				if n.Agent != "decode" || string(n.Body) != fmt.Sprintf("HB:request-%d", i) {
					t.Fatalf("notification %d is %q from %q", i, n.Body, n.Agent)
				}
			}
			r.do("send back")
			in := transport.NewInbox(16, 4096)
			waitUntil(t, "the answer", func() bool { return a.Poll(in) > 0 })
			if agent, body, _ := in.Next(); string(agent) != "prefill" || string(body) != "back" {
				t.Fatalf("got %q from %q", body, agent)
			}
			for _, pieces := range []int{1, 16, 2048} {
				r.do(fmt.Sprint("fill ", pieces%251+1))
				spec := r.readSpec(to, mem, pieces)
				spec.Notif = []byte("done")
				x, err := a.PostRead(spec)
				if err != nil {
					t.Fatal(err)
				}
				waitUntil(t, "the read", func() bool { return status(a, x, 100*time.Microsecond) != transport.Pending })
				if st := status(a, x, 0); st != transport.Done {
					t.Fatalf("status %d", st)
				}
				if bytes.Count(mem, []byte{byte(pieces%251 + 1)}) != size {
					t.Fatalf("%d pieces: wrong bytes", pieces)
				}
				if err := a.Release(x); err != nil {
					t.Fatal(err)
				}
			}
			r.until("the three completions", func() bool { return len(r.notifs) == total+3 })
		})
	}
}

// A peer that does not poll holds a READ over TCP open at will: its software answers.
func TestAReadThatIsHeldOpenIsNeverGivenUp(t *testing.T) {
	for _, how := range []string{"peer stops polling", "peer is stopped"} {
		t.Run(how, func(t *testing.T) {
			if !alone(t, "UCX_TLS=tcp") {
				return
			}
			haveNIXL(t)
			const size = 16 << 20
			inline := how == "peer stops polling"
			r := startPeer(t, peerSetup{Agent: "prefill", Bytes: size, Inline: inline})
			a, mem, to := decodeSide(t, "decode", r, size)
			if err := a.Send(to, []byte("connect")); err != nil {
				t.Fatal(err)
			}
			r.until("the connection", func() bool { return len(r.notifs) == 1 })
			r.do("fill 7")
			if inline {
				r.do("poll off")
			} else {
				r.signal(syscall.SIGSTOP)
			}
			x, err := a.PostRead(r.readSpec(to, mem, 64))
			if err != nil {
				t.Fatal(err)
			}
			// The reader's time-out passes; it cancels, and the engine would like its blocks back.
			timeout := time.NewTimer(500 * time.Millisecond)
			for pending := true; pending; {
				select {
				case <-timeout.C:
					pending = false
				default:
					if st := status(a, x, time.Millisecond); st != transport.Pending {
						t.Fatalf("status %d while the peer does not answer", st)
					}
				}
			}
			for range 3 {
				if err := a.Release(x); !errors.Is(err, transport.ErrInvalid) {
					t.Fatalf("release: %v, want ErrInvalid", err)
				}
				if err := a.Drop(to); !errors.Is(err, transport.ErrInvalid) {
					t.Fatalf("drop: %v, want ErrInvalid", err)
				}
				if err := a.Close(); !errors.Is(err, transport.ErrInvalid) {
					t.Fatalf("close: %v, want ErrInvalid", err)
				}
			}
			before := bytes.Count(mem, []byte{7})
			if before == size {
				t.Fatal("the read had landed before the peer answered: nothing was held open")
			}
			if inline {
				r.do("poll on")
			} else {
				r.signal(syscall.SIGCONT)
			}
			waitUntil(t, "the read", func() bool { return status(a, x, 100*time.Microsecond) != transport.Pending })
			if st, after := status(a, x, 0), bytes.Count(mem, []byte{7}); st != transport.Done || after != size {
				t.Fatalf("status %d with %d of %d bytes", st, after, size)
			}
			t.Logf("%d bytes landed after the time-out, in blocks that Release, Drop and Close had refused to give back", size-before)
			// After DONE the block may be handed out: nothing lands in it any more.
			clear(mem)
			if err := a.Release(x); err != nil {
				t.Fatal(err)
			}
			r.do("fill 9")
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(mem, make([]byte, size)) {
				t.Error("bytes landed after DONE")
			}
		})
	}
}

// A failed or never ending read may be ended by closing the agent only; here the peer dies first.
func TestAKilledPeerIsLost(t *testing.T) {
	for _, tls := range []string{"", "tcp"} {
		t.Run("UCX_TLS="+tls, func(t *testing.T) {
			env := []string{}
			if tls != "" {
				env = append(env, "UCX_TLS="+tls)
			}
			if !alone(t, env...) {
				return
			}
			haveNIXL(t)
			const size = 1 << 20
			r := startPeer(t, peerSetup{Agent: "prefill", Bytes: size})
			a, mem, to := decodeSide(t, "decode", r, size)
			if err := a.Send(to, []byte("connect")); err != nil {
				t.Fatal(err)
			}
			r.until("the connection", func() bool { return len(r.notifs) == 1 })
			r.signal(syscall.SIGSTOP)
			x, err := a.PostRead(r.readSpec(to, mem, 4))
			if err != nil {
				t.Fatal(err)
			}
			r.signal(syscall.SIGKILL)
			waitUntil(t, "a send to fail", func() bool { return errors.Is(a.Send(to, []byte("HB:x")), transport.ErrPeer) })
			if _, err := a.PostRead(r.readSpec(to, mem, 4)); !errors.Is(err, transport.ErrPeer) {
				t.Errorf("read from the dead: %v, want ErrPeer", err)
			}
			// Over shared memory UCX may have copied everything inside the post.
			waitUntil(t, "the open read to end", func() bool { return status(a, x, 0) != transport.Pending })
			t.Logf("the read that was open ended with status %d", status(a, x, 0))
			if tls == "tcp" && status(a, x, 0) != transport.Failed {
				t.Error("the read that was open over TCP did not fail")
			}
			for range 100 {
				if err := a.Send(to, []byte("HB:x")); !errors.Is(err, transport.ErrPeer) {
					t.Fatalf("send to the dead: %v", err)
				}
			}
			if n := a.Counters().SendsFailed; n > 2 {
				t.Errorf("NIXL was asked %d times after the first error, want never", n)
			}
			if err := a.Release(x); err != nil {
				t.Fatal(err)
			}
			if err := a.Drop(to); err != nil {
				t.Fatal(err)
			}
			// Loading again is the probe for life: it, or what follows, says that the peer is gone.
			to, err = a.Load(r.hello.Blob)
			if err == nil {
				waitUntil(t, "a send to the reloaded dead peer to fail", func() bool { return errors.Is(a.Send(to, []byte("HB:x")), transport.ErrPeer) })
			} else if !errors.Is(err, transport.ErrPeer) {
				t.Errorf("load of a dead peer: %v, want ErrPeer or nil", err)
			}
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestAStoppedPeerIsSilent(t *testing.T) {
	if !alone(t, "UCX_TLS=tcp") {
		return
	}
	haveNIXL(t)
	r := startPeer(t, peerSetup{Agent: "prefill", Bytes: 4096})
	a, _, to := decodeSide(t, "decode", r, 4096)
	if err := a.Send(to, []byte("connect")); err != nil {
		t.Fatal(err)
	}
	r.until("the connection", func() bool { return len(r.notifs) == 1 })
	r.signal(syscall.SIGSTOP)
	const total = 2000
	for i := range total {
		if err := a.Send(to, fmt.Appendf(nil, "HB:%d", i)); err != nil {
			t.Fatalf("send %d to a stopped peer: %v, want nil", i, err)
		}
	}
	r.signal(syscall.SIGCONT)
	in := transport.NewInbox(16, 4096)
	waitUntil(t, "all that was sent while it was stopped", func() bool { a.Poll(in); return r.got() == total+1 })
	for i, n := range r.notifs[1:] {
		if string(n.Body) != fmt.Sprintf("HB:%d", i) {
			t.Fatalf("notification %d is %q", i, n.Body)
		}
	}
}

func TestAResetConnectionHealsByDropAndLoad(t *testing.T) {
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
	const size = 1 << 16
	r := startPeer(t, peerSetup{Agent: "prefill", Bytes: size})
	a, mem, to := decodeSide(t, "decode", r, size)
	if err := a.Send(to, []byte("connect")); err != nil {
		t.Fatal(err)
	}
	r.until("the connection", func() bool { return len(r.notifs) == 1 })
	if n := resetConnections(t, r.cmd.Process.Pid); n == 0 {
		require.Skip(t, "inet-diag-destroy", "ss -K found or could reset no connection (CONFIG_INET_DIAG_DESTROY)")
	}
	waitUntil(t, "a send to fail", func() bool { return errors.Is(a.Send(to, []byte("HB:lost")), transport.ErrPeer) })
	for range 20 {
		if err := a.Send(to, []byte("HB:lost")); !errors.Is(err, transport.ErrPeer) {
			t.Fatalf("send before the heal: %v, want ErrPeer", err)
		}
	}
	if err := a.Drop(to); err != nil {
		t.Fatal(err)
	}
	to, err := a.Load(r.hello.Blob)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Send(to, []byte("HB:healed")); err != nil {
		t.Fatal(err)
	}
	r.until("the heartbeat after the heal", func() bool {
		return len(r.notifs) > 0 && string(r.notifs[len(r.notifs)-1].Body) == "HB:healed"
	})
	r.do("fill 5")
	x, err := a.PostRead(r.readSpec(to, mem, 4))
	if err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "a read after the heal", func() bool { return status(a, x, 0) != transport.Pending })
	if status(a, x, 0) != transport.Done || bytes.Count(mem, []byte{5}) != size {
		t.Errorf("read after the heal: status %d", status(a, x, 0))
	}
}

// resetConnections resets every TCP connection of a process and reports how many it asked for.
func resetConnections(t *testing.T, pid int) int {
	t.Helper()
	out, err := exec.Command("ss", "-tnpH", "state", "established").Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.Contains(line, fmt.Sprintf("pid=%d,", pid)) {
			continue
		}
		if to, err := netip.ParseAddrPort(f[3]); err == nil {
			_ = exec.Command("ss", "-K", "dst", to.Addr().String(), "dport", "=", fmt.Sprint(to.Port())).Run()
			n++
		}
	}
	return n
}
