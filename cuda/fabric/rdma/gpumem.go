package rdma

import (
	"fmt"
	"strings"
)

// GPUMemory tells by which ways a NIC may be given NVIDIA GPU memory. UCX takes either: a peer memory module, whose presence it
// finds in the same files (uct_ib_md_open_common of openucx/ucx), or a dma-buf, for which it asks each NIC with a registration that
// must fail in a certain way. Only that question is certain; what is said here of dma-buf is what it needs.
type GPUMemory struct {
	Module string // of peer memory that is loaded: nvidia_peermem, nv_peer_mem; empty: none
	DMABuf error  // what dma-buf lacks; nil: nothing that can be seen from here
}

// Any tells whether there may be a way.
func (m *GPUMemory) Any() bool { return m.Module != "" || m.DMABuf == nil }

// peerModules are the files by which UCX finds a peer memory module.
var peerModules = []struct{ module, file string }{
	{"nvidia_peermem", "module/nvidia_peermem/version"},
	{"nv_peer_mem", "module/nv_peer_mem/version"},
	{"nv_peer_mem", "kernel/mm/memory_peers/nv_mem/version"},
}

// The first kernel whose verbs take a dma-buf (ib_uverbs: "RDMA/umem: Support importing dma-buf", 5.12).
const dmaBufMajor, dmaBufMinor = 5, 12

// LookGPUMemory looks below a sysfs and a procfs root, on a kernel of this release. NVIDIA's driver exports dma-bufs from its open kernel modules only
// (GPUDirect RDMA documentation, "Using DMA-BUF"; the closed ones answer that it is not supported).
func LookGPUMemory(sys, proc, release string) GPUMemory {
	var m GPUMemory
	for _, p := range peerModules {
		if Text(sys, p.file) != "" {
			m.Module = p.module
			break
		}
	}
	var major, minor int
	fmt.Sscanf(release, "%d.%d", &major, &minor)
	driver := Text(proc, "driver", "nvidia", "version")
	switch {
	case driver == "":
		m.DMABuf = fmt.Errorf("no NVIDIA driver is loaded")
	case major < dmaBufMajor || major == dmaBufMajor && minor < dmaBufMinor:
		m.DMABuf = fmt.Errorf("kernel %s is older than %d.%d", release, dmaBufMajor, dmaBufMinor)
	case !strings.Contains(driver, "Open Kernel Module"):
		m.DMABuf = fmt.Errorf("NVIDIA's kernel modules are not the open ones")
	}
	return m
}
