package cnixl

// #include "shim.h"
import "C"

import (
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// The C structs have the layout of the Go ones, or this does not compile.
var (
	_ [unsafe.Sizeof(transport.Region{})]byte              = [C.sizeof_kvlx_region_t]byte{}
	_ [unsafe.Offsetof(transport.Region{}.Addr)]byte       = [unsafe.Offsetof(C.kvlx_region_t{}.addr)]byte{}
	_ [unsafe.Offsetof(transport.Region{}.Bytes)]byte      = [unsafe.Offsetof(C.kvlx_region_t{}.bytes)]byte{}
	_ [unsafe.Offsetof(transport.Region{}.Device)]byte     = [unsafe.Offsetof(C.kvlx_region_t{}.device)]byte{}
	_ [unsafe.Offsetof(transport.Region{}.Mem)]byte        = [unsafe.Offsetof(C.kvlx_region_t{}.mem)]byte{}
	_ [unsafe.Sizeof(transport.Desc{})]byte                = [C.sizeof_kvlx_desc_t]byte{}
	_ [unsafe.Offsetof(transport.Desc{}.Local)]byte        = [unsafe.Offsetof(C.kvlx_desc_t{}.local)]byte{}
	_ [unsafe.Offsetof(transport.Desc{}.Remote)]byte       = [unsafe.Offsetof(C.kvlx_desc_t{}.remote)]byte{}
	_ [unsafe.Offsetof(transport.Desc{}.Len)]byte          = [unsafe.Offsetof(C.kvlx_desc_t{}.len)]byte{}
	_ [unsafe.Offsetof(transport.Desc{}.LocalDevice)]byte  = [unsafe.Offsetof(C.kvlx_desc_t{}.local_device)]byte{}
	_ [unsafe.Offsetof(transport.Desc{}.RemoteDevice)]byte = [unsafe.Offsetof(C.kvlx_desc_t{}.remote_device)]byte{}
	_ [transport.Pending]byte                              = [C.KVLX_PENDING]byte{}
	_ [transport.Done]byte                                 = [C.KVLX_DONE]byte{}
	_ [transport.Failed]byte                               = [C.KVLX_FAILED]byte{}
	_ [transport.FailedHere]byte                           = [C.KVLX_FAILED_HERE]byte{}
)

func regionsC(r []transport.Region) *C.kvlx_region_t {
	return (*C.kvlx_region_t)(unsafe.Pointer(unsafe.SliceData(r)))
}

func descsC(d []transport.Desc) *C.kvlx_desc_t {
	return (*C.kvlx_desc_t)(unsafe.Pointer(unsafe.SliceData(d)))
}
