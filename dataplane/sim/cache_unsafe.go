package sim

import "unsafe"

// asWords views memory of a cache, which is whole words, aligned.
func asWords(b []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8)
}
