// Package regions is what transports without hardware share: the list of memory that an agent has registered, and the metadata in
// which it travels.
package regions

import (
	"fmt"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// NameMax is the size of an agent's name, in bytes.
const NameMax = 256

func valid(r transport.Region) bool {
	return r.Bytes > 0 && r.Addr > 0 && r.Addr+r.Bytes > r.Addr && r.Mem <= transport.VRAM
}

// Check gives ErrInvalid for the first region that is empty, passes the end of the address space, or is of no known memory.
func Check(regions []transport.Region) error {
	for i, r := range regions {
		if !valid(r) {
			return fmt.Errorf("register region %d, %d bytes: %w", i, r.Bytes, transport.ErrInvalid)
		}
	}
	return nil
}

// Without gives all less regions, as another slice. ErrInvalid: one of them is not there.
func Without(all, regions []transport.Region) ([]transport.Region, error) {
	left := append([]transport.Region(nil), all...)
	for i, r := range regions {
		at := -1
		for j := range left {
			if left[j] == r {
				at = j
				break
			}
		}
		if at < 0 {
			return nil, fmt.Errorf("unregister region %d, %d bytes, which is not registered: %w", i, r.Bytes, transport.ErrInvalid)
		}
		left = append(left[:at], left[at+1:]...)
	}
	return left, nil
}

// Covered reports whether one region holds the whole range.
func Covered(regions []transport.Region, mem transport.Mem, device uint32, addr, n uint64) bool {
	for i := range regions {
		r := &regions[i]
		if r.Mem == mem && r.Device == device && addr >= r.Addr && n <= r.Bytes && addr-r.Addr <= r.Bytes-n {
			return true
		}
	}
	return false
}
