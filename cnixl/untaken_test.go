package cnixl

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// A reader posts reads of 128 MiB and stands still, before a busy machine has answered them, so most of the answers wait inside UCX, which would crash if its worker went.
func TestAnAgentDoesNotGoWhileAPeerThatStandsStillHasToTakeItsAnswers(t *testing.T) {
	for _, how := range []string{"the peer goes on", "the peer is killed", "the peer goes on, no progress thread"} {
		t.Run(how, func(t *testing.T) {
			if !alone(t, "UCX_TLS=tcp") {
				return
			}
			haveNIXL(t)
			const size = 4 << 20
			r := startPeer(t, peerSetup{Agent: "decode", Bytes: size})
			a := realNIXL(t, Config{Agent: "prefill", Inline: strings.HasSuffix(how, "no progress thread")})
			mem := memory(size)
			if err := a.Register([]transport.Region{{Addr: address(mem), Bytes: size}}); err != nil {
				t.Fatal(err)
			}
			blob, err := a.Metadata()
			if err != nil {
				t.Fatal(err)
			}
			line, err := json.Marshal(blob)
			if err != nil {
				t.Fatal(err)
			}
			r.do("load " + string(line))
			r.do("send connect")
			in := transport.NewInbox(4096, 4<<20)
			waitUntil(t, "the connection", func() bool { return a.Poll(in) > 0 })
			if u := untakenOf(a.sets); u.conns > 0 {
				t.Fatalf("before any read: %+v", u)
			}
			r.write(fmt.Sprintf("pull %d 32", address(mem)))
			waitUntil(t, "answers that wait", func() bool {
				a.Poll(in)
				return r.stopped() && untakenOf(a.sets).conns > 0
			})
			for range 3 {
				err := a.Close()
				if !errors.Is(err, transport.ErrUntaken) || !strings.Contains(err.Error(), "on 1 TCP connections") {
					t.Fatalf("close while a peer stands still: %v", err)
				}
				if _, err := a.Metadata(); err != nil {
					t.Fatalf("the agent has changed: %v", err)
				}
			}
			if how == "the peer is killed" {
				r.signal(syscall.SIGKILL)
				waitUntil(t, "the agent to go", func() bool { err = a.Close(); return err == nil })
				return
			}
			r.mu.Lock()
			r.done = nil
			r.mu.Unlock()
			r.signal(syscall.SIGCONT)
			r.until("every byte to arrive", func() bool {
				a.Poll(in)
				return len(r.done) > 0
			})
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// stopped reports that all threads of the process stand still.
func (r *remote) stopped() bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", r.cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		r.t.Fatalf("%d threads, %v", len(threads), err)
	}
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		_, rest, _ := strings.Cut(string(text), ") ")
		if err != nil || !strings.HasPrefix(rest, "T") {
			return false
		}
	}
	return true
}

// stuck is a TCP connection of the host's that nobody reads, and an epoll set that waits for it to take more.
func stuck(t *testing.T) (set int) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	socket := func() int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		check(err)
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	server, client := socket(), socket()
	check(unix.Bind(server, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	check(unix.Listen(server, 1))
	at, err := unix.Getsockname(server)
	check(err)
	check(unix.Connect(client, at))
	check(unix.SetNonblock(client, true))
	for piece := make([]byte, 1<<16); ; {
		if _, err := unix.Write(client, piece); err == unix.EAGAIN {
			break
		} else if err != unix.EINTR {
			check(err)
		}
	}
	set = epoll(t)
	check(unix.EpollCtl(set, unix.EPOLL_CTL_ADD, client, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT}))
	return set
}

func epoll(t *testing.T) int {
	t.Helper()
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(set) })
	return set
}

func TestStuckConnectionsOfTheHostKeepNoAgent(t *testing.T) {
	if !alone(t, "UCX_TLS=tcp") {
		return
	}
	haveNIXL(t)
	for _, set := range []int{stuck(t), stuck(t)} {
		if u := untakenOf([]int{set}); u.conns != 1 || u.bytes == 0 {
			t.Fatalf("the test's own connection: %+v", u)
		}
	}
	a, b := realNIXL(t, Config{Agent: "a"}), realNIXL(t, Config{Agent: "b"})
	stuck(t)
	if len(a.sets) == 0 || len(b.sets) == 0 {
		t.Fatalf("no sets of the agents' own are known: %v, %v", a.sets, b.sets)
	}
	for _, own := range a.sets {
		for _, other := range b.sets {
			if own == other {
				t.Errorf("set %d is of two agents", own)
			}
		}
	}
	for _, agent := range []*Agent{a, b} {
		if err := agent.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOwnSetsAreNewOnesThatANewOneWatches(t *testing.T) {
	old := epoll(t)
	before := pollSets()
	if !before[old] {
		t.Fatalf("set %d is not among %v", old, before)
	}
	outer, inner := epoll(t), epoll(t)
	stuck(t) // of the host's, made at the same time
	for _, fd := range []int{inner, old} {
		if err := unix.EpollCtl(outer, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]int{inner}, ownSets(before)); diff != "" {
		t.Errorf("own sets (-want +got):\n%s", diff)
	}
}

func TestWhatAnEpollSetWatchesIsReadFromItsLines(t *testing.T) {
	const text = `pos:	0
flags:	02000002
mnt_id:	15
ino:	1057
tfd:       42 events:       1d data:     7f671c09ec30  pos:0 ino:f18f10 sdev:8
tfd:       27 events: 80000019 data:     7f6724000be0  pos:0 ino:f186fd sdev:8
tfd:  x events: 19
tfd:
tfd: 1 events: zz data: 0
`
	want := []watch{{42, unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLERR | unix.EPOLLHUP}, {27, unix.EPOLLET&0xffffffff | 0x19}}
	if diff := cmp.Diff(want, parseWatched(text), cmp.AllowUnexported(watch{})); diff != "" {
		t.Errorf("watched (-want +got):\n%s", diff)
	}
	if got := watched(-1); got != nil {
		t.Errorf("of no set: %v", got)
	}
}
