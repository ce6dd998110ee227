package ringbuf

import "unsafe"

// view is the ring's memory. Every offset that reaches it is a constant of the layout or was masked and checked.
type view struct{ base unsafe.Pointer }

func viewOf(mem []byte) view { return view{unsafe.Pointer(unsafe.SliceData(mem))} }

func (v view) aligned() bool { return uintptr(v.base)%8 == 0 }

func (v view) word32(off uintptr) *uint32 { return (*uint32)(unsafe.Add(v.base, off)) }

func (v view) word(off uintptr) *uint64 { return (*uint64)(unsafe.Add(v.base, off)) }

// records is the view that starts at the first record.
func (v view) records() view { return view{unsafe.Add(v.base, HeaderBytes)} }

// header is the record header at off: payload length, then tag<<32.
func (v view) header(off uint64) *uint64 { return (*uint64)(unsafe.Add(v.base, off)) }

// payload is the n bytes behind the record header at off.
func (v view) payload(off, n uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(v.base, off+recordHeaderBytes)), n)
}
