package stream

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/internal/await"
)

func TestTheSocketIsForItsUserAlone(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	g := newRig(t, KindShm)
	info, err := os.Stat(g.cfg.Path)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v; want a socket with mode 0600", info.Mode(), err)
	}
	g.host.Close()
	if _, err := os.Lstat(g.cfg.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
}

func TestWithoutAPathEnginesMeetInDevShm(t *testing.T) {
	id := fmt.Sprintf("test of default path %d", os.Getpid())
	want := fmt.Sprintf("/dev/shm/kvlease-%d-%016x.sock", os.Geteuid(), engineHash(id))
	if got := DefaultPath(id); got != want || len(got) > pathBytesMax || DefaultPath(id+"x") == got {
		t.Fatalf("%s, want %s", got, want)
	}
	g := newRig(t, KindShm, func(c *Config) { c.EngineID, c.Path = id, "" })
	g.meet()
	if _, err := os.Lstat(want); err != nil {
		t.Error(err)
	}
}

func TestAPathThatCannotBeIsRefusedWithItsRemedy(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, path, says string
		rank             bool // refused at once by a rank, too
	}{
		{"longer than a socket's name", "/tmp/" + strings.Repeat("x", 103), "at most 107", true},
		{"relative", "run/s", "not absolute", true},
		{"abstract", "@kvlease", "not absolute", true},
		{"a file of something else", file, "no socket", false},
		{"in a folder that is not there", filepath.Join(dir, "no", "s"), "set carrier_path", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := Config{EngineID: "e", TP: 1, PP: 1, WakeFd: -1, RingBytes: RingBytesMin, Path: tc.path}
			h, err := OpenHost(KindShm, cfg)
			if err == nil {
				h.Close()
			}
			if !errors.Is(err, ErrPath) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("host: %v, want %v that says %q", err, ErrPath, tc.says)
			}
			r, err := OpenRank(KindShm, cfg)
			if err == nil {
				r.Close()
			}
			if tc.rank != errors.Is(err, ErrPath) {
				t.Errorf("rank: %v", err)
			}
		})
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "mine" {
		t.Errorf("the file of something else: %q, %v", b, err)
	}
	g := newRig(t, KindShm, func(c *Config) { c.Path = "/tmp/" + strings.Repeat("x", 102) }) // 107
	g.meet()
}

func TestTheSocketOfADeadHostIsReplacedAndAnothersIsLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	g := newRig(t, KindShm, func(c *Config) { c.Path = path })
	g.meet()
	if err := os.Remove(path); err != nil { // somebody cleans up, and another host comes
		t.Fatal(err)
	}
	other, err := OpenHost(KindShm, g.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	g.host.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the other host's socket: %v", err)
	}
}

func dial(t testing.TB, path string) *net.UnixConn {
	t.Helper()
	conn, err := net.Dial("unixpacket", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.UnixConn)
}

func TestSilentConnectionsHoldUpNobody(t *testing.T) {
	for _, tc := range []struct {
		silent int
		within time.Duration
	}{
		{pendingMax / 2, 20 * time.Second}, // one after the other they would take two minutes
		{3 * pendingMax, 30 * time.Second}, // ranks come back until there is a place
	} {
		cfg := Config{EngineID: "e", TP: 1, PP: 1, WakeFd: -1, RingBytes: RingBytesMin, Path: filepath.Join(t.TempDir(), "s")}
		h, err := OpenHost(KindShm, cfg)
		if err != nil {
			t.Fatal(err)
		}
		for range tc.silent {
			dial(t, cfg.Path)
		}
		server := h.End(0).(*shmHostEnd).host
		open := func() int {
			server.mu.Lock()
			defer server.mu.Unlock()
			return len(server.conns)
		}
		if n := open(); n > pendingMax+1 {
			t.Errorf("%d silent connections are kept, want at most %d", n, pendingMax)
		}
		began := time.Now()
		r, err := OpenRank(KindShm, cfg)
		if err != nil {
			t.Fatal(err)
		}
		await.True(t, "attached", func() bool { return r.State() == Attached })
		if took := time.Since(began); took > tc.within {
			t.Errorf("beside %d silent connections it took %v, want at most %v", tc.silent, took, tc.within)
		}
		r.Close()
		began = time.Now()
		h.Close()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("a host with silent connections closes in %v", took)
		}
	}
}

func TestWhatIsNoHelloIsTurnedAway(t *testing.T) {
	g := newRig(t, KindShm, func(c *Config) { c.TP = 2 })
	g.meet()
	h := engineHash(g.cfg.EngineID)
	for _, tc := range []struct {
		name   string
		msg    func(b []byte) []byte
		answer error // nil: none
	}{
		{"nothing", func(b []byte) []byte { return []byte{} }, nil},
		{"one byte", func(b []byte) []byte { return b[:1] }, ErrInvalid},
		{"too much", func(b []byte) []byte { return append(b, 1) }, nil},
		{"another magic", func(b []byte) []byte { b[0]++; return b }, ErrInvalid},
		{"a later version", func(b []byte) []byte { b[4]++; return b }, ErrInvalid},
		{"another engine", func(b []byte) []byte { b[8]++; return b }, ErrInvalid},
		{"rank 2 of 2", func(b []byte) []byte { b[16] = 2; return b }, ErrInvalid},
		{"rank 2^32-1", func(b []byte) []byte { copy(b[16:], "\xFF\xFF\xFF\xFF"); return b }, ErrInvalid},
		{"rank 1 again", func(b []byte) []byte { return b }, ErrTaken},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn := dial(t, g.cfg.Path)
			conn.SetDeadline(time.Now().Add(5 * time.Second))
			b := make([]byte, shmMsgBytes)
			putHello(b, hello{h, 1, 2, 1})
			if _, err := conn.Write(tc.msg(b)); err != nil {
				t.Fatal(err)
			}
			var back [shmMsgBytes + shmTextMax]byte
			n, _ := conn.Read(back[:])
			if tc.answer == nil {
				if n > 0 {
					t.Errorf("answered with %d bytes", n)
				}
				return
			}
			if _, err := parseAnswer(back[:n], h); !errors.Is(err, tc.answer) {
				t.Errorf("answer %v, want %v", err, tc.answer)
			}
			if n, _ := conn.Read(back[:]); n > 0 {
				t.Error("the connection goes on")
			}
		})
	}
	g.full()
}

func TestAWakeDescriptorThatCouldBlockIsRefused(t *testing.T) {
	cfg := Config{EngineID: "e", TP: 1, PP: 1, WakeFd: -1, RingBytes: RingBytesMin, Path: filepath.Join(t.TempDir(), "s")}
	h, err := OpenHost(KindShm, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	conn := dial(t, cfg.Path)
	b := make([]byte, shmMsgBytes)
	putHello(b, hello{engineHash("e"), 0, 1, 1})
	if err := sendMsg(conn, b, int(w.Fd())); err != nil {
		t.Fatal(err)
	}
	var back [shmMsgBytes + shmTextMax]byte
	n, _ := conn.Read(back[:])
	if _, err := parseAnswer(back[:n], engineHash("e")); !errors.Is(err, ErrInvalid) || h.End(0).State() != Waiting {
		t.Errorf("a pipe as wake descriptor: %v, %v", err, h.End(0).State())
	}
}

func TestDescriptorsThatNobodyAskedForAreClosed(t *testing.T) {
	cfg := Config{EngineID: "e", TP: 1, PP: 1, WakeFd: -1, RingBytes: RingBytesMin, Path: filepath.Join(t.TempDir(), "s")}
	h, err := OpenHost(KindShm, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	gift := int(w.Fd())
	for _, rank := range []uint32{0, 9} { // it is attached and stays; it is refused
		conn := dial(t, cfg.Path)
		b := make([]byte, shmMsgBytes)
		putHello(b, hello{engineHash("e"), rank, 1, 1})
		wakeUp := eventFd(t)
		if err := sendMsg(conn, b, wakeUp, gift, gift, gift); err != nil {
			t.Fatal(err)
		}
		_, fds, _ := recvMsg(conn, b, 2)
		closeAll(fds)
		if rank == 0 {
			if err := sendMark(conn, shmDone, engineHash("e")); err != nil {
				t.Fatal(err)
			}
			await.True(t, "attached", func() bool { return h.End(0).State() == Attached })
		}
	}
	w.Close()
	r.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := r.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d, %v: somebody still holds the pipe", n, err)
	}
}

// A rank that goes away before it is attached has not been there.
func TestARankThatGoesAwayHalfwayLeavesItsPlace(t *testing.T) {
	for _, messages := range []int{1, 2} { // said by the rank; with the second it is attached
		cfg := Config{EngineID: "e", TP: 1, PP: 1, WakeFd: -1, RingBytes: RingBytesMin, Path: filepath.Join(t.TempDir(), "s")}
		h, err := OpenHost(KindShm, cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		conn := dial(t, cfg.Path)
		b := make([]byte, shmMsgBytes)
		putHello(b, hello{engineHash("e"), 0, 1, 1})
		if err := sendMsg(conn, b); err != nil {
			t.Fatal(err)
		}
		n, fds, err := recvMsg(conn, b, 2)
		if err != nil || n != shmMsgBytes || len(fds) != 1 {
			t.Fatalf("answer of %d bytes with %d descriptors: %v", n, len(fds), err)
		}
		closeAll(fds)
		if messages == 2 {
			if err := sendMark(conn, shmDone, engineHash("e")); err != nil {
				t.Fatal(err)
			}
			await.True(t, "attached", func() bool { return h.End(0).State() == Attached })
		}
		conn.Close()
		r, err := OpenRank(KindShm, cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if messages == 1 {
			await.True(t, "the next one attaches", func() bool { return r.State() == Attached && h.End(0).State() == Attached })
		} else {
			await.True(t, "the next one is refused", func() bool { return errors.Is(r.Err(), ErrTaken) && h.End(0).State() == Lost })
		}
	}
}

// evilHost answers one hello with whatever it is told to.
func evilHost(t *testing.T, path string, answer func(conn *net.UnixConn)) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			var b [shmMsgBytes]byte
			_, fds, _ := recvMsg(conn, b[:], 1)
			closeAll(fds)
			answer(conn)
			recvMsg(conn, b[:], 1)
			conn.Close()
		}
	}()
	return l
}

func TestAHostThatSendsSomethingElseIsNotBelieved(t *testing.T) {
	hash := engineHash("e")
	memfd := func(n int, seals int) int {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		unix.Ftruncate(fd, int64(n))
		unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		return fd
	}
	n := linkBytes(RingBytesMin)
	for _, tc := range []struct {
		name   string
		answer func(conn *net.UnixConn)
		want   error
	}{
		{"no memory", func(c *net.UnixConn) { sendMsg(c, answerTo(nil, hash, n)) }, ErrInvalid},
		{"memory that may shrink", func(c *net.UnixConn) { sendMsg(c, answerTo(nil, hash, n), memfd(n, unix.F_SEAL_GROW)) }, ErrInvalid},
		{"less memory than said", func(c *net.UnixConn) { sendMsg(c, answerTo(nil, hash, n), memfd(n-4096, sealsWanted)) }, ErrInvalid},
		{"no bytes", func(c *net.UnixConn) { sendMsg(c, answerTo(nil, hash, 0), memfd(0, sealsWanted)) }, ErrInvalid},
		{"2^40 bytes", func(c *net.UnixConn) { sendMsg(c, answerTo(nil, hash, 1<<40), memfd(1<<40, sealsWanted)) }, ErrInvalid},
		{"memory without rings", func(c *net.UnixConn) { sendMsg(c, answerTo(nil, hash, n), memfd(n, sealsWanted)) }, ErrCorrupt},
		{"another engine", func(c *net.UnixConn) { sendMsg(c, answerTo(nil, hash+1, n), memfd(n, sealsWanted)) }, ErrInvalid},
		{"half an answer", func(c *net.UnixConn) { c.Write(answerTo(nil, hash, n)[:40]) }, ErrInvalid},
		{"a reason that is no text", func(c *net.UnixConn) { c.Write(append(answerTo(ErrTaken, hash, n)[:shmMsgBytes], 0xFF, 0xFE)) }, ErrTaken},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			l := evilHost(t, path, tc.answer)
			cfg := Config{EngineID: "e", TP: 1, PP: 1, WakeFd: -1, RingBytes: RingBytesMin, Path: path}
			r, err := OpenRank(KindShm, cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			await.True(t, tc.want.Error(), func() bool { return errors.Is(r.Err(), tc.want) })
			if r.State() != Waiting {
				t.Errorf("%v", r.State())
			}
			l.Close()
			h, err := OpenHost(KindShm, cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			await.True(t, "attached to a good one", func() bool { return r.State() == Attached })
		})
	}
}

func TestClosingARankThatWaitsDoesNotWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	asked, never := make(chan struct{}, 100), make(chan struct{})
	defer close(never)
	evilHost(t, path, func(*net.UnixConn) { asked <- struct{}{}; <-never })
	r, err := OpenRank(KindShm, Config{EngineID: "e", TP: 1, PP: 1, WakeFd: -1, RingBytes: RingBytesMin, Path: path})
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	began := time.Now()
	r.Close() // not the end of its patience with the host
	if took := time.Since(began); took > helloWait-helloWait/8 {
		t.Errorf("%v", took)
	}
}

func TestDescriptorsAndMemoryAreGivenBack(t *testing.T) {
	count := func() (fds, maps int) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		b, _ := os.ReadFile("/proc/self/maps")
		return len(entries), strings.Count(string(b), "memfd:kvlease")
	}
	forAll(t, kinds, func(t *testing.T, kind string) {
		round := func() {
			t.Run("round", func(t *testing.T) { attached(t, kind) }) // its end closes all
		}
		round()
		fds, maps := count()
		for range 20 {
			round()
		}
		if f, m := count(); f > fds+2 || m > maps {
			t.Errorf("%d descriptors and %d maps, before %d and %d", f, m, fds, maps)
		}
	})
}
