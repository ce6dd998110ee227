package ringbuf

import "sync/atomic"

// Consumer reads records from a ring.
//
// Threads: one at a time.
// Memory: the ring's must outlive it. No call allocates.
// Trust: none; see the package comment. After Corrupt it hands out nothing for the rest of its life.
type Consumer struct {
	records  view
	mask     uint64
	pos      uint64 // of the next record
	limit    uint64 // up to here records are published and do not wrap, by the head last seen
	head     uint64 // last seen
	released uint64
	ring     view
	corrupt  bool
	_        [64]byte // own cache lines
}

// NewConsumer attaches to a formatted ring and goes on at the first record not given back.
// There may be one consumer at a time.
func NewConsumer(mem []byte) (*Consumer, error) {
	m, capacity, err := attach(mem)
	if err != nil {
		return nil, err
	}
	tail, err := startAt(m.word(offTail), "tail")
	if err != nil {
		return nil, err
	}
	return &Consumer{
		records: m.records(), mask: capacity - 1,
		pos: tail, limit: tail, head: tail, released: tail, ring: m,
	}, nil
}

// Next hands out the next published record, in order. rec is 8-byte aligned and valid until Release. It reports false
// when there is none, and for ever once the ring is Corrupt.
func (c *Consumer) Next() (tag uint32, rec []byte, ok bool) {
	if c.pos == c.limit {
		return c.nextSlow()
	}
	off := c.pos & c.mask
	header := atomic.LoadUint64(c.records.header(off)) // once: what was checked is what is used
	n := header & 0xFFFFFFFF
	size := recordBytes(n)
	tag = uint32(header >> 32)
	if n > PayloadBytesMax || size > c.limit-c.pos || tag == TagPad {
		return c.nextSlow()
	}
	c.pos += size
	return tag, c.records.payload(off, n), true
}

// Peek is Next without taking the record: the following Next or Peek hands out the same one.
func (c *Consumer) Peek() (tag uint32, rec []byte, ok bool) {
	tag, rec, ok = c.Next()
	if ok {
		c.pos -= recordBytes(uint64(len(rec)))
	}
	return tag, rec, ok
}

// nextSlow looks at the head again, skips padding, and decides about what did not look like a record.
func (c *Consumer) nextSlow() (tag uint32, rec []byte, ok bool) {
	for range 2 { // padding, then a record: padding is never at the start of the ring
		if c.corrupt || (c.pos == c.head && !c.look()) {
			return 0, nil, false
		}
		toEnd := lapEnd(c.pos, c.mask) - c.pos
		room := min(c.head-c.pos, toEnd) // distances, since a hostile index may be at the end of numbers
		c.limit = c.pos + room
		off := c.pos & c.mask
		header := atomic.LoadUint64(c.records.header(off))
		n := header & 0xFFFFFFFF
		size := recordBytes(n)
		tag = uint32(header >> 32)
		if n > PayloadBytesMax || size > room {
			break
		}
		if tag != TagPad {
			c.pos += size
			return tag, c.records.payload(off, n), true
		}
		if off == 0 || size != toEnd {
			break
		}
		c.pos += toEnd
		c.limit = c.pos
	}
	c.corrupt = true
	c.limit = c.pos
	return 0, nil, false
}

// look takes a new head if there is one and it can be true.
func (c *Consumer) look() bool {
	// C1: acquire; pairs with P1 in Producer.Publish.
	head := atomic.LoadUint64(c.ring.word(offHead))
	if head == c.head {
		return false
	}
	held := c.pos - c.released // handed out and not given back: the producer cannot have written there
	if head%8 != 0 || head-c.pos > c.mask+1-held {
		c.corrupt = true
		return false
	}
	c.head = head
	return true
}

// Release gives back everything that Next has handed out.
func (c *Consumer) Release() {
	if c.pos != c.released {
		c.released = c.pos
		// C2: release; pairs with P2 in Producer.Reserve. Records below tail are read before tail is seen.
		atomic.StoreUint64(c.ring.word(offTail), c.pos)
	}
}

// Untaken is how many bytes of records, and of padding between them, have been published and not given back. Unlike the rest it may be
// asked by any thread, whatever the consumer does meanwhile.
func (c *Consumer) Untaken() uint64 {
	tail := atomic.LoadUint64(c.ring.word(offTail)) // before the head: it never passes it
	return min(atomic.LoadUint64(c.ring.word(offHead))-tail, c.mask+1)
}

// Position is where Next goes on: everything before it has been handed out.
func (c *Consumer) Position() uint64 { return c.pos }

// Empty reports that Next would hand out nothing now. Padding with nothing behind it does not count as empty until a
// Next has skipped it.
func (c *Consumer) Empty() bool {
	// C1: acquire; see look.
	return c.corrupt || c.pos == c.head && c.pos == atomic.LoadUint64(c.ring.word(offHead))
}

// Overflowed reports that the producer was ever refused room, and stays true; the word is in the line that Empty looks at.
func (c *Consumer) Overflowed() bool { return atomic.LoadUint64(c.ring.word(offRefused)) != 0 }

// Corrupt reports that the ring's words or a record contradicted the layout.
func (c *Consumer) Corrupt() bool { return c.corrupt }
