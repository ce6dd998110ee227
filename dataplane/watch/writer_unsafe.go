package watch

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

func bytesOf(words []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8)
}

// pwrite writes without a word to the Go scheduler: it takes microseconds, and what it writes to is memory. It gives the bytes
// written, negative on an error. The calls of a thread are seen in their order by whoever reads with calls of its own.
func pwrite(fd int, data []byte, at uint64) int {
	if len(data) == 0 {
		return 0
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_PWRITE64, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(data))), uintptr(len(data)), uintptr(at), 0, 0)
	runtime.KeepAlive(data)
	if errno != 0 {
		return -1
	}
	return int(n)
}
