package fabric

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Choice is which NICs a rank on a GPU should use.
type Choice struct {
	NICs     []int    // places in the Host's list
	Distance Distance // from the GPU
	Why      string
}

// Choose gives each GPU its NICs: of those that this process can use the nearest, of these the fastest. A NIC that is nearer to another
// GPU is that one's, unless there is none else: then one is borrowed. GPUs that are equally near to the same NICs share them out
// in the order of their addresses. So equal machines come to equal rails: GPU i of one talks to GPU i of the other over the same switch
// of the network.
func (h *Host) Choose() []Choice {
	nearest := make([]Choice, len(h.GPUs))
	for g := range h.GPUs {
		nearest[g] = h.nearest(g)
	}
	choices := slices.Clone(nearest)
	borrows := make([]bool, len(choices))
	for g, c := range nearest {
		others := func(n int) bool {
			return slices.ContainsFunc(nearest, func(o Choice) bool { return o.Distance < c.Distance && slices.Contains(o.NICs, n) })
		}
		if own := slices.DeleteFunc(slices.Clone(c.NICs), others); len(own) > 0 {
			choices[g].NICs = own
		} else {
			borrows[g] = true
		}
	}
	for g := range choices {
		h.shareOut(choices, g)
	}
	for g := range choices {
		if borrows[g] {
			choices[g].NICs = choices[g].NICs[:min(1, len(choices[g].NICs))]
		}
		choices[g].Why = h.why(choices[g])
	}
	return choices
}

// Together is the choice for a process that has several GPUs, by their places: the NICs of all, and the farthest of the distances.
func (h *Host) Together(gpus []int) Choice {
	all := h.Choose()
	if len(gpus) == 1 {
		return all[gpus[0]]
	}
	var c Choice
	var why []string
	for _, g := range gpus {
		for _, n := range all[g].NICs {
			if !slices.Contains(c.NICs, n) {
				c.NICs = append(c.NICs, n)
			}
		}
		c.Distance = max(c.Distance, all[g].Distance)
		why = append(why, all[g].Why)
	}
	slices.SortFunc(c.NICs, func(a, b int) int { return cmp.Compare(h.NICs[a].PCI, h.NICs[b].PCI) })
	c.Why = strings.Join(why, "; ")
	return c
}

// nearest are the best NICs of a GPU, whoever else is near them.
func (h *Host) nearest(gpu int) Choice {
	c := Choice{Distance: DistanceUnknown}
	best := 0.0
	for n := range h.NICs {
		if !h.NICs[n].Usable() {
			continue
		}
		d, _ := h.Between(gpu, n)
		rate := h.Rate(n)
		switch {
		case len(c.NICs) > 0 && (d > c.Distance || d == c.Distance && rate < best):
			continue
		case len(c.NICs) > 0 && d == c.Distance && rate == best:
			c.NICs = append(c.NICs, n)
			continue
		}
		c.NICs, c.Distance, best = []int{n}, d, rate
	}
	slices.SortFunc(c.NICs, func(a, b int) int { return cmp.Compare(h.NICs[a].PCI, h.NICs[b].PCI) })
	return c
}

// Rate is what the active ports of a NIC carry together, Gbit/s.
func (h *Host) Rate(nic int) (gbps float64) {
	for _, p := range h.NICs[nic].Active() {
		gbps += p.Gbps
	}
	return gbps
}

// shareOut gives the GPUs that have the same NICs as this one a part each. It looks at lists that nobody has cut yet, and leaves the
// others to the first GPU of theirs.
func (h *Host) shareOut(choices []Choice, first int) {
	all := choices[first].NICs
	var sharers []int
	for g := first; g < len(choices); g++ {
		if slices.Equal(choices[g].NICs, all) {
			sharers = append(sharers, g)
		}
	}
	if len(sharers) < 2 || len(all) < 2 {
		return
	}
	slices.SortFunc(sharers, func(a, b int) int { return cmp.Compare(h.GPUs[a].PCI, h.GPUs[b].PCI) })
	for i, g := range sharers {
		if len(all) >= len(sharers) {
			choices[g].NICs = all[i*len(all)/len(sharers) : (i+1)*len(all)/len(sharers)]
		} else {
			choices[g].NICs = all[i*len(all)/len(sharers):][:1]
		}
	}
}

func (h *Host) why(c Choice) string {
	if len(c.NICs) == 0 {
		return "no RDMA NIC that this process can use has a port that is up"
	}
	names := h.names(c.NICs)
	return fmt.Sprintf("%s: %s; %s", strings.Join(names, ", "), c.Distance, meanings[c.Distance])
}

func (h *Host) names(nics []int) (names []string) {
	for _, n := range nics {
		names = append(names, h.NICs[n].Name)
	}
	return names
}

// ports are the active ports of NICs as UCX_NET_DEVICES has them.
func (h *Host) ports(nics []int) (ports []string) {
	for _, n := range nics {
		for _, p := range h.NICs[n].Active() {
			ports = append(ports, fmt.Sprintf("%s:%d", h.NICs[n].Name, p.N))
		}
	}
	return ports
}

// usable are the NICs that this process can use.
func (h *Host) usable() (nics []int) {
	for n := range h.NICs {
		if h.NICs[n].Usable() {
			nics = append(nics, n)
		}
	}
	return nics
}

// Rails are the NICs that GPUs are given, in the order of the GPUs: rail i of one machine meets rail i of another.
func (h *Host) Rails(choices []Choice) (rails []string) {
	for _, c := range choices {
		for _, name := range h.names(c.NICs) {
			if !slices.Contains(rails, name) {
				rails = append(rails, name)
			}
		}
	}
	return rails
}
