package ringbuf

import "sync/atomic"

// Producer writes records into a ring.
//
// Threads: one at a time; Refused may be called by any.
// Memory: the ring's must outlive it. No call allocates.
// Limit: the ring's capacity. A Reserve past it returns nil and is counted; nothing ever waits.
type Producer struct {
	records   view
	mask      uint64
	pos       uint64 // of the next record
	limit     uint64 // up to here the memory is free and does not wrap, by the tail last seen
	published uint64
	head      *uint64
	tail      *uint64
	refused   *uint64
	_         [64]byte // own cache lines
}

// NewProducer attaches to a formatted ring and goes on behind the last published record.
// There may be one producer at a time.
func NewProducer(mem []byte) (*Producer, error) {
	m, capacity, err := attach(mem)
	if err != nil {
		return nil, err
	}
	head, err := startAt(m.word(offHead), "head")
	if err != nil {
		return nil, err
	}
	return &Producer{
		records: m.records(), mask: capacity - 1,
		pos: head, limit: head, published: head,
		head: m.word(offHead), tail: m.word(offTail), refused: m.word(offRefused),
	}, nil
}

// Reserve gives the n bytes of a new record's payload, which hold what the ring held there before; the consumer sees
// the record after Publish. It returns nil, and counts, when there is no room, when n is negative or above
// PayloadBytesMax, or when tag is TagPad.
func (p *Producer) Reserve(tag uint32, n int) []byte {
	size := recordBytes(uint64(n))
	if uint64(n) > PayloadBytesMax || size > p.limit-p.pos || tag == TagPad {
		return p.reserveSlow(tag, n)
	}
	off := p.pos & p.mask
	*p.records.header(off) = uint64(tag)<<32 | uint64(n)
	p.pos += size
	return p.records.payload(off, uint64(n))
}

// reserveSlow looks at the tail again and starts the ring's next lap.
func (p *Producer) reserveSlow(tag uint32, n int) []byte {
	if uint64(n) > PayloadBytesMax || tag == TagPad {
		return p.refuse()
	}
	size, capacity := recordBytes(uint64(n)), p.mask+1
	// P2: acquire; pairs with C2 in Consumer.Release. What the consumer has given back it no longer reads.
	tail := atomic.LoadUint64(p.tail)
	used := p.pos - tail
	if used > capacity { // a tail ahead of the head, or too far behind: nothing that a consumer could have written
		return p.refuse()
	}
	free, pad := capacity-used, lapEnd(p.pos, p.mask)-p.pos
	p.limit = p.pos + min(free, pad)
	if size > p.limit-p.pos {
		switch {
		case size <= pad: // fits before the end, once there is room
			return p.refuse()
		case pad+size <= free:
			p.pad(pad)
			p.limit = p.pos + free - pad
		case pad+size > capacity && pad <= free && p.pos == p.published:
			// Even an empty ring cannot hold both. The padding goes alone, so that a later try finds offset 0.
			p.pad(pad)
			p.limit = p.pos
			p.Publish()
			return p.refuse()
		default:
			return p.refuse()
		}
	}
	off := p.pos & p.mask
	*p.records.header(off) = uint64(tag)<<32 | uint64(n)
	p.pos += size
	return p.records.payload(off, uint64(n))
}

func (p *Producer) pad(n uint64) {
	*p.records.header(p.pos & p.mask) = TagPad<<32 | (n - recordHeaderBytes)
	p.pos += n
}

func (p *Producer) refuse() []byte {
	atomic.StoreUint64(p.refused, atomic.LoadUint64(p.refused)+1) // one writer
	return nil
}

// Publish shows the consumer everything reserved since the last Publish, at once.
func (p *Producer) Publish() {
	if p.pos != p.published {
		p.published = p.pos
		// P1: release; pairs with C1 in Consumer.Next. Records below head are written before head is seen.
		atomic.StoreUint64(p.head, p.pos)
	}
}

// Discard forgets everything reserved since the last Publish.
func (p *Producer) Discard() {
	p.pos = p.published
	p.limit = p.pos // it may have been in the next lap
}

// Position is where the next record will be reserved, padding aside: a consumer whose Position has reached it has been
// handed every record reserved so far.
func (p *Producer) Position() uint64 { return p.pos }

// Taken is how far the consumer has given back, in positions as Position has them.
func (p *Producer) Taken() uint64 { return atomic.LoadUint64(p.tail) }

// Drained reports that the consumer has given back all that was ever reserved. Edge as in Reserve's look at tail.
func (p *Producer) Drained() bool { return atomic.LoadUint64(p.tail) == p.pos }

// Free is how many bytes are neither published, nor reserved, nor still with the consumer; a record that does not fit before the
// end of the ring takes the rest of the lap besides. It reports false when the tail is none that a consumer could have written.
// Edge as in Reserve's look at tail.
func (p *Producer) Free() (uint64, bool) {
	used := p.pos - atomic.LoadUint64(p.tail)
	return p.mask + 1 - used, used <= p.mask+1
}

// Capacity is the size of the ring in bytes.
func (p *Producer) Capacity() int { return int(p.mask + 1) }

// Refused counts the Reserves that returned nil since Format.
func (p *Producer) Refused() uint64 { return atomic.LoadUint64(p.refused) }

// recordBytes is the size of a whole record.
func recordBytes(payload uint64) uint64 { return (payload + recordHeaderBytes + 7) &^ 7 }
