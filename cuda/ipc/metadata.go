package ipc

import (
	"encoding/binary"
	"fmt"

	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// machine is a process of a machine since its boot.
type machine struct {
	boot    [36]byte // /proc/sys/kernel/random/boot_id
	process uint32
	chance  uint32 // drawn by the process: its number comes again, and in another container another process has it, too
}

// shared is a region of device memory as its owner tells of it.
type shared struct {
	addr, bytes uint64 // at the owner
	base, whole uint64 // its allocation there
	device      uint32
	handle      cuda.Shared
	at          uint64 // where it is in this process
}

// fits reports whether the region lies in its allocation.
func (s *shared) fits() bool {
	return s.addr != 0 && s.bytes > 0 && s.addr >= s.base && s.bytes <= s.whole && s.addr-s.base <= s.whole-s.bytes && s.base+s.whole > s.base
}

// The metadata, little-endian: magic (8 bytes), boot (36), process u32, regions u32, chance u32, then 104 bytes a region: address, bytes, base and
// length of the allocation, each u64, device u32, 0 u32, handle (64); then the inner transport's metadata.
const (
	magic      = "kvl-ipc\x01"
	header     = 8 + 36 + 4 + 4 + 4
	perRegion  = 4*8 + 4 + 4 + 64
	regionsMax = 4096
)

func isOurs(b []byte) bool { return len(b) >= len(magic) && string(b[:len(magic)]) == magic }

func appendMetadata(b []byte, of machine, regions []shared, rest []byte) []byte {
	le := binary.LittleEndian
	b = append(append(b, magic...), of.boot[:]...)
	b = le.AppendUint32(b, of.process)
	b = le.AppendUint32(b, uint32(len(regions)))
	b = le.AppendUint32(b, of.chance)
	for i := range regions {
		r := &regions[i]
		for _, v := range []uint64{r.addr, r.bytes, r.base, r.whole} {
			b = le.AppendUint64(b, v)
		}
		b = le.AppendUint32(b, r.device)
		b = le.AppendUint32(b, 0)
		b = append(b, r.handle[:]...)
	}
	return append(b, rest...)
}

type metadata struct {
	of      machine
	regions []shared
	rest    []byte
}

// parseMetadata takes what appendMetadata has written. ErrInvalid says why not.
func parseMetadata(b []byte) (m metadata, err error) {
	le := binary.LittleEndian
	bad := func(what string) (metadata, error) {
		return metadata{}, fmt.Errorf("metadata of %d bytes: %s: %w", len(b), what, transport.ErrInvalid)
	}
	if len(b) < header || !isOurs(b) {
		return bad("not of this transport")
	}
	at := b[len(magic):]
	at = at[copy(m.of.boot[:], at):]
	m.of.process = le.Uint32(at)
	m.of.chance = le.Uint32(at[8:])
	n := uint64(le.Uint32(at[4:]))
	if at = b[header:]; n < 1 || n > regionsMax || n*perRegion > uint64(len(at)) {
		return bad("lengths do not fit")
	}
	for i := range n {
		r := shared{addr: le.Uint64(at), bytes: le.Uint64(at[8:]), base: le.Uint64(at[16:]), whole: le.Uint64(at[24:]), device: le.Uint32(at[32:])}
		copy(r.handle[:], at[40:])
		if !r.fits() {
			return bad(fmt.Sprintf("region %d is not in its allocation", i))
		}
		m.regions = append(m.regions, r)
		at = at[perRegion:]
	}
	m.rest = at
	return m, nil
}
