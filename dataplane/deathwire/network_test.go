package deathwire

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/zmtp"
	"github.com/kvlease/kvlease/internal/await"
	"github.com/kvlease/kvlease/internal/sigstop"
)

// listening is an owner on a real port, which it shares with ZeroMQ.
type listening struct {
	*Server
	addr string
	dead chan who
}

func listen(t testing.TB, host string, cfg ServerConfig) *listening {
	t.Helper()
	l := &listening{dead: make(chan who, 1<<14)}
	cfg.Self = func() (uint64, uint64) { return owner.engine, owner.epoch }
	cfg.Dead = func(engine, epoch uint64) { l.dead <- who{engine, epoch} }
	cfg.Grace = grace
	l.Server = NewServer(cfg)
	z, err := zmtp.Listen(net.JoinHostPort(host, "0"), zmtp.Config{
		Handle: func(_ context.Context, q [][]byte) (zmtp.Reply, error) { return zmtp.Reply{Frames: q}, nil },
		Other:  l.Serve,
	})
	if err != nil {
		t.Fatal(err)
	}
	l.addr = z.Addr().String()
	t.Cleanup(func() {
		l.Close()
		if err := z.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// hold opens a wire on a real connection.
func hold(t testing.TB, addr string, who who, nonce [16]byte) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(time.Minute))
	f := Frame{Kind: Hello, Engine: who.engine, Epoch: who.epoch, Nonce: nonce}
	if _, err := c.Write(f.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if w := readFrame(c); w == nil || w.Kind != Welcome {
		t.Fatalf("answered %v", w)
	}
	return c
}

// TestHelperReader is the process of a reader: it keeps a wire until it is killed.
func TestHelperReader(t *testing.T) {
	addr := os.Getenv("DEATHWIRE_TEST_OWNER")
	if addr == "" {
		t.Skip("it is the process of another test")
	}
	c := hold(t, addr, readerD, nonce(1))
	fmt.Println("up")
	c.SetDeadline(time.Now().Add(5 * time.Minute))
	c.Read(make([]byte, 1))
}

// reader starts the process of a reader, with its wire up.
func reader(t *testing.T, addr string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperReader$")
	cmd.Env = append(os.Environ(), "DEATHWIRE_TEST_OWNER="+addr)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "up\n" {
		t.Fatalf("the reader says %q: %v", line, err)
	}
	return cmd
}

func TestAKilledProcessIsKnownDeadInLessThanASecond(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			await.NoLeaks(t)
			l := listen(t, host, ServerConfig{})
			cmd := reader(t, l.addr)
			l.Heard(readerD.engine, readerD.epoch, nonce(1))
			await.True(t, "the nonce is heard", func() bool { return l.Stats().Known == 1 })
			killed, ran := time.Now(), await.Stopwatch(t)
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			select {
			case w := <-l.dead:
				took := time.Since(killed)
				t.Logf("known after %v", took)
				if w != readerD || took < grace || ran() > time.Second {
					t.Errorf("%x is dead after %v", w, took)
				}
			case <-time.After(time.Minute):
				t.Fatalf("not known: %+v", l.Stats())
			}
		})
	}
}

func TestAStoppedProcessIsNotDead(t *testing.T) {
	l := listen(t, "127.0.0.1", ServerConfig{})
	cmd := reader(t, l.addr)
	l.Heard(readerD.engine, readerD.epoch, nonce(1))
	await.True(t, "the nonce is heard", func() bool { return l.Stats().Known == 1 })
	if err := sigstop.Signal(cmd.Process, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	select {
	case w := <-l.dead:
		t.Fatalf("%x is dead", w)
	case <-time.After(3 * grace): // nothing is to happen: there is no condition to wait for
	}
	if st := l.Stats(); st.Wires != 1 {
		t.Errorf("stats %+v", st)
	}
	cmd.Process.Kill() // a stopped one dies, too
	select {
	case <-l.dead:
	case <-time.After(time.Minute):
		t.Fatal("not known dead")
	}
}

func TestAnOwnersDeathIsSeenOverARealConnection(t *testing.T) {
	await.NoLeaks(t)
	l := listen(t, "127.0.0.1", ServerConfig{})
	dead := make(chan uint64, 1)
	c := NewClient(ClientConfig{Grace: grace, Dead: func(engine uint64, _ Wire) { dead <- engine }})
	defer c.Close()
	w := wireD
	w.Addr = l.addr
	if err := c.Keep(7, w); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the wire is up", func() bool { return c.Stats().States[Up] == 1 && l.Stats().Wires == 1 })
	l.EndEra() // its listener stays and takes the wire back: no death
	await.True(t, "the wire is up again", func() bool { return c.Stats().Returned == 1 && c.Stats().States[Up] == 1 })
	gone := listen(t, "127.0.0.1", ServerConfig{})
	w.Addr = gone.addr
	c.Keep(7, w)
	await.True(t, "the other wire is up", func() bool { return gone.Stats().Wires == 1 })
	ran := await.Stopwatch(t)
	gone.Close() // its wires fall; hellos are taken no more
	select {
	case engine := <-dead:
		if took := ran(); engine != 7 || took > 2*time.Second {
			t.Errorf("engine %d is dead after %v", engine, took)
		}
	case <-time.After(time.Minute):
		t.Fatal("not known dead")
	}
}

// crowd is how many of n wires this machine's limit of descriptors allows, both ends in this process.
func crowd(t testing.TB, n int) int {
	t.Helper()
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		t.Fatal(err)
	}
	most := int(min(r.Cur, 1<<20))/2 - 200
	if most < n {
		t.Logf("%d descriptors allow %d wires, not %d", r.Cur, most, n)
	}
	return min(n, most)
}

func TestFourThousandWires(t *testing.T) {
	await.NoLeaks(t)
	n := crowd(t, 4096)
	l := listen(t, "127.0.0.1", ServerConfig{Max: n})
	before := resident(t)
	conns := make([]net.Conn, n)
	var opening sync.WaitGroup
	turns := make(chan struct{}, 32)
	for i := range conns {
		turns <- struct{}{}
		opening.Go(func() {
			conns[i] = hold(t, l.addr, who{uint64(1000 + i), 1}, nonce(byte(i)))
			<-turns
		})
	}
	opening.Wait()
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	runtime.GC()
	t.Logf("%d wires: %d KiB each, both ends", n, (resident(t)-before)>>10/n)
	if grown := resident(t) - before; grown > n*64<<10 {
		t.Errorf("%d MiB for %d wires", grown>>20, n)
	}
	// Two of them are readers; the others end nothing, and keep nobody from asking.
	for _, i := range []int{5, 6} {
		l.Heard(uint64(1000+i), 1, nonce(byte(i)))
	}
	await.True(t, "two are known", func() bool { return l.Stats().Known == 2 })
	c, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	f := Frame{Kind: Hello, Engine: 1, Epoch: 1, Nonce: nonce(1)}
	c.Write(f.Append(nil))
	if w := readFrame(c); w == nil || w.Kind != Welcome {
		t.Errorf("one too many, which takes the place of one that nobody has heard, is answered %v", w)
	}
	c.Close()
	if _, _, err := (zmtp.Client{}).Request(t.Context(), l.addr, []byte("q")); err != nil {
		t.Errorf("a handshake beside them: %v", err)
	}
	for i, c := range conns {
		if i != 6 {
			c.Close()
		}
	}
	select {
	case w := <-l.dead:
		if w != (who{1005, 1}) {
			t.Errorf("%x is dead", w)
		}
	case <-time.After(time.Minute):
		t.Fatal("not known dead")
	}
	await.True(t, "all others are closed", func() bool { return l.Stats().Wires == 1 })
	if st := l.Stats(); st.Full != 0 || st.Evicted != 1 || st.Dead != 1 || len(l.dead) != 0 {
		t.Errorf("stats %+v", st)
	}
}

func resident(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int
	fmt.Sscan(strings.TrimSpace(string(b)), &size, &pages)
	return pages * os.Getpagesize()
}

func TestKeepAliveOfAWireIsSlow(t *testing.T) {
	s := NewServer(ServerConfig{Self: func() (uint64, uint64) { return owner.engine, owner.epoch }})
	defer s.Close()
	taken := make(chan net.Conn, 1)
	z, err := zmtp.Listen("127.0.0.1:0", zmtp.Config{Other: func(ctx context.Context, c net.Conn) {
		taken <- c.(interface{ NetConn() net.Conn }).NetConn()
		s.Serve(ctx, c)
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	c := hold(t, z.Addr().String(), readerD, nonce(1))
	defer c.Close()
	raw, err := (<-taken).(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []struct{ option, want int }{{unix.TCP_KEEPIDLE, 60}, {unix.TCP_KEEPINTVL, 15}, {unix.TCP_KEEPCNT, 8}} {
		var got int
		if cerr := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, o.option) }); cerr != nil || err != nil {
			t.Fatal(cerr, err)
		}
		if got != o.want {
			t.Errorf("option %d is %d, want %d", o.option, got, o.want)
		}
	}
}
