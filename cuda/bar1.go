package cuda

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// managementName is what the loader is asked for when KVLEASE_NVML names no file.
const managementName = "libnvidia-ml.so.1"

// BAR1Free is how much of a device's window for PCIe is free, in bytes: what NICs pin of its memory has to fit into it. NVIDIA's
// management library tells it, the file that KVLEASE_NVML names or the loader's. An error says why nobody knows, which is no reason to
// refuse anything.
func (d *Driver) BAR1Free(device int) (uint64, error) {
	name := getenv("KVLEASE_NVML")
	if name == "" {
		name = managementName
	}
	file := C.CString(name)
	defer C.free(unsafe.Pointer(file))
	text := (*C.char)(C.calloc(1, textMax))
	defer C.free(unsafe.Pointer(text))
	var free C.uint64_t
	var fault C.kvlc_fault_t
	st := C.kvlc_bar1_free(file, d.handle, C.int32_t(device), &free, &fault, text, textMax)
	call := C.GoString(&fault.call[0])
	switch {
	case st == C.KVLC_OK:
		return uint64(free), nil
	case st == C.KVLC_NO_LIBRARY:
		return 0, fmt.Errorf("%s: %w", C.GoString(text), ErrUnavailable)
	case st == C.KVLC_NO_SYMBOL:
		return 0, fmt.Errorf("%s has no symbol %s: %w", name, call, ErrUnavailable)
	case st == C.KVLC_NO_DEVICE:
		return 0, fmt.Errorf("%s does not know device %d: %w", name, device, ErrUnavailable)
	case len(call) > 4 && call[:4] == "nvml":
		return 0, fmt.Errorf("%s: %s answers %d: %w", name, call, int(fault.code), ErrUnavailable)
	}
	return 0, errorOf(st, &fault)
}
