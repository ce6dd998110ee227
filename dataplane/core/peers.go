package core

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// AddEngine names a remote engine; the same id gives the same handle while the engine is known.
func (c *Core) AddEngine(d heartbeat.EngineDesc) (uint64, error) {
	if d.ID == "" || len(d.ID) > wire.StringMax {
		return 0, fmt.Errorf("%w: engine_id has %d bytes, allowed: 1 to %d", ErrInvalid, len(d.ID), wire.StringMax)
	}
	if d.ID == c.cfg.EngineID {
		return 0, fmt.Errorf("%w: engine_id %q is this engine's own", ErrInvalid, d.ID)
	}
	e, err := c.tracker.AddEngine(d)
	return e, peerErr(err)
}

// RemoveEngine forgets a remote engine: its tracked requests are reported gone.
func (c *Core) RemoveEngine(engine uint64) error {
	return peerErr(c.tracker.RemoveEngine(engine))
}

// Handshake hands in the map of one rank of an engine. What it says is checked here, off the step; a step loads it.
func (c *Core) Handshake(engine uint64, rank uint32, m []byte) error {
	h := new(wire.Handshake)
	if err := wire.ParseHandshake(m, h); err != nil {
		return fmt.Errorf("%w: handshake map: %w", ErrInvalid, err)
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

// ParamsInfo is the part of the transfer parameters that is the same for every request of this engine, as a JSON object.
func (c *Core) ParamsInfo() []byte {
	out, err := json.Marshal(struct {
		EngineID string `json:"remote_engine_id"`
		Host     string `json:"remote_host"`
		Port     int    `json:"remote_port"`
		TPSize   int    `json:"tp_size"`
		DCPSize  int    `json:"dcp_size"`
		PPSize   int    `json:"pp_size"`
	}{c.cfg.EngineID, c.cfg.SideChannelHost, c.cfg.SideChannelPort, c.cfg.TPSize, 1, 1})
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
	case errors.Is(err, heartbeat.ErrStale):
		return fmt.Errorf("%w: %w", ErrStale, err)
	case errors.Is(err, heartbeat.ErrFull):
		return fmt.Errorf("%w: %w: raise engines_max", ErrFull, err)
	}
	return fmt.Errorf("%w: %w", ErrInvalid, err)
}
