package demo

import (
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// landed is the local memory of one piece of a read, which the plane keeps mapped.
func landed(d *transport.Desc) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&d.Local)), d.Len)
}
