package devices

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/cuda/fabric"
	"github.com/kvlease/kvlease/cuda/fabric/rdma"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/internal/kernel"
)

var _ core.Advisor = devices{}

// Advise chooses NICs for the devices that the regions are on, by their places in sysfs. A device that sysfs does not know, as in some virtual machines, gets
// no advice, nor does what lies beside it.
func (d devices) Advise(regions []core.Region) (advice []core.Setting) {
	h := fabric.Look(fabric.Config{Sys: d.here.Sys, Proc: d.here.Proc, Dev: d.here.Dev, Release: kernel.Release()})
	var places []int
	var names []string
	for _, r := range regions {
		f, err := d.driver.Features(int(r.Device))
		if err != nil || h.At(f.PCI) < 0 {
			return nil
		}
		if at := h.At(f.PCI); !slices.Contains(places, at) {
			places, names = append(places, at), append(names, f.PCI)
		}
	}
	gpus := "GPU " + names[0]
	if len(names) > 1 {
		gpus = "GPUs " + strings.Join(names, ", ")
	}
	for _, s := range h.Mild(gpus, h.Together(places), rdma.Told(cuda.LookupEnv, d.here.Proc+"/self")) {
		one := core.Setting{Setting: transport.Setting{Name: s.Name, Value: s.Value}, Reason: s.Reason}
		if s.IsSet {
			one.Kept = fmt.Sprintf("%q, as you say", s.Users)
		}
		advice = append(advice, one)
	}
	return advice
}
