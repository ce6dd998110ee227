package cnixl

// #cgo CFLAGS: -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -fno-omit-frame-pointer
// #cgo LDFLAGS: -ldl -lpthread
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// textMax is the room for a message from the shim or the loader, in bytes.
const textMax = 1024

// openLibrary finds NIXL, sets its environment and looks up every symbol.
func openLibrary(s search) (C.int32_t, Library, error) {
	lib, err := find(s)
	if err != nil {
		return 0, lib, err
	}
	setEnvironment(lib.Plugins)
	file := lib.File
	if file == "" {
		file = capiName
	}
	cfile := C.CString(file)
	defer C.free(unsafe.Pointer(cfile))
	text := (*C.char)(C.calloc(1, textMax))
	defer C.free(unsafe.Pointer(text))
	var handle C.int32_t
	if st := C.kvlx_library_open(cfile, &handle, text, textMax); st != C.KVLX_OK {
		if lib.How == "loader" {
			return 0, lib, fmt.Errorf("no NIXL found: %s; loader: %s: %w", s.looked(), C.GoString(text), transport.ErrUnavailable)
		}
		return 0, lib, fmt.Errorf("NIXL %s from %s: %s: %w", lib.Version, lib.How, C.GoString(text), errorOf(st))
	}
	if lib.How == "loader" && C.kvlx_library_file(handle, text, textMax) != 0 {
		lib = describe(C.GoString(text), "loader")
		setEnvironment(lib.Plugins)
	}
	return handle, lib, nil
}

func setEnvironment(plugins string) {
	if plugins == "" {
		C.kvlx_environment(nil)
		return
	}
	dir := C.CString(plugins)
	defer C.free(unsafe.Pointer(dir))
	C.kvlx_environment(dir)
}

// getenv reads the C environment: Go's own copy is from the time when the Go core was loaded.
func getenv(name string) string {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	const valueMax = 4096
	v := (*C.char)(C.calloc(1, valueMax))
	defer C.free(unsafe.Pointer(v))
	if C.kvlx_getenv(cname, v, valueMax) == 0 {
		return ""
	}
	return C.GoString(v)
}

// Symbols lists the C symbols that a NIXL library must have.
func Symbols() []string {
	var names []string
	for i := C.uint32_t(0); ; i++ {
		name := C.kvlx_symbol(i)
		if name == nil {
			return names
		}
		names = append(names, C.GoString(name))
	}
}

// Mallocs is the number of allocations that the shim has made in this process; none of the step's calls adds to it.
func Mallocs() uint64 { return uint64(C.kvlx_mallocs()) }

var errorsOf = [...]error{
	-C.KVLX_UNAVAILABLE: transport.ErrUnavailable,
	-C.KVLX_PEER:        transport.ErrPeer,
	-C.KVLX_INVALID:     transport.ErrInvalid,
	-C.KVLX_CLOSED:      transport.ErrClosed,
	-C.KVLX_FULL:        transport.ErrFull,
	-C.KVLX_RANGE:       transport.ErrRange,
	-C.KVLX_BURNT:       transport.ErrPeer,
	-C.KVLX_STUCK:       transport.ErrStuck,
}

func errorOf(st C.int32_t) error {
	if st >= 0 {
		return nil
	}
	if int(-st) >= len(errorsOf) {
		return transport.ErrInvalid
	}
	return errorsOf[-st]
}
