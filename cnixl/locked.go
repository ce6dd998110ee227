package cnixl

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// lockable is what this process may lock of its memory. A NIC locks what is registered with it, each NIC anew, and the kernel
// answers a registration past the limit with ENOMEM, which UCX and NIXL hand on as an error without a word.
type lockable struct {
	devices int    // NICs that UCX may register memory with
	limit   uint64 // RLIMIT_MEMLOCK; RLIM_INFINITY: none
	pinned  uint64 // already
	exempt  bool   // CAP_IPC_LOCK: the limit is not asked
}

// check holds what registering regions locks against the limit.
func (l *lockable) check(regions []transport.Region) error {
	host := uint64(0)
	for _, r := range regions {
		if r.Mem == transport.DRAM {
			host += r.Bytes
		}
	}
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
func locksOfThisProcess() *lockable {
	l := &lockable{limit: unix.RLIM_INFINITY}
	if names, err := os.ReadDir("/sys/class/infiniband"); err == nil {
		var nics []string
		for _, n := range names {
			nics = append(nics, n.Name())
		}
		l.devices = devices(nics, getenv("UCX_TLS"), getenv("UCX_NET_DEVICES"))
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

// devices counts the NICs that UCX registers memory with, by what the user tells it.
func devices(nics []string, tls, named string) int {
	if tls = strings.TrimSpace(tls); tls != "" && tls != "all" && !strings.HasPrefix(tls, "^") {
		verbs := false
		for name := range strings.SplitSeq(tls, ",") {
			name = strings.TrimPrefix(strings.TrimSpace(name), `\`)
			base, _, _ := strings.Cut(name, "_")
			verbs = verbs || base == "ib" || base == "rc" || base == "dc" || base == "ud" || name == "all"
		}
		if !verbs {
			return 0
		}
	}
	if named = strings.TrimSpace(named); named == "" || named == "all" || strings.HasPrefix(named, "^") {
		return len(nics)
	}
	n := 0
	for _, nic := range nics {
		for name := range strings.SplitSeq(named, ",") {
			if device, _, _ := strings.Cut(strings.TrimSpace(name), ":"); device == nic {
				n++
				break
			}
		}
	}
	return n
}
