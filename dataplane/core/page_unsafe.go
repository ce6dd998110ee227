package core

import (
	"reflect"
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/record"
)

// controlOf views the control page as a table of one entry.
func controlOf(c *record.Control) []record.Control { return unsafe.Slice(c, 1) }

// word is where a number of 1, 4 or 8 bytes lies. Reflection finds it once, when the page is made.
type word struct {
	at   unsafe.Pointer
	size uintptr
}

func wordAt(v reflect.Value) word { return word{v.Addr().UnsafePointer(), v.Type().Size()} }

func (w word) load() uint64 {
	switch w.size {
	case 8:
		return *(*uint64)(w.at)
	case 4:
		return uint64(*(*uint32)(w.at))
	}
	return uint64(*(*uint8)(w.at))
}
