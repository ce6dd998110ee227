package loopback

import (
	"sync/atomic"
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// move copies one descriptor. It stands for a device that knows nothing of Go's memory model, so the race detector does
// not look at it. Aligned words up to a row's size are copied whole, as every fabric does with 8 bytes.
//
// Preconditions: both ranges are registered.
//
//go:norace
//go:nocheckptr
func move(d *transport.Desc) {
	if d.Len <= 64 && (d.Len|d.Local|d.Remote)&7 == 0 {
		for at := uint64(0); at < d.Len; at += 8 {
			w := atomic.LoadUint64((*uint64)(pointer(d.Remote + at)))
			atomic.StoreUint64((*uint64)(pointer(d.Local+at)), w)
		}
		return
	}
	copy(unsafe.Slice((*byte)(pointer(d.Local)), d.Len), unsafe.Slice((*byte)(pointer(d.Remote)), d.Len))
}

// pointer makes a pointer of an address that whoever registered it keeps alive.
//
//go:nocheckptr
func pointer(addr uint64) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&addr))
}
