package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
	"github.com/kvlease/kvlease/cuda/fabric"
	"github.com/kvlease/kvlease/cuda/fabric/rdma"
)

func nics(_ context.Context, s *System) (lines []Result) {
	h := s.fabric()
	if len(h.NICs) == 0 {
		const name = "NICs"
		if len(h.OnBus)+len(h.GPUs) == 0 {
			if err := s.sysfs(); err != nil {
				return unread(name, err)
			}
			return one(name, Skip, "no RDMA device, and no GPU that would need one: reads go over TCP or shared memory")
		}
		return ill(name, Warn, "no RDMA device", "reads between machines go over TCP through host memory: a fraction of the rate, and both processes' cores at work",
			"lspci | grep -i -e mellanox -e infiniband; if there is a NIC: modprobe mlx5_ib, and rdma link says what it does")
	}
	for i := range h.NICs {
		lines = append(lines, nic(&h.NICs[i], h.NodeOf(i)))
	}
	return lines
}

// nic is the line of one NIC.
func nic(n *rdma.NIC, node int) Result {
	r := Result{Name: n.Name, State: Pass}
	var ports []string
	for _, p := range n.Ports {
		told := []string{cmp.Or(strings.ToLower(p.State), "of a state that is not told"), p.Phys, strings.TrimSpace(p.Layer + " " + p.Rate)}
		told = slices.DeleteFunc(told, func(s string) bool { return s == "" })
		ports = append(ports, fmt.Sprintf("port %d %s", p.N, strings.Join(told, ", ")))
	}
	r.Value = cmp.Or(strings.Join(ports, "; "), "no port")
	if n.PCI != "" {
		r.Value += " at " + n.PCI
	}
	if node >= 0 {
		r.Value += fmt.Sprintf(", NUMA node %d", node)
	}
	switch {
	case n.Verbs == "":
		r.State, r.Why = Fail, "no process can open it: the kernel has no verbs device for it"
		r.Fix = "modprobe ib_uverbs"
	case errors.Is(n.Closed, unix.ENOENT):
		r.State, r.Why = Fail, n.Verbs+" is not there: this container was not given it, and UCX goes over TCP without a word"
		r.Fix = "--device=/dev/infiniband, or the RDMA device plugin in Kubernetes"
	case n.Closed != nil:
		r.State, r.Why = Fail, fmt.Sprintf("%s: %v, so UCX goes over TCP without a word", n.Verbs, n.Closed)
		r.Fix = "chmod 0666 " + n.Verbs + ", by a udev rule as rdma-core's"
	case len(n.Active()) == 0:
		r.State, r.Why = Warn, "no port is up: UCX leaves it alone"
		r.Fix = "cable and switch; rdma link; for InfiniBand a subnet manager must run (ibstat: Initializing means there is none)"
	}
	return r
}

func gpuMemoryToNICs(_ context.Context, s *System) []Result {
	const name = "GPU memory to NICs"
	h := s.fabric()
	switch {
	case len(h.GPUs)+len(h.OnBus) == 0 || len(h.NICs) == 0:
		return one(name, Skip, "needs a GPU and an RDMA NIC")
	case h.GPUMemory.Module != "":
		return one(name, Pass, "peer memory by "+h.GPUMemory.Module)
	case h.GPUMemory.DMABuf == nil:
		return one(name, Pass, "dma-buf: kernel and driver can; whether each NIC's driver takes one only UCX finds out")
	}
	return ill(name, Fail, fmt.Sprintf("no peer memory module, and no dma-buf: %v", h.GPUMemory.DMABuf),
		"NICs cannot reach GPU memory: registration fails, or each read goes through host memory",
		"modprobe nvidia-peermem (needs NVIDIA's or the distribution's RDMA stack with peer memory); or NVIDIA's open kernel modules on Linux 5.12 or later, for dma-buf")
}

// sameNICs reports whether a user names the NICs that are chosen in another way: without their ports, or by those to leave out.
func (s *System) sameNICs(set fabric.Setting, c fabric.Choice) bool {
	if set.Name != "UCX_NET_DEVICES" {
		return false
	}
	takes := rdma.Takes("", set.Users)
	for n := range s.fabric().NICs {
		if nic := &s.fabric().NICs[n]; nic.Usable() && takes(nic.Name) != slices.Contains(c.NICs, n) {
			return false
		}
	}
	return true
}

// nearestNICs says for each GPU which NIC it should use, and whether that is near.
func nearestNICs(_ context.Context, s *System) (lines []Result) {
	h := s.fabric()
	if len(h.NICs) == 0 {
		return nil
	}
	for g, c := range h.Choose() {
		r := Result{Name: fmt.Sprintf("GPU %d's NIC", g), State: Pass, Value: c.Why}
		switch {
		case len(c.NICs) == 0:
			r.State, r.Why = Fail, "what the GPU holds can be read over TCP only"
			r.Fix = "see the NICs above"
		case c.Distance == fabric.AcrossSockets:
			r.State, r.Why = Warn, "each byte crosses the link between the processors, which others use, too"
			r.Fix = "move the NIC to a slot of the GPU's processor (lspci -tv, the board's block diagram), or use GPUs of the NIC's"
		case c.Distance == fabric.DistanceUnknown:
			r.State, r.Why = Warn, "UCX cannot prefer the near one, either"
			r.Fix = "in a virtual machine: let it see the host's topology; else the firmware's ACPI tables say no node"
		}
		for _, set := range h.Settings(fmt.Sprint("GPU ", g), c, s.told()) {
			if set.IsSet && set.Users != set.Value && r.State == Pass && !s.sameNICs(set, c) {
				r.State = Warn
				r.Value = fmt.Sprintf("%s; %s is %s", c.Why, set.Name, text.Printable(set.Users))
				r.Why = "set by you, and kept, though for this GPU " + set.Value + " is better: " + set.Reason
				r.Fix = fmt.Sprintf("for the rank on GPU %d: %s=%s", g, set.Name, set.Value)
			}
		}
		lines = append(lines, r)
	}
	if rails := h.Rails(h.Choose()); len(rails) > 1 {
		lines = append(lines, one("rails", Pass, strings.Join(rails, ", ")+": rail i of one machine should meet rail i of the other on one switch of the network")...)
	}
	return lines
}
