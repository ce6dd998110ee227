package core

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/deathwire"
	"github.com/kvlease/kvlease/dataplane/handshake"
)

// Bounds of the question whether an owner lives that takes no wire.
const (
	livesWait  = time.Second // for all of it
	livesTries = 3           // a crowd may have one of its connections closed, too
)

// lives asks an owner that takes connections and closes them whether it is still the boot of a wire: one that has no place for wires answers
// a handshake. A goroutine of the wires'.
func (s *sideChannel) lives(ctx context.Context, engine uint64, w deathwire.Wire) bool {
	s.mu.Lock()
	p := s.peers[engine]
	var id string
	var rank handshake.Rank
	if p != nil {
		id, rank = p.id, p.ranks[0]
	}
	s.mu.Unlock()
	if p == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, livesWait)
	defer cancel()
	for range livesTries {
		if epoch, err := s.bootOf(ctx, w.Addr, id, rank); err == nil {
			return epoch == w.OwnersEpoch
		}
	}
	return false
}

// bootOf asks whoever is at an address for the boot epoch of an engine's rank.
func (s *sideChannel) bootOf(ctx context.Context, addr, id string, rank handshake.Rank) (epoch uint64, err error) {
	defer func() {
		if p := recover(); p != nil { // what a peer says ends no process
			err = fmt.Errorf("%v", p)
		}
	}()
	a, err := handshake.Dial(ctx, addr, livesWait, s.now)
	if err != nil {
		return 0, err
	}
	defer a.Close()
	a.Expect(id, "")
	m, _, err := a.Ask(ctx, rank)
	if err != nil {
		return 0, err
	}
	return m.Handshake.Lease.Epoch, nil
}
