package simnet

import (
	"math/bits"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// none is no index.
const none int32 = -1

// pool is a growing array of T with a free list. Pointers into it hold until the next take.
type pool[T any] struct {
	items []T
	free  []int32
}

func (p *pool[T]) take() (int32, *T) {
	if n := len(p.free); n > 0 {
		i := p.free[n-1]
		p.free = p.free[:n-1]
		return i, &p.items[i]
	}
	p.items = append(p.items, *new(T))
	i := int32(len(p.items) - 1)
	return i, &p.items[i]
}

func (p *pool[T]) give(i int32) { p.free = append(p.free, i) }

func (p *pool[T]) at(i int32) *T { return &p.items[i] }

// inUse is the number of items taken and not given back.
func (p *pool[T]) inUse() int { return len(p.items) - len(p.free) }

const (
	chunkBytes  = 192
	chunksAlloc = 1024 // chunks made at a time
)

// chunks holds the bodies of notifications: chains of pieces of one size.
type chunks struct {
	blocks [][]byte // of chunksAlloc chunks each
	next   []int32
	free   int32 // first free one + 1
}

func (c *chunks) chunk(i int32) []byte {
	at := int(i) % chunksAlloc * chunkBytes
	return c.blocks[int(i)/chunksAlloc][at : at+chunkBytes : at+chunkBytes]
}

// put copies b into a chain and gives its first chunk, or none for no bytes.
func (c *chunks) put(b []byte) int32 {
	first, last := none, none
	for len(b) > 0 {
		if c.free == 0 {
			c.grow()
		}
		i := c.free - 1
		c.free = c.next[i]
		c.next[i] = 0
		b = b[copy(c.chunk(i), b):]
		if last == none {
			first = i
		} else {
			c.next[last] = i + 1
		}
		last = i
	}
	return first
}

func (c *chunks) grow() {
	at := int32(len(c.next))
	c.blocks = append(c.blocks, make([]byte, chunksAlloc*chunkBytes))
	for i := range int32(chunksAlloc) {
		c.next = append(c.next, at+i+2)
	}
	c.next[len(c.next)-1] = 0
	c.free = at + 1
}

// get copies a chain of n bytes to b.
func (c *chunks) get(first int32, b []byte) {
	for at := first; len(b) > 0; at = c.next[at] - 1 {
		b = b[copy(b, c.chunk(at)):]
	}
}

// give frees a chain.
func (c *chunks) give(first int32) {
	if first == none {
		return
	}
	last := first
	for c.next[last] != 0 {
		last = c.next[last] - 1
	}
	c.next[last] = c.free
	c.free = first + 1
}

// descPool holds the descriptor lists of reads, by powers of two.
type descPool struct{ free [40][][]transport.Desc }

func (p *descPool) take(from []transport.Desc) []transport.Desc {
	class := bits.Len(uint(len(from) - 1))
	l := p.free[class]
	if len(l) == 0 {
		return append(make([]transport.Desc, 0, 1<<class), from...)
	}
	d := l[len(l)-1]
	p.free[class] = l[:len(l)-1]
	return append(d[:0], from...)
}

func (p *descPool) give(d []transport.Desc) {
	if d != nil {
		class := bits.Len(uint(cap(d) - 1))
		p.free[class] = append(p.free[class], d)
	}
}
