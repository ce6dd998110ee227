package fabric

import (
	"cmp"
	"errors"
	"os"
	"time"

	"github.com/kvlease/kvlease/cuda/fabric/rdma"
)

// Config says where to look. The zero value is this machine.
type Config struct {
	Sys, Proc, Dev string        // roots; /sys, /proc and /dev if empty
	NVML           string        // file of NVIDIA's management library; KVLEASE_NVML, else what the loader finds, if empty
	Release        string        // of the kernel
	Watch          time.Duration // how long Xid errors are waited for; 0: not at all
}

// Host is a machine with what matters for reads of GPU memory.
type Host struct {
	Driver    Driver
	GPUs      []GPU
	GPUErr    error    // why GPUs were not found, or not looked at
	Unwatched error    // why Xid errors could not be waited for
	OnBus     []string // addresses of NVIDIA GPUs on the bus, whether a driver has them or not
	NICs      []rdma.NIC
	GPUMemory rdma.GPUMemory
	Nodes     []int // NUMA nodes with processors

	nics []place // of each NIC
}

// place is where a function is.
type place struct {
	path []string
	node int
}

// Look looks at a machine. It fails at nothing: what could not be seen is said in the Host.
func Look(cfg Config) *Host {
	sys, proc, dev := cmp.Or(cfg.Sys, "/sys"), cmp.Or(cfg.Proc, "/proc"), cmp.Or(cfg.Dev, "/dev")
	t := tree(sys)
	h := &Host{OnBus: t.nvidiaOnBus(), NICs: rdma.Look(sys, dev), GPUMemory: rdma.LookGPUMemory(sys, proc, cfg.Release), Nodes: t.nodes()}
	for i := range h.NICs {
		h.nics = append(h.nics, place{t.path(h.NICs[i].PCI), t.node(h.NICs[i].PCI)})
	}
	h.GPUErr = h.lookAtGPUs(cmp.Or(cfg.NVML, os.Getenv("KVLEASE_NVML")), cfg.Watch)
	for i := range h.GPUs {
		g := &h.GPUs[i]
		g.path, g.Node = t.path(g.PCI), t.node(g.PCI)
	}
	return h
}

func (h *Host) lookAtGPUs(library string, watch time.Duration) (err error) {
	m, err := openManagement(library)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	if h.Driver, err = m.driver(); err != nil {
		return err
	}
	n, r := m.lib.DeviceGetCount()
	if err := asError(r); err != nil {
		return err
	}
	for i := range n {
		h.GPUs = append(h.GPUs, m.look(i))
	}
	if watch > 0 {
		h.Unwatched = m.watch(h.GPUs, watch)
	}
	return nil
}

// Between is the distance of a GPU and a NIC, by their places in the Host, and the number of links between them.
func (h *Host) Between(gpu, nic int) (Distance, int) {
	return between(h.GPUs[gpu].path, h.nics[nic].path, h.GPUs[gpu].Node, h.nics[nic].node)
}

// NodeOf is the NUMA node of a NIC, -1 if nothing tells.
func (h *Host) NodeOf(nic int) int { return h.nics[nic].node }
