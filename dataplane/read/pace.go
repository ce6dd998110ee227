package read

import (
	"math"
	"time"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// What posting costs before a peer has been posted to: more than any transport was seen to take, so that the first part of a
// long list is short. Over shared memory a post copies, at 3 to 4 bytes a nanosecond; over TCP it takes 2 to 5 µs a descriptor.
const (
	descNsFirst = 5e3
	byteNsFirst = 1.0
)

// What is learned stays between these. A clock that stands still, or a thread that was held up, does not decide for long.
const (
	descNsLeast, descNsMost = 20, 1e6
	byteNsLeast, byteNsMost = 0.001, 100
)

// What a post costs beside its list, in nanoseconds: two of NIXL's calls and one of UCX's.
const (
	partNs  = 20e3
	fenceNs = 10e3
)

const (
	timedLeast = 20       // a part that should take less than 1/20 of the budget is not timed
	leftLeast  = 8        // a step with less than 1/8 of its budget left begins no further part
	cutLeast   = 64 << 10 // a descriptor is cut into pieces of no less
	cutUnit    = 4 << 10  // and at multiples of a page
)

// pace is what posting to a peer costs, by its posts so far.
type pace struct {
	peer   transport.Peer
	descNs float64 // a descriptor
	byteNs float64 // a byte of it
}

// paces remembers them in a table of fixed length: two peers of one place take turns at being learned anew, which costs parts and
// no more.
type paces struct {
	places []pace // a power of two
}

func newPaces(peers int) paces {
	size := 16
	for size < peers {
		size *= 2
	}
	return paces{places: make([]pace, size)}
}

func (t *paces) of(p transport.Peer) *pace {
	at := &t.places[int(p)&(len(t.places)-1)]
	if at.peer != p {
		*at = pace{peer: p, descNs: descNsFirst, byteNs: byteNsFirst}
	}
	return at
}

// costNs is what a list should take.
func (p *pace) costNs(descs int, bytes uint64) float64 {
	return float64(float64(descs)*p.descNs) + float64(float64(bytes)*p.byteNs)
}

// learn takes what a list has taken. The error goes to descriptors and bytes by their shares of what was expected: a list of few
// long ones says little about descriptors. What took longer is believed at once, what took less by a quarter: a run of
// equal lists comes down to its cost from above, and one of which some take twice as long (TCP, where the kernel's work
// comes in bursts) stays near those.
func (p *pace) learn(descs int, bytes uint64, took time.Duration) {
	expected := p.costNs(descs, bytes)
	off := min((float64(took)-expected)/expected, 7) // a thread that was held up is no peer that is slow
	if off < 0 {
		off /= 4
	}
	byDesc := float64(descs) * p.descNs / expected
	byByte := 1 - byDesc
	off /= float64(byDesc*byDesc) + float64(byByte*byByte)
	p.descNs = min(max(p.descNs*(1+float64(byDesc*off)), descNsLeast), descNsMost)
	p.byteNs = min(max(p.byteNs*(1+float64(byByte*off)), byteNsLeast), byteNsMost)
}

// allowance is what one part may take.
type allowance struct {
	leftNs float64
	must   bool // something, whatever it costs
	pace   pace
}

// take reports how many bytes of a descriptor the part still takes, 0 if none.
func (a *allowance) take(bytes uint64) uint64 {
	cost := a.pace.costNs(1, bytes)
	if cost > a.leftNs {
		room := uint64(max(a.leftNs-a.pace.descNs, 0)/a.pace.byteNs) &^ (cutUnit - 1)
		switch {
		case a.must:
			room = max(room, cutLeast)
		case room < cutLeast:
			return 0
		}
		bytes = min(bytes, room)
		cost = a.pace.costNs(1, bytes)
	}
	a.leftNs -= cost
	a.must = false
	return bytes
}

// allowanceFor is what the next part to a peer may take of this step, which posts something in any case.
func (m *Machine) allowanceFor(p transport.Peer, share float64) allowance {
	if m.cfg.PostBudget == 0 {
		return allowance{leftNs: math.Inf(1)}
	}
	return allowance{leftNs: share - partNs, must: !m.posted, pace: *m.paces.of(p)}
}

// timed reports that a part is worth two looks at the clock.
func (m *Machine) timed(s *transport.ReadSpec, bytes uint64) bool {
	return m.cfg.PostBudget > 0 && m.paces.of(s.Peer).costNs(len(s.Descs), bytes) >= float64(m.cfg.PostBudget)/timedLeast
}

// spent reports that the step has posted for as long as it may.
func (m *Machine) spent() bool {
	return m.cfg.PostBudget > 0 && m.leftNs < float64(m.cfg.PostBudget)/leftLeast
}

// charge takes a part that was posted off the step, and learns from it if it was timed.
func (m *Machine) charge(s *transport.ReadSpec, bytes uint64) {
	if m.cfg.PostBudget == 0 {
		return
	}
	p := m.paces.of(s.Peer)
	cost := p.costNs(len(s.Descs), bytes)
	if s.Timed {
		p.learn(len(s.Descs), bytes, s.Took)
		cost = float64(s.Took)
	}
	m.leftNs -= partNs + cost
	m.posted = true
}
