package doctor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
	"github.com/kvlease/kvlease/cuda/fabric"
	"github.com/kvlease/kvlease/cuda/fabric/rdma"
)

// unlimitedV1 is what v1 says where nothing limits: the largest multiple of a page.
const unlimitedV1 = 1 << 62

func memoryLimit(_ context.Context, s *System) []Result {
	const name = "cgroup memory"
	dirs, v1, err := s.cgroups("memory")
	if err != nil {
		return unread(name, err)
	}
	limitFile, usedFile := "memory.max", "memory.current"
	if v1 {
		limitFile, usedFile = "memory.limit_in_bytes", "memory.usage_in_bytes"
	}
	least, where := uint64(noLimit), ""
	unseen := each(dirs, limitFile, func(dir, text string) error {
		if text == "max" {
			return nil
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err == nil && n < unlimitedV1 && n < least {
			least, where = n, dir
		}
		return err
	})
	switch {
	case where == "" && unseen != nil:
		return unread(name, unseen)
	case where == "":
		return one(name, Pass, "no limit")
	}
	used, err := strconv.ParseUint(rdma.Text(where, usedFile), 10, 64)
	if err != nil {
		return unread(name, fmt.Errorf("what is used of %s (%s): %w", size(least), where, err))
	}
	value := fmt.Sprintf("%s of %s used (%s)", size(used), size(least), where)
	const roomLeast = 2 << 30 // the core's heap may grow to 1 GiB (core_memory_max), and NIXL with UCX takes tens of MiB a rank
	if least-min(used, least) >= roomLeast {
		if unseen != nil {
			return unread(name, fmt.Errorf("%w; of those that are seen: %s", unseen, value))
		}
		return one(name, Pass, value)
	}
	return ill(name, Warn, value, "used counts files that the kernel can drop, so it may be well; but past the limit the kernel kills the engine, and with it every lease. "+
		"A host-memory KV cache, the core's heap (core_memory_max, 1 GiB at most) and pinned memory all count", "a larger limit: MemoryMax= in a unit, --memory, resources.limits.memory")
}

// Room in /dev/shm: UCX's segments for each pair of processes, a stats page a context, the streams between a host and its ranks.
const (
	shmGood  = 1 << 30
	shmLeast = 256 << 20
	shmTried = 16 << 20 // of a file: more than one stats page, stream or segment
)

func sharedMemory(_ context.Context, s *System) []Result {
	const why = "UCX's segments, stats pages and the streams between host and ranks live here"
	name := s.Shm
	dir := s.Shm
	if !s.self() {
		dir = filepath.Join(s.Proc, s.PID, "root", s.Shm) // of a container its own
	}
	free, total, err := s.Room(dir)
	if errors.Is(err, unix.EACCES) {
		return unread(name, err) // of a process of another user
	}
	if err != nil {
		return ill(name, Fail, "not seen: "+err.Error(), why, "mount -t tmpfs -o size=8g tmpfs %s", s.Shm)
	}
	value := fmt.Sprintf("%s free of %s", size(free), size(total))
	switch {
	case total == 0:
		value = "no limit of its own"
	case free < shmGood:
		state := Warn
		if free < shmLeast {
			state = Fail
		}
		return ill(name, state, value, why+"; memory that is not there is a bus error at its first touch",
			"mount -o remount,size=8g %s; in a container --shm-size=8g; in Kubernetes an emptyDir with medium: Memory", s.Shm)
	}
	err = s.TryFile(dir, shmTried)
	if err == nil {
		return one(name, Pass, value)
	}
	remedy, ofAll := shmRemedy(err)
	if !ofAll && !s.self() {
		return unread(name, fmt.Errorf("whether files can be made: %w; %s", err, value))
	}
	return ill(name, Fail, fmt.Sprintf("%s, and no file of %s can be made: %v", value, size(shmTried), err), why+", as files", remedy, s.Shm)
}

// shmRemedy is for a folder in which no file could be made. ofAll: that is so for every process, and not of this one's rights and limits.
func shmRemedy(err error) (remedy string, ofAll bool) {
	switch {
	case errors.Is(err, unix.EROFS):
		return "mount -o remount,rw %s; a volume of a container without :ro", true
	case errors.Is(err, unix.ENOSPC):
		return "df -i %s: remove files, or a remount with size=8g,nr_inodes=1m", true
	case errors.Is(err, unix.EFBIG):
		return "ulimit -f unlimited; in a unit LimitFSIZE=infinity; %s itself has the room", false
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return "chmod 1777 %s; in a unit neither InaccessiblePaths= nor ReadOnlyPaths= of it", false
	}
	return "mount -t tmpfs -o size=8g tmpfs %s: a file system with unnamed files (O_TMPFILE), as tmpfs is", false
}

// numa looks at where the process may run and where its GPUs are.
func numa(_ context.Context, s *System) []Result {
	const name = "NUMA"
	h := s.fabric()
	if len(h.Nodes) == 0 {
		return one(name, Skip, "the kernel tells no nodes")
	}
	if len(h.Nodes) == 1 {
		return one(name, Pass, "one node")
	}
	list, err := s.allowed()
	if err != nil {
		return unread(name, err)
	}
	var on []string
	for _, n := range h.Nodes {
		cpus := fabric.List(rdma.Text(s.Sys, fmt.Sprintf("devices/system/node/node%d/cpulist", n)))
		if slices.ContainsFunc(cpus, func(c int) bool { return slices.Contains(list, c) }) {
			on = append(on, strconv.Itoa(n))
		}
	}
	value := fmt.Sprintf("%d nodes, the process may run on node %s", len(h.Nodes), strings.Join(on, ","))
	var lines []Result
	if len(on) == 1 {
		lines = one(name, Pass, value)
	} else {
		lines = ill(name, Warn, value, "threads and memory of one rank may lie on different sockets than its GPU and its NIC",
			"start each rank on its GPU's node: numactl --cpunodebind=N --preferred=N%s", gpuNodes(h))
	}
	// 1 between nodes, 2 between fast and slow memory, 3 both, all by page faults (Documentation/admin-guide/sysctl/kernel.rst)
	if on, err := strconv.Atoi(rdma.Text(s.Proc, "sys/kernel/numa_balancing")); err == nil && on != 0 {
		lines = append(lines, ill("NUMA balancing", Warn, "on", "the kernel unmaps pages of the process now and then to see who uses them: each touch after that is a fault",
			"sysctl -w kernel.numa_balancing=0")...)
	}
	return lines
}

// gpuNodes says which GPU is on which node.
func gpuNodes(h *fabric.Host) string {
	if len(h.GPUs) == 0 {
		return ""
	}
	var words []string
	for i := range h.GPUs {
		words = append(words, fmt.Sprintf("GPU %d: %d", i, h.GPUs[i].Node))
	}
	return fmt.Sprintf(" (%s)", text.Cut(strings.Join(words, ", "), 120))
}
