package cuda

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kvlease/kvlease/internal/plural"
)

// Region is memory of a KV cache that its engine says is a device's.
type Region struct {
	Addr, Bytes uint64
	Device      int    // ordinal
	Name        string // for refusals; may be empty
}

// Machine is what a registration needs and the CUDA driver does not tell. What is not known is left out, and the plan says so.
type Machine struct {
	// BAR1Free is what is left of each device's window for PCIe, in bytes, as NVML tells it.
	BAR1Free map[int]uint64
	// NoNIC: this process can open no RDMA NIC that is up. Then reads take other ways, NVLink or host memory, and nothing is held against
	// what NICs need.
	NoNIC bool
	// Peermem: the kernel module nvidia_peermem (or nv_peer_mem) is loaded, over which NICs pin device memory without dma-buf.
	Peermem bool
}

// Range is one registration.
type Range struct {
	Addr, Bytes uint64
	Device      int
}

// Plan is how regions are registered.
type Plan struct {
	Ranges      []Range        // by device and address; regions that touch within an allocation are one, up to joinedMax
	Devices     []int          // in order
	Allocations []Range        // those that the regions are in, for SyncMemops
	Pinned      map[int]uint64 // what a NIC pins of each device, in bytes: whole pages of 64 KiB
	Unchecked   []string       // what could not be checked, and why
}

const (
	// regionAlign is what a region begins at: kernels read KV blocks by 16 bytes at once, so another address is a slip of the caller's.
	regionAlign = 16
	// pinnedPage is the granularity in which the driver pins device memory for others ("GPUDirect RDMA", nvidia_p2p_get_pages).
	pinnedPage = 64 << 10
)

// checked is a region and the allocation that it was found in.
type checked struct {
	Region
	index  int
	at     Pointer
	last   Pointer // where it ends; of VMM memory another mapping, maybe
	pieces int     // mappings that it lies in; 1, but for VMM memory
}

// Check looks at regions of device memory before a NIC sees them: alignment, overlap, kind, device and bounds of the memory, what its
// device offers, and what all of them pin against the free window. It changes nothing and makes no context. An empty Region stands for one
// that is not a device's, so that the others keep their numbers.
//
// ErrInvalid or ErrUnavailable name the first region that cannot be, the cause and what helps.
func (d *Driver) Check(regions []Region, m Machine) (Plan, error) {
	list := make([]checked, 0, len(regions))
	for i, r := range regions {
		if r == (Region{}) {
			continue
		}
		c := checked{Region: r, index: i}
		if err := d.place(&c, !m.NoNIC); err != nil {
			return Plan{}, nameRegion(i, r, err)
		}
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b checked) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Addr, b.Addr))
	})
	for i := 1; i < len(list); i++ {
		if a, b := list[i-1], list[i]; a.Device == b.Device && a.Addr+a.Bytes > b.Addr {
			return Plan{}, nameRegion(b.index, b.Region, refuse("it overlaps region %d (%q)", "give each byte of a cache to one region", a.index, a.Name))
		}
	}
	p := join(list)
	if m.NoNIC {
		p.Unchecked = append(p.Unchecked, "this process can open no RDMA NIC that is up, so device memory was not held against what NICs need")
		return p, nil
	}
	for _, device := range p.Devices {
		if err := d.suits(device, list, m, &p); err != nil {
			return Plan{}, err
		}
	}
	return p, nil
}

func nameRegion(i int, r Region, err error) error {
	return fmt.Errorf("region %d (%.60q, %d bytes at %#x): %w", i, r.Name, r.Bytes, r.Addr, err)
}

// refuse is an Error of what was handed in.
func refuse(cause, fix string, args ...any) error {
	return &Error{Cause: fmt.Sprintf(cause, args...), Fix: fix, Kind: ErrInvalid}
}

const allocFix = "allocate the cache with cudaMalloc (PyTorch: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False)"

// place finds a region's allocation and holds the region against it; nic: it has to be one that NICs can take.
func (d *Driver) place(c *checked, nic bool) (err error) {
	switch r := c.Region; {
	case r.Addr == 0 || r.Bytes == 0 || r.Addr+r.Bytes < r.Addr:
		return refuse("that is no range", "give address and length of the cache")
	case r.Addr%regionAlign != 0:
		return refuse("it does not begin at a multiple of %d", "register a tensor's own storage, whose address the allocator aligns", regionAlign)
	}
	if c.at, err = d.Pointer(c.Addr); err != nil {
		return err
	}
	c.last, c.pieces = c.at, 1
	switch c.at.Kind {
	case Unknown:
		return refuse("the address is %s", "register host memory as KVL_MEM_DRAM; else check that the cache is not freed", c.at.Kind)
	case Host:
		return refuse("the address is %s", "register it as KVL_MEM_DRAM", c.at.Kind)
	case Managed:
		return refuse("the address is %s, whose pages move and cannot be pinned", allocFix, c.at.Kind)
	case VMM:
		return d.walk(c, nic)
	}
	return d.fits(c.Region, c.at, nic)
}

// fits holds a region against an allocation that is in one piece.
func (d *Driver) fits(r Region, at Pointer, nic bool) error {
	switch {
	case at.Device != r.Device:
		return refuse("it is memory of device %d, and device %d was said", "device is the ordinal after CUDA_VISIBLE_DEVICES", at.Device, r.Device)
	case r.Addr+r.Bytes > at.Base+at.Bytes:
		return refuse("its allocation ends after %d bytes", "register what was allocated", at.Base+at.Bytes-r.Addr)
	case nic && !at.RDMA:
		// The attribute speaks of the interface that peer memory is pinned by. A device without it that exports dma-bufs is not held to it.
		if f, err := d.Features(at.Device); err != nil || !f.RDMA && f.DMABuf {
			return err
		}
		return &Error{Call: "cuPointerGetAttribute", Cause: fmt.Sprintf("%s that GPUDirect RDMA cannot take", at.Kind), Fix: rdmaFix(at.Kind), Kind: ErrUnavailable}
	}
	return nil
}

func rdmaFix(k Kind) string {
	switch k {
	case VMM:
		return "set allocFlags.gpuDirectRDMACapable in cuMemCreate, or " + allocFix
	case Pool:
		return allocFix + ": pools of cudaMallocAsync are not for NICs on this device"
	case IPC:
		return "register memory in the process that has allocated it"
	}
	return "use a data-centre or workstation GPU: others do not offer GPUDirect RDMA"
}

// walk looks at every mapping under a region of VMM memory: a range may have holes, and its pieces other properties.
func (d *Driver) walk(c *checked, nic bool) error {
	for addr, end := c.Addr, c.Addr+c.Bytes; ; c.pieces++ { // ends: each mapping ends further on
		if c.last.Kind != VMM {
			return refuse("nothing is mapped %d bytes behind its begin", "map the whole range before it is registered", addr-c.Addr)
		}
		piece := c.Region
		piece.Addr, piece.Bytes = addr, 1
		if err := d.fits(piece, c.last, nic); err != nil {
			return err
		}
		next := c.last.Mapping + c.last.MappingBytes
		if next >= end {
			return nil
		}
		if next <= addr {
			return refuse("the driver tells a mapping of %d bytes at %#x for address %#x", "report this", c.last.MappingBytes, c.last.Mapping, addr)
		}
		addr = next
		var err error
		if c.last, err = d.Pointer(addr); err != nil {
			return err
		}
	}
}

// joinedMax is how long a range becomes by joining. A registration goes on range by range, and what else needs the transport comes in between:
// a cache whose layers touch would be one for all of it. A region is never cut, since a piece of a read has to lie in one range.
const joinedMax = 1 << 30

// join makes one range of what touches in one allocation, and counts what is pinned. Regions of two allocations stay two, as do those of
// two mappings of VMM memory: neither a dma-buf nor the driver's pins are known to reach across.
func join(list []checked) Plan {
	p := Plan{Pinned: map[int]uint64{}}
	var pinnedTo uint64
	for i, r := range list {
		same := i > 0 && list[i-1].Device == r.Device
		if !same {
			p.Devices = append(p.Devices, r.Device)
			pinnedTo = 0
		}
		inOne := same && list[i-1].at.Base == r.at.Base
		if !inOne {
			p.Allocations = append(p.Allocations, Range{Addr: r.at.Base, Bytes: r.at.Bytes, Device: r.Device})
		}
		if last := len(p.Ranges) - 1; inOne && list[i-1].last.Mapping == r.at.Mapping && p.Ranges[last].Addr+p.Ranges[last].Bytes == r.Addr &&
			p.Ranges[last].Bytes+r.Bytes <= joinedMax {
			p.Ranges[last].Bytes += r.Bytes
		} else {
			p.Ranges = append(p.Ranges, Range{Addr: r.Addr, Bytes: r.Bytes, Device: r.Device})
		}
		first, end := max(r.Addr&^(pinnedPage-1), pinnedTo), (r.Addr+r.Bytes+pinnedPage-1)&^(pinnedPage-1)
		if end > first {
			p.Pinned[r.Device] += end - first
			pinnedTo = end
		}
	}
	return p
}

// suits holds all regions of a device against what it offers.
func (d *Driver) suits(device int, list []checked, m Machine, p *Plan) error {
	f, err := d.Features(device)
	if err != nil {
		return err
	}
	refused := func(e *Error) error { return fmt.Errorf("device %d (%s): %w", device, f.PCI, e) }
	if e := f.Refusal(m.Peermem); e != nil {
		return refused(e)
	}
	var pieced []checked // of a cache in a sleep mode that is every region: one word for all
	for _, c := range list {
		switch {
		case c.Device != device || c.at.Kind != VMM:
		case !f.RDMAWithVMM:
			return refused(&Error{Call: "cuDeviceGetAttribute", Kind: ErrUnavailable, Fix: allocFix,
				Cause: fmt.Sprintf("it offers no GPUDirect RDMA for VMM memory, which region %d (%q) is", c.index, c.Name)})
		case c.pieces == 1:
		case !f.DMABuf:
			return nameRegion(c.index, c.Region, &Error{Kind: ErrUnavailable,
				Cause: fmt.Sprintf("it is VMM memory in %d pieces, and nvidia_peermem, the only way of NICs to this device, pins none across their edges: a peer's read would fail", c.pieces),
				Fix:   allocFix + ", or map it in one piece, or use the driver's open kernel modules on Linux 5.12 or later, for dma-buf"})
		case m.Peermem:
			pieced = append(pieced, c)
		}
	}
	if len(pieced) > 0 {
		first := pieced[0]
		p.Unchecked = append(p.Unchecked, fmt.Sprintf("%s VMM memory in several pieces (region %d (%.60q) in %d), and nvidia_peermem is loaded beside dma-buf: "+
			"if UCX takes them by that, reads across their edges fail", plural.Counted(len(pieced), "region is", "regions are"), first.index, first.Name, first.pieces))
	}
	free, known := m.BAR1Free[device]
	if !known {
		p.Unchecked = append(p.Unchecked, fmt.Sprintf("device %d: the free part of its BAR1 window is not known, so %.1f MiB of regions were not held against it", device, mib(p.Pinned[device])))
		return nil
	}
	if need := p.Pinned[device]; need > free {
		return refused(&Error{
			Cause: fmt.Sprintf("NICs would pin %.1f MiB (pages of 64 KiB), and %.1f MiB of its BAR1 window are free", mib(need), mib(free)),
			Fix:   "switch Resizable BAR and Above 4G Decoding on in the firmware, or register a smaller cache; nvidia-smi -q -d MEMORY shows the window",
			Kind:  ErrUnavailable,
		})
	}
	return nil
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }
