package simnet

import "unsafe"

// copyBytes moves bytes between two addresses that are registered. What goes byte by byte here is one instant of the clock.
//
//go:norace
//go:nocheckptr
func copyBytes(to, from, n uint64) {
	copy(unsafe.Slice((*byte)(pointer(to)), n), unsafe.Slice((*byte)(pointer(from)), n))
}

// pointer makes a pointer of an address that whoever registered it keeps alive.
//
//go:nocheckptr
func pointer(addr uint64) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&addr))
}
