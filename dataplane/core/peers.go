package core

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/wire"
)

var errOfHost = fmt.Errorf("%w: role rank: remote engines are the host context's", ErrState)

// AddEngine names a remote engine; the same id gives the same handle while the engine is known. Its handshake travels out of
// band.
func (c *Core) AddEngine(d heartbeat.EngineDesc) (uint64, error) { return c.AddPeer(d, "", 0) }

// AddPeer is AddEngine with the place of the engine's side channel, at which it is asked for its handshake from now on. An empty
// host: it has none.
func (c *Core) AddPeer(d heartbeat.EngineDesc, host string, port int) (uint64, error) {
	if d.ID == "" || len(d.ID) > wire.StringMax {
		return 0, fmt.Errorf("%w: engine_id has %d bytes, allowed: 1 to %d", ErrInvalid, len(d.ID), wire.StringMax)
	}
	if d.ID == c.cfg.EngineID {
		return 0, fmt.Errorf("%w: engine_id %q is this engine's own", ErrInvalid, d.ID)
	}
	if c.ranked != nil {
		return 0, errOfHost
	}
	addr, err := sideAddr(host, port)
	if err != nil {
		return 0, err
	}
	c.naming.Lock()
	defer c.naming.Unlock()
	d.Address = addr
	e, err := c.nameEngine(d)
	if err != nil {
		return e, peerErr(err)
	}
	if err := c.side.Want(e, d, addr); err != nil {
		return 0, err
	}
	return e, nil
}

// nameEngine gives the handle of an engine.
func (c *Core) nameEngine(d heartbeat.EngineDesc) (uint64, error) {
	if c.hosted == nil {
		return c.tracker.AddEngine(d)
	}
	e, err := c.hosted.group.AddEngine(group.EngineDesc{ID: d.ID, TP: d.TP, PP: d.PP, User: d.User, Address: d.Address})
	if err == nil {
		c.mu.Lock()
		c.hosted.shapes[e] = topology.Shape{TP: max(d.TP, 1), PP: max(d.PP, 1)}
		c.mu.Unlock()
		c.Wake()
	}
	return e, err
}

// RemoveEngine forgets a remote engine: its tracked requests are reported gone.
func (c *Core) RemoveEngine(engine uint64) error {
	if c.ranked != nil {
		return errOfHost
	}
	c.naming.Lock()
	defer c.naming.Unlock()
	var err error
	if c.hosted == nil {
		err = c.tracker.RemoveEngine(engine)
	} else if err = c.hosted.group.RemoveEngine(engine); err == nil {
		c.mu.Lock()
		delete(c.hosted.shapes, engine)
		delete(c.hosted.offered, engine)
		c.mu.Unlock()
		c.Wake()
	}
	if err == nil && c.side != nil {
		c.side.Forget(engine)
	}
	return peerErr(err)
}

// Handshake hands in the map of one rank of an engine. What it says is checked here, off the step; a step loads it.
func (c *Core) Handshake(engine uint64, rank uint32, m []byte) error {
	if c.ranked != nil {
		return errOfHost
	}
	h := new(wire.Handshake)
	if err := wire.ParseHandshake(m, h); err != nil {
		return fmt.Errorf("%w: handshake map: %w", ErrInvalid, err)
	}
	if c.hosted != nil {
		return peerErr(c.offer(engine, rank, h, m))
	}
	own := new(wire.Handshake)
	c.mu.Lock()
	mine := c.handshake
	c.mu.Unlock()
	if mine == nil {
		return fmt.Errorf("%w: nothing is registered here to read into: call kvl_register first", ErrState)
	}
	if err := wire.ParseHandshake(mine, own); err != nil {
		return err
	}
	if err := wire.Compatible(own, h); err != nil {
		return fmt.Errorf("%w: engine %q: %w", ErrInvalid, h.EngineID, err)
	}
	return peerErr(c.tracker.LoadHandshake(engine, rank, h))
}

// OwnHandshake is what readers of one of our ranks get.
func (c *Core) OwnHandshake(rank uint32) ([]byte, error) {
	if rank >= uint32(c.cfg.Ranks()) {
		return nil, fmt.Errorf("%w: rank %d of %d", ErrInvalid, rank, c.cfg.Ranks())
	}
	var m []byte
	if c.side != nil {
		m = c.side.Map(rank)
	} else if rank == uint32(c.cfg.Rank()) {
		c.mu.Lock()
		m = c.handshake
		c.mu.Unlock()
	}
	if m == nil {
		return nil, c.noMap(rank)
	}
	return m, nil
}

// noMap says why a rank of ours has no map.
func (c *Core) noMap(rank uint32) error {
	why, what := error(nil), "nothing is registered: call kvl_register first"
	switch {
	case c.hosted != nil:
		why = c.hosted.streams.End(rank).Err()
		what = fmt.Sprintf("nothing is registered on rank %d that a reader may know of: call kvl_register on its context, and if that has been done, ask there", rank)
	case c.ranked != nil:
		why = c.ranked.carrier.Err()
		c.mu.Lock()
		told, fits := c.ranked.told, c.ranked.fits(c.cfg)
		if c.ranked.blob != nil { // to register once more would be refused
			what = c.ranked.waitsFor()
		}
		c.mu.Unlock()
		if told.Era != 0 && !fits {
			return fmt.Errorf("%w: key %q is %v s here and %v s on the host: give all contexts of an engine the same", ErrConfig, "kv_lease_duration",
				c.cfg.Duration.Seconds(), time.Duration(told.DurationNs).Seconds())
		}
	}
	if why != nil {
		return fmt.Errorf("%w: host and rank %d are not attached to each other: %w", ErrState, rank, why)
	}
	return fmt.Errorf("%w: %s", ErrState, what)
}

// HandshakeSet puts the engine's own handshake map of a rank in place of ours, until its memory is unregistered. Our key is
// added to it, everything else stays as it is. A map that is handed in before the rank has registered waits for that.
func (c *Core) HandshakeSet(rank uint32, m []byte) error {
	if c.side == nil {
		return fmt.Errorf("%w: role %q has no side channel: hand the map to the host context", ErrState, c.cfg.Role)
	}
	return c.side.SetOwn(rank, m)
}

// publish gives our map to the side channel.
func (c *Core) publish() error {
	if c.side == nil {
		return nil
	}
	c.side.Begin(c.mem.Epoch, c.mem.Secret)
	return c.side.SetMap(uint32(c.cfg.Rank()), c.handshake)
}

// ParamsInfo is the part of the transfer parameters that is the same for every request of this engine, as a JSON object.
func (c *Core) ParamsInfo() []byte {
	out, err := json.Marshal(struct {
		EngineID string `json:"remote_engine_id"`
		Host     string `json:"remote_host"`
		Port     int    `json:"remote_port"`
		TPSize   int    `json:"tp_size"`
		DCPSize  int    `json:"dcp_size"`
		PPSize   int    `json:"pp_size"`
	}{c.cfg.EngineID, c.cfg.SideChannelHost, c.cfg.SideChannelPort, c.cfg.TPSize, 1, c.cfg.PPSize})
	if err != nil { // strings and integers only
		panic(err)
	}
	return out
}

// peerErr gives an error of the tracker its class.
func peerErr(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, heartbeat.ErrStale), errors.Is(err, group.ErrStale), errors.Is(err, ErrStale):
		return fmt.Errorf("%w: %w", ErrStale, err)
	case errors.Is(err, heartbeat.ErrFull), errors.Is(err, group.ErrFull):
		return fmt.Errorf("%w: %w: raise engines_max", ErrFull, err)
	}
	return fmt.Errorf("%w: %w", ErrInvalid, err)
}
