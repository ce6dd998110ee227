package cuda

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"cmp"
	"unsafe"
)

// CheckHost holds regions that are said to be host memory against the driver, if this process has one: a GPU's address under that name
// would register with a transport in software, and the process would die when a peer reads it. Neither is a driver loaded for it nor
// begun: one that nobody has begun knows no address. ErrInvalid names the first region that is a device's, and what helps.
func CheckHost(regions []Region) error {
	d := loaded()
	if d == nil {
		return nil
	}
	for i, r := range regions {
		if r.Bytes == 0 {
			continue
		}
		for _, addr := range []uint64{r.Addr, r.Addr + r.Bytes - 1} {
			at, err := d.Pointer(addr)
			if err != nil { // it is not begun, or broken, and then it is not what tells host memory
				return nil
			}
			if at.Kind == Unknown || at.Kind == Host {
				continue
			}
			if at.Kind == Managed {
				return nameRegion(i, r, refuse("the address is %s, whose pages move and cannot be pinned", allocFix, at.Kind))
			}
			return nameRegion(i, r, refuse("the address is %s of device %d, and host memory was said", "register it as KVL_MEM_VRAM with that device", at.Kind, at.Device))
		}
	}
	return nil
}

// loaded is the driver that this process has loaded, nil if it has none or one that is not whole.
func loaded() *Driver {
	path := cmp.Or(getenv("KVLEASE_CUDA"), driverName)
	file := C.CString(path)
	defer C.free(unsafe.Pointer(file))
	d := &Driver{file: path}
	var version C.int32_t
	var fault C.kvlc_fault_t
	if C.kvlc_library_loaded(file, &d.handle, &version, &fault) != C.KVLC_OK {
		return nil
	}
	d.version = Version(version)
	return d
}
