package core

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// An era is who we are to peers: from a registration of memory to its end. Peers take the next one for another engine.
type era struct {
	epoch  uint64
	secret [2]uint64
	base   uint64 // of our board alone
}

func newEra() era {
	var seed [32]byte
	rand.Read(seed[:])
	return era{
		secret: [2]uint64{binary.LittleEndian.Uint64(seed[0:]), binary.LittleEndian.Uint64(seed[8:])},
		epoch:  binary.LittleEndian.Uint64(seed[16:]) | 1,
		base:   binary.LittleEndian.Uint64(seed[24:]) >> 2,
	}
}

// agentName is the name of an era's agent: no two eras share one, so nothing that was meant for one reaches another.
func (c *Core) agentName(epoch uint64) string {
	if c.ranked != nil {
		return fmt.Sprintf("%s.%d.%016x", c.cfg.EngineID, c.cfg.Rank(), epoch)
	}
	return fmt.Sprintf("%s.%016x", c.cfg.EngineID, epoch)
}

// wake gives a context that has unregistered its memory an agent and an era: for peers another engine. On an error there is
// still no agent, and the board stays closed. Under the lock; the first agent of a process takes half a second, a later one 50 ms.
func (c *Core) wake() error {
	if atomic.LoadUint32(&c.mem.Control.Poisoned) != 0 {
		return ErrPoisoned
	}
	next := c.nextEra()
	if c.ranked != nil {
		return c.wakeRank(next.epoch)
	}
	tr, err := c.newAgent(next.epoch)
	if err != nil {
		return err
	}
	c.endAll() // grants that were said while there was no memory
	if err := c.leases.Reset(next.secret, next.base, next.epoch); err != nil {
		tr.Close()
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	c.mem.Control.BeginEra(next.epoch, next.secret)
	c.mem.Epoch, c.mem.Secret, c.mem.Base = next.epoch, next.secret, next.base
	c.side.Begin(next.epoch, next.secret) // the hellos that Wake makes have the nonces of the wires to come
	c.tr = tr
	c.agent.Transport = tr
	c.now = max(c.now, c.clock())
	c.tracker.Wake(next.epoch, c.now)
	c.gone, c.met = false, false
	return nil
}

// wakeRank is wake for a rank: it gets an agent, and the host tells it the era once all ranks have unregistered.
func (c *Core) wakeRank(name uint64) error {
	tr, err := c.newAgent(name)
	if err != nil {
		return err
	}
	c.endAll()
	c.ranked.in = c.ranked.spent // endAll has closed the board: an era that was told meanwhile is entered anew
	c.tr = tr
	c.agent.Transport = tr
	c.now = max(c.now, c.clock())
	c.tracker.Wake(c.mem.Epoch, c.now)
	c.gone, c.met = false, false
	return nil
}

// ownAgent is the transport that the parts of the plane hold: that of the present era, or nobody's while no memory is registered.
type ownAgent struct {
	transport.Transport
	clock   func() clock.Instant
	longest time.Duration   // of all loads: the one call of a step that takes long
	held    Held            // as the core has it
	early   bool            // a peer was loaded while no device was held
	reach   heartbeat.Reach // what steps may do with it; under the core's lock, as all of these
}

// setReach says what steps may do with the transport: everything once memory is registered, before that only messages, and nothing while it
// registers, since who called it would wait. Under the lock.
func (c *Core) setReach(r heartbeat.Reach) {
	c.agent.reach = r
	c.tracker.SetReach(r)
}

// Poll is the transport's. What arrives while it may not be called waits there; nobody who could send knows its memory yet.
func (a *ownAgent) Poll(in *transport.Inbox) int {
	if a.reach == heartbeat.ReachNothing {
		return 0
	}
	return a.Transport.Poll(in)
}

// PostRead is the transport's.
func (a *ownAgent) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	if a.reach != heartbeat.ReachAll {
		return 0, transport.ErrFull // not now
	}
	return a.Transport.PostRead(spec)
}

// Drop is the transport's, Abandon, too: both are asked again as long as they refuse.
func (a *ownAgent) Drop(p transport.Peer) error {
	if a.reach == heartbeat.ReachNothing {
		return transport.ErrInvalid
	}
	return a.Transport.Drop(p)
}

func (a *ownAgent) Abandon(p transport.Peer) error {
	if a.reach == heartbeat.ReachNothing {
		return transport.ErrInvalid
	}
	return a.Transport.Abandon(p)
}

// Send is the transport's.
func (a *ownAgent) Send(p transport.Peer, msg []byte) error {
	if a.reach == heartbeat.ReachNothing {
		return transport.ErrFull
	}
	return a.Transport.Send(p, msg)
}

// Load is the transport's, with a look at the clock: what a step can be held up by is told.
func (a *ownAgent) Load(blob []byte) (transport.Peer, error) {
	if a.reach == heartbeat.ReachNothing {
		return 0, transport.ErrFull
	}
	began := a.clock()
	p, err := a.Transport.Load(blob)
	a.early = a.early || err == nil && a.held == nil
	a.longest = max(a.longest, a.clock().Sub(began))
	return p, err
}
