package doctor

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
	"github.com/kvlease/kvlease/cuda/fabric/rdma"
	"github.com/kvlease/kvlease/internal/plural"
)

// limit is a resource limit of a process; noLimit stands for unlimited.
type limit struct{ soft, hard uint64 }

const noLimit = math.MaxUint64

// limitOf reads a line of /proc/PID/limits, such as "Max open files".
func (s *System) limitOf(name string) (limit, error) {
	all, err := s.proc("limits")
	if err != nil {
		return limit{}, err
	}
	return parseLimit(all, name)
}

func parseLimit(all, name string) (l limit, err error) {
	for line := range strings.Lines(all) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok {
			continue
		}
		f := strings.Fields(rest)
		for i, to := range []*uint64{&l.soft, &l.hard} {
			if i >= len(f) {
				return limit{}, fmt.Errorf("%q is short", strings.TrimSpace(line))
			}
			if *to, err = strconv.ParseUint(f[i], 10, 64); f[i] == "unlimited" {
				*to, err = noLimit, nil
			}
			if err != nil {
				return limit{}, fmt.Errorf("%q: %w", strings.TrimSpace(line), err)
			}
		}
		return l, nil
	}
	return limit{}, fmt.Errorf("no %q among the limits", name)
}

// size is a number of bytes in words.
func size(n uint64) string {
	if n == noLimit {
		return "unlimited"
	}
	return text.Bytes(float64(n)) + "B"
}

// count is a number with a comma between thousands.
func count(n uint64) string {
	if n == noLimit {
		return "unlimited"
	}
	digits := strconv.FormatUint(n, 10)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// capIPCLock is the bit of CAP_IPC_LOCK in a set of capabilities.
const capIPCLock = 1 << 14

// lockEnough is what a NIC locks at the least, with room: board, queues, and a small cache in host memory.
const lockEnough = 1 << 30

func lockedMemory(_ context.Context, s *System) []Result {
	const name = "locked memory"
	l, err := s.limitOf("Max locked memory")
	if err != nil {
		return unread(name, err)
	}
	status, err := s.proc("status")
	if err != nil {
		return unread(name, err)
	}
	caps, err := strconv.ParseUint(field(status, "CapEff"), 16, 64)
	if err != nil {
		return unread(name, fmt.Errorf("CapEff of the process: %w", err))
	}
	told := s.told()
	tls, _ := told("UCX_TLS")
	named, _ := told("UCX_NET_DEVICES")
	usable, takes := 0, rdma.Takes(tls, named)
	for _, n := range s.fabric().NICs {
		if n.Usable() && takes(n.Name) {
			usable++
		}
	}
	switch {
	case l.soft == noLimit:
		return one(name, Pass, "unlimited")
	case caps&capIPCLock != 0:
		return one(name, Pass, size(l.soft)+", not applied: the process has CAP_IPC_LOCK")
	case usable == 0:
		return one(name, Pass, size(l.soft)+", and no RDMA NIC that UCX would use here, which would lock any")
	}
	state := Warn
	if l.soft < lockEnough {
		state = Fail
	}
	return ill(name, state, fmt.Sprintf("%s, with %s", size(l.soft), plural.Counted(usable, "RDMA NIC", "RDMA NICs")),
		"each NIC locks host memory that is registered with it, each one anew; past the limit registration is refused",
		"ulimit -l unlimited; in a unit LimitMEMLOCK=infinity; in a container --ulimit memlock=-1")
}

// Descriptors: an owner watches its readers by connections that take at most half of them (key death_wires_max, 4,096).
const (
	filesGood  = 2 * 4096
	filesLeast = 1024
)

func openFiles(_ context.Context, s *System) []Result {
	const name = "open files"
	l, err := s.limitOf("Max open files")
	if err != nil {
		return unread(name, err)
	}
	n, value := l.hard, count(l.hard)+", the hard limit: the core raises the soft one to it"
	if !s.self() {
		n, value = l.soft, count(l.soft)
	}
	switch {
	case n >= filesGood:
		return one(name, Pass, value)
	case n >= filesLeast:
		return ill(name, Warn, value, fmt.Sprintf("an owner watches each reader by a connection, in at most half of its descriptors: %s readers instead of 4,096; "+
			"the death of others is seen by the lease alone", count(n/2)), "ulimit -Hn 65536; in a unit LimitNOFILE=65536; in a container --ulimit nofile=65536")
	}
	return ill(name, Fail, value, "NIXL takes 20 descriptors an agent and UCX one or more a peer: connections will be refused under load",
		"ulimit -Hn 65536; in a unit LimitNOFILE=65536; in a container --ulimit nofile=65536")
}

func coreFiles(_ context.Context, s *System) []Result {
	const name = "core files"
	l, err := s.limitOf("Max core file size")
	if err != nil {
		return unread(name, err)
	}
	pattern := rdma.Text(s.Proc, "sys/kernel/core_pattern")
	switch {
	case strings.HasPrefix(pattern, "|"):
		return one(name, Pass, "taken by "+strings.Fields(pattern[1:] + " nobody")[0]+", whatever the limit") // core(5): a pipe is not limited
	case l.soft > 0:
		return one(name, Pass, size(l.soft)+", written to "+pattern)
	}
	return ill(name, Warn, "0, no core is written", "after a crash inside UCX, NIXL or a driver there is nothing to look at",
		"ulimit -c unlimited; in a unit LimitCORE=infinity; in a container --ulimit core=-1")
}

// field is the value of a line of /proc/PID/status.
func field(status, name string) string {
	for line := range strings.Lines(status) {
		if key, value, ok := strings.Cut(line, ":"); ok && key == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
