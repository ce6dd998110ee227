package siphash

import "testing"

// The first 17 lines of the authors' published table: key 00 01 .. 0f, input 00 01 .. n-1. Line 15 is also in the paper.
var published = []uint64{
	0x726fdb47dd0e0e31, 0x74f839c593dc67fd, 0x0d6c8009d9a94f5a, 0x85676696d7fb7e2d,
	0xcf2794e0277187b7, 0x18765564cd99a68d, 0xcbc9466e58fee3ce, 0xab0200f58b01d137,
	0x93f5f5799a932462, 0x9e0082df0ba9e4b0, 0x7a5dbbc594ddb9f3, 0xf4b32f46226bada7,
	0x751e8fbc860ee5fb, 0x14ea5627c0843d90, 0xf723ca908e7af2ee, 0xa129ca6149be45e5,
	0x3f2acc7f57c29bdb,
}

func TestPublishedVectorsComeOut(t *testing.T) {
	var in [64]byte
	for i := range in {
		in[i] = byte(i)
	}
	const k0, k1 = 0x0706050403020100, 0x0f0e0d0c0b0a0908
	for n, want := range published {
		if got := Sum64(k0, k1, in[:n]); got != want {
			t.Errorf("%d bytes: %#016x, published %#016x", n, got, want)
		}
	}
}

func TestSumAllocatesNothing(t *testing.T) {
	id := []byte("chatcmpl-0123456789abcdef-89abcdef")
	var sum uint64
	if n := testing.AllocsPerRun(100, func() { sum += Sum64(1, 2, id) }); n != 0 {
		t.Errorf("%v allocations per sum", n)
	}
}
