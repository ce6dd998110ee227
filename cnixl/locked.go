package cnixl

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cuda/fabric/rdma"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// lockable is what this process may lock of its memory. A NIC locks what is registered with it, each NIC anew, and the kernel
// answers a registration past the limit with ENOMEM, which UCX and NIXL hand on as an error without a word.
type lockable struct {
	devices int    // NICs that UCX registers memory with
	limit   uint64 // RLIMIT_MEMLOCK; RLIM_INFINITY: none
	pinned  uint64 // already
	exempt  bool   // CAP_IPC_LOCK: the limit is not asked
}

// hostBytes is what registering regions locks of the host's memory on each device.
func hostBytes(regions []transport.Region) (host uint64) {
	for _, r := range regions {
		if r.Mem == transport.DRAM {
			host += r.Bytes
		}
	}
	return host
}

// check holds what registering so much host memory locks against the limit.
func (l *lockable) check(host uint64) error {
	need := host * uint64(l.devices)
	if l.exempt || l.limit == unix.RLIM_INFINITY || l.pinned+need <= l.limit {
		return nil
	}
	return fmt.Errorf("%.1f MiB of host memory on %d network devices lock %.1f MiB, %.1f MiB are locked already, and the limit of this process (RLIMIT_MEMLOCK) "+
		"is %.1f MiB: raise it (ulimit -l unlimited; LimitMEMLOCK=infinity in a unit; --ulimit memlock=-1 for a container), or leave devices out by UCX_NET_DEVICES: %w",
		mib(host), l.devices, mib(need), mib(l.pinned), mib(l.limit), transport.ErrUnavailable)
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }

// locksOfThisProcess looks at the machine. What cannot be read does not stand in the way: the kernel has the last word.
func locksOfThisProcess(settings []transport.Setting) *lockable {
	l := &lockable{limit: unix.RLIM_INFINITY}
	told := toldUCX()
	tls, _ := told("UCX_TLS")
	takes := rdma.Takes(tls, named(settings, told))
	for _, nic := range usable("/sys", "/dev") {
		if takes(nic) {
			l.devices++
		}
	}
	var r unix.Rlimit
	if l.devices == 0 || unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r) != nil {
		return l
	}
	l.limit = r.Cur
	status, err := os.Open("/proc/self/status")
	if err != nil {
		return l
	}
	defer status.Close()
	l.read(bufio.NewScanner(status))
	return l
}

// toldUCX gives what the user of this process has told UCX.
func toldUCX() func(name string) (string, bool) {
	return rdma.Told(func(name string) (string, bool) { v := getenv(name); return v, v != "" }, "/proc/self")
}

// usable names the NICs that this process can open and that have a port which is up: UCX leaves the others alone. A container sees
// all of its machine's in sys, whether it was given any or not.
func usable(sys, dev string) (names []string) {
	for _, n := range rdma.Usable(rdma.Look(sys, dev)) {
		names = append(names, n.Name)
	}
	return names
}

// capIPCLock is the bit of CAP_IPC_LOCK.
const capIPCLock = 1 << 14

// read takes what /proc/self/status says of locked memory and of the capability.
func (l *lockable) read(lines *bufio.Scanner) {
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "VmPin":
			kb, _ := strconv.ParseUint(strings.TrimSuffix(value, " kB"), 10, 64)
			l.pinned = kb << 10
		case "CapEff":
			caps, _ := strconv.ParseUint(value, 16, 64)
			l.exempt = caps&capIPCLock != 0
		}
	}
}
