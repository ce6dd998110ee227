package core

import (
	"github.com/kvlease/kvlease/dataplane/deathwire"
	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/zmtp"
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
	Ranks        int    // whose maps are served now
	Generation   uint64 // maps that were set and differed from the one before
	Answered     uint64 // requests, those with an unexpected first element among them
	Unexpected   uint64 // requests whose first element is not get_meta_msg; answered, as vLLM does
	Malformed    uint64 // requests that mean nothing; connection dropped
	Unregistered uint64 // requests for a rank whose memory is not registered, or not any more; connection dropped
	Unknown      uint64 // requests for a rank that this engine does not have; connection dropped
}

// sideStats are all of them at one moment.
type sideStats struct {
	own     SideCounters
	client  ClientCounters
	server  ServedCounters
	wire    zmtp.Stats
	readers deathwire.ServerStats
	owners  deathwire.ClientStats
}

// read takes them. It allocates nothing.
func (v *sideStats) read(s *sideChannel) {
	s.mu.Lock()
	peers := len(s.peers)
	s.mu.Unlock()
	n := &s.n
	v.own = SideCounters{
		Peers: peers, Loads: n.loads.Load(), Refused: n.refused.Load(), WrongEngine: n.wrongEngine.Load(),
		Misfits: n.misfits.Load(), Moved: n.moved.Load(), Claims: n.claims.Load(), Retries: n.retries.Load(),
		WiresFull: n.wiresFull.Load(), ClockJumps: n.voids.Load(),
	}
	c := s.client.Stats()
	v.client = ClientCounters{
		Engines: c.Engines, Failing: c.Failing, Active: c.Active, Parked: c.Parked, Pending: c.Pending, Attempts: c.Attempts,
		Fetched: c.Fetched, Failures: c.Failures, Refreshes: c.Refreshes, RefreshFailures: c.RefreshFailures,
		Parkings: c.Parkings, Cut: c.Cut, Replaced: c.Replaced, Doubts: c.Doubts,
	}
	if s.server != nil {
		st := s.server.Stats()
		v.server = ServedCounters{
			Ranks: st.Ranks, Generation: st.Generation, Answered: st.Answered, Unexpected: st.Unexpected, Malformed: st.Malformed,
			Unregistered: st.Unregistered, Unknown: st.Unknown,
		}
		v.wire = st.Wire
	}
	if s.readers != nil {
		v.readers = s.readers.Stats()
	}
	if s.owners != nil {
		v.owners = s.owners.Stats()
	}
}

// stats adds side_failing, which is a list of texts, and the groups side (own), side_client, side_server, side_zmtp, side_readers
// and side_owners (wires).
func (s *sideChannel) stats(all map[string]any) {
	var v sideStats
	v.read(s)
	flatten(all, "side_", v.own)
	all["side_failing"] = s.failing()
	flatten(all, "side_client_", v.client)
	if s.server != nil {
		flatten(all, "side_server_", v.server)
		flatten(all, "side_zmtp_", v.wire)
	}
	if s.readers != nil {
		flatten(all, "side_readers_", v.readers)
	}
	if s.owners != nil {
		flatten(all, "side_owners_", v.owners)
	}
}
