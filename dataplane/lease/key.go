package lease

import "math/bits"

// Key is what proves that a reader was handed the parameters of use g of a slot: SipHash-2-4 with the boot secret over
// slot u32 | g u32, little-endian. The C library computes the same.
func Key(secret [2]uint64, slot, g uint32) uint64 {
	return sip24(secret[0], secret[1], uint64(slot)|uint64(g)<<32)
}

// sip24 is SipHash-2-4 of one 8-byte message.
func sip24(k0, k1, m uint64) uint64 {
	v0, v1 := k0^0x736f6d6570736575, k1^0x646f72616e646f6d
	v2, v3 := k0^0x6c7967656e657261, k1^0x7465646279746573
	v3 ^= m
	v0, v1, v2, v3 = sipRound(sipRound(v0, v1, v2, v3))
	v0 ^= m
	const last = 8 << 56 // length in the top byte, no tail
	v3 ^= last
	v0, v1, v2, v3 = sipRound(sipRound(v0, v1, v2, v3))
	v0 ^= last
	v2 ^= 0xff
	v0, v1, v2, v3 = sipRound(sipRound(v0, v1, v2, v3))
	v0, v1, v2, v3 = sipRound(sipRound(v0, v1, v2, v3))
	return v0 ^ v1 ^ v2 ^ v3
}

func sipRound(v0, v1, v2, v3 uint64) (uint64, uint64, uint64, uint64) {
	v0 += v1
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v0 = bits.RotateLeft64(v0, 32)
	v2 += v3
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 += v3
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	v2 += v1
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v2 = bits.RotateLeft64(v2, 32)
	return v0, v1, v2, v3
}
