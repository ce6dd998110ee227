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
)

func sharedMemory(_ context.Context, s *System) []Result {
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
		return ill(name, Fail, "not seen: "+err.Error(), "UCX, the stats pages and the streams between host and ranks use it", "mount -t tmpfs -o size=8g tmpfs %s", s.Shm)
	}
	value := fmt.Sprintf("%s free of %s", size(free), size(total))
	if free >= shmGood {
		return one(name, Pass, value)
	}
	state := Warn
	if free < shmLeast {
		state = Fail
	}
	return ill(name, state, value, "UCX's segments, stats pages and the streams between host and ranks live here; memory that is not there is a bus error at its first touch",
		"mount -o remount,size=8g %s; in a container --shm-size=8g; in Kubernetes an emptyDir with medium: Memory", s.Shm)
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
	if rdma.Text(s.Proc, "sys/kernel/numa_balancing") == "1" {
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
