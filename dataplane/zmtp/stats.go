package zmtp

import "sync/atomic"

// Stats counts since Listen what became of connections and requests.
type Stats struct {
	Open         int    // connections now, without Others
	Accepted     uint64 // connections
	Others       uint64 // connections handed to Config.Other
	Requests     uint64 // answered
	Refused      uint64 // connections closed at once: all places busy
	Evicted      uint64 // connections closed for a newer one, because they had waited longest for their peer
	Malformed    uint64 // connections closed for what the peer sent
	Declined     uint64 // connections closed since the handler had no answer to give
	Timeouts     uint64 // connections closed within a greeting, request or reply that took too long
	Idled        uint64 // connections closed after Limits.Idle without a request
	Torn         uint64 // connections that the peer closed within a greeting, request or reply
	PeerErrors   uint64 // connections that the peer ended with an ERROR command
	Panics       uint64 // connections closed for a panic or an empty reply of the handler, or a panic of ours
	AcceptErrors uint64 // failed accepts, mostly for want of descriptors
}

type counters struct {
	accepted, others, requests, refused, evicted, malformed, declined, timeouts, idled, torn, peerErrors, panics, acceptErrors atomic.Uint64
}

// Stats reads the counters, each by itself.
func (s *Server) Stats() Stats {
	c := &s.counters
	return Stats{
		Open:         s.slots.count(),
		Accepted:     c.accepted.Load(),
		Others:       c.others.Load(),
		Requests:     c.requests.Load(),
		Refused:      c.refused.Load(),
		Evicted:      c.evicted.Load(),
		Malformed:    c.malformed.Load(),
		Declined:     c.declined.Load(),
		Timeouts:     c.timeouts.Load(),
		Idled:        c.idled.Load(),
		Torn:         c.torn.Load(),
		PeerErrors:   c.peerErrors.Load(),
		Panics:       c.panics.Load(),
		AcceptErrors: c.acceptErrors.Load(),
	}
}
