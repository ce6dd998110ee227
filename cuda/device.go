package cuda

// #include "shim.h"
// #cgo noescape kvlc_pointer
// #cgo nocallback kvlc_pointer
import "C"

import "fmt"

// Kind is what sort of memory an address is, as the driver tells them apart.
type Kind uint8

const (
	Unknown Kind = iota // the driver does not know the address: ordinary host memory, or nothing
	Host                // host memory that CUDA has allocated or registered
	Device              // cudaMalloc
	Managed             // cudaMallocManaged: its pages move
	VMM                 // cuMemCreate and cuMemMap, as PyTorch's expandable segments
	Pool                // cudaMallocAsync, or a pool
	// IPC is memory of another process, opened by an IPC handle: what cannot be handed on. Some drivers say so of cudaMalloc, too, so
	// nothing is decided by it alone.
	IPC
)

var kindNames = [...]string{"no memory of CUDA's", "host memory", "device memory", "managed memory", "VMM memory", "pool memory", "memory of an IPC handle"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Pointer is what the driver knows of an address.
type Pointer struct {
	Kind                  Kind
	Device                int    // ordinal; -1: none
	Base, Bytes           uint64 // the allocation; of VMM memory the reserved range
	Mapping, MappingBytes uint64 // what is mapped in one piece around the address; other memory: the allocation
	RDMA                  bool   // GPUDirect RDMA can take it
	Context               bool   // it was allocated in a context: VMM and stream-ordered memory is not
	SyncMemops            bool
}

// Pointer asks what an address is. It needs no context and makes none.
func (d *Driver) Pointer(addr uint64) (Pointer, error) {
	var p C.kvlc_pointer_t
	var fault C.kvlc_fault_t
	if err := errorOf(C.kvlc_pointer(d.handle, C.uint64_t(addr), &p, &fault), &fault); err != nil {
		return Pointer{}, fmt.Errorf("address %#x: %w", addr, err)
	}
	return Pointer{
		Kind: Kind(p.kind), Device: int(p.device), Base: uint64(p.base), Bytes: uint64(p.bytes), Mapping: uint64(p.mapping),
		MappingBytes: uint64(p.mapping_bytes), RDMA: p.rdma != 0, Context: p.context != 0, SyncMemops: p.sync != 0,
	}, nil
}

// Ordering is for whom writes of NICs into a device's memory are seen in order without a flush.
type Ordering int

const (
	OrderingNone  Ordering = 0   // for nobody
	OrderingOwner Ordering = 100 // for the device itself
	OrderingAll   Ordering = 200 // for all devices
)

// Features is what a device offers to NICs.
type Features struct {
	RDMA, RDMAWithVMM bool
	FlushHost         bool // remote writes can be flushed from the host
	FlushStream       bool // and in a stream
	Ordering          Ordering
	DMABuf            bool
	PCI               string // 0000:1b:00.0, as sysfs names it
}

// Refusal is why NICs cannot be given a device's memory, or reads into it not be proven; nil: neither. peermem: nvidia_peermem, or what
// went before it, is loaded. kvl_register and kvlease doctor ask it, so that both say the same.
//
// A dma-buf is enough. CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED is about "GPUDirect RDMA APIs, like nvidia_p2p_get_pages" (cuda.h), which is
// what peer memory is pinned by; UCX asks for CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED alone before it exports (cuda_copy_md.c).
func (f Features) Refusal(peermem bool) *Error {
	refused := func(cause, fix string) *Error {
		return &Error{Call: "cuDeviceGetAttribute", Cause: cause, Fix: fix, Kind: ErrUnavailable}
	}
	switch {
	case !f.DMABuf && !f.RDMA:
		return refused("it offers NICs neither GPUDirect RDMA nor dma-buf",
			"keep the cache in host memory here (KVL_MEM_DRAM), or use a data-centre or workstation GPU: consumer cards offer neither")
	case !f.DMABuf && !peermem:
		return refused("NICs have no way to its memory: no dma-buf, and nvidia_peermem is not loaded",
			"modprobe nvidia_peermem, or use the driver's open kernel modules on Linux 5.12 or later")
	case f.Ordering == OrderingNone && !f.FlushHost:
		return errNoFlush
	}
	return nil
}

// Features asks a device, by its ordinal.
func (d *Driver) Features(device int) (Features, error) {
	var f C.kvlc_features_t
	var fault C.kvlc_fault_t
	if err := errorOf(C.kvlc_features(d.handle, C.int32_t(device), &f, &fault), &fault); err != nil {
		return Features{}, fmt.Errorf("device %d: %w", device, err)
	}
	return Features{
		RDMA: f.rdma != 0, RDMAWithVMM: f.rdma_vmm != 0, FlushHost: f.flush&1 != 0, FlushStream: f.flush&2 != 0,
		Ordering: Ordering(f.ordering), DMABuf: f.dma_buf != 0, PCI: fmt.Sprintf("%04x:%02x:%02x.0", uint(f.domain), uint(f.bus), uint(f.slot)),
	}, nil
}
