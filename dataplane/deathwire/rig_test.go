package deathwire

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

const grace = 500 * time.Millisecond

var (
	owner   = who{0x0a, 0xa1}
	readerD = who{0x0d, 0xd1}
	readerE = who{0x0e, 0xe1}
)

func nonce(b byte) (n [16]byte) { n[0], n[15] = b, 1; return n }

// world is an owner and its readers in a bubble of their own time.
type world struct {
	t *testing.T
	*Server
	mu   sync.Mutex
	dead []who
	conn sync.WaitGroup
}

// inWorld runs do in a bubble.
func inWorld(t *testing.T, cfg ServerConfig, do func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t}
		if cfg.Self == nil {
			cfg.Self = func() (uint64, uint64) { return owner.engine, owner.epoch }
		}
		cfg.Dead = func(engine, epoch uint64) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.dead = append(w.dead, who{engine, epoch})
		}
		cfg.Grace = grace
		w.Server = NewServer(cfg)
		do(w)
		w.Close()
		w.conn.Wait()
	})
}

// dial gives the reader's end of a new connection to the owner.
func (w *world) dial() net.Conn { return w.dialFrom("10.0.0.9") }

func (w *world) dialFrom(ip string) net.Conn {
	theirs, ours := net.Pipe()
	w.conn.Go(func() {
		defer ours.Close()
		w.Serve(context.Background(), from{ours, ip})
	})
	return theirs
}

// hang opens a wire and reads what the owner says at first: nil if it hangs up.
func (w *world) hang(who who, nonce [16]byte) (net.Conn, *Frame) {
	w.t.Helper()
	c := w.dial()
	return c, w.hello(c, who, nonce)
}

func (w *world) hello(c net.Conn, who who, nonce [16]byte) *Frame {
	w.t.Helper()
	f := Frame{Kind: Hello, Engine: who.engine, Epoch: who.epoch, Nonce: nonce}
	if _, err := c.Write(f.Append(nil)); err != nil {
		w.t.Fatal(err)
	}
	return readFrame(c)
}

// mustHang is hang for a wire that the owner must take.
func (w *world) mustHang(who who, nonce [16]byte) net.Conn {
	w.t.Helper()
	c, f := w.hang(who, nonce)
	if want := (Frame{Kind: Welcome, Flags: Farewells, Engine: owner.engine, Epoch: owner.epoch, Nonce: nonce}); f == nil || *f != want {
		w.t.Fatalf("the owner says %v, want %v", f, want)
	}
	return c
}

func readFrame(c net.Conn) *Frame {
	var b [FrameLen]byte
	for at := 0; at < FrameLen; {
		n, err := c.Read(b[at:])
		if at += n; err != nil {
			return nil
		}
	}
	f, err := Parse(b[:])
	if err != nil {
		return nil
	}
	return &f
}

// say sends a frame on a wire.
func (w *world) say(c net.Conn, k Kind, who who, nonce [16]byte) {
	w.t.Helper()
	f := Frame{Kind: k, Engine: who.engine, Epoch: who.epoch, Nonce: nonce}
	if _, err := c.Write(f.Append(nil)); err != nil {
		w.t.Fatal(err)
	}
}

// pass lets time go by, and everything that it makes due.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) wantDead(want ...who) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.dead) != len(want) {
		w.t.Fatalf("dead %x, want %x", w.dead, want)
	}
	for i := range want {
		if w.dead[i] != want[i] {
			w.t.Fatalf("dead %x, want %x", w.dead, want)
		}
	}
}

// failing ends with an error that is not the peer's doing.
type failing struct {
	net.Conn
	err error
}

func (f failing) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if err != nil {
		err = f.err
	}
	return n, err
}

var errKeepAlive = &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ETIMEDOUT)}
