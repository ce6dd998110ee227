package deathwire

import "sync/atomic"

type serverCounters struct {
	kept, full, evicted, silent, malformed, crowded, unwanted, fallen, returned, ended, left, dead, withdrawn, disputed atomic.Uint64
}

// ServerStats are a server's gauges, and its counters since NewServer.
type ServerStats struct {
	Wires     int    // open
	Places    int    // taken: wires, and readers in their grace
	Known     int    // readers whose nonce has been heard
	Kept      uint64 // wires ever kept
	Full      uint64 // connections closed for want of a place: those readers have only their leases
	Evicted   uint64 // wires closed for a newer one, since no rank had heard their nonce
	Silent    uint64 // connections without a hello in time
	Malformed uint64 // connections that said something else
	Crowded   uint64 // connections closed because too many owed their hello
	Unwanted  uint64 // connections closed because nothing is registered here
	Fallen    uint64 // wires that the reader's end closed
	Returned  uint64 // of these, those whose reader came back in time
	Ended     uint64 // wires that ended otherwise
	Left      uint64 // wires whose reader said that it goes on purpose
	Dead      uint64 // readers found dead
	Withdrawn uint64 // readers whose life has ended on purpose: they said farewell
	Disputed  uint64 // readers of whom two nonces were heard: nothing is believed of them
	Unheard   uint64 // hellos and leavings of readers that found no room on their way from the step
}

// Stats reads them.
func (s *Server) Stats() ServerStats {
	s.mu.Lock()
	open, places, known := len(s.open), s.table.places, len(s.table.voices)
	s.mu.Unlock()
	n := &s.n
	return ServerStats{
		Wires: open, Places: places, Known: known, Kept: n.kept.Load(), Full: n.full.Load(), Evicted: n.evicted.Load(), Silent: n.silent.Load(),
		Malformed: n.malformed.Load(), Crowded: n.crowded.Load(), Unwanted: n.unwanted.Load(), Fallen: n.fallen.Load(),
		Returned: n.returned.Load(), Ended: n.ended.Load(), Left: n.left.Load(), Dead: n.dead.Load(), Withdrawn: n.withdrawn.Load(), Disputed: n.disputed.Load(),
		Unheard: s.inbox.dropped.Load(),
	}
}
