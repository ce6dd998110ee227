// Package ringmodel runs a ring against a plain queue, step by step, for the tests of both languages' halves.
package ringmodel

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// Producer is what both halves' producers do.
type Producer interface {
	Reserve(tag uint32, n int) []byte
	Publish()
	Discard()
	Position() uint64
	Refused() uint64
}

// Consumer is what both halves' consumers do.
type Consumer interface {
	Next() (tag uint32, rec []byte, ok bool)
	Release()
	Position() uint64
	Empty() bool
	Corrupt() bool
}

const (
	payloadMax = 4088
	tagPad     = 0xFFFFFFFF
)

type record struct {
	tag  uint32
	body []byte
	at   []byte // where the ring holds it
	end  uint64 // position behind it
}

type model struct {
	t           *testing.T
	rng         *rand.Rand
	capacity    uint64
	pos         uint64 // where the producer stands
	published   uint64
	read        uint64 // behind the last record handed out
	released    uint64
	refused     uint64
	pending     []record // reserved
	visible     []record // published
	held        []record // handed out
	padded      int
	full        int
	sawPadAlone int
}

// Run does steps random operations, from the seed, on both ends of a ring just formatted, and compares each answer with
// the model's. Each end comes from its function, again and again: an end that attaches anew goes on where it had
// published or released.
func Run(t *testing.T, seed uint64, capacity uint32, steps int, producer func() Producer, consumer func() Consumer) {
	t.Helper()
	t.Logf("seed %d, capacity %d", seed, capacity)
	m := &model{t: t, rng: rand.New(rand.NewPCG(seed, 1)), capacity: uint64(capacity)}
	p, c := producer(), consumer()
	for step := range steps {
		op := m.rng.IntN(16)
		if step/1024%2 == 1 && op >= 13 { // every other stretch the consumer only falls behind
			op = 0
		}
		switch op {
		case 0, 1, 2, 3, 4, 5:
			m.reserve(p)
		case 6, 7:
			p.Publish()
			m.publish()
		case 8:
			if m.rng.IntN(4) == 0 {
				p.Discard()
				m.discard()
			}
		case 9, 10, 11, 12:
			for range m.rng.IntN(4) {
				m.next(c)
			}
		case 13, 14:
			m.release(c)
		case 15:
			switch m.rng.IntN(16) {
			case 0:
				p = producer()
				m.discard()
			case 1:
				c = consumer()
				m.visible = append(m.held, m.visible...)
				m.held = nil
				m.read = m.released
			}
		}
		m.compare(p, c)
		if t.Failed() {
			return
		}
	}
	if m.padded == 0 || m.full == 0 {
		t.Errorf("seed %d never padded (%d) or never filled the ring (%d): the run shows nothing", seed, m.padded, m.full)
	}
	if capacity == 4096 && m.sawPadAlone == 0 {
		t.Errorf("seed %d never published padding alone: the run shows nothing of it", seed)
	}
}

func (m *model) reserve(p Producer) {
	n := m.rng.IntN(120)
	switch m.rng.IntN(12) {
	case 0:
		n = m.rng.IntN(payloadMax + 1)
	case 1:
		n = payloadMax - m.rng.IntN(16)
	case 2:
		n = payloadMax + m.rng.IntN(3) // 2 in 3 are too long
	}
	tag := m.rng.Uint32()
	if m.rng.IntN(50) == 0 {
		tag = tagPad
	}
	got := p.Reserve(tag, n)
	if want := m.room(tag, n); (got != nil) != want {
		m.t.Errorf("Reserve(%#x, %d) at %d, tail %d: got room %v, want %v", tag, n, m.pos, m.released, got != nil, want)
		return
	}
	if got == nil {
		return
	}
	if len(got) != n || uintptr(unsafe.Pointer(unsafe.SliceData(got)))%8 != 0 {
		m.t.Errorf("Reserve(%d): %d bytes at %p, want as many and 8-byte aligned", n, len(got), got)
		return
	}
	body := make([]byte, n)
	for i, first := 0, byte(m.rng.Uint32()); i < n; i++ { // a record that slipped by a byte shows, too
		body[i] = first + byte(i)
	}
	copy(got, body)
	m.pending = append(m.pending, record{tag: tag, body: body, end: m.pos})
}

// room moves the model's producer over the record, if it fits.
func (m *model) room(tag uint32, n int) bool {
	if n > payloadMax || tag == tagPad {
		m.refused++
		return false
	}
	size := uint64(n+8+7) / 8 * 8
	free := m.capacity - (m.pos - m.released)
	toEnd := m.capacity - m.pos%m.capacity
	if size <= toEnd {
		toEnd = 0
	}
	if toEnd+size <= free {
		if toEnd != 0 {
			m.padded++
		}
		m.pos += toEnd + size
		return true
	}
	m.full++
	m.refused++
	if toEnd+size > m.capacity && toEnd <= free && m.pos == m.published {
		m.pos += toEnd
		m.published = m.pos
		m.sawPadAlone++
	}
	return false
}

func (m *model) publish() {
	m.visible = append(m.visible, m.pending...)
	m.pending = nil
	m.published = m.pos
}

func (m *model) discard() {
	m.pending = nil
	m.pos = m.published
}

func (m *model) next(c Consumer) {
	tag, rec, ok := c.Next()
	if !ok {
		if len(m.visible) != 0 {
			m.t.Errorf("Next: none, want %d records", len(m.visible))
		}
		m.read = m.published // over padding, too
		return
	}
	if len(m.visible) == 0 {
		m.t.Errorf("Next: tag %#x, want none", tag)
		return
	}
	want := m.visible[0]
	m.visible = m.visible[1:]
	if tag != want.tag || !bytes.Equal(rec, want.body) || uintptr(unsafe.Pointer(unsafe.SliceData(rec)))%8 != 0 {
		m.t.Errorf("Next: tag %#x, %d bytes at %p, want tag %#x, %d bytes, 8-byte aligned, same content",
			tag, len(rec), rec, want.tag, len(want.body))
		return
	}
	want.at = rec
	m.held = append(m.held, want)
	m.read = want.end
}

func (m *model) release(c Consumer) {
	for _, r := range m.held {
		if !bytes.Equal(r.at, r.body) {
			m.t.Errorf("record with tag %#x was overwritten while it was handed out", r.tag)
		}
	}
	m.held = nil
	c.Release()
	m.released = m.read
}

func (m *model) compare(p Producer, c Consumer) {
	if got := p.Position(); got != m.pos {
		m.t.Errorf("producer position %d, want %d", got, m.pos)
	}
	if got := p.Refused(); got != m.refused {
		m.t.Errorf("refused %d, want %d", got, m.refused)
	}
	if got := c.Position(); got != m.read {
		m.t.Errorf("consumer position %d, want %d", got, m.read)
	}
	if got, want := c.Empty(), m.read == m.published; got != want {
		m.t.Errorf("empty %v, want %v", got, want)
	}
	if c.Corrupt() {
		m.t.Errorf("corrupt at %d", c.Position())
	}
}
