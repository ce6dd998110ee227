package lease

import (
	"encoding/binary"

	"github.com/kvlease/kvlease/dataplane/siphash"
)

// Key is what proves that a reader was handed the parameters of use g of a slot: SipHash-2-4 with the boot secret over
// slot u32 | g u32, little-endian. The C library computes the same.
func Key(secret [2]uint64, slot, g uint32) uint64 {
	var m [8]byte
	binary.LittleEndian.PutUint64(m[:], uint64(slot)|uint64(g)<<32)
	return siphash.Sum64(secret[0], secret[1], m[:])
}
