package cnixl

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// UCX crashes the process when it destroys a worker that has data to send which a TCP connection does not take: answers to the
// reads of a peer that stands still. Neither NIXL nor UCX tells that there are any. But UCX asks epoll for EPOLLOUT exactly as
// long as it has more to send than a socket took, and /proc/self/fdinfo tells what epoll was asked for.

// untakenWait is how long Close waits for peers to take what is on its way to them.
const untakenWait = 200 * time.Millisecond

// quiet is how long nothing may have come over TCP, and nothing may have waited, before an agent goes: a reader posts its reads one
// by one, 40 ms apart on a busy machine, and what is answered while the worker goes is as bad as what was answered before.
const quiet = 50 * time.Millisecond

// opening is held while an agent is made: what appears meanwhile is its own, or the host's, which ownSets tells apart.
var opening sync.Mutex

// ownSets picks the epoll sets of an agent's transports out of the descriptors that were not there before: those that another
// new epoll set watches, as UCX's worker does. A set that the host has made at the same time stands alone.
func ownSets(before map[int]bool) []int {
	var own []int
	now := pollSets()
	for fd := range now {
		for outer := range now {
			if !before[fd] && !before[outer] && watches(outer, fd) {
				own = append(own, fd)
				break
			}
		}
	}
	return own
}

func watches(outer, fd int) bool {
	for _, w := range watched(outer) {
		if w.fd == fd {
			return true
		}
	}
	return false
}

// pollSets are the epoll descriptors of this process, none without /proc.
func pollSets() map[int]bool {
	sets := map[int]bool{}
	names, _ := filepath.Glob("/proc/self/fd/*")
	for _, name := range names {
		if to, err := os.Readlink(name); err != nil || to != "anon_inode:[eventpoll]" {
			continue
		}
		if fd, err := strconv.Atoi(filepath.Base(name)); err == nil {
			sets[fd] = true
		}
	}
	return sets
}

type watch struct {
	fd     int
	events uint64
}

// watched lists what an epoll set was asked for; nothing for what is no epoll set.
func watched(set int) []watch {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", set))
	if err != nil {
		return nil
	}
	return parseWatched(string(text))
}

// parseWatched reads lines like "tfd:       42 events:       1d data: ...".
func parseWatched(text string) []watch {
	var list []watch
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 4 || f[0] != "tfd:" || f[2] != "events:" {
			continue
		}
		fd, err := strconv.Atoi(f[1])
		events, err2 := strconv.ParseUint(f[3], 16, 64)
		if err == nil && err2 == nil {
			list = append(list, watch{fd, events})
		}
	}
	return list
}

// untaken is what an agent's TCP connections hold back.
type untaken struct {
	conns int // connections on which UCX waits to send more
	bytes int // that their sockets hold; UCX itself holds more
	alive int // connections over which something has come lately, or that hold what UCX has still to read: it may answer
}

func untakenOf(sets []int) (u untaken) {
	for _, set := range sets {
		for _, w := range watched(set) {
			info := established(w.fd)
			if info == nil {
				continue
			}
			n, err := unix.IoctlGetInt(w.fd, unix.SIOCINQ)
			if err == nil && n > 0 || time.Duration(info.Last_data_recv)*time.Millisecond < quiet {
				u.alive++
			}
			// While a stopped peer is connected to, UCX asks for EPOLLOUT over a socket that is empty.
			if n, err := unix.IoctlGetInt(w.fd, unix.SIOCOUTQ); err == nil && n > 0 && w.events&unix.EPOLLOUT != 0 {
				u.conns++
				u.bytes += n
			}
		}
	}
	return u
}

// established is the state of a TCP connection that takes data, nil for what is none. While one is made UCX asks for EPOLLOUT, too.
func established(fd int) *unix.TCPInfo {
	const established, closeWait = 1, 8 // linux/tcp_states.h
	if protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || protocol != unix.IPPROTO_TCP {
		return nil
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || info.State != established && info.State != closeWait {
		return nil
	}
	return info
}

// settle waits until peers have taken what is on its way to them, at most untakenWait. ErrUntaken: one has not.
func (a *Agent) settle() error {
	var waited untaken // the last one that was not taken, and when
	var at time.Time
	for end := time.Now().Add(untakenWait); ; time.Sleep(time.Millisecond) {
		if a.inline {
			a.progress()
		}
		u, now := untakenOf(a.sets), time.Now()
		if u.conns > 0 {
			waited, at = u, now
		}
		taken := now.Sub(at) >= quiet
		switch {
		case taken && (u.alive == 0 || now.After(end)): // what comes all the time, heartbeats, needs no answers
			return nil
		case now.After(end):
			return fmt.Errorf("close agent %s: %d bytes on %d TCP connections are not taken by peers that stand still, and UCX would crash: call "+
				"again when these go on or have ended: %w", a.name, waited.bytes, waited.conns, transport.ErrUntaken)
		}
	}
}
