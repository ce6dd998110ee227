package cnixl

// #include "shim.h"
import "C"

import (
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// The C structs have the layout of the Go ones; a test compares every offset.

func regionsC(r []transport.Region) *C.kvlx_region_t {
	return (*C.kvlx_region_t)(unsafe.Pointer(unsafe.SliceData(r)))
}

func descsC(d []transport.Desc) *C.kvlx_desc_t {
	return (*C.kvlx_desc_t)(unsafe.Pointer(unsafe.SliceData(d)))
}
