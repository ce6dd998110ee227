package cuda

import (
	"fmt"
)

// Hold is device memory that is registered: the primary contexts of its devices, kept alive and made current where NIXL is called.
//
// Threads: Enter, Leave and Flush may be called by any, Release comes last.
// Memory: Enter, Leave and Flush make no allocation while nothing fails.
type Hold struct {
	contexts  []*Context
	unordered []*Context // of devices whose writes by NICs have to be flushed
	ranges    []Range
	notes     []string
	noNIC     bool
}

// probeBytes is what is read of both ends of a range: a page of the host.
const probeBytes = 4096

// Hold checks regions, takes the contexts of their devices, has copies into and out of the memory wait for each other (SyncMemops), and reads
// both ends of each range through the driver, so that memory which is gone is found here and not under traffic. All of it or nothing:
// after an error nothing is held. The way that NICs take is not shown by it.
func (d *Driver) Hold(regions []Region, m Machine) (*Hold, error) {
	plan, err := d.Check(regions, m)
	if err != nil {
		return nil, err
	}
	h := &Hold{ranges: plan.Ranges, notes: plan.Unchecked, noNIC: m.NoNIC}
	if err := h.take(d, plan, m); err != nil {
		_ = h.Release() // the first failure is the one to tell
		return nil, err
	}
	return h, nil
}

func (h *Hold) take(d *Driver, plan Plan, m Machine) error {
	of := map[int]*Context{}
	for _, device := range plan.Devices {
		c, err := d.Retain(device)
		if err != nil {
			return err
		}
		of[device] = c
		h.contexts = append(h.contexts, c)
		f := c.Features()
		if f.Ordering >= OrderingOwner || m.NoNIC { // nobody writes past the device's own order
			continue
		}
		if !f.FlushHost {
			return fmt.Errorf("device %d: %w", device, errNoFlush)
		}
		h.unordered = append(h.unordered, c)
	}
	for _, a := range plan.Allocations {
		if err := of[a.Device].SyncMemops(a.Addr); err != nil {
			return fmt.Errorf("allocation of %d bytes at %#x: %w", a.Bytes, a.Addr, err)
		}
	}
	var page [probeBytes]byte
	for _, r := range plan.Ranges {
		n := min(r.Bytes, probeBytes)
		for _, at := range []uint64{r.Addr, r.Addr + r.Bytes - n} {
			if err := of[r.Device].CopyOut(page[:n], at); err != nil {
				return fmt.Errorf("%d bytes at %#x cannot be read: %w", n, at, err)
			}
		}
	}
	return nil
}

// Ranges are what to register in place of the regions.
func (h *Hold) Ranges() []Range { return h.ranges }

// Notes are what could not be checked.
func (h *Hold) Notes() []string { return h.notes }

// NoNIC is what Machine said: no NIC is to reach the memory.
func (h *Hold) NoNIC() bool { return h.noNIC }

// Enter makes the context of the first device current on this thread, which the caller keeps until Leave. pushed: Leave is due.
// UCX asks for any context on the thread; memory of other devices it finds by their addresses.
func (h *Hold) Enter() (pushed bool, err error) { return h.contexts[0].Enter() }

// Leave gives the thread the context back that it had before Enter.
func (h *Hold) Leave() error { return h.contexts[0].Leave() }

// Read copies what is at an address of a device that is held.
func (h *Hold) Read(dst []byte, device uint32, addr uint64) error {
	for _, c := range h.contexts {
		if int(c.device) == int(device) {
			return c.CopyOut(dst, addr)
		}
	}
	return &Error{Cause: "there is no such device, or its context is not held", Fix: "device is the ordinal after CUDA_VISIBLE_DEVICES: check it", Kind: ErrInvalid}
}

// Unordered reports whether what a read has brought has to be flushed before the device may use it.
func (h *Hold) Unordered() bool { return len(h.unordered) > 0 }

// Flush returns when what NICs have written so far is seen by the devices' own work.
func (h *Hold) Flush() error {
	for _, c := range h.unordered {
		if _, err := c.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// Fired reports whether all that an event stands for is done. It does not wait.
func (h *Hold) Fired(e Event) (bool, error) { return h.contexts[0].Fired(e) }

// Release gives the contexts up. The error is that of the first device that refused; all are given up.
func (h *Hold) Release() (err error) {
	for _, c := range h.contexts {
		if e := c.Release(); e != nil && err == nil {
			err = e
		}
	}
	h.contexts, h.unordered = nil, nil
	return err
}
