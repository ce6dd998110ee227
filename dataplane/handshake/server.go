package handshake

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"sync"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/dataplane/zmtp"
)

// ServerConfig says how to serve.
type ServerConfig struct {
	// Limits bound what peers can cost; zero fields have zmtp's defaults.
	Limits zmtp.Limits
	// TP and PP are the engine's sizes: a rank below both that is not set is one whose memory is not registered, all others are none of
	// its. 0: it has those that are set.
	TP, PP uint32
	// Monotonic reads this host's CLOCK_MONOTONIC, the clock that vLLM's stamps show. Required.
	Monotonic func() clock.RemoteInstant
	// Other and Report are zmtp.Config's: connections that do not speak ZMTP, and why connections were ended.
	Other  func(ctx context.Context, c net.Conn)
	Report func(error)
}

// Payload is what one rank tells its readers.
type Payload struct {
	Hash     string // compatibility_hash
	Metadata []byte // the metadata map, msgpack
}

// Server answers handshakes for the ranks of one engine, as vLLM's listener does. What would end that listener (a request
// that means nothing, a rank that does not exist) only drops the connection here.
//
// Threads: any.
// Memory: one encoded payload per rank, at most wire.HandshakeMax bytes each, and what zmtp.Limits allow.
type Server struct {
	zmtp      *zmtp.Server
	monotonic func() clock.RemoteInstant
	tp, pp    uint32

	mu         sync.Mutex                      // held by writers
	payloads   atomic.Pointer[map[Rank][]byte] // encoded; never changed once stored, so that a reply sees one state
	generation atomic.Uint64

	answered, unexpected, malformed, unregistered, unknown atomic.Uint64
}

// Serve opens addr (host:port, IPv6 in brackets, port 0 for any) and serves until Close. Until Set no rank has an answer.
func Serve(addr string, cfg ServerConfig) (*Server, error) {
	if cfg.Monotonic == nil {
		return nil, fmt.Errorf("%w: server without a clock", ErrInvalid)
	}
	s := &Server{monotonic: cfg.Monotonic, tp: cfg.TP, pp: cfg.PP}
	s.payloads.Store(&map[Rank][]byte{})
	z, err := zmtp.Listen(addr, zmtp.Config{Limits: cfg.Limits, Handle: s.handle, Other: cfg.Other, Report: cfg.Report})
	if err != nil {
		return nil, fmt.Errorf("handshake server: %w", err)
	}
	s.zmtp = z
	return s, nil
}

// Set publishes the payload of a rank, or replaces it: a reply has the old one or the new one, whole. The metadata is
// copied.
func (s *Server) Set(r Rank, p Payload) error {
	encoded := wire.AppendPayload(nil, p.Hash, p.Metadata)
	if len(encoded) > wire.HandshakeMax || len(p.Hash) > wire.StringMax {
		return fmt.Errorf("%w: payload of %s has %d bytes, the hash %d of them; at most %d and %d",
			ErrInvalid, r, len(encoded), len(p.Hash), wire.HandshakeMax, wire.StringMax)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := *s.payloads.Load()
	old, had := now[r]
	if !had && len(now) >= RanksMax {
		return fmt.Errorf("%w: %d ranks are served", ErrFull, len(now))
	}
	if had && bytes.Equal(old, encoded) {
		return nil
	}
	next := maps.Clone(now)
	next[r] = encoded
	s.payloads.Store(&next)
	s.generation.Add(1)
	return nil
}

// Withdraw takes all payloads back: from here on no rank has an answer, until it is set again.
func (s *Server) Withdraw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.payloads.Store(&map[Rank][]byte{})
}

// Generation is vLLM's registration generation: how many payloads have been set that differed from the one before.
func (s *Server) Generation() uint64 { return s.generation.Load() }

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.zmtp.Addr() }

// Close ends the listener and every connection, and returns when all goroutines have ended.
func (s *Server) Close() error { return s.zmtp.Close() }

// handle answers one request. An error drops the connection, counted; the peer may connect anew.
func (s *Server) handle(_ context.Context, request [][]byte) (zmtp.Reply, error) {
	if len(request) != 1 {
		s.malformed.Add(1)
		return zmtp.Reply{}, fmt.Errorf("handshake request of %d frames, want 1", len(request))
	}
	r, expected, err := parseRequest(request[0])
	if err != nil {
		s.malformed.Add(1)
		return zmtp.Reply{}, err
	}
	if !expected {
		s.unexpected.Add(1)
	}
	payload, ok := (*s.payloads.Load())[r]
	switch {
	case ok:
	case r.Transfer < s.tp && r.PP < s.pp:
		s.unregistered.Add(1)
		return zmtp.Reply{}, fmt.Errorf("handshake request for %s, which has no memory registered: %w", r, zmtp.ErrDeclined)
	default:
		s.unknown.Add(1)
		return zmtp.Reply{}, fmt.Errorf("handshake request for %s, which this engine does not have: %w", r, zmtp.ErrDeclined)
	}
	s.answered.Add(1)
	return zmtp.Reply{Frames: [][]byte{payload}, Stamp: func(dst []byte) []byte {
		return wire.AppendStamp(dst, s.monotonic())
	}}, nil
}

// ServerStats counts since Serve what became of requests.
type ServerStats struct {
	Ranks        int    // served now
	Generation   uint64 // as Generation
	Answered     uint64 // requests, those with an unexpected first element among them
	Unexpected   uint64 // requests whose first element is not get_meta_msg; answered, as vLLM does
	Malformed    uint64 // requests that mean nothing; connection dropped
	Unregistered uint64 // requests for a rank whose memory is not registered, or not any more; connection dropped
	Unknown      uint64 // requests for a rank that the engine does not have; connection dropped
	Wire         zmtp.Stats
}

// Stats reads the counters, each by itself.
func (s *Server) Stats() ServerStats {
	return ServerStats{
		Ranks: len(*s.payloads.Load()), Generation: s.generation.Load(), Answered: s.answered.Load(),
		Unexpected: s.unexpected.Load(), Malformed: s.malformed.Load(), Unregistered: s.unregistered.Load(),
		Unknown: s.unknown.Load(), Wire: s.zmtp.Stats(),
	}
}
