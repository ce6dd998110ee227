package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
	"github.com/kvlease/kvlease/cuda/fabric"
	"github.com/kvlease/kvlease/cuda/fabric/rdma"
	"github.com/kvlease/kvlease/internal/plural"
)

// addresses says by which address each RoCE port that is up is reached.
func addresses(_ context.Context, s *System) (lines []Result) {
	h := s.fabric()
	for i := range h.NICs {
		for _, p := range h.NICs[i].Active() {
			if p.RoCE() {
				lines = append(lines, address(fmt.Sprintf("%s:%d's address", h.NICs[i].Name, p.N), &h.NICs[i], p))
			}
		}
	}
	return lines
}

func address(name string, n *rdma.NIC, p *rdma.Port) Result {
	say := func(g *rdma.GID) string {
		kind := "RoCE v1"
		if g.V2 {
			kind = "RoCE v2"
		}
		value := fmt.Sprintf("GID %d, %s, %v", g.Index, kind, g.Address)
		if g.Net != "" {
			value += " of " + g.Net
		}
		return value
	}
	link := "the port's network interface"
	if len(n.Net) > 0 {
		link = n.Net[0]
	}
	at := slices.IndexFunc(p.GIDs, func(g rdma.GID) bool { return g.Routed() && g.Address.Is4() }) // UCX prefers these, too (uct/ib/base/ib_device.c)
	if at < 0 {
		at = slices.IndexFunc(p.GIDs, func(g rdma.GID) bool { return g.Routed() })
	}
	if at >= 0 {
		return Result{Name: name, State: Pass, Value: say(&p.GIDs[at])}
	}
	r := Result{Name: name, State: Warn, Fix: "ip address add ADDRESS/BITS dev " + link}
	if v2 := slices.IndexFunc(p.GIDs, func(g rdma.GID) bool { return g.V2 }); v2 >= 0 {
		r.Value = say(&p.GIDs[v2]) + ", and none with more than a link-local address"
		r.Why = "no router passes it on: peers of this network segment alone reach the port"
		return r
	}
	if len(p.GIDs) > 0 {
		r.Value = fmt.Sprintf("%s, and none of RoCE v2", say(&p.GIDs[0]))
		r.Why = "RoCE v1 is no IP: no router passes it on, and peers with RoCE v2 do not answer"
		r.Fix = fmt.Sprintf("the adapter and its port in RoCE v2 (cma_roce_mode -d %s -p %d -m 2 for connections by rdma_cm), and an address: %s", n.Name, p.N, r.Fix)
		return r
	}
	r.State, r.Value = Fail, "no GID"
	r.Why = "nobody can reach the port, and UCX, which sees that it is up, fails with it"
	r.Fix += "; in a container: --network=host, or the port's interface moved into it, since GIDs belong to a network namespace"
	return r
}

// links looks for PCIe links that run below what their functions could. The speed of a GPU's link says nothing: one that does nothing slows it down.
func links(_ context.Context, s *System) []Result {
	const name = "PCIe links"
	h := s.fabric()
	var slow []string
	seen := 0
	look := func(what string, l fabric.Link, speed bool) {
		if l.GBs() == 0 || l.MostWidth == 0 {
			return
		}
		seen++
		if l.Width < l.MostWidth || speed && l.GTs < l.MostGTs {
			slow = append(slow, fmt.Sprintf("%s at %v GT/s x%d of %v GT/s x%d", what, l.GTs, l.Width, l.MostGTs, l.MostWidth))
		}
	}
	for g := range h.GPUs {
		look(fmt.Sprintf("GPU %d", g), h.GPULink(g), false)
	}
	for n := range h.NICs {
		look(h.NICs[n].Name, h.NICLink(n), true)
	}
	switch {
	case seen == 0:
		return nil
	case len(slow) == 0:
		return one(name, Pass, fmt.Sprintf("%d, each as wide as its card", seen))
	}
	return ill(name, Warn, strings.Join(slow, "; "), "half the lanes, or half the speed, is half the rate",
		"another slot if this one has fewer lanes (the board's manual); else reseat the card, and its riser; lspci -vv shows LnkSta beside LnkCap, and dmesg a link that was downgraded")
}

// redirects looks for switches that send what a GPU and its NIC say to each other by way of the root complex.
func redirects(_ context.Context, s *System) []Result {
	const name = "PCIe ACS"
	h := s.fabric()
	var ports []string
	below := 0
	for g, c := range h.Choose() {
		for _, n := range c.NICs {
			if c.Distance != fabric.SameSwitch {
				continue
			}
			below++
			found, err := h.Redirects(g, n)
			if errors.Is(err, fabric.ErrConfigSpace) {
				return one(name, Skip, "not seen: "+err.Error()+": sudo kvlease doctor, or sudo lspci -vvv | grep ACSCtl")
			}
			for _, p := range found {
				if !slices.Contains(ports, p) {
					ports = append(ports, p)
				}
			}
		}
	}
	switch {
	case below == 0:
		return nil // what passes the root complex anyway is not redirected
	case len(ports) == 0:
		return one(name, Pass, fmt.Sprintf("no redirect on the ways of %s below one switch", plural.Counted(below, "GPU and its NIC", "GPUs and their NICs")))
	}
	commands := make([]string, 0, len(ports))
	for _, p := range ports {
		commands = append(commands, fmt.Sprintf("setpci -s %s ECAP_ACS+0x6.w=0000", p))
	}
	return ill(name, Warn, "redirects at "+strings.Join(ports, ", "), "what a NIC reads of its GPU goes up to the processor and back, though both are below one switch: half the rate or less",
		"on bare metal, at each start: %s. Or switch it off in the firmware. Of a machine that gives devices to virtual machines leave it on", text.Cut(strings.Join(commands, "; "), 400))
}

// translation looks at the IOMMU before GPUs and NICs.
func translation(_ context.Context, s *System) []Result {
	const name = "IOMMU"
	h := s.fabric()
	if len(h.GPUs) == 0 || len(rdma.Usable(h.NICs)) == 0 {
		return nil
	}
	list, behind := h.Translated()
	switch {
	case behind == 0:
		return one(name, Pass, "none before the GPUs and NICs")
	case len(list) == 0:
		return one(name, Pass, fmt.Sprintf("passes through for all of %s", plural.Counted(behind, "GPU or NIC", "GPUs and NICs")))
	}
	value := fmt.Sprintf("translates for %s", text.Cut(strings.Join(list, ", "), 200))
	if s.Arch == "arm64" {
		return one(name, Pass, value+": NVIDIA's guides want that on Grace; on another ARM machine iommu.passthrough=1 is better")
	}
	const fix = "iommu=pt on the kernel's command line, or off in the firmware; then a restart"
	if h.GPUMemory.Module != "" && h.GPUMemory.DMABuf != nil {
		return ill(name, Fail, value, "peer memory hands NICs the GPU's own bus addresses, which an IOMMU that translates takes for others: GPUDirect RDMA does not work", fix)
	}
	return ill(name, Warn, value, "each access of a NIC to GPU memory is looked up, and goes up to the processor for it", fix)
}
