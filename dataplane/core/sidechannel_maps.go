package core

import (
	"fmt"

	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// ownRank is what one rank of ours tells its readers.
type ownRank struct {
	ours   *wire.Handshake // as the rank described itself; nil: nothing is registered there
	raw    []byte
	theirs []byte // the engine's own map, without our key; nil: it has set none
	served []byte // what readers get; nil: nothing
}

// SetMap publishes the map of one of our ranks, as the rank made it. Once those of all ranks are known, peers are asked
// for theirs.
func (s *sideChannel) SetMap(rank uint32, m []byte) error {
	h := new(wire.Handshake)
	if err := wire.ParseHandshake(m, h); err != nil {
		return fmt.Errorf("%w: handshake map of rank %d: %w", ErrInvalid, rank, err)
	}
	if !h.Native || h.EngineID != s.cfg.EngineID {
		return fmt.Errorf("%w: handshake map of rank %d is of engine %q, or without our key", ErrInvalid, rank, h.EngineID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case rank >= uint32(len(s.ranks)):
		return fmt.Errorf("%w: rank %d of %d", ErrInvalid, rank, len(s.ranks))
	}
	r := s.ranks[rank]
	r.ours, r.raw = h, m
	if err := s.publish(rank, r); err != nil {
		return err
	}
	for i := range s.ranks {
		if s.ranks[i].served == nil {
			return nil
		}
	}
	s.whole = true
	s.epoch.Store(h.Lease.Epoch)
	for _, p := range s.peers {
		s.want(p)
	}
	return nil
}

// publish makes what readers get of a rank, and takes r for it. On an error nothing has changed. Under the lock.
func (s *sideChannel) publish(rank uint32, r ownRank) error {
	r.served = r.raw
	if r.theirs != nil && r.ours != nil {
		var err error
		if r.served, err = wire.AppendMerged(nil, r.theirs, &r.ours.Lease); err != nil {
			return fmt.Errorf("%w: the engine's handshake map of rank %d: %w", ErrInvalid, rank, err)
		}
	}
	if s.server != nil && r.served != nil {
		at := handshake.Rank{PP: rank / uint32(s.cfg.TPSize), Transfer: rank % uint32(s.cfg.TPSize)}
		if err := s.server.Set(at, handshake.Payload{Hash: s.cfg.CompatHash, Metadata: r.served}); err != nil {
			return fmt.Errorf("%w: handshake map of rank %d: %w", ErrInvalid, rank, err)
		}
	}
	s.ranks[rank] = r
	return nil
}

// SetOwn puts the engine's own map in place of ours for one rank. Our key comes into it, now or when the rank has
// registered.
func (s *sideChannel) SetOwn(rank uint32, m []byte) error {
	h := new(wire.Handshake)
	if err := wire.ParseHandshake(m, h); err != nil {
		return fmt.Errorf("%w: handshake map: %w", ErrInvalid, err)
	}
	if h.EngineID != s.cfg.EngineID {
		return fmt.Errorf("%w: handshake map of engine %q, this one is %q", ErrInvalid, h.EngineID, s.cfg.EngineID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case rank >= uint32(len(s.ranks)):
		return fmt.Errorf("%w: rank %d of %d", ErrInvalid, rank, len(s.ranks))
	}
	r := s.ranks[rank]
	r.theirs = append([]byte(nil), m...)
	return s.publish(rank, r)
}

// Map is what readers of a rank get; nil: nothing is registered there.
func (s *sideChannel) Map(rank uint32) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rank >= uint32(len(s.ranks)) {
		return nil
	}
	return s.ranks[rank].served
}

// Begin says which life of our engine speaks from now on, before its maps and its hellos.
func (s *sideChannel) Begin(epoch uint64, secret [2]uint64) {
	s.life.Store(&life{epoch, secret})
}

// Withdraw takes all our maps back, those that the engine has set among them, and ends what was begun for this life of it:
// peers are not asked any more, and all wires fall behind a farewell.
func (s *sideChannel) Withdraw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch.Store(0)
	s.whole = false
	clear(s.ranks)
	if s.owners != nil {
		s.owners.Reset() // before unwant: what that drops says that it leaves, which ends nothing there
	}
	if s.readers != nil {
		s.readers.EndEra() // before who asks is refused: why was said then
	}
	if s.server != nil {
		s.server.Withdraw()
	}
	for _, p := range s.peers {
		s.unwant(p)
	}
}
