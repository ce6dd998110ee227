package demo

import (
	"fmt"
	"syscall"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
)

// wireBound is how long after the death of a process its peers know of it at most: the connection falls at once, then they
// wait for it to come back (wire_grace).
const wireBound = time.Second

// wiredLease is so long that nothing but the wire frees anything within wireBound.
const wiredLease = 6 * time.Second

// wiredCrash: D is killed, and the connection that dies with it tells P at once.
func wiredCrash(s *stage) error {
	const requests, each = 4, 8
	ids, blocks := requestsOf(requests, each)
	granted, err := s.grant(ids, blocks)
	if err != nil {
		return err
	}
	s.tell("P granted %d requests for %v; D keeps a connection to P's side channel open", requests, wiredLease)
	// The wire frees what D has named, and a request that comes within a round is named in the next one.
	if err := sleep(s.ctx, wiredLease/6*3/2, s.p, s.d); err != nil {
		return err
	}
	early := s.freedBefore()
	killed := bootNow()
	if err := s.d.signal(syscall.SIGKILL); err != nil {
		return err
	}
	s.tell("%s D (SIGKILL)", s.say.paint.warn("killed"))
	last, err := s.allFreed(ids)
	if err != nil {
		return err
	}
	after := time.Duration(last.TimeNS - killed)
	left := wiredLease - time.Duration(int64(last.TimeNS-granted)) // of the first term at least
	s.tell("P has all blocks back %.2f s after the kill (%s), %.1f s before the leases would have run out", after.Seconds(), last.Reason, left.Seconds())

	s.promise("leases lost before the crash", exactly, 0, float64(early), "")
	s.promise("reclaimed after the kill, by the death wire", atMost, ms(wireBound), ms(after), "ms")

	s.mark(laneP, timeline.Lease, granted, last.TimeNS, fmt.Sprintf("leases on %d blocks", requests*each))
	s.mark(laneP, timeline.Released, last.TimeNS, 0, "freed: "+last.Reason)
	s.mark(laneP, timeline.FirstTerm, granted+uint64(wiredLease), 0, "")
	s.mark(laneD, timeline.Waiting, granted, killed, fmt.Sprintf("%d requests wait", requests))
	s.mark(laneD, timeline.Crash, killed, 0, "SIGKILL")
	s.moment(killed, "D is killed")
	s.moment(last.TimeNS, fmt.Sprintf("reclaimed after %.2f s", after.Seconds()))
	return nil
}
