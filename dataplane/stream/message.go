package stream

import (
	"encoding/binary"
	"fmt"

	"github.com/kvlease/kvlease/ringbuf"
)

// A message of a delta stream, little-endian, then its records, each {u32 length, u32 tag}, the payload, and zeros up to a multiple of 8:
//
//	offset  what
//	     0  magic u32 'kvlD' = 0x446c766b
//	     4  version u16 1
//	     6  flags u16: msg*
//	     8  engine u64: hash of its id
//	    16  rank u32
//	    20  bytes u32 of the whole message
//	    24  from u64: random number of the sending context, never 0
//	    32  to u64: that of the other one; 0: not known yet
//	    40  incarnation u64: from the host, the full state that it belongs to; from a rank that needs one, what it has to replace
//	    48  number u64: with records, of this message; without, of the last that had some
//	    56  acked incarnation u64
//	    64  acked u64: the greatest number received in it
const (
	msgMagic     = 0x446c766b
	msgVersion   = 1
	msgHeadBytes = 72
	msgNumberMax = 1 << 62

	msgFromHost = 1
	msgRecords  = 2 // it has records and a number of its own
	msgAsks     = 4 // the sender waits for an acknowledgement
	msgNeed     = 8 // a rank has a hole, and takes nothing until the next full state
	msgFlags    = msgFromHost | msgRecords | msgAsks | msgNeed
)

const (
	// MessageBytesMax bounds a message of a delta stream.
	MessageBytesMax = 64 << 10
	// MessageBytesMin is the least buffer for one: a record of the greatest size fits.
	MessageBytesMin = msgHeadBytes + ringbuf.RecordBytesMax
)

type message struct {
	flags       uint16
	engine      uint64
	rank        uint32
	from, to    uint64
	incarnation uint64
	number      uint64
	ackedIn     uint64
	acked       uint64
	records     []byte
}

func (m *message) has(flag uint16) bool { return m.flags&flag != 0 }

// put writes the head; n is the length of the whole message.
func (m *message) put(b []byte, n int) {
	_ = b[msgHeadBytes-1]
	binary.LittleEndian.PutUint32(b[0:], msgMagic)
	binary.LittleEndian.PutUint16(b[4:], msgVersion)
	binary.LittleEndian.PutUint16(b[6:], m.flags)
	binary.LittleEndian.PutUint64(b[8:], m.engine)
	binary.LittleEndian.PutUint32(b[16:], m.rank)
	binary.LittleEndian.PutUint32(b[20:], uint32(n))
	binary.LittleEndian.PutUint64(b[24:], m.from)
	binary.LittleEndian.PutUint64(b[32:], m.to)
	binary.LittleEndian.PutUint64(b[40:], m.incarnation)
	binary.LittleEndian.PutUint64(b[48:], m.number)
	binary.LittleEndian.PutUint64(b[56:], m.ackedIn)
	binary.LittleEndian.PutUint64(b[64:], m.acked)
}

// parseMessage checks a whole message, its records included.
func parseMessage(b []byte) (m message, err error) {
	if len(b) < msgHeadBytes || len(b) > MessageBytesMax {
		return m, fmt.Errorf("%w: a message of %d bytes", ErrInvalid, len(b))
	}
	magic, version := binary.LittleEndian.Uint32(b[0:]), binary.LittleEndian.Uint16(b[4:])
	if magic != msgMagic {
		return m, fmt.Errorf("%w: magic %#x", ErrInvalid, magic)
	}
	if version != msgVersion {
		return m, fmt.Errorf("%w: version %d, this end speaks %d", ErrInvalid, version, msgVersion)
	}
	if n := binary.LittleEndian.Uint32(b[20:]); uint64(n) != uint64(len(b)) {
		return m, fmt.Errorf("%w: %d bytes of a message of %d", ErrInvalid, len(b), n)
	}
	m = message{
		flags:       binary.LittleEndian.Uint16(b[6:]),
		engine:      binary.LittleEndian.Uint64(b[8:]),
		rank:        binary.LittleEndian.Uint32(b[16:]),
		from:        binary.LittleEndian.Uint64(b[24:]),
		to:          binary.LittleEndian.Uint64(b[32:]),
		incarnation: binary.LittleEndian.Uint64(b[40:]),
		number:      binary.LittleEndian.Uint64(b[48:]),
		ackedIn:     binary.LittleEndian.Uint64(b[56:]),
		acked:       binary.LittleEndian.Uint64(b[64:]),
		records:     b[msgHeadBytes:],
	}
	switch {
	case m.flags&^msgFlags != 0:
		return m, fmt.Errorf("%w: flags %#x", ErrInvalid, m.flags)
	case m.from == 0:
		return m, fmt.Errorf("%w: a sender without a number", ErrInvalid)
	case m.number > msgNumberMax || m.incarnation > msgNumberMax:
		return m, fmt.Errorf("%w: message %d of incarnation %d", ErrInvalid, m.number, m.incarnation)
	case m.has(msgRecords) != (len(m.records) > 0) || m.has(msgRecords) && m.number == 0:
		return m, fmt.Errorf("%w: %d bytes of records, flags %#x, number %d", ErrInvalid, len(m.records), m.flags, m.number)
	}
	for rest := m.records; len(rest) > 0; {
		var ok bool
		if _, _, rest, ok = cutRecord(rest); !ok {
			return m, fmt.Errorf("%w: a record that does not fit, %d bytes before the end", ErrInvalid, len(rest))
		}
	}
	return m, nil
}

// cutRecord takes the first record off.
func cutRecord(b []byte) (tag uint32, rec, rest []byte, ok bool) {
	if len(b) < 8 {
		return 0, nil, b, false
	}
	n, tag := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	if n > ringbuf.PayloadBytesMax || RecordBytes(int(n)) > len(b) || tag == ringbuf.TagPad {
		return 0, nil, b, false
	}
	size := RecordBytes(int(n))
	return tag, b[8 : 8+n : 8+n], b[size:], true
}

// putRecord writes one record into b and gives what it took.
func putRecord(b []byte, tag uint32, rec []byte) int {
	size := RecordBytes(len(rec))
	_ = b[size-1]
	binary.LittleEndian.PutUint32(b, uint32(len(rec)))
	binary.LittleEndian.PutUint32(b[4:], tag)
	clear(b[8+copy(b[8:], rec) : size])
	return size
}
