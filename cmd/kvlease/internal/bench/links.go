package bench

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/cuda/devices"
	"github.com/kvlease/kvlease/cuda/fabric"
	"github.com/kvlease/kvlease/cuda/fabric/rdma"
)

// Link is what bytes may pass on their way from P to D, with the most that it carries in one direction.
type Link struct {
	Name string  `json:"name"`
	GBs  float64 `json:"gb_s"` // units of 1,000,000,000 bytes a second; 0: the machine does not tell
	What string  `json:"what"` // its speed in the kernel's words
}

// links are those of the GPUs, by the PCI addresses of P's and D's, and of the NICs that UCX may use: near the GPUs if there are any.
// What goes through memory passes none of them.
func links(m devices.Machine, gpus []string, env func(string) (string, bool)) (list []Link) {
	h := fabric.Look(fabric.Config{Sys: m.Sys, Proc: m.Proc, Dev: m.Dev})
	tls, _ := env("UCX_TLS")
	named, chosen := env("UCX_NET_DEVICES")
	takes, near := rdma.Takes(tls, named), map[int]bool{}
	list = []Link{} // none is said as such in JSON
	for i, pci := range gpus {
		if slices.Contains(gpus[:i], pci) {
			continue
		}
		g := h.At(pci)
		if g < 0 {
			list = append(list, Link{Name: "GPU " + pci, What: "not in sysfs"})
			continue
		}
		l := h.GPULink(g)
		list = append(list, Link{Name: "GPU " + pci, GBs: l.GBs(), What: l.String()})
		for _, n := range h.Choose()[g].NICs {
			near[n] = true
		}
	}
	for n := range h.NICs {
		if nic := &h.NICs[n]; nic.Usable() && takes(nic.Name) && (chosen || len(near) == 0 || near[n]) {
			list = append(list, linkOf(h, n))
		}
	}
	return list
}

// linkOf is the slower of a NIC's ports and of its own PCIe link.
func linkOf(h *fabric.Host, n int) Link {
	var rates []string
	for _, p := range h.NICs[n].Active() {
		rates = append(rates, p.Rate)
	}
	l := Link{Name: h.NICs[n].Name, GBs: h.Rate(n) / 8, What: strings.Join(rates, " and ")}
	if slot := h.NICLink(n); slot.GBs() > 0 && slot.GBs() < l.GBs {
		l.GBs, l.What = slot.GBs(), slot.String()+" before "+l.What
	}
	return l
}

// addresses are where the devices of both sides are on the bus; nil if the memory is the host's.
func (c *Config) addresses() (pci []string, err error) {
	if c.Memory != "vram" {
		return nil, nil
	}
	driver, err := cuda.Open("")
	if err != nil {
		return nil, err
	}
	for _, device := range c.Devices {
		f, err := driver.Features(device)
		if err != nil {
			return nil, err
		}
		pci = append(pci, f.PCI)
	}
	return pci, nil
}

// machineLinks are the links of the machine that is measured.
func (c *Config) machineLinks() ([]Link, error) {
	gpus, err := c.addresses()
	return links(c.Machine, gpus, rdma.Told(os.LookupEnv, "/proc/self")), err
}

// across says what reads could come to over the links.
func (r *Result) across() string {
	if len(r.Links) == 0 {
		return "No RDMA NIC that UCX would use: bytes stay in memory, and reads are held against copy."
	}
	var said []string
	for _, l := range r.Links {
		rate := "?" // nobody tells it
		if l.GBs > 0 {
			rate = short(l.GBs)
		}
		said = append(said, fmt.Sprintf("%s %s (%s)", l.Name, rate, cmp.Or(l.What, "no word of its speed")))
	}
	return "The most that links carry, in GB/s: " + strings.Join(said, ", ") + "."
}
