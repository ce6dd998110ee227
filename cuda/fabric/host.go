package fabric

import (
	"cmp"
	"slices"

	"github.com/kvlease/kvlease/cuda/fabric/rdma"
)

// Config says where to look. The zero value is this machine, with the GPUs that its bus shows.
type Config struct {
	Sys, Proc, Dev string // roots; /sys, /proc and /dev if empty
	Release        string // of the kernel
	// Ask is how GPUs are asked how they are, package nvml's Look as a rule. nil: they are those on the bus, and nothing more is known
	// of them.
	Ask func() (Answer, error)
}

// Host is a machine with what matters for reads of GPU memory.
type Host struct {
	Answer
	GPUErr    error    // why GPUs were not found, or not looked at
	OnBus     []string // addresses of NVIDIA GPUs on the bus, whether a driver has them or not
	NICs      []rdma.NIC
	GPUMemory rdma.GPUMemory
	Nodes     []int // NUMA nodes with processors

	tree tree
	nics []place // of each NIC
}

// place is where a function is.
type place struct {
	path []string
	node int
	link Link
}

// Look looks at a machine. It fails at nothing: what could not be seen is said in the Host.
func Look(cfg Config) *Host {
	sys, proc, dev := cmp.Or(cfg.Sys, "/sys"), cmp.Or(cfg.Proc, "/proc"), cmp.Or(cfg.Dev, "/dev")
	t := tree(sys)
	h := &Host{tree: t, OnBus: t.nvidiaOnBus(), NICs: rdma.Look(sys, dev), GPUMemory: rdma.LookGPUMemory(sys, proc, cfg.Release), Nodes: t.nodes()}
	for i := range h.NICs {
		h.nics = append(h.nics, place{t.path(h.NICs[i].PCI), t.node(h.NICs[i].PCI), t.link(h.NICs[i].PCI)})
	}
	if cfg.Ask != nil {
		h.Answer, h.GPUErr = cfg.Ask()
	} else {
		for i, pci := range h.OnBus { // sysfs has them in the order of their addresses, as NVML
			h.GPUs = append(h.GPUs, GPU{Index: i, PCI: pci})
		}
	}
	for i := range h.GPUs {
		g := &h.GPUs[i]
		g.path, g.Node, g.link = t.path(g.PCI), t.node(g.PCI), t.link(g.PCI)
	}
	return h
}

// At is the place of the GPU with an address, -1 if there is none.
func (h *Host) At(pci string) int {
	return slices.IndexFunc(h.GPUs, func(g GPU) bool { return g.PCI == pci })
}

// Between is the distance of a GPU and a NIC, by their places in the Host, and the number of links between them.
func (h *Host) Between(gpu, nic int) (Distance, int) {
	return between(h.GPUs[gpu].path, h.nics[nic].path, h.GPUs[gpu].Node, h.nics[nic].node)
}

// NodeOf is the NUMA node of a NIC, -1 if nothing tells.
func (h *Host) NodeOf(nic int) int { return h.nics[nic].node }
