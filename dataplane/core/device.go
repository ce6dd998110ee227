package core

import (
	"fmt"
	"runtime"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// OpenDevices opens what knows device memory, package cuda's driver or a test's. A context asks for it when the first region of such
// memory is registered: a process without one never loads a driver.
type OpenDevices func() (Devices, error)

// Devices are the devices of this process.
type Devices interface {
	// Hold checks what of regions is device memory and keeps its devices ready for a transport. Host memory among them keeps the numbers that
	// errors name. On an error nothing is held.
	Hold(regions []Region) (Held, error)
}

// Held is device memory that is registered.
//
// Threads: Enter and Leave come from a step and from a registration at once; the others one at a time.
// Memory: Enter, Leave and Flush make no allocation while nothing fails.
type Held interface {
	// Ranges are what the transport gets in place of the regions.
	Ranges() []transport.Region
	// Notes say what could not be checked.
	Notes() []string
	// Enter makes the device's context current on this thread, on which the caller stays until Leave. pushed: Leave is due.
	Enter() (pushed bool, err error)
	// Leave gives the thread back what it had.
	Leave() error
	// Read copies what a device has at an address, of one of the ranges.
	Read(dst []byte, device uint32, addr uint64) error
	// NoNIC reports that no NIC is to reach the memory: peers of this machine read it by NVLink, which an agent of the same process may
	// not have.
	NoNIC() bool
	// Unordered reports whether what a transport's read has brought must be flushed before the device may use it.
	Unordered() bool
	Flush() error
	// Fired reports whether what an event of the device stands for is done. It does not wait.
	Fired(event uint64) (bool, error)
	Release() error
}

// UseDevices says how devices are opened. Before Register; without it device memory is handed to the transport as it is.
func (c *Core) UseDevices(open OpenDevices) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.openDevices = open
}

// UseHostCheck says who is asked whether regions that are said to be host memory are. Before Register; without it nobody is.
func (c *Core) UseHostCheck(check func(regions []Region) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hostCheck = check
}

// hold has the devices of regions held, if there are any, and writes down what the transport is to register. Without the lock, since a
// driver takes its time.
func (c *Core) hold(r *registration) error {
	device := false
	for _, region := range r.regions {
		if region.Mem == transport.VRAM && r.openDevices != nil {
			device = true
			continue
		}
		r.list = append(r.list, transport.Region{Addr: region.Addr, Bytes: region.Bytes, Device: region.Device, Mem: region.Mem})
	}
	if device {
		devices, err := r.openDevices()
		if err != nil {
			return err
		}
		held, err := devices.Hold(r.regions)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.held, c.agent.held = held, held
		c.plane.Await(held)
		c.mu.Unlock()
		r.list = append(r.list, held.Ranges()...)
	}
	r.own()
	return nil
}

// letGoUnless is the end of a registration that came to nothing.
func (c *Core) letGoUnless(r *registration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !r.kept {
		c.letGo()
	}
}

// sayHeld tells of device memory that has been registered.
func (c *Core) sayHeld() {
	if c.held == nil {
		return
	}
	ranges, bytes := c.held.Ranges(), uint64(0)
	for _, r := range ranges {
		bytes += r.Bytes
	}
	now := c.clock()
	c.log.side().Put(log.DeviceRegistered, now, log.Entry{A: bytes, B: uint64(len(ranges))})
	for _, note := range c.held.Notes() {
		c.log.side().Put(log.DeviceUnchecked, now, log.Entry{Text: note})
	}
}

// letGo gives up what is held. Nothing of it may be registered any more. A device that is lost refuses, and there is nothing to keep.
func (c *Core) letGo() {
	if c.held != nil {
		_ = c.held.Release()
		c.held, c.agent.held = nil, nil
		c.plane.Await(nil)
	}
}

// entered is what of a thread has to be given back.
type entered uint8

const (
	enteredNot    entered = iota
	enteredKept           // the thread, whose context is its own
	enteredPushed         // and its context
)

// enter keeps the goroutine on its thread and makes the device's context current there, if device memory is registered: the steps of an
// engine come on its own threads, the others on any of the runtime's. Without its context nothing of a device is left to be served,
// and a transport would fall over it: that is a panic, which a step answers with closed rows. leave is due with what it returns.
func (c *Core) enter() entered {
	if c.held == nil {
		return enteredNot
	}
	runtime.LockOSThread()
	pushed, err := c.held.Enter()
	switch {
	case err != nil:
		runtime.UnlockOSThread()
		panic(fmt.Errorf("the device's context: %w", err))
	case pushed:
		return enteredPushed
	}
	return enteredKept
}

// exit is the end of enter, with what was held then.
func (c *Core) exit(held Held, e entered) {
	if e == enteredNot {
		return
	}
	defer runtime.UnlockOSThread()
	if e == enteredPushed {
		if err := held.Leave(); err != nil {
			panic(fmt.Errorf("the device's context: %w", err))
		}
	}
}

// enterHere is enter for a registration, which refuses where a step would poison, and goes on while steps enter and leave on their
// threads. leave is due.
func (c *Core) enterHere() (leave func(), err error) {
	held := c.held // of this registration alone
	if held == nil {
		return func() {}, nil
	}
	runtime.LockOSThread()
	pushed, err := held.Enter()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("the device's context: %w", err)
	}
	return func() {
		defer runtime.UnlockOSThread()
		if pushed {
			_ = held.Leave() // what is lost with the context a step finds out
		}
	}, nil
}

// tryEnter is enter for what has to go on without a context, too: a device that cannot be entered is lost.
func (c *Core) tryEnter() (e entered) {
	defer func() { _ = recover() }()
	return c.enter()
}

// closeAgent is the transport's Close.
func (c *Core) closeAgent() error {
	defer c.exit(c.held, c.tryEnter())
	return c.tr.Close()
}

// PollReads is the transport's. A read that is done has its bytes where the device may not see them yet, if it orders no writes of
// others; one whose bytes cannot be made seen has failed here.
func (a *ownAgent) PollReads(xfers []transport.Xfer, out []transport.Status, spinNs int64) {
	a.Transport.PollReads(xfers, out, spinNs)
	if a.held == nil || !a.held.Unordered() {
		return
	}
	done := false
	for _, st := range out[:len(xfers)] {
		done = done || st == transport.Done
	}
	if !done || a.held.Flush() == nil {
		return
	}
	for i, st := range out[:len(xfers)] {
		if st == transport.Done {
			out[i] = transport.FailedHere
		}
	}
}
