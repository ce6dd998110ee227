package record

import "unsafe"

// Place is where a table lies in this process: what kvlease dump reads from outside of it.
type Place struct{ Addr, Stride, Count uint64 } // bytes of an entry, and how many there are

// PlaceOf gives that of a slice whose memory stays where it is: C's, or one of Go's heap for as long as it is used.
func PlaceOf[T any](s []T) Place {
	var t T
	if len(s) == 0 {
		return Place{}
	}
	return Place{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s)))), Stride: uint64(unsafe.Sizeof(t)), Count: uint64(len(s))}
}
