package heartbeat

import (
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// tracePosted says that a message with heartbeats is handed to the transport: before, since its receiver may be faster than what
// comes after.
func (t *Tracker) tracePosted(e *engine, l *link, native bool, beats int) {
	s := t.cfg.Sites
	if !s.On(trace.BatchPosted) {
		return
	}
	sender, ranks, number := t.cfg.Self.EngineHash, uint64(t.cfg.Self.Rank)<<32, uint64(l.number)
	if !native {
		sender, ranks, number = wire.EngineHash([]byte(t.tr.Agent())), 0, uint64(l.stock+1) // without a copy: nothing keeps or changes it
	}
	s.Fire(trace.BatchPosted, sender, e.hash, ranks|uint64(l.rank), number<<32|uint64(beats))
}

// traceState says that an engine's connection changes its state.
func (t *Tracker) traceState(e *engine, to State) {
	if s := t.cfg.Sites; s.On(trace.HandshakeState) {
		s.Fire(trace.HandshakeState, s.Ctx(), e.hash, trace.Connection+uint64(to), uint64(t.now.Sub(e.since)))
	}
}

// traceReported says how a read has ended.
func (t *Tracker) traceReported(u uint32, status uint8) {
	if s := t.cfg.Sites; s.On(trace.ReadReported) {
		q := &t.requests[u]
		s.Fire(trace.ReadReported, s.Ctx(), uint64(record.NewHandle(u, q.use)), uint64(status), q.value1)
	}
}
