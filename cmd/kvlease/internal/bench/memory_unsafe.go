package bench

import "unsafe"

// address is where mapped memory lies, for the transport; it does not move.
func address(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// wordAt looks at memory that a transport writes: loads from it are atomic.
func wordAt(mem []byte, at uint64) *uint64 { return (*uint64)(unsafe.Pointer(&mem[at : at+8][0])) }
