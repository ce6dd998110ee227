package cuda

// #cgo CFLAGS: -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -fno-omit-frame-pointer
// #cgo LDFLAGS: -ldl -lpthread
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// textMax is the room for a message of the loader and for a path, in bytes.
const textMax = 4096

// driverName is what the loader is asked for when nobody names a file.
const driverName = "libcuda.so.1"

// Version is a driver's, as it says it: 1000 x major + 10 x minor of the newest CUDA that it serves.
type Version int

func (v Version) String() string { return fmt.Sprintf("%d.%d", int(v)/1000, int(v)%1000/10) }

// DriverMin is the oldest driver that is taken: with CUDA 12.0 came the cuGetProcAddress that tells whether a symbol is missing or too
// old, and NIXL's wheels are built for 12.
const DriverMin Version = C.KVLC_DRIVER_MIN

// Driver is an opened driver library. There is one per file and process, and it is never closed.
//
// Threads: any.
type Driver struct {
	handle  C.int32_t
	file    string
	version Version
}

// Open opens the driver library: path, else what KVLEASE_CUDA names, else libcuda.so.1 of the loader. It calls cuInit, which takes
// some 100 ms the first time and makes no context.
//
// ErrUnavailable: there is none, a symbol is missing, it is older than DriverMin, or it finds no device; the text says which and
// what helps.
func Open(path string) (*Driver, error) {
	how := "path"
	if path == "" {
		path, how = getenv("KVLEASE_CUDA"), "KVLEASE_CUDA"
	}
	if path == "" {
		path, how = driverName, "loader"
	}
	file := C.CString(path)
	defer C.free(unsafe.Pointer(file))
	text := (*C.char)(C.calloc(1, textMax))
	defer C.free(unsafe.Pointer(text))
	d := &Driver{file: path}
	var version C.int32_t
	var fault C.kvlc_fault_t
	if st := C.kvlc_library_open(file, &d.handle, &version, &fault, text, textMax); st != C.KVLC_OK {
		return nil, openError(st, &fault, path, how, C.GoString(text))
	}
	d.version = Version(version)
	if C.kvlc_library_file(d.handle, text, textMax) != 0 {
		d.file = C.GoString(text)
	}
	return d, nil
}

// Version is the driver's.
func (d *Driver) Version() Version { return d.version }

// File is where the library was found.
func (d *Driver) File() string { return d.file }

// Devices is how many GPUs this process sees, after CUDA_VISIBLE_DEVICES.
func (d *Driver) Devices() (int, error) {
	var n C.int32_t
	var fault C.kvlc_fault_t
	err := errorOf(C.kvlc_device_count(d.handle, &n, &fault), &fault)
	return int(n), err
}

// Symbols lists the functions that a driver must have.
func Symbols() []string {
	var names []string
	for i := C.uint32_t(0); ; i++ {
		name := C.kvlc_symbol(i)
		if name == nil {
			return names
		}
		names = append(names, C.GoString(name))
	}
}

// LookupEnv reads the C environment: Go's own copy is from the time when the Go core was loaded.
func LookupEnv(name string) (value string, set bool) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	v := (*C.char)(C.calloc(1, textMax))
	defer C.free(unsafe.Pointer(v))
	if C.kvlc_getenv(cname, v, textMax) == 0 {
		return "", false
	}
	return C.GoString(v), true
}

func getenv(name string) string {
	value, _ := LookupEnv(name)
	return value
}
