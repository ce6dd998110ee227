package handshake

import (
	"crypto/sha256"
	"fmt"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// expectation is what a reply is held against.
type expectation struct {
	engine string // engine id that was asked for; empty: any
	tp     uint32 // Desc.TP
	hash   string // our own compatibility hash
	ignore bool   // enforce_handshake_compat is off
	check  func(engine uint64, r Rank, h *wire.Handshake) error
	handle uint64
}

// reply is one rank's answer, read.
type reply struct {
	m     Map
	stamp clock.RemoteInstant
	sum   [sha256.Size]byte // of the payload frame
}

// read takes a reply of two frames apart, in vLLM's order: the payload, its hash, the map, who it is, what its blocks are.
// The hash comes before the map, since another version may write another map.
func (x *expectation) read(r Rank, frames [][]byte) (reply, error) {
	if len(frames) != 2 {
		return reply{}, fmt.Errorf("%w: a reply of %d frames, want 2", ErrMetadata, len(frames))
	}
	hash, raw, err := wire.ParsePayload(frames[0])
	if err != nil {
		return reply{}, fmt.Errorf("%w: %w", ErrMetadata, err)
	}
	stamp, err := wire.ParseStamp(frames[1])
	if err != nil {
		return reply{}, fmt.Errorf("%w: %w", ErrMetadata, err)
	}
	// An engine that was opened without a hash has none to compare.
	if !x.ignore && x.hash != "" && hash != x.hash {
		return reply{}, fmt.Errorf("%w: compatibility_hash is %s here and %s there", ErrIncompatible, short(x.hash), short(hash))
	}
	h := new(wire.Handshake)
	if err := wire.ParseHandshake(raw, h); err != nil {
		return reply{}, fmt.Errorf("%w: %w", ErrMetadata, err)
	}
	if x.engine != "" && h.EngineID != x.engine {
		return reply{}, fmt.Errorf("%w: it is %s, not %s", ErrWrongEngine, short(h.EngineID), short(x.engine))
	}
	if h.Native && h.Lease.Rank != r.Transfer && h.Lease.Rank != r.PP*x.tp+r.Transfer {
		return reply{}, fmt.Errorf("%w: asked for rank %d, its map is of rank %d", ErrRanks, r.Transfer, h.Lease.Rank)
	}
	if x.check != nil {
		if err := x.check(x.handle, r, h); err != nil {
			return reply{}, fmt.Errorf("%w: %w", ErrIncompatible, err)
		}
	}
	return reply{m: Map{Rank: r, Hash: hash, Raw: raw, Handshake: h}, stamp: stamp, sum: sha256.Sum256(frames[0])}, nil
}

// short quotes what a peer sent, for an error.
func short(s string) string {
	const most = 80
	if len(s) > most {
		return fmt.Sprintf("%q...", s[:most])
	}
	return fmt.Sprintf("%q", s)
}
