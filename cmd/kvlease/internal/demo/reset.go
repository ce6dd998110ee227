package demo

import (
	"fmt"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
	"github.com/kvlease/kvlease/internal/plural"
)

// loadMax is what loading an engine's metadata into NIXL takes at most (design, section 10: 1 to 60 ms).
const loadMax = 60 * time.Millisecond

// healBound is how long P hears nothing at most when a connection breaks under heartbeats: the next one finds out, an eighth
// of an interval later the metadata is loaded again, and the step after that sends.
func (s *stage) healBound() time.Duration {
	interval := s.cfg.Lease / 6
	return interval + interval/8 + loadMax + 3*s.cfg.Pass + allowance
}

// resetLink: the connection between D and P is cut under heartbeats; D makes it anew.
func resetLink(s *stage) error {
	const requests, each = 4, 8
	ids, blocks := requestsOf(requests, each)
	granted, err := s.grant(ids, blocks)
	if err != nil {
		return err
	}
	if err := sleep(s.ctx, s.cfg.Lease/2, s.p, s.d); err != nil {
		return err
	}
	cut := bootNow()
	n, err := s.cfg.cut(s.d, s.p)
	if err != nil {
		return skipped{err}
	}
	s.tell("%s the %d TCP connections between D and P (reset)", s.say.paint.warn("cut"), n)
	if err := sleep(s.ctx, s.cfg.Lease*2, s.p, s.d); err != nil {
		return err
	}
	lost := s.freedBefore()
	silent := s.silence(cut, bootNow())
	s.tell("in two leases P was without a heartbeat for %.0f ms at most, and lost %s", ms(silent), plural.Counted(lost, "lease", "leases"))
	var bad, bytes float64
	asked := bootNow()
	for _, id := range ids {
		_, r, err := s.read(s.d, id)
		if err != nil {
			return err
		}
		bad += badBytes(&r)
		if r.Ev == "read_done" {
			bytes += float64(r.Bytes)
		}
	}
	last, err := s.allFreed(ids)
	if err != nil {
		return err
	}
	s.tell("D read all %d over the new connection, %s wrong bytes", requests, quantity(bad, ""))

	s.promise("connections cut", atLeast, 1, float64(n), "")
	s.promise("leases lost", exactly, 0, float64(lost), "")
	s.promise("longest silence on P (interval + back-off + loading)", atMost, ms(s.healBound()), ms(silent), "ms")
	s.promise("bytes read after it and checked", exactly, float64(requests*each*s.blockBytes()), bytes, "B")
	s.never("wrong bytes handed out", bad)

	s.mark(laneP, timeline.Lease, granted, last.TimeNS, fmt.Sprintf("leases on %d blocks", requests*each))
	s.mark(laneP, timeline.FirstTerm, granted+uint64(s.cfg.Lease), 0, "")
	s.mark(laneP, timeline.Completed, last.TimeNS, 0, "freed: "+last.Reason)
	s.mark(laneD, timeline.Waiting, granted, asked, fmt.Sprintf("%d requests wait", requests))
	s.mark(laneD, timeline.Reset, cut, 0, "ss -K")
	s.mark(laneD, timeline.Read, asked, last.TimeNS, "reads")
	s.moment(cut, "connection reset")
	return nil
}

// silence is the longest time in which P reported no heartbeat, from the last one before a point in time to a later one.
func (s *stage) silence(from, to uint64) time.Duration {
	last, longest := uint64(0), uint64(0)
	for _, r := range s.p.reports(0) {
		if r.Ev != "beats" || r.TimeNS > to {
			continue
		}
		if last != 0 && r.TimeNS > from {
			longest = max(longest, r.TimeNS-last)
		}
		last = r.TimeNS
	}
	return time.Duration(max(longest, to-max(last, s.start)))
}
