package dataplane

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// drain takes submission records: of each producer its ring in order, and what overflowed once the ring has been taken
// to where it stood when the entry was made. So no untrack overtakes its track.
func (p *Plane) drain(now clock.Instant) {
	left := p.cfg.RecordsStepMax
	n := len(p.sources)
	for i := range n {
		s := &p.sources[(p.first+i)%n]
		if left = p.drainSource(s, left, now); left == 0 {
			p.Counters.RecordsCut++
			p.first = (p.first + i) % n
			break
		}
	}
	if n > 0 {
		p.first = (p.first + 1) % n
	}
}

func (p *Plane) drainSource(s *source, left int, now clock.Instant) int {
	for left > 0 {
		tag, rec, ok := s.ring.Next()
		if !ok {
			break
		}
		left--
		p.submit(tag, rec, now)
	}
	s.ring.Release()
	for left > 0 {
		tag, rec, ok := s.over.Peek()
		if !ok {
			break
		}
		after, ok := record.AsAfter(rec)
		if ok && s.ring.Position() < after {
			break
		}
		s.over.Next()
		left--
		if !ok {
			p.Counters.RecordsBad++
			continue
		}
		p.submit(tag, rec[8:], now)
	}
	s.over.Release()
	s.corrupt = s.ring.Corrupt() || s.over.Corrupt()
	return left
}

func (p *Plane) submit(tag uint32, rec []byte, now clock.Instant) {
	p.Counters.Records++
	ok := false
	switch tag {
	case record.TagExpect:
		var e *record.Expect
		var id []byte
		if e, id, ok = record.AsExpect(rec); ok {
			p.Leases.Expect(e.Lease, id, now)
		}
	case record.TagGrant:
		var g *record.Grant
		var id []byte
		if g, id, ok = record.AsGrant(rec); ok {
			p.Leases.Grant(g, id, now)
		}
	case record.TagCancel:
		var h record.Handle
		if h, ok = record.AsHandle(rec); ok {
			p.Leases.Cancel(h, now)
		}
	case record.TagRevoke:
		var h record.Handle
		if h, ok = record.AsHandle(rec); ok {
			p.Leases.Revoke(h, now)
		}
	case record.TagPressure:
		var blocks uint32
		if blocks, ok = record.AsPressure(rec); ok {
			p.Leases.Pressure(blocks, now)
		}
	case record.TagTrack:
		if t, remote, local, fits := record.AsTrack(rec); fits {
			ok = true
			p.Tracker.Track(t, remote, local, now)
		}
	case record.TagReject:
		if t, remote, _, fits := record.AsTrack(rec); fits {
			ok = true
			p.Tracker.Reject(t, remote, now)
		}
	case record.TagUntrack:
		var h record.Handle
		if h, ok = record.AsHandle(rec); ok {
			p.Tracker.Untrack(h, now)
		}
	case record.TagRead:
		if r, runs, fits := record.AsRead(rec); fits {
			ok = true
			p.Tracker.ReadPart(r, runs, now)
		}
	}
	if !ok {
		p.Counters.RecordsBad++
	}
}
