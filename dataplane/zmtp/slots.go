package zmtp

import (
	"net"
	"sync"
	"time"

	"github.com/kvlease/kvlease/dataplane/internal/hosts"
)

// slots are a server's open connections.
//
// When all are taken, a new connection takes the place of the one that has waited longest for its peer, idle, still
// greeting, or in the middle of a request, of the host that has the most. So a crowd of silent or slow connections gives way, at the
// speed at which it grows, to whoever finishes a request quickly, and one host's to whoever else there is, however slow.
// Only a request that is being answered is never cut off: with all of them busy the new connection is refused.
//
// Threads: any.
type slots struct {
	mu     sync.Mutex
	max    int
	closed bool
	open   map[*slot]struct{}
	other  map[*slot]struct{} // handed over, outside max
	crowd  hosts.Crowd        // of those open
}

// slot is one connection's place. The fields below are the slots' own.
type slot struct {
	c       net.Conn
	host    hosts.Host
	waiting bool
	since   time.Time
}

// enter finds a place for c, or gives nil. evicted says that another connection had to go.
func (s *slots) enter(c net.Conn, now time.Time) (placed *slot, evicted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false
	}
	if len(s.open) >= s.max {
		oldest := s.oldest()
		if oldest == nil {
			return nil, false
		}
		s.drop(oldest)
		oldest.c.Close()
		evicted = true
	}
	if s.open == nil {
		s.open, s.other, s.crowd = make(map[*slot]struct{}), make(map[*slot]struct{}), make(hosts.Crowd)
	}
	placed = &slot{c: c, host: hosts.Of(c), waiting: true, since: now}
	s.open[placed] = struct{}{}
	s.crowd.Come(placed.host)
	return placed, evicted
}

// oldest is the one that gives way to a new one.
func (s *slots) oldest() (found *slot) {
	most := 0
	for o := range s.open {
		if n := s.crowd[o.host]; o.waiting && (n > most || n == most && o.since.Before(found.since)) {
			found, most = o, n
		}
	}
	return found
}

// drop takes a connection out of those open.
func (s *slots) drop(o *slot) {
	if _, ok := s.open[o]; ok {
		delete(s.open, o)
		s.crowd.Go(o.host)
	}
}

// leave ends a connection.
func (s *slots) leave(o *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(o)
	delete(s.other, o)
	o.c.Close()
}

// busy protects a connection while its request is answered. It reports false if the connection was just evicted.
func (s *slots) busy(o *slot) bool { return s.set(o, false, o.since) }

// wait is the end of busy.
func (s *slots) wait(o *slot, now time.Time) { s.set(o, true, now) }

func (s *slots) set(o *slot, waiting bool, since time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.open[o]
	if ok {
		o.waiting, o.since = waiting, since
	}
	return ok && !s.closed
}

// handOver takes a connection out of the limit. It reports false if the connection was just evicted.
func (s *slots) handOver(o *slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.open[o]; !ok || s.closed {
		return false
	}
	s.drop(o)
	s.other[o] = struct{}{}
	return true
}

// gone reports that a connection was ended from this side.
func (s *slots) gone(o *slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.open[o]
	return !ok || s.closed
}

// count gives the connections that are open, without those handed over.
func (s *slots) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// close ends all connections and lets none in any more.
func (s *slots) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for o := range s.open {
		o.c.Close()
	}
	for o := range s.other {
		o.c.Close()
	}
}
