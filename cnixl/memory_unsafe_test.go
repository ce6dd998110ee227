package cnixl

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

// memory maps n bytes outside the Go heap, for good: UCX does not see Go unmap memory.
func memory(n int) []byte {
	m, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	return m
}

func address(m []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m)))) }

// storeWord writes the first 8 bytes at once, as an owner writes a fence word.
func storeWord(m []byte, v uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(m))), v)
}
