// Package devices gives the core's view of device memory over the CUDA driver: what the C core, the bench and the demo hand to
// core.UseDevices.
package devices

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/cuda/fabric/rdma"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/internal/kernel"
)

// Machine says where a machine is seen. The zero value is this one.
type Machine struct {
	Sys, Proc, Dev string // roots; /sys, /proc and /dev if empty
}

// Use lets a context take device memory as this machine has it, and holds what is said to be host memory against it.
func (m Machine) Use(c *core.Core) {
	c.UseDevices(m.Open)
	c.UseHostCheck(HostMemory)
}

// HostMemory asks the driver, if this process has one, whether regions of host memory are a device's (cuda.CheckHost).
func HostMemory(regions []core.Region) error {
	list := make([]cuda.Region, len(regions))
	for i, r := range regions {
		if r.Mem == transport.DRAM { // others stay empty, so that a region keeps its number
			list[i] = cuda.Region{Addr: r.Addr, Bytes: r.Bytes, Name: r.Name}
		}
	}
	if err := cuda.CheckHost(list); err != nil {
		return fmt.Errorf("%w: %w", core.ErrInvalid, err)
	}
	return nil
}

// Open opens the driver of this process (cuda.Open): a core.OpenDevices. An error is cuda's.
func (m Machine) Open() (core.Devices, error) {
	d, err := cuda.Open("")
	if err != nil {
		return nil, err
	}
	return devices{d, Machine{cmp.Or(m.Sys, "/sys"), cmp.Or(m.Proc, "/proc"), cmp.Or(m.Dev, "/dev")}}, nil
}

// devices is the driver as the core asks it.
type devices struct {
	driver *cuda.Driver
	here   Machine
}

// Hold looks at the machine for what the driver does not tell, and has the regions held.
func (d devices) Hold(regions []core.Region) (core.Held, error) {
	list := make([]cuda.Region, len(regions)) // host memory stays empty, so that a region keeps its number
	m := cuda.Machine{BAR1Free: map[int]uint64{}, NoNIC: len(rdma.Usable(rdma.Look(d.here.Sys, d.here.Dev))) == 0, Peermem: d.here.peerMemory()}
	asked := map[int]bool{} // once a device, also where that has told nothing: a library that fails takes its time
	for i, r := range regions {
		if r.Mem != transport.VRAM {
			continue
		}
		device := int(r.Device)
		list[i] = cuda.Region{Addr: r.Addr, Bytes: r.Bytes, Device: device, Name: r.Name}
		if !asked[device] {
			asked[device] = true
			if free, err := d.driver.BAR1Free(device); err == nil { // else it is not known, and the driver has the last word
				m.BAR1Free[device] = free
			}
		}
	}
	h, err := d.driver.Hold(list, m)
	switch {
	case errors.Is(err, cuda.ErrInvalid):
		return nil, fmt.Errorf("%w: %w", core.ErrInvalid, err)
	case err != nil:
		return nil, err
	}
	return held{h}, nil
}

// peerMemory reports whether a kernel module is loaded over which NICs pin device memory.
func (m Machine) peerMemory() bool {
	ways := rdma.LookGPUMemory(m.Sys, m.Proc, kernel.Release())
	return ways.Module != ""
}

type held struct{ *cuda.Hold }

func (h held) Fired(event uint64) (bool, error) { return h.Hold.Fired(cuda.Event(event)) }

func (h held) Ranges() []transport.Region {
	list := make([]transport.Region, 0, len(h.Hold.Ranges()))
	for _, r := range h.Hold.Ranges() {
		list = append(list, transport.Region{Addr: r.Addr, Bytes: r.Bytes, Device: uint32(r.Device), Mem: transport.VRAM})
	}
	return list
}
