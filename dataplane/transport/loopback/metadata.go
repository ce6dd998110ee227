package loopback

import (
	"encoding/binary"
	"fmt"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// The blob, little-endian: "kvlL", name length u32, epoch u64, regions u32, 0 u32, name, then 24 bytes a region:
// address u64, bytes u64, device u32, memory kind u32.
const (
	blobMagic   = "kvlL"
	blobHeader  = 24
	blobRegion  = 24
	blobRegions = 1 << 20 // no blob with more is read
)

func appendBlob(b []byte, name string, epoch uint64, regions []transport.Region) []byte {
	le := binary.LittleEndian
	b = append(b, blobMagic...)
	b = le.AppendUint32(b, uint32(len(name)))
	b = le.AppendUint64(b, epoch)
	b = le.AppendUint32(b, uint32(len(regions)))
	b = le.AppendUint32(b, 0)
	b = append(b, name...)
	for _, r := range regions {
		b = le.AppendUint64(b, r.Addr)
		b = le.AppendUint64(b, r.Bytes)
		b = le.AppendUint32(b, r.Device)
		b = le.AppendUint32(b, uint32(r.Mem))
	}
	return b
}

func parseBlob(b []byte) (name string, epoch uint64, regions []transport.Region, err error) {
	le := binary.LittleEndian
	bad := func(what string) (string, uint64, []transport.Region, error) {
		return "", 0, nil, fmt.Errorf("metadata of %d bytes: %s: %w", len(b), what, transport.ErrInvalid)
	}
	if len(b) < blobHeader || string(b[:4]) != blobMagic {
		return bad("not a loopback blob")
	}
	nameLen, n := uint64(le.Uint32(b[4:])), uint64(le.Uint32(b[16:]))
	if nameLen == 0 || nameLen > nameMax || n > blobRegions || uint64(len(b)) != blobHeader+nameLen+n*blobRegion {
		return bad("lengths do not fit")
	}
	rest := b[blobHeader+nameLen:]
	for i := range n {
		r := rest[i*blobRegion:]
		reg := transport.Region{
			Addr: le.Uint64(r), Bytes: le.Uint64(r[8:]), Device: le.Uint32(r[16:]), Mem: transport.Mem(r[20]),
		}
		if !validRegion(reg) || le.Uint32(r[20:]) > uint32(transport.VRAM) {
			return bad("region out of range")
		}
		regions = append(regions, reg)
	}
	return string(b[blobHeader : blobHeader+nameLen]), le.Uint64(b[8:]), regions, nil
}

func validRegion(r transport.Region) bool {
	return r.Bytes > 0 && r.Addr > 0 && r.Addr+r.Bytes > r.Addr && r.Mem <= transport.VRAM
}

// covered reports whether one region holds the whole range.
func covered(regions []transport.Region, mem transport.Mem, device uint32, addr, n uint64) bool {
	for i := range regions {
		r := &regions[i]
		if r.Mem == mem && r.Device == device && addr >= r.Addr && n <= r.Bytes && addr-r.Addr <= r.Bytes-n {
			return true
		}
	}
	return false
}
