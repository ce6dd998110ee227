package edges

import (
	"fmt"

	wm "github.com/kvlease/kvlease/internal/weakmem"
)

// ringCase is a ring of so many words and the records that go through it, in words, their headers counted.
type ringCase struct {
	words   uint64
	records []uint64
	publish int // records reserved before each publish
	release int // records read before each release
}

// In the order of the sites below.
const (
	siteP1 = iota
	siteC1
	siteP2
	siteC2
)

const pad = 1 << 16 // tag of padding

func ringScenes() (all []Scene) {
	for _, c := range []ringCase{
		{words: 2, records: []uint64{1, 1, 2, 1, 2}, publish: 1, release: 1}, // at 1 padding goes alone: 2 do not fit beside it
		{words: 4, records: []uint64{3, 2, 2, 3}, publish: 1, release: 1},    // padding before a record
		{words: 4, records: []uint64{1, 2, 1, 3, 1}, publish: 2, release: 2},
		{words: 4, records: []uint64{2, 2, 2, 2, 2, 2}, publish: 1, release: 2},
	} {
		all = append(all, Scene{
			Name: fmt.Sprintf("ring of %d words, records of %v, %d a publish, %d a release", c.words, c.records, c.publish, c.release),
			What: "every record is read whole, once and in order, and never while it is written",
			Sites: []Site{
				siteP1: {"P1", "ringbuf Producer.Publish, kvl_ring_publish", wm.Release, wm.Relaxed},
				siteC1: {"C1", "ringbuf Consumer.look, kvl_ring_look", wm.Acquire, wm.Relaxed},
				siteP2: {"P2", "ringbuf Producer.Reserve, kvl_ring_reserve_slow", wm.Acquire, wm.Relaxed},
				siteC2: {"C2", "ringbuf Consumer.Release, kvl_ring_release", wm.Release, wm.Relaxed},
			},
			Shortcuts: []Shortcut{
				{"head published before the record is written", ""},
				{"tail given back before the record is read", ""},
				{"two words more than the ring has", ""},
			},
			build: c.program,
		})
	}
	return all
}

// producer is ringbuf.Producer over words.
type producer struct {
	*wm.T
	b                     *build
	words                 uint64
	pos, limit, published uint64
}

func (p *producer) cell(pos uint64) string { return word("ring", pos%p.words) }

// publish is one store: everything reserved is seen at once.
func (p *producer) publish() {
	if p.pos != p.published {
		p.published = p.pos
		p.Store("head", p.pos, p.b.at(siteP1))
	}
}

// free is what reserve would do at this tail: the padding it would write, and whether the record, or padding alone, fits.
func (p *producer) free(size, tail uint64) (padding uint64, fits, alone bool) {
	capacity := p.words
	if p.b.takes("two words more than the ring has") {
		capacity += 2
	}
	free, toEnd := capacity-(p.pos-tail), (p.pos/p.words+1)*p.words-p.pos
	switch {
	case size <= min(free, toEnd):
		return 0, true, false
	case size <= toEnd:
		return 0, false, false
	case toEnd+size <= free:
		return toEnd, true, false
	}
	return toEnd, false, toEnd+size > p.words && toEnd <= free && p.pos == p.published
}

// reserve makes room, looking at the tail only when what it saw last has run out. What is reserved is published before it waits.
func (p *producer) reserve(size uint64) {
	for size > p.limit-p.pos {
		order := p.b.at(siteP2)
		tail := p.Load("tail", order)
		if _, fits, alone := p.free(size, tail); !fits && !alone {
			p.publish()
			tail = p.Await("tail", order, func(v uint64) bool {
				_, fits, alone := p.free(size, v)
				return fits || alone
			})
		}
		padding, fits, alone := p.free(size, tail)
		if padding > 0 && (fits || alone) {
			p.Write(p.cell(p.pos), pad|padding)
			p.pos += padding
		}
		if alone {
			p.limit = p.pos
			p.publish()
			continue
		}
		toEnd := (p.pos/p.words+1)*p.words - p.pos
		if fits {
			p.limit = max(p.pos+min(tail+p.words-p.pos, toEnd), p.pos+size)
		}
	}
}

func (p *producer) write(n int, size uint64) {
	early := p.b.takes("head published before the record is written")
	at := p.pos
	if early {
		p.pos += size
		p.publish()
	}
	p.Write(p.cell(at), uint64(n)<<8|size)
	for i := uint64(1); i < size; i++ {
		p.Write(p.cell(at+i), uint64(n))
	}
	if !early {
		p.pos += size
	}
}

// consumer is ringbuf.Consumer over words.
type consumer struct {
	*wm.T
	b                   *build
	words               uint64
	pos, head, released uint64
}

func (c *consumer) cell(pos uint64) string { return word("ring", pos%c.words) }

func (c *consumer) release() {
	if c.pos != c.released {
		c.released = c.pos
		c.Store("tail", c.pos, c.b.at(siteC2))
	}
}

// next reads one record and says its number.
func (c *consumer) next() uint64 {
	for {
		if c.pos == c.head {
			order := c.b.at(siteC1)
			head := c.Load("head", order)
			if head == c.head {
				c.release()
				head = c.Await("head", order, func(v uint64) bool { return v != c.head })
			}
			held := c.pos - c.released
			c.Assert(head-c.pos <= c.words-held, "head %d at %d, %d held: no producer can have written there", head, c.pos, held)
			c.head = head
		}
		header := c.Read(c.cell(c.pos))
		size := header & 0xFF
		toEnd := (c.pos/c.words+1)*c.words - c.pos
		c.Assert(size > 0 && size <= min(c.head-c.pos, toEnd), "a header of %d words at %d, head %d", size, c.pos, c.head)
		if header&pad != 0 {
			c.Assert(c.pos%c.words != 0 && size == toEnd, "padding of %d words at %d", size, c.pos)
			c.pos += size
			continue
		}
		at := c.pos
		c.pos += size
		if c.b.takes("tail given back before the record is read") {
			c.release()
		}
		for i := uint64(1); i < size; i++ {
			c.Assert(c.Read(c.cell(at+i)) == header>>8, "record %d holds a word of another", header>>8)
		}
		return header >> 8
	}
}

func (r ringCase) program(b *build) wm.Program {
	return wm.Program{Threads: []wm.Thread{
		{Name: "producer", Body: func(t *wm.T) {
			p := &producer{T: t, b: b, words: r.words}
			for i, size := range r.records {
				p.reserve(size)
				p.write(i+1, size)
				if (i+1)%r.publish == 0 || i == len(r.records)-1 {
					p.publish()
				}
			}
		}},
		{Name: "consumer", Body: func(t *wm.T) {
			c := &consumer{T: t, b: b, words: r.words}
			for i := range r.records {
				n := c.next()
				c.Assert(n == uint64(i+1), "record %d where %d is due", n, i+1)
				if (i+1)%r.release == 0 || i == len(r.records)-1 {
					c.release()
				}
			}
		}},
	}}
}
