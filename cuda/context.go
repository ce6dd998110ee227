package cuda

// #include "shim.h"
// #cgo noescape kvlc_enter
// #cgo nocallback kvlc_enter
// #cgo noescape kvlc_leave
// #cgo nocallback kvlc_leave
// #cgo noescape kvlc_flush
// #cgo nocallback kvlc_flush
// #cgo noescape kvlc_event_query
// #cgo nocallback kvlc_event_query
// #cgo noescape kvlc_copy_in
// #cgo nocallback kvlc_copy_in
// #cgo noescape kvlc_copy_out
// #cgo nocallback kvlc_copy_out
import "C"

import (
	"fmt"
	"unsafe"
)

// Context is our hold of a device's primary context, which the engine has made.
//
// Threads: any. Every call makes the context current on its thread and gives the thread its own one back.
// Memory: Enter, Leave, Flush, Fired and copies make no allocation while nothing fails.
type Context struct {
	driver   *Driver
	device   C.int32_t
	features Features
}

// Retain takes a hold of the primary context of a device. ErrUnavailable: the engine has made none; kvlease makes none for it, since a
// context takes some 100 MiB of the device and would have other flags than the engine's.
func (d *Driver) Retain(device int) (*Context, error) { return d.take(device, false) }

// Make is Retain for a process that is its own engine, as a benchmark is: where there is no primary context it makes one.
func (d *Driver) Make(device int) (*Context, error) { return d.take(device, true) }

func (d *Driver) take(device int, make bool) (*Context, error) {
	features, err := d.Features(device)
	if err != nil {
		return nil, err
	}
	var fault C.kvlc_fault_t
	st := C.int32_t(0)
	if make {
		st = C.kvlc_make(d.handle, C.int32_t(device), &fault)
	} else {
		st = C.kvlc_retain(d.handle, C.int32_t(device), &fault)
	}
	if err := errorOf(st, &fault); err != nil {
		return nil, fmt.Errorf("device %d: %w", device, err)
	}
	return &Context{driver: d, device: C.int32_t(device), features: features}, nil
}

// Features is what the device offers, as it was asked when the context was taken.
func (c *Context) Features() Features { return c.features }

// Device is the ordinal.
func (c *Context) Device() int { return int(c.device) }

// Release gives the hold up. Nothing of the context may be used after it.
func (c *Context) Release() error {
	var fault C.kvlc_fault_t
	return c.told(C.kvlc_release(c.driver.handle, c.device, &fault), &fault)
}

// Enter makes the context current on this thread, which the caller keeps until Leave. pushed: Leave is due; false if it was current
// already, as on an engine's own thread.
func (c *Context) Enter() (pushed bool, err error) {
	var fault C.kvlc_fault_t
	var p C.int32_t
	st := C.kvlc_enter(c.driver.handle, c.device, &p, &fault)
	if st < 0 {
		kept := fault // what is told escapes: only then
		return false, c.told(st, &kept)
	}
	return p != 0, nil
}

// Leave gives the thread the context back that it had before Enter.
func (c *Context) Leave() error {
	var fault C.kvlc_fault_t
	if st := C.kvlc_leave(c.driver.handle, c.device, &fault); st < 0 {
		kept := fault
		return c.told(st, &kept)
	}
	return nil
}

func (c *Context) told(st C.int32_t, fault *C.kvlc_fault_t) error {
	if err := errorOf(st, fault); err != nil {
		return fmt.Errorf("device %d: %w", c.device, err)
	}
	return nil
}

// SyncMemops has the driver make copies into and out of the allocation at addr wait where it calls them synchronous: NICs are outside
// of stream order. VMM and pool memory has no such setting of its own; there the context gets it, for all its memory.
func (c *Context) SyncMemops(addr uint64) error {
	var fault C.kvlc_fault_t
	return c.told(C.kvlc_sync_memops(c.driver.handle, c.device, C.uint64_t(addr), &fault), &fault)
}

// Export is a dma-buf around a range: whole pages of the host.
type Export struct {
	Fd     int    // the caller closes it
	Offset uint64 // of the range in it
	Bytes  uint64 // of the whole
}

// Export makes a dma-buf of a range.
func (c *Context) Export(addr, bytes uint64) (Export, error) {
	var fault C.kvlc_fault_t
	var fd C.int32_t
	var offset, whole C.uint64_t
	st := C.kvlc_export(c.driver.handle, c.device, C.uint64_t(addr), C.uint64_t(bytes), &fd, &offset, &whole, &fault)
	if err := c.told(st, &fault); err != nil {
		return Export{}, fmt.Errorf("dma-buf of %d bytes at %#x: %w", bytes, addr, err)
	}
	return Export{Fd: int(fd), Offset: uint64(offset), Bytes: uint64(whole)}, nil
}

// Flush returns when what NICs have written so far is seen by the device's own work. needed is false, and nothing is asked, if its order
// makes that so anyway. ErrUnavailable: the order does not, and there is no flush from the host.
func (c *Context) Flush() (needed bool, err error) {
	if c.features.Ordering >= OrderingOwner {
		return false, nil
	}
	if !c.features.FlushHost {
		return true, fmt.Errorf("device %d: %w", c.device, errNoFlush)
	}
	var fault C.kvlc_fault_t
	if st := C.kvlc_flush(c.driver.handle, c.device, &fault); st < 0 {
		kept := fault
		return true, c.told(st, &kept)
	}
	return true, nil
}

// Alloc takes memory of the device: for tests and the demo.
func (c *Context) Alloc(bytes uint64) (addr uint64, err error) {
	var fault C.kvlc_fault_t
	var at C.uint64_t
	if err := c.told(C.kvlc_alloc(c.driver.handle, c.device, C.uint64_t(bytes), &at, &fault), &fault); err != nil {
		return 0, fmt.Errorf("%d bytes: %w", bytes, err)
	}
	return uint64(at), nil
}

// Free gives memory of Alloc back.
func (c *Context) Free(addr uint64) error {
	var fault C.kvlc_fault_t
	return c.told(C.kvlc_free(c.driver.handle, c.device, C.uint64_t(addr), &fault), &fault)
}

// CopyIn copies from the host to the device and returns when it is done.
func (c *Context) CopyIn(to uint64, from []byte) error {
	if len(from) == 0 {
		return nil
	}
	var fault C.kvlc_fault_t
	if st := C.kvlc_copy_in(c.driver.handle, c.device, C.uint64_t(to), unsafe.Pointer(unsafe.SliceData(from)), C.uint64_t(len(from)), &fault); st < 0 {
		kept := fault
		return c.told(st, &kept)
	}
	return nil
}

// CopyOut copies from the device to the host and returns when it is done.
func (c *Context) CopyOut(to []byte, from uint64) error {
	if len(to) == 0 {
		return nil
	}
	var fault C.kvlc_fault_t
	if st := C.kvlc_copy_out(c.driver.handle, c.device, unsafe.Pointer(unsafe.SliceData(to)), C.uint64_t(from), C.uint64_t(len(to)), &fault); st < 0 {
		kept := fault
		return c.told(st, &kept)
	}
	return nil
}

// Fill sets bytes of the device.
func (c *Context) Fill(addr uint64, value byte, bytes uint64) error {
	var fault C.kvlc_fault_t
	return c.told(C.kvlc_fill(c.driver.handle, c.device, C.uint64_t(addr), C.uint8_t(value), C.uint64_t(bytes), &fault), &fault)
}
