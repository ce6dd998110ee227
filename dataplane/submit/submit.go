// Package submit takes the records of a submission stream: from the rings of a context's producers, or one by one where
// another carrier brought them.
package submit

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/histogram"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/ringbuf"
)

// Sink is told what the records say. What is pointed to is valid for the call only.
type Sink interface {
	Expect(e *record.Expect, id []byte, now clock.Instant)
	Grant(g *record.Grant, id []byte, now clock.Instant)
	Cancel(lease record.Handle, now clock.Instant)
	Revoke(lease record.Handle, now clock.Instant)
	Pressure(blocks uint32, now clock.Instant)
	Track(t *record.TrackReq, remote, local []byte, now clock.Instant)
	Untrack(track record.Handle, now clock.Instant)
	Reject(t *record.TrackReq, remote []byte, now clock.Instant)
	ReadPart(r *record.Read, runs []record.Run, now clock.Instant)
}

// Apply gives a record to the sink. It reports false for one of unknown kind or wrong length.
func Apply(sink Sink, tag uint32, rec []byte, now clock.Instant) bool {
	switch tag {
	case record.TagExpect:
		e, id, ok := record.AsExpect(rec)
		if ok {
			sink.Expect(e, id, now)
		}
		return ok
	case record.TagGrant:
		g, id, ok := record.AsGrant(rec)
		if ok {
			sink.Grant(g, id, now)
		}
		return ok
	case record.TagCancel:
		h, ok := record.AsHandle(rec)
		if ok {
			sink.Cancel(h, now)
		}
		return ok
	case record.TagRevoke:
		h, ok := record.AsHandle(rec)
		if ok {
			sink.Revoke(h, now)
		}
		return ok
	case record.TagPressure:
		blocks, ok := record.AsPressure(rec)
		if ok {
			sink.Pressure(blocks, now)
		}
		return ok
	case record.TagTrack:
		t, remote, local, ok := record.AsTrack(rec)
		if ok {
			sink.Track(t, remote, local, now)
		}
		return ok
	case record.TagReject:
		t, remote, _, ok := record.AsTrack(rec)
		if ok {
			sink.Reject(t, remote, now)
		}
		return ok
	case record.TagUntrack:
		h, ok := record.AsHandle(rec)
		if ok {
			sink.Untrack(h, now)
		}
		return ok
	case record.TagRead:
		r, runs, ok := record.AsRead(rec)
		if ok {
			sink.ReadPart(r, runs, now)
		}
		return ok
	}
	return false
}

// Counters of the records taken. They only grow.
type Counters struct {
	Records    uint64 // submission records taken
	RecordsBad uint64 // of these, those of unknown kind or wrong length: a bug of the host side
	RecordsCut uint64 // steps that left records for the next one
}

// Sources are the rings of a context's producers.
//
// Threads: one, the step's.
// Memory: all from New.
type Sources struct {
	all   []source
	first int // the one that goes first: the cut of a step must not always hit the same one
	sites *trace.Sites

	Counters Counters
	Depth    histogram.Histogram // bytes that a step found in a producer's ring and took, of rings that had any; things
}

// source is one producer's pair of rings as the step sees it.
type source struct {
	ring, over *ringbuf.Consumer
	corrupt    bool
}

// silent says that a drain would find nothing. There may be hundreds of producers and most have nothing to say, so of each it reads one
// line of shared memory: nothing overflows before the ring has refused room, which stands beside its head.
func (src *source) silent() bool {
	return src.ring.Empty() && (!src.ring.Overflowed() || src.over.Empty())
}

// New attaches to every producer's rings, which are formatted.
func New(mem *record.Memory, sites *trace.Sites) (*Sources, error) {
	s := &Sources{sites: sites}
	for i := range mem.Rings {
		ring, err := ringbuf.NewConsumer(mem.Rings[i])
		if err != nil {
			return nil, err
		}
		over, err := ringbuf.NewConsumer(mem.Overflows[i])
		if err != nil {
			return nil, err
		}
		s.all = append(s.all, source{ring: ring, over: over})
	}
	return s, nil
}

// Drain takes at most most records: of each producer its ring in order, and what overflowed once the ring has been taken
// to where it stood when the entry was made. So no untrack overtakes its track.
func (s *Sources) Drain(most int, sink Sink, now clock.Instant) {
	n := len(s.all)
	for i, producer := 0, s.first-1; i < n; i++ {
		if producer++; producer == n {
			producer = 0
		}
		if s.all[producer].silent() {
			continue
		}
		before, from := most, s.all[producer].ring.Position()
		most = s.drain(&s.all[producer], most, sink, now)
		if taken := s.all[producer].ring.Position() - from; taken > 0 {
			s.Depth.ObserveCount(int(taken))
		}
		if most != before && s.sites.On(trace.HookDrained) {
			s.sites.Fire(trace.HookDrained, s.sites.Ctx(), uint64(producer), s.all[producer].ring.Position(), uint64(before-most))
		}
		if most == 0 {
			s.Counters.RecordsCut++
			s.first = producer
			break
		}
	}
	if n > 0 {
		s.first = (s.first + 1) % n
	}
}

func (s *Sources) drain(src *source, most int, sink Sink, now clock.Instant) int {
	for most > 0 {
		tag, rec, ok := src.ring.Next()
		if !ok {
			break
		}
		most--
		s.apply(tag, rec, sink, now)
	}
	src.ring.Release()
	for most > 0 {
		tag, rec, ok := src.over.Peek()
		if !ok {
			break
		}
		after, ok := record.AsAfter(rec)
		if ok && src.ring.Position() < after {
			break
		}
		src.over.Next()
		most--
		if !ok {
			s.Counters.RecordsBad++
			continue
		}
		s.apply(tag, rec[8:], sink, now)
	}
	src.over.Release()
	src.corrupt = src.ring.Corrupt() || src.over.Corrupt()
	return most
}

func (s *Sources) apply(tag uint32, rec []byte, sink Sink, now clock.Instant) {
	s.Counters.Records++
	if !Apply(sink, tag, rec, now) {
		s.Counters.RecordsBad++
	}
}

// Untaken is how many bytes of records no Drain has taken. Any thread.
func (s *Sources) Untaken() (bytes uint64) {
	for i := range s.all {
		bytes += s.all[i].ring.Untaken() + s.all[i].over.Untaken()
	}
	return bytes
}

// Pending reports that a Drain now would find records.
func (s *Sources) Pending() bool {
	for i := range s.all {
		if src := &s.all[i]; !src.corrupt && !src.silent() {
			return true
		}
	}
	return false
}
