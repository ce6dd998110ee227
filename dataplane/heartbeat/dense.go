package heartbeat

import "github.com/kvlease/kvlease/dataplane/internal/free"

// A heartbeat names everything that is tracked at an engine, so what goes into it lies together: per engine and message
// format a dense list of entries in chunks of 32, all from one pool. An entry taken out is replaced by the last one.
//
// A round walks a list from its end to its start over several steps. What moves under the cursor meanwhile is seen once
// more, never missed; what is added meanwhile belongs to the next round.

const chunkLen = 32

type beatEntry struct {
	slot, generation uint32
	key              uint64
}

type chunk struct {
	entries    [chunkLen]beatEntry
	remote     [chunkLen]uint32
	n          uint32
	next, prev uint32
}

type dense struct {
	head, tail uint32
	n          int
}

type cursor struct{ chunk, at uint32 } // the next entry is the one before at; chunk none: the round is over

const none = free.None

type chunkPool struct {
	chunks []chunk
	free   free.Places
}

func newChunkPool(n int) chunkPool { return chunkPool{chunks: make([]chunk, n), free: free.New(n)} }

func emptyDense() dense { return dense{head: none, tail: none} }

// add appends an entry and says where it lies. The pool holds a chunk for every 32 remotes and one or two partly filled
// chunks for every engine, so it is never empty.
func (p *chunkPool) add(d *dense, e beatEntry, remote uint32) (chunkIndex uint32, at uint32) {
	if d.tail == none || p.chunks[d.tail].n == chunkLen {
		i := p.free.Take()
		c := &p.chunks[i]
		c.n, c.next, c.prev = 0, none, d.tail
		if d.tail == none {
			d.head = i
		} else {
			p.chunks[d.tail].next = i
		}
		d.tail = i
	}
	c := &p.chunks[d.tail]
	at = c.n
	c.entries[at], c.remote[at] = e, remote
	c.n++
	d.n++
	return d.tail, at
}

// remove takes an entry out and says which remote now lies there (none: nobody moved).
func (p *chunkPool) remove(d *dense, chunkIndex, at uint32, cursors ...*cursor) (moved uint32) {
	last := &p.chunks[d.tail]
	end := last.n - 1
	moved = none
	if d.tail != chunkIndex || at != end {
		c := &p.chunks[chunkIndex]
		c.entries[at], c.remote[at] = last.entries[end], last.remote[end]
		moved = c.remote[at]
	}
	last.n--
	d.n--
	if last.n > 0 {
		return moved
	}
	gone := d.tail
	d.tail = last.prev
	if d.tail == none {
		d.head = none
	} else {
		p.chunks[d.tail].next = none
	}
	for _, c := range cursors {
		if c != nil && c.chunk == gone {
			c.chunk, c.at = d.tail, chunkLen
		}
	}
	p.free.Give(gone)
	return moved
}

// start puts a cursor past the end.
func (d *dense) start() cursor { return cursor{d.tail, chunkLen} }

// next gives the entry before the cursor and moves it.
func (p *chunkPool) next(c *cursor) (e *beatEntry, remote uint32, ok bool) {
	for c.chunk != none {
		k := &p.chunks[c.chunk]
		at := min(c.at, k.n)
		if at == 0 {
			c.chunk, c.at = k.prev, chunkLen
			continue
		}
		c.at = at - 1
		return &k.entries[c.at], k.remote[c.at], true
	}
	return nil, 0, false
}
