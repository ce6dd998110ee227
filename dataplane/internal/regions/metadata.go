package regions

import (
	"encoding/binary"
	"fmt"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// The metadata, little-endian: magic of the transport (4 bytes), name length u32, epoch u64, regions u32, 0 u32, name, then 24 bytes
// a region: address u64, bytes u64, device u32, memory kind u32.
const (
	header    = 24
	perRegion = 24
	most      = 1 << 20 // no metadata with more regions is read
)

// Append writes an agent's metadata. magic has 4 bytes.
func Append(b []byte, magic, name string, epoch uint64, regions []transport.Region) []byte {
	le := binary.LittleEndian
	b = append(b, magic...)
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

// Metadata has been checked; it is read in place.
type Metadata struct {
	Name    []byte
	Epoch   uint64
	regions []byte
}

// Parse takes what Append has written under the same magic, and nothing else. ErrInvalid says why not.
func Parse(b []byte, magic string) (Metadata, error) {
	le := binary.LittleEndian
	bad := func(what string) (Metadata, error) {
		return Metadata{}, fmt.Errorf("metadata of %d bytes: %s: %w", len(b), what, transport.ErrInvalid)
	}
	if len(b) < header || string(b[:4]) != magic {
		return bad("not of this transport")
	}
	name, n := uint64(le.Uint32(b[4:])), uint64(le.Uint32(b[16:]))
	if name == 0 || name > NameMax || n > most || uint64(len(b)) != header+name+n*perRegion {
		return bad("lengths do not fit")
	}
	m := Metadata{b[header : header+name], le.Uint64(b[8:]), b[header+name:]}
	for i := range m.Len() {
		if !valid(m.Region(i)) || le.Uint32(m.regions[i*perRegion+20:]) > uint32(transport.VRAM) {
			return bad(fmt.Sprintf("region %d out of range", i))
		}
	}
	return m, nil
}

// Len counts the regions.
func (m Metadata) Len() int { return len(m.regions) / perRegion }

// Region is one of them.
func (m Metadata) Region(i int) transport.Region {
	le, r := binary.LittleEndian, m.regions[i*perRegion:]
	return transport.Region{Addr: le.Uint64(r), Bytes: le.Uint64(r[8:]), Device: le.Uint32(r[16:]), Mem: transport.Mem(r[20])}
}

// Regions are all of them, in memory of their own.
func (m Metadata) Regions() []transport.Region {
	var all []transport.Region
	for i := range m.Len() {
		all = append(all, m.Region(i))
	}
	return all
}

// Are reports whether these are the regions.
func (m Metadata) Are(regions []transport.Region) bool {
	if len(regions) != m.Len() {
		return false
	}
	for i := range regions {
		if regions[i] != m.Region(i) {
			return false
		}
	}
	return true
}
