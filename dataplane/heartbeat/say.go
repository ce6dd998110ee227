package heartbeat

import (
	"github.com/kvlease/kvlease/dataplane/clock"
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

// hushBreak notes that the connection to an engine broke. One that is closed, sleeps or has died is told of as that alone, so the word of its
// death wire has a while to come.
func (t *Tracker) hushBreak(i uint32, now clock.Instant) {
	if t.hush.At(i) == clock.Never { // else it broke again before it was heard
		t.hush.Set(i, now.Add(t.cfg.WordWait))
	}
	if t.cfg.WordWait == 0 || !t.engines[i].facts.native {
		t.sayBreak(i)
	}
}

// sayBreak says that a connection broke, if that waits to be said, and that it has been made anew, if it has.
func (t *Tracker) sayBreak(i uint32) {
	if t.hush.At(i) == clock.Never {
		return
	}
	t.hush.Set(i, clock.Never)
	e := &t.engines[i]
	t.sayEngine(log.EngineDown, e, uint64(e.requests), 0)
	if e.state == Connected {
		t.sayEngine(log.EngineUp, e, uint64(e.took), 0)
	}
}

// sayBreaks says of which breaks no word has come in time.
func (t *Tracker) sayBreaks(now clock.Instant) {
	for range newsStepMax { // the rest is said by the next step
		i, at := t.hush.First()
		if now.Before(at) {
			return
		}
		t.sayBreak(i)
	}
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
