package fabric

import (
	"fmt"
	"strconv"

	"github.com/kvlease/kvlease/cuda/fabric/rdma"
)

// Link is a function's PCIe link as it runs now: a GPU that does nothing may have slowed its own down.
type Link struct {
	GTs   float64 // transfers a second on a lane, in units of 1,000,000,000; 0: sysfs does not tell
	Width int     // lanes

	MostGTs   float64 // that the function itself could
	MostWidth int
}

// widthMax is the widest link there is. The kernel has 255 for one that it does not know (PCIE_LNK_WIDTH_UNKNOWN, include/linux/pci.h).
const widthMax = 32

// link reads what the kernel has of the function's link capability (Documentation/ABI/testing/sysfs-bus-pci: current_link_speed, "8.0 GT/s PCIe",
// current_link_width, and max_ of both).
func (t tree) link(pci string) (l Link) {
	if pci == "" {
		return l
	}
	read := func(which string) (gts float64, width int) {
		gts = rdma.Rate(rdma.Text(string(t), "bus/pci/devices", pci, which+"_link_speed")) // "Unknown" is none
		width, err := strconv.Atoi(rdma.Text(string(t), "bus/pci/devices", pci, which+"_link_width"))
		if err != nil || width < 0 || width > widthMax {
			return gts, 0
		}
		return gts, width
	}
	l.GTs, l.Width = read("current")
	l.MostGTs, l.MostWidth = read("max")
	return l
}

// GBs is what the link carries in one direction, in units of 1,000,000,000 bytes a second, with the headers of packets, which take some of it; 0: not
// known. A lane's bits are coded 8 in 10 up to 5 GT/s, 128 in 130 up to 32, and 242 bytes in flits of 256 above (PCI-SIG, PCI Express Base
// Specification 6.0).
func (l Link) GBs() float64 {
	code := 128.0 / 130
	switch {
	case l.GTs <= 5:
		code = 8.0 / 10
	case l.GTs > 32:
		code = 242.0 / 256
	}
	return l.GTs * float64(l.Width) * code / 8
}

func (l Link) String() string {
	if l.GBs() == 0 {
		return "a PCIe link of unknown rate"
	}
	return fmt.Sprintf("PCIe %v GT/s x%d", l.GTs, l.Width)
}

// GPULink is the link of a GPU, by its place in the Host.
func (h *Host) GPULink(gpu int) Link { return h.GPUs[gpu].link }

// NICLink is GPULink of a NIC.
func (h *Host) NICLink(nic int) Link { return h.nics[nic].link }
