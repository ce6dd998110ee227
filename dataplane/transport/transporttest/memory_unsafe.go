package transporttest

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// memory maps n bytes outside the Go heap. They stay mapped: UCX does not see Go unmap memory.
func memory(t testing.TB, n int) []byte {
	t.Helper()
	m, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	must(t, err)
	return m
}

func addr(m []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m)))) }

func region(m []byte) transport.Region {
	return transport.Region{Addr: addr(m), Bytes: uint64(len(m))}
}
