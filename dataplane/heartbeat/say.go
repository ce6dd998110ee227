package heartbeat

import (
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
)

// readKinds are what an outcome is in the log, unless the tracker knows better why (Tracker.why).
var readKinds = [...]log.Kind{
	record.ReadStale: log.ReadStale, record.ReadUnproven: log.ReadUnproven, record.ReadFailed: log.ReadFailed,
	record.ReadTimeout: log.ReadTimeout, record.ReadLost: log.ReadLost, record.ReadCancelled: none8, record.ReadOK: none8,
}

const (
	none8 = log.RecordsLost // no kind of ours
	said  = ^log.Kind(0)    // when the lease was seen to be over
)

// sayEngine says something about an engine.
func (t *Tracker) sayEngine(k log.Kind, e *engine, a, b uint64) {
	t.cfg.Log.Put(k, t.now, log.Entry{Engine: e.id, Hash: e.hash, A: a, B: b})
}

// sayOver says that an engine is no more, and how many requests are lost with it. Whether it fits, and who answers in its place, was
// said by the context that has asked it.
func (t *Tracker) sayOver(e *engine) {
	kind := log.EngineUnusable
	switch e.why {
	case Died:
		kind = log.EngineDead
	case Withdrew:
		kind = log.EngineWithdrawn
	}
	t.cfg.Log.Put(kind, t.now, log.Entry{Engine: e.id, Hash: e.hash, A: uint64(e.requests), Text: e.why.String()})
}

// sayRemote says something about a lease of others.
func (t *Tracker) sayRemote(k log.Kind, r *remote, a, b uint64) {
	if t.cfg.Log == nil {
		return
	}
	e := &t.engines[r.engine]
	t.cfg.Log.Put(k, t.now, log.Entry{Engine: e.id, Hash: e.hash, Request: t.remotes.idOf(r), A: a, B: b})
}

// sayEnd says of a read that did not end well why.
func (t *Tracker) sayEnd(q *request) {
	k := t.why
	if t.why = none8; k == none8 {
		k = readKinds[q.status]
	}
	switch {
	case k == none8 || k == said || t.draining:
	case q.remote == none: // its engine was not known
		t.cfg.Log.Put(log.ReadLost, t.now, log.Entry{})
	default:
		t.sayRemote(k, &t.remotes.all[q.remote], q.value1, q.value0)
	}
}

// sayGone says of a request that is not being read that its lease is over.
func (t *Tracker) sayGone(r *remote) {
	switch {
	case t.asleep || t.draining: // on purpose
	case r.lost:
		t.sayLost(r)
	case r.byClock:
		t.sayRemote(log.LeaseOver, r, 0, 0)
	case !r.unsendable: // that was said when it was tracked
		t.sayRemote(log.LeaseGone, r, 0, 0)
	}
}

// sayLost says of a request that is not being read that its engine is no more, and why.
func (t *Tracker) sayLost(r *remote) {
	if t.cfg.Log == nil {
		return
	}
	e := &t.engines[r.engine]
	t.cfg.Log.Put(log.RequestLost, t.now, log.Entry{Engine: e.id, Hash: e.hash, Request: t.remotes.idOf(r), Text: r.why.String()})
}
