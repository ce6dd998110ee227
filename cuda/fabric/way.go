package fabric

import (
	"encoding/binary"
	"errors"

	"github.com/kvlease/kvlease/cuda/fabric/rdma"
)

// ErrConfigSpace says that this process may not see what is asked of a PCI function: the kernel gives the rest of the configuration space, behind its
// first 64 bytes, to root alone (Documentation/filesystems/sysfs-pci).
var ErrConfigSpace = errors.New("the kernel shows a PCI function's configuration to root alone")

// Of the PCIe configuration space (Linux, include/uapi/linux/pci_regs.h): extended capabilities begin at 0x100, each with its number and the place of
// the next one; access control services are number 0x0d.
const (
	configOthers   = 64    // bytes that everybody may read
	extendedAt     = 0x100 // bytes of a function without extended capabilities
	extendedEnd    = 0x1000
	capACS         = 0x0d
	acsControl     = 6
	acsRequests    = 1 << 2 // P2P request redirect
	acsCompletions = 1 << 3 // P2P completion redirect
)

// Redirects are the ports of switches between a GPU and a NIC, by their addresses, that hand what one of the two writes to the other up to the root
// complex, though their ways part below it (PCIe access control services). Hypervisors want that; on bare metal it costs half the rate or more (NVIDIA,
// NCCL user guide, "PCI Access Control Services"). ErrConfigSpace: nobody knows.
func (h *Host) Redirects(gpu, nic int) (ports []string, err error) {
	a, b := h.GPUs[gpu].path, h.nics[nic].path
	common := 0
	for common < len(a) && common < len(b) && a[common] == b[common] {
		common++
	}
	if common < 3 { // they part at the root complex, or know nothing of each other
		return nil, nil
	}
	for _, way := range [][]string{a, b} {
		for _, port := range way[common : len(way)-1] {
			control, err := h.tree.acs(port)
			if err != nil {
				return nil, err
			}
			if control&(acsRequests|acsCompletions) != 0 {
				ports = append(ports, port)
			}
		}
	}
	return ports, nil
}

// acs is the control register of a port's access control services, 0 if it has none.
func (t tree) acs(port string) (uint16, error) {
	space, err := rdma.File(string(t), "bus", "pci", "devices", port, "config")
	switch {
	case err != nil || len(space) <= configOthers:
		return 0, ErrConfigSpace
	case len(space) < extendedEnd:
		return 0, nil
	}
	for at, left := extendedAt, (extendedEnd-extendedAt)/8; at >= extendedAt && at <= extendedEnd-8 && left > 0; left-- { // a list that runs in a circle ends, too
		head := binary.LittleEndian.Uint32(space[at:])
		if head&0xffff == capACS {
			return binary.LittleEndian.Uint16(space[at+acsControl:]), nil
		}
		at = int(head >> 20)
	}
	return 0, nil
}

// Translation is what the IOMMU does to what a function reads and writes, in the kernel's words (sysfs-kernel-iommu_groups): identity, DMA, DMA-FQ;
// empty: there is none before it, or none that this machine shows.
func (t tree) translation(pci string) string {
	if pci == "" {
		return ""
	}
	return rdma.Text(string(t), "bus/pci/devices", pci, "iommu_group", "type")
}

// Translated are the GPUs and usable NICs, by their addresses, whose addresses an IOMMU translates; behind is how many functions have an IOMMU before
// them at all.
func (h *Host) Translated() (list []string, behind int) {
	var all []string
	for i := range h.GPUs {
		all = append(all, h.GPUs[i].PCI)
	}
	for _, n := range h.usable() {
		all = append(all, h.NICs[n].PCI)
	}
	for _, pci := range all {
		switch h.tree.translation(pci) {
		case "":
			continue
		case "DMA", "DMA-FQ":
			list = append(list, pci)
		}
		behind++
	}
	return list, behind
}
