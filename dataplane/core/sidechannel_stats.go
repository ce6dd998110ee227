package core

import (
	"github.com/kvlease/kvlease/dataplane/handshake"
)

// SideCounters are the side channel's own: what it made of what its parts found out.
type SideCounters struct {
	Peers       int    // engines that are asked over their side channel
	Loads       uint64 // engines whose maps were handed on, fetched anew or for the first time
	Refused     uint64 // engines whose maps could not be used here
	WrongEngine uint64 // another engine answered at an engine's address: what is tracked at it is lost
	Misfits     uint64 // answers of engines that do not fit this one: what is tracked at them is lost
	Moved       uint64 // engines that were named with another address than before
	Claims      uint64 // namings refused, because two engines claim one id
	Retries     uint64 // engines asked anew because a connection or a wire to them broke
	OwnersDead  uint64 // engines found dead by their wires
	ReadersDead uint64 // readers found dead by their wires
	WiresFull   uint64 // engines without a wire for want of a place here
	ClockJumps  uint64 // jumps of this host's clocks: offsets are found anew
}

// ClientCounters are handshake.Stats without points in time.
type ClientCounters struct {
	Engines         [handshake.States]int
	Failing         int
	Active          int
	Parked          int
	Pending         int
	Attempts        uint64
	Fetched         uint64
	Failures        [handshake.Classes]uint64
	Refreshes       uint64
	RefreshFailures [handshake.Classes]uint64
	Parkings        uint64
	Cut             uint64
	Replaced        uint64
	Doubts          uint64
}

// ServedCounters are handshake.ServerStats without what lies below.
type ServedCounters struct {
	Ranks      int
	Generation uint64
	Answered   uint64
	Unexpected uint64
	Malformed  uint64
	Unknown    uint64
}

// stats adds side_failing, which is a list of texts, and the groups side (own), side_client, side_server, side_zmtp, side_readers
// and side_owners (wires).
func (s *sideChannel) stats(all map[string]any) {
	s.mu.Lock()
	peers := len(s.peers)
	s.mu.Unlock()
	n := &s.n
	flatten(all, "side_", SideCounters{
		Peers: peers, Loads: n.loads.Load(), Refused: n.refused.Load(), WrongEngine: n.wrongEngine.Load(),
		Misfits: n.misfits.Load(), Moved: n.moved.Load(), Claims: n.claims.Load(), Retries: n.retries.Load(), OwnersDead: n.dead.Load(), ReadersDead: n.readersDead.Load(),
		WiresFull: n.wiresFull.Load(), ClockJumps: n.voids.Load(),
	})
	all["side_failing"] = s.failing()
	c := s.client.Stats()
	flatten(all, "side_client_", ClientCounters{
		Engines: c.Engines, Failing: c.Failing, Active: c.Active, Parked: c.Parked, Pending: c.Pending, Attempts: c.Attempts,
		Fetched: c.Fetched, Failures: c.Failures, Refreshes: c.Refreshes, RefreshFailures: c.RefreshFailures,
		Parkings: c.Parkings, Cut: c.Cut, Replaced: c.Replaced, Doubts: c.Doubts,
	})
	if s.server != nil {
		st := s.server.Stats()
		flatten(all, "side_server_", ServedCounters{
			Ranks: st.Ranks, Generation: st.Generation, Answered: st.Answered, Unexpected: st.Unexpected, Malformed: st.Malformed, Unknown: st.Unknown,
		})
		flatten(all, "side_zmtp_", st.Wire)
	}
	if s.readers != nil {
		flatten(all, "side_readers_", s.readers.Stats())
	}
	if s.owners != nil {
		flatten(all, "side_owners_", s.owners.Stats())
	}
}
