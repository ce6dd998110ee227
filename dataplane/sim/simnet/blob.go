package simnet

import (
	"encoding/binary"
	"fmt"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// The metadata, little-endian: "kvlS", name length u32, epoch u64, regions u32, 0 u32, name, then 24 bytes a region:
// address u64, bytes u64, device u32, memory kind u32.
const (
	blobMagic   = "kvlS"
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

// blob is metadata whose lengths have been checked; its regions are read in place.
type blob struct {
	name    []byte
	epoch   uint64
	regions []byte
}

func parseBlob(b []byte) (blob, error) {
	le := binary.LittleEndian
	if len(b) < blobHeader || string(b[:4]) != blobMagic {
		return blob{}, fmt.Errorf("metadata of %d bytes: not of this network: %w", len(b), transport.ErrInvalid)
	}
	nameLen, n := uint64(le.Uint32(b[4:])), uint64(le.Uint32(b[16:]))
	if nameLen == 0 || nameLen > nameMax || n > blobRegions || uint64(len(b)) != blobHeader+nameLen+n*blobRegion {
		return blob{}, fmt.Errorf("metadata of %d bytes: lengths do not fit: %w", len(b), transport.ErrInvalid)
	}
	m := blob{b[blobHeader : blobHeader+nameLen], le.Uint64(b[8:]), b[blobHeader+nameLen:]}
	for i := range m.len() {
		if r := m.region(i); !validRegion(r) || le.Uint32(m.regions[i*blobRegion+20:]) > uint32(transport.VRAM) {
			return blob{}, fmt.Errorf("metadata of %d bytes: region %d out of range: %w", len(b), i, transport.ErrInvalid)
		}
	}
	return m, nil
}

func (m blob) len() int { return len(m.regions) / blobRegion }

func (m blob) region(i int) transport.Region {
	le, r := binary.LittleEndian, m.regions[i*blobRegion:]
	return transport.Region{Addr: le.Uint64(r), Bytes: le.Uint64(r[8:]), Device: le.Uint32(r[16:]), Mem: transport.Mem(r[20])}
}

// are reports whether these are the regions of the blob.
func (m blob) are(regions []transport.Region) bool {
	if len(regions) != m.len() {
		return false
	}
	for i := range regions {
		if regions[i] != m.region(i) {
			return false
		}
	}
	return true
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
