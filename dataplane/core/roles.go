package core

import "fmt"

// RanksMax is the most ranks of an engine: all stages together.
const RanksMax = 64

// Ranks is the number of ranks of this engine, all stages together.
func (c *Config) Ranks() int { return c.TPSize * c.PPSize }

// Rank is which of them this context is: pp_rank x tp_size + tp_rank.
func (c *Config) Rank() int { return c.PPRank*c.TPSize + c.TPRank }

// checkRanks holds the rules between role, sizes and places.
func (c *Config) checkRanks() error {
	switch {
	case c.Ranks() > RanksMax:
		return fmt.Errorf("keys %q and %q: %d x %d ranks, at most %d", "tp_size", "pp_size", c.TPSize, c.PPSize, RanksMax)
	case c.Role == "engine" && c.Ranks() != 1:
		return fmt.Errorf("keys %q and %q: role engine is one rank, this one has %d x %d: open a host context and a rank context for each",
			"tp_size", "pp_size", c.TPSize, c.PPSize)
	case c.Role != "rank" && c.TPRank+c.PPRank > 0:
		return fmt.Errorf("keys %q and %q: only role rank has a place among the ranks", "tp_rank", "pp_rank")
	case c.TPRank >= c.TPSize:
		return fmt.Errorf("keys %q and %q: rank %d of %d", "tp_rank", "tp_size", c.TPRank, c.TPSize)
	case c.PPRank >= c.PPSize:
		return fmt.Errorf("keys %q and %q: stage %d of %d", "pp_rank", "pp_size", c.PPRank, c.PPSize)
	case c.KVHeads > 0 && max(c.KVHeads, c.TPSize)%min(c.KVHeads, c.TPSize) != 0:
		return fmt.Errorf("keys %q and %q: %d heads and %d ranks do not divide each other: no engine could be read from",
			"num_kv_heads", "tp_size", c.KVHeads, c.TPSize)
	case c.Role != "engine" && c.EngineID == "":
		return fmt.Errorf("key %q: a host and its ranks must be given the same one", "engine_id")
	case c.Role == "rank" && c.SideChannelListen:
		return fmt.Errorf("key %q: the host context serves the handshake, not role rank", "side_channel_listen")
	}
	return nil
}
