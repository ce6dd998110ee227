package lease

import "testing"

func TestKeyIsSipHash24(t *testing.T) {
	// The reference vector of eight bytes 00..07 under the key 00..0f: 62 24 93 9a 79 f5 f5 93.
	got := Key([2]uint64{0x0706050403020100, 0x0f0e0d0c0b0a0908}, 0x03020100, 0x07060504)
	if want := uint64(0x93f5f5799a932462); got != want {
		t.Errorf("Key = %#x, want %#x", got, want)
	}
}
