package stream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/internal/await"
	"github.com/kvlease/kvlease/internal/child"
	"github.com/kvlease/kvlease/internal/require"
)

// The test program is also the other process: helperEnv says which part it plays.
const helperEnv = "KVLEASE_STREAM_HELPER"

func TestMain(m *testing.M) {
	switch part := os.Getenv(helperEnv); part {
	case "":
		os.Exit(m.Run())
	case "hold": // a child that keeps what it was given, until its input ends
		io.Copy(io.Discard, os.Stdin)
	default:
		if err := play(part); err != nil {
			fmt.Fprintln(os.Stderr, part+":", err)
			os.Exit(1)
		}
	}
}

// play is a host or a rank in its own process; it ends by a signal, or with its input.
func play(part string) error {
	ranks, _ := strconv.Atoi(os.Getenv("RANKS"))
	cfg := Config{EngineID: "two processes", TP: uint32(ranks), PP: 1, RingBytes: 64 << 10, Path: os.Getenv("SOCKET")}
	var err error
	if cfg.WakeFd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return err
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	var c Carrier
	if strings.HasPrefix(part, "rank") {
		rank, _ := strconv.Atoi(os.Getenv("RANK"))
		cfg.Rank = uint32(rank)
		c, err = OpenRank(KindShm, cfg)
	} else {
		var h *Host
		if h, err = OpenHost(KindShm, cfg); err == nil {
			c = h.End(0)
		}
	}
	if err != nil {
		return err
	}
	switch part {
	case "rank that gives back", "host that gives back":
		return giveBack(c, cfg.WakeFd)
	case "rank that writes", "host that writes":
		return writeOn(c)
	case "host with a child":
		return haveChild(c)
	}
	return errors.New("no such part")
}

func say(what string) { fmt.Println(what) }

// giveBack sends every record back, asleep while there is none.
func giveBack(c Carrier, fd int) error {
	said := false
	for {
		c.Sleeping(true)
		if !c.Pending() {
			woken(fd, time.Second)
		}
		c.Sleeping(false)
		if c.State() == Attached && !said {
			said = true
			say("attached")
		}
		if c.Gap() {
			c.Begin()
		}
		for {
			tag, rec, ok := c.Next()
			if !ok {
				break
			}
			if back := c.Reserve(tag, len(rec)); back != nil {
				copy(back, rec)
			}
		}
		c.Release()
		c.Publish()
	}
}

// writeOn writes numbered records without end.
func writeOn(c Carrier) error {
	for i := uint64(0); ; {
		if c.Gap() {
			c.Begin()
		}
		if c.Fits(200) {
			putNumbered(c.Reserve(7, int(8+i%190)), i)
			if i++; i == 1000 {
				say("writing")
			}
		}
		c.Publish()
	}
}

// haveChild passes its sockets to a child, as a fork would.
func haveChild(c Carrier) error {
	for c.State() != Attached {
		time.Sleep(time.Millisecond)
	}
	e := c.(*shmHostEnd)
	listener, err := e.host.listener.File()
	if err != nil {
		return err
	}
	conn, err := e.conn.File()
	if err != nil {
		return err
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), helperEnv+"=hold")
	child.ExtraFiles = []*os.File{listener, conn}
	child.Stdin = os.NewFile(3, "the test's pipe")
	if err := child.Start(); err != nil {
		return err
	}
	say("child " + strconv.Itoa(child.Process.Pid))
	select {}
}

// helper starts another process; said gives its lines.
func helper(t *testing.T, part, socket string, rank, ranks int, change ...func(*exec.Cmd)) (cmd *exec.Cmd, said *bufio.Scanner) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+part, "SOCKET="+socket, "RANK="+strconv.Itoa(rank), "RANKS="+strconv.Itoa(ranks))
	cmd.Stderr = os.Stderr
	for _, c := range change {
		c(cmd)
	}
	in, out := child.Pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd, bufio.NewScanner(out)
}

func wait(t *testing.T, said *bufio.Scanner, prefix string) string {
	t.Helper()
	if !said.Scan() || !strings.HasPrefix(said.Text(), prefix) {
		t.Fatalf("the other process says %q, want %q", said.Text(), prefix)
	}
	return strings.TrimPrefix(said.Text(), prefix)
}

// twoProcesses is a rig of shm whose other end plays a part in its own process.
func twoProcesses(t *testing.T, part string) (c Carrier, fd int, cmd *exec.Cmd, said *bufio.Scanner) {
	t.Helper()
	cfg := Config{EngineID: "two processes", TP: 1, PP: 1, RingBytes: 64 << 10, Path: filepath.Join(t.TempDir(), "s")}
	fd = eventFd(t)
	cfg.WakeFd = fd
	cmd, said = helper(t, part, cfg.Path, 0, 1)
	if strings.HasPrefix(part, "rank") {
		h, err := OpenHost(KindShm, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { h.Close() })
		c = h.End(0)
	} else {
		r, err := OpenRank(KindShm, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		c = r
	}
	await.True(t, "attached", func() bool { return c.State() == Attached })
	if c.Gap() {
		if _, ok := c.Begin(); !ok {
			t.Fatal("no room")
		}
		c.Publish()
	}
	return c, fd, cmd, said
}

func TestTwoProcessesThrowRecordsBackAndForthAndADeadOneIsNoticed(t *testing.T) {
	for _, part := range []string{"rank that gives back", "host that gives back"} {
		t.Run(part, func(t *testing.T) {
			c, fd, cmd, said := twoProcesses(t, part)
			wait(t, said, "attached")
			var trip []time.Duration
			for i := range uint64(2000) {
				began := time.Now()
				rec := c.Reserve(99, 100)
				for ; rec == nil; rec = c.Reserve(99, 100) { // a rank, before the host has begun
					woken(fd, 10*time.Millisecond)
					for tag, _, ok := c.Next(); ok; tag, _, ok = c.Next() {
						_ = tag
					}
					c.Release()
				}
				putNumbered(rec, i)
				c.Publish()
				for tag := uint32(0); tag != 99; {
					if !sleepUntil(t, c, fd) {
						t.Fatalf("record %d did not come back", i)
					}
					var rec []byte
					tag, rec, _ = c.Next()
					if err := checkNumbered(rec, i); tag == 99 && err != nil {
						t.Fatal(err)
					}
					c.Release()
				}
				trip = append(trip, time.Since(began))
			}
			c.Sleeping(true)
			for c.Pending() {
				c.Next()
				c.Release()
				c.State()
			}
			began, ran := time.Now(), await.Stopwatch(t)
			cmd.Process.Signal(syscall.SIGKILL)
			if !woken(fd, time.Minute) {
				t.Fatal("a killed process woke nobody")
			}
			took := time.Since(began)
			if c.State() != Lost || !errors.Is(c.Err(), ErrGone) {
				t.Errorf("%v, %v", c.State(), c.Err())
			}
			t.Logf("round trip %v, the kill was noticed after %v", trip[len(trip)/2], took)
			if took := ran(); took > 4*time.Second { // a millisecond where there is a processor free
				t.Errorf("the kill was noticed after %v", took)
			}
		})
	}
}

func TestAProcessThatIsKilledWhileItWritesLeavesWholeRecords(t *testing.T) {
	for _, part := range []string{"rank that writes", "host that writes"} {
		t.Run(part, func(t *testing.T) {
			for round := range 5 {
				c, _, cmd, said := twoProcesses(t, part)
				go func() {
					if said.Scan() { // "writing": at the ring's speed, which this reader sets
						time.Sleep(time.Duration(round) * time.Millisecond)
					}
					cmd.Process.Signal(syscall.SIGKILL)
				}()
				var got uint64
				read := func() bool {
					tag, rec, ok := c.Next()
					if ok && tag == 7 {
						if err := checkNumbered(rec, got); err != nil || len(rec) != int(8+got%190) {
							t.Fatalf("record %d of %d bytes: %v", got, len(rec), err)
						}
						got++
					}
					c.Release()
					return ok
				}
				for c.State() == Attached {
					read()
				}
				for read() {
				}
				if !errors.Is(c.Err(), ErrGone) || !errors.Is(c.Err(), ErrEnded) || got < 900 {
					t.Errorf("%d records, %v", got, c.Err())
				}
			}
		})
	}
}

func TestAHostWhoseChildHoldsItsSocketsIsMissedAllTheSame(t *testing.T) {
	r, w, err := os.Pipe() // ends the child
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	cfg := Config{EngineID: "two processes", TP: 1, PP: 1, WakeFd: -1, RingBytes: 64 << 10, Path: filepath.Join(t.TempDir(), "s")}
	cmd, said := helper(t, "host with a child", cfg.Path, 0, 1, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{r} })
	c, err := OpenRank(KindShm, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	await.True(t, "attached", func() bool { return c.State() == Attached })
	child, _ := strconv.Atoi(wait(t, said, "child "))
	cmd.Process.Kill()
	cmd.Wait()
	if unix.Kill(child, 0) != nil {
		t.Fatal("the child is gone: the test shows nothing")
	}
	await.True(t, "lost", func() bool { return c.State() == Lost })
	h, err := OpenHost(KindShm, cfg)
	if err != nil {
		t.Fatalf("its socket was not taken for a dead host's: %v", err)
	}
	h.Close()
}

func TestSixtyFourRanksInTheirOwnProcesses(t *testing.T) {
	const ranks = 64
	fd := eventFd(t)
	cfg := Config{EngineID: "two processes", TP: ranks, PP: 1, WakeFd: fd, RingBytes: 64 << 10, Path: filepath.Join(t.TempDir(), "s")}
	h, err := OpenHost(KindShm, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	var cmds []*exec.Cmd
	for rank := range ranks {
		cmd, _ := helper(t, "rank that gives back", cfg.Path, rank, ranks)
		cmds = append(cmds, cmd)
	}
	var got, began [ranks]bool
	await.True(t, "a record from each rank", func() bool {
		all := true
		for i := range uint32(ranks) {
			c := h.End(i)
			if !began[i] && c.Gap() {
				if _, ok := c.Begin(); ok {
					began[i] = true
					putNumbered(c.Reserve(9, 16), uint64(i))
					c.Publish()
				}
			}
			for {
				tag, rec, ok := c.Next()
				if !ok {
					break
				}
				if tag == 9 {
					if err := checkNumbered(rec, uint64(i)); err != nil {
						t.Fatalf("rank %d: %v", i, err)
					}
					got[i] = true
				}
			}
			c.Release()
			all = all && got[i]
		}
		return all
	})
	for i := 0; i < ranks; i += 2 {
		cmds[i].Process.Kill()
	}
	await.True(t, "the killed ones are lost", func() bool {
		for i := uint32(0); i < ranks; i += 2 {
			if h.End(i).State() != Lost {
				return false
			}
		}
		return true
	})
	for i := uint32(1); i < ranks; i += 2 {
		if h.End(i).State() != Attached {
			t.Errorf("rank %d, which lives, is %v", i, h.End(i).State())
		}
	}
}

func TestAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		require.Skip(t, "root", "another user's process is needed")
	}
	dir, err := os.MkdirTemp("/tmp", "kvlease")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o777)
	bin := filepath.Join(dir, "stream.test") // where another user may run it
	if b, err := os.ReadFile(os.Args[0]); err != nil || os.WriteFile(bin, b, 0o755) != nil {
		t.Fatal(err)
	}
	nobody := func(c *exec.Cmd) {
		c.Path, c.Args[0], c.Dir = bin, bin, "/"
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	cfg := Config{EngineID: "two processes", TP: 1, PP: 1, WakeFd: -1, RingBytes: 64 << 10, Path: filepath.Join(dir, "s")}

	t.Run("as a rank, even if the socket were open to all", func(t *testing.T) {
		h, err := OpenHost(KindShm, cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		os.Chmod(cfg.Path, 0o777)
		_, said := helper(t, "rank that gives back", cfg.Path, 0, 1, nobody)
		r, err := OpenRank(KindShm, cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		await.True(t, "our rank has its place", func() bool { return r.State() == Attached })
		heard := make(chan string, 1)
		go func() { said.Scan(); heard <- said.Text() }()
		select {
		case line := <-heard:
			t.Errorf("the other user's says %q", line)
		case <-time.After(200 * time.Millisecond):
		}
	})
	t.Run("as a host that sits on the path", func(t *testing.T) {
		cfg.Path = filepath.Join(dir, "theirs")
		helper(t, "host that gives back", cfg.Path, 0, 1, nobody)
		r, err := OpenRank(KindShm, cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		await.True(t, "refused", func() bool {
			err := r.Err()
			return errors.Is(err, ErrPath) && strings.Contains(err.Error(), "65534")
		})
		if r.State() != Waiting {
			t.Errorf("%v", r.State())
		}
	})
}
