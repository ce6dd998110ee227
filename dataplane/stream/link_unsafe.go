package stream

import "unsafe"

// word32 is the word at a constant offset of page-aligned memory that has it.
func word32(mem []byte, off int) *uint32 {
	_ = mem[off+3]
	return (*uint32)(unsafe.Pointer(&mem[off]))
}

// recordBuffer is room for one record, 8-byte aligned.
type recordBuffer [512]uint64

func (b *recordBuffer) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&b[0])), len(b)*8)
}
