package core

import "fmt"

// DeltaTake writes what this end has to say to the other one of a rank's stream into buf, and gives the bytes written; 0 if there
// is nothing to say.
func (c *Core) DeltaTake(rank uint32, buf []byte) (int, error) {
	return 0, fmt.Errorf("%w: carrier is %q, role %q: no delta stream of rank %d", ErrState, c.cfg.Carrier, c.cfg.Role, rank)
}

// DeltaPut hands in a message that the other end's DeltaTake has given; it is not kept after the call.
func (c *Core) DeltaPut(rank uint32, msg []byte) error {
	return fmt.Errorf("%w: carrier is %q, role %q: no delta stream of rank %d", ErrState, c.cfg.Carrier, c.cfg.Role, rank)
}
