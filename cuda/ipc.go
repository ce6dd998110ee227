package cuda

// #include "shim.h"
// #cgo noescape kvlc_copies
// #cgo nocallback kvlc_copies
import "C"

import (
	"fmt"
	"unsafe"
)

// Shared is a handle by which other processes of this machine open an allocation: a CUipcMemHandle. It is of no use once its process, or
// the allocation, is gone.
type Shared [64]byte

// Share makes the handle of the allocation that addr is in. VMM and pool memory has none of this kind.
func (c *Context) Share(addr uint64) (h Shared, err error) {
	var fault C.kvlc_fault_t
	err = c.told(C.kvlc_share(c.driver.handle, c.device, C.uint64_t(addr), (*C.kvlc_shared_t)(unsafe.Pointer(&h)), &fault), &fault)
	if err != nil {
		return Shared{}, fmt.Errorf("handle of the memory at %#x: %w", addr, err)
	}
	return h, nil
}

// OpenShared maps another process's allocation and answers where it begins here. The same handle opened again is the same address.
func (c *Context) OpenShared(h Shared) (base uint64, err error) {
	var fault C.kvlc_fault_t
	var at C.uint64_t
	err = c.told(C.kvlc_open_shared(c.driver.handle, c.device, (*C.kvlc_shared_t)(unsafe.Pointer(&h)), &at, &fault), &fault)
	return uint64(at), err
}

// CloseShared gives back what OpenShared has mapped. Nothing may be copying from it.
func (c *Context) CloseShared(base uint64) error {
	var fault C.kvlc_fault_t
	return c.told(C.kvlc_close_shared(c.driver.handle, c.device, C.uint64_t(base), &fault), &fault)
}

// Copy is one piece of device memory on its way, laid out as the shim's.
type Copy struct{ To, From, Bytes uint64 }

// Copies puts copies between device addresses into a stream, and event behind them; it does not wait. begun is how many of them are in
// the stream, also after an error: those write, whatever becomes of the rest.
func (c *Context) Copies(s Stream, list []Copy, event Event) (begun int, err error) {
	var fault C.kvlc_fault_t
	var n C.uint32_t
	st := C.kvlc_copies(c.driver.handle, c.device, C.uint64_t(s), (*C.kvlc_copy_t)(unsafe.Pointer(unsafe.SliceData(list))), C.uint32_t(len(list)), C.uint64_t(event), &n, &fault)
	if st < 0 {
		kept := fault
		return int(n), c.told(st, &kept)
	}
	return int(n), nil
}
