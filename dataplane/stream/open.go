package stream

import "fmt"

// OpenHost makes a host's ends of one kind. For shm its socket is there when this returns.
func OpenHost(kind string, cfg Config) (*Host, error) {
	cfg.Rank = 0
	if err := cfg.check(); err != nil {
		return nil, err
	}
	switch kind {
	case KindProcess:
		return openProcessHost(cfg)
	case KindShm:
		return openShmHost(cfg)
	case KindDelta:
		return openDeltaHost(cfg)
	}
	return nil, fmt.Errorf("%w: carrier %q", ErrInvalid, kind)
}

// OpenRank makes a rank's end of one kind; for KindDelta it is a Delta. It does not wait for the host: Waiting until that is there.
func OpenRank(kind string, cfg Config) (Carrier, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	switch kind {
	case KindProcess:
		return openProcessRank(cfg)
	case KindShm:
		return openShmRank(cfg)
	case KindDelta:
		return newDelta(cfg, false)
	}
	return nil, fmt.Errorf("%w: carrier %q", ErrInvalid, kind)
}

// checkShape holds what a rank says of itself against its host's.
func checkShape(host *Config, rank, tp, pp uint32) error {
	switch {
	case tp != host.TP || pp != host.PP:
		return fmt.Errorf("%w: host of engine_id %q has tp_size %d and pp_size %d, the rank was given %d and %d",
			ErrInvalid, host.EngineID, host.TP, host.PP, tp, pp)
	case uint64(rank) >= uint64(host.TP)*uint64(host.PP):
		return fmt.Errorf("%w: rank %d of %d", ErrInvalid, rank, host.TP*host.PP)
	}
	return nil
}

func takenError(host *Config, rank uint32) error {
	return fmt.Errorf("%w: rank %d of engine_id %q has been attached to this host before: a rank that was lost comes back only with a new host",
		ErrTaken, rank, host.EngineID)
}
