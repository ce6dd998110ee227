package ipc

import "unsafe"

// bytesAt is host memory of the suite, which stays mapped.
func bytesAt(addr, n uint64) []byte { return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), n) }
