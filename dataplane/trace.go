package dataplane

import "github.com/kvlease/kvlease/dataplane/trace"

// traceSeen says that a message of heartbeats has come up.
func (p *Plane) traceSeen() {
	s := p.cfg.Sites
	if !p.msg.beats {
		return
	}
	if s.On(trace.NotificationSeen) {
		sender, ranks := p.msg.from()
		s.Fire(trace.NotificationSeen, sender, p.cfg.Engine, ranks|uint64(p.cfg.Rank), uint64(p.msg.number)<<32|uint64(p.msg.head.Count))
	}
	if s.On(trace.BatchExtended) {
		p.Leases.TakeSlack()
	}
}

// traceExtended says what a message of heartbeats has come to, once it is applied.
func (p *Plane) traceExtended() {
	s := p.cfg.Sites
	if !p.msg.beats {
		return
	}
	p.msg.beats = false
	if s.On(trace.BatchExtended) {
		sender, _ := p.msg.from()
		applied := p.Counters.BeatsApplied - p.msg.before
		s.Fire(trace.BatchExtended, sender, p.cfg.Engine, uint64(p.msg.number)<<32|applied&(1<<32-1), uint64(p.Leases.TakeSlack()))
	}
}

// from names the sender, and its rank if it says so.
func (m *message) from() (sender, ranks uint64) {
	if m.native {
		return m.head.Engine, uint64(m.head.Rank) << 32
	}
	return m.sender, 0
}

// stockNumbers counts the heartbeats that agents have sent in stock text, as they do themselves. Nothing that a peer sends may
// grow memory: of two agents that fall on one place the later one takes it, and counts anew.
type stockNumbers [1 << stockNumbersBits]struct {
	sender uint64
	n      uint32
}

const stockNumbersBits = 10

func (s *stockNumbers) next(sender uint64) uint32 {
	at := &s[sender>>(64-stockNumbersBits)]
	if at.sender != sender {
		at.sender, at.n = sender, 0
	}
	at.n++
	return at.n
}
