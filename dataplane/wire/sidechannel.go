package wire

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/kvlease/kvlease/dataplane/clock"
)

// Frames of the handshake's side channel: one request frame, and two reply frames (payload, stamp).

const (
	getMeta     = "get_meta_msg"
	payloadHash = "compatibility_hash"
	payloadMeta = "agent_metadata_bytes"
)

// AppendRequest asks for the metadata of one rank: [bin get_meta_msg, pp rank, transfer rank].
func AppendRequest(dst []byte, ppRank, rank uint32) []byte {
	dst = packBin(packArray(dst, 3), []byte(getMeta))
	return packUint(packUint(dst, uint64(ppRank)), uint64(rank))
}

// ParseRequest reads a request frame.
func ParseRequest(msg []byte) (ppRank, rank uint32, err error) {
	if len(msg) > RequestMax {
		return 0, 0, fmt.Errorf("handshake request of %d bytes: %w", len(msg), ErrTooLong)
	}
	p := pack{b: msg}
	if n := p.array(3); p.err == nil && n != 3 {
		p.fail(ErrValue)
	}
	if what := p.bin(); p.err == nil && string(what) != getMeta {
		p.fail(ErrValue)
	}
	ppRank, rank = uint32(p.uint(math.MaxUint32)), uint32(p.uint(math.MaxUint32))
	if err := p.end(); err != nil {
		return 0, 0, fmt.Errorf("handshake request: %w", err)
	}
	return ppRank, rank, nil
}

// AppendPayload makes the first reply frame around a metadata map.
func AppendPayload(dst []byte, hash string, metadata []byte) []byte {
	dst = packStr(packStr(packMap(dst, 2), payloadHash), hash)
	return packBin(packStr(dst, payloadMeta), metadata)
}

// ParsePayload reads the first reply frame. metadata lies in msg. Unknown keys are skipped.
func ParsePayload(msg []byte) (hash string, metadata []byte, err error) {
	if len(msg) > HandshakeMax {
		return "", nil, fmt.Errorf("handshake payload of %d bytes: %w", len(msg), ErrTooLong)
	}
	names := [...]string{payloadHash, payloadMeta}
	p := pack{b: msg}
	var seen [2]bool
	for n := p.mapLen(HandshakeMax); n > 0; n-- {
		key := lookup(&p, names[:])
		switch {
		case key < 0:
			p.skip(1)
		case seen[key]:
			p.fail(ErrDuplicate)
		case key == 0:
			hash = string(p.str(StringMax))
		case key == 1:
			metadata = p.bin()
		}
		if p.err != nil {
			where := "frame"
			if key >= 0 {
				where = "key " + names[key]
			}
			return "", nil, fmt.Errorf("handshake payload %s: %w", where, p.err)
		}
		if key >= 0 {
			seen[key] = true
		}
	}
	if err := p.end(); err != nil {
		return "", nil, fmt.Errorf("handshake payload: %w", err)
	}
	for i, s := range seen {
		if !s {
			return "", nil, fmt.Errorf("handshake payload key %s: %w", names[i], ErrMissing)
		}
	}
	return hash, metadata, nil
}

// AppendStamp makes the second reply frame: the server's clock in seconds, as a float64 of msgpack.
func AppendStamp(dst []byte, now clock.RemoteInstant) []byte {
	return binary.BigEndian.AppendUint64(append(dst, 0xcb), math.Float64bits(float64(now)/1e9))
}

// ParseStamp reads the second reply frame. A float64 of seconds is exact to better than a microsecond for 50 years.
func ParseStamp(msg []byte) (clock.RemoteInstant, error) {
	const stampLen = 9
	p := pack{b: msg}
	if c := p.byte(); p.err == nil && c != 0xcb {
		p.fail(ErrType)
	}
	v := p.be(stampLen - 1)
	if err := p.end(); err != nil {
		return 0, fmt.Errorf("handshake stamp: %w", err)
	}
	f := math.Float64frombits(v)
	if !(f >= 0 && f < math.MaxInt64/1e9) { // NaN, too
		return 0, fmt.Errorf("handshake stamp %v: %w", f, ErrRange)
	}
	return clock.RemoteInstant(f * 1e9), nil
}
