package core

import (
	"errors"
	"fmt"

	"github.com/kvlease/kvlease/dataplane/stream"
)

// delta gives our end of a rank's stream whose messages the engine carries.
func (c *Core) delta(rank uint32) (stream.Delta, error) {
	var end stream.Carrier
	switch {
	case c.hosted != nil && rank < uint32(c.hosted.streams.Ranks()):
		end = c.hosted.streams.End(rank)
	case c.ranked != nil && rank == uint32(c.cfg.Rank()):
		end = c.ranked.carrier
	}
	if d, ok := end.(stream.Delta); ok {
		return d, nil
	}
	return nil, fmt.Errorf("%w: carrier is %q, role %q: no delta stream of rank %d", ErrState, c.cfg.Carrier, c.cfg.Role, rank)
}

// DeltaTake writes what this end has to say to the other one of a rank's stream into buf, and gives the bytes written; 0 if there
// is nothing to say. ErrSpace: buf has less than stream.MessageBytesMin bytes.
func (c *Core) DeltaTake(rank uint32, buf []byte) (int, error) {
	d, err := c.delta(rank)
	if err != nil {
		return 0, err
	}
	n, err := d.Take(buf)
	if errors.Is(err, stream.ErrSpace) {
		return 0, fmt.Errorf("%w: %w", ErrSpace, err)
	}
	return n, deltaErr(err)
}

// DeltaPut hands in a message that the other end's DeltaTake has given; it is not kept after the call. ErrFull: the step is behind,
// put it again or drop it. ErrStale: it is of a rank or host that was started again.
func (c *Core) DeltaPut(rank uint32, msg []byte) error {
	d, err := c.delta(rank)
	if err != nil {
		return err
	}
	return deltaErr(d.Put(msg))
}

// DeltaLost says that the process of the other end is gone: on the host context that of a rank, on a rank context that of the host.
// With this carrier only the engine can know.
func (c *Core) DeltaLost(rank uint32) error {
	d, err := c.delta(rank)
	if err != nil {
		return err
	}
	d.Lose()
	c.Wake()
	return nil
}

// ErrSpace is a buffer of the caller's that is too small.
var ErrSpace = errors.New("buffer too small") // KVL_ERR_SPACE

func deltaErr(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, stream.ErrTaken):
		return fmt.Errorf("%w: %w", ErrStale, err)
	case errors.Is(err, stream.ErrClosed):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	case errors.Is(err, stream.ErrSpace): // of Put: the step is behind
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return fmt.Errorf("%w: %w", ErrInvalid, err)
}
