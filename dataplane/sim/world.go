package sim

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/trace"
)

// World is a run in progress.
//
// Threads: one. Runs on several threads share nothing but the names under which contexts of a process meet.
type World struct {
	s     *Schedule
	o     Options
	net   *simnet.Net
	now   clock.Instant // true time
	queue timers

	places   []*place
	byID     map[string]*place
	agents   map[string]*agentOf // by agent name
	grants   map[string]*grant   // the latest of each name
	requests map[string]*request // the latest of each engine and name
	handed   int                 // transfer parameters made
	junk     uint64
	run      uint64
	contexts uint64            // made so far
	quiet    bool              // faults are over
	over     bool              // Options.Stop has said so
	cuts     map[[2]string]int // partitions in force between places
	raw      map[string]*simnet.Agent
	fates    []*fate
	readFate []*readFate

	res Result
}

// agentOf says whose agent a name is.
type agentOf struct {
	place *place
	rank  int
	ctx   *rankCtx // nil: of a stock engine, or of messages made by hand
}

// runs keeps the names of carriers of two runs of one process apart.
var runs atomic.Uint64

// timers is a heap of what is to be done, in order of time and then of having been asked for.
type timers struct {
	list []timer
	seq  uint64
}

type timer struct {
	at  clock.Instant
	seq uint64
	do  func()
}

func (t *timer) before(o *timer) bool { return t.at < o.at || t.at == o.at && t.seq < o.seq }

func (q *timers) push(at clock.Instant, do func()) {
	q.seq++
	q.list = append(q.list, timer{at, q.seq, do})
	l := q.list
	for i := len(l) - 1; i > 0; {
		p := (i - 1) / 2
		if !l[i].before(&l[p]) {
			return
		}
		l[i], l[p] = l[p], l[i]
		i = p
	}
}

func (q *timers) pop() timer {
	l := q.list
	first := l[0]
	n := len(l) - 1
	l[0], l[n] = l[n], timer{}
	l = l[:n]
	q.list = l
	for i := 0; ; {
		c := 2*i + 1
		if c >= n {
			return first
		}
		if c+1 < n && l[c+1].before(&l[c]) {
			c++
		}
		if !l[c].before(&l[i]) {
			return first
		}
		l[i], l[c] = l[c], l[i]
		i = c
	}
}

func newWorld(s *Schedule, o Options) (*World, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	w := &World{
		s: s, o: o, now: startInstant, byID: map[string]*place{}, agents: map[string]*agentOf{},
		grants: map[string]*grant{}, requests: map[string]*request{}, cuts: map[[2]string]int{}, run: runs.Add(1),
		net: simnet.New(simnet.Config{Seed: s.Seed, Start: startInstant, Link: linkOf(&s.Link)}),
	}
	w.net.Intercept(w.fateOf)
	w.net.InterceptReads(w.fateOfRead)
	w.net.OnWrite(w.written)
	if o.Log {
		w.net.Watch(w.heardOfNet)
	}
	for i := range s.Engines {
		p := newPlace(w, &s.Engines[i])
		w.places = append(w.places, p)
		w.byID[p.spec.ID] = p
	}
	for _, p := range w.places {
		if err := p.start(p.spec.ID); err != nil {
			return w, err
		}
	}
	for _, p := range w.places {
		for _, k := range p.spec.Known {
			p.life.know(w.byID[k])
		}
	}
	return w, nil
}

// close lets go of what is not Go memory.
func (w *World) close() {
	for _, p := range w.places {
		if p.life != nil {
			p.life.free()
		}
		for _, l := range p.past {
			l.free()
		}
	}
}

// at asks for something to be done.
func (w *World) at(t clock.Instant, do func()) { w.queue.push(max(t, w.now), do) }

// after is at, from now on.
func (w *World) after(d time.Duration, do func()) { w.at(w.now.Add(d), do) }

// runUntil carries out what is due until end, in order of time: what the network does first.
func (w *World) runUntil(end clock.Instant) {
	for !w.stopped() {
		t := w.net.NextEvent()
		if len(w.queue.list) > 0 {
			t = min(t, w.queue.list[0].at)
		}
		if t > end {
			break
		}
		w.now = max(t, w.now)
		w.net.Advance(w.now)
		for len(w.queue.list) > 0 && w.queue.list[0].at <= w.now && !w.over {
			e := w.queue.pop()
			e.do()
			w.net.Advance(w.now) // what costs no time
		}
	}
	w.now = max(end, w.now)
	w.net.Advance(w.now)
}

// stopped reports that the run was called off.
func (w *World) stopped() bool {
	w.over = w.over || w.o.Stop != nil && w.o.Stop()
	return w.over
}

// Time is the true time since the start.
func (w *World) Time() time.Duration { return w.now.Sub(startInstant) }

// hash gives a number that only these things decide: chance, wherever something is left open.
func (w *World) hash(what ...any) uint64 {
	h := w.s.Seed ^ 0x9e3779b97f4a7c15
	for _, v := range what {
		switch v := v.(type) {
		case string:
			for i := range len(v) {
				h = mix64(h ^ uint64(v[i]))
			}
			h = mix64(h ^ 0xff51)
		case int:
			h = mix64(h ^ uint64(v))
		case uint32:
			h = mix64(h ^ uint64(v))
		case uint64:
			h = mix64(h ^ v)
		case clock.Instant:
			h = mix64(h ^ uint64(v))
		default:
			panic(fmt.Sprintf("hash of a %T", v))
		}
	}
	return h
}

// mix64 is the finalizer of splitmix64.
func mix64(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// within is a span below most that the hash decides.
func within(h uint64, most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	return time.Duration(h % uint64(most))
}

// broke notes a violation.
func (w *World) broke(rule Rule, engine, req, format string, args ...any) {
	v := Violation{Rule: rule, At: w.Time(), Engine: engine, Req: req, What: fmt.Sprintf(format, args...)}
	if len(w.res.Violations) < violationsMax {
		w.res.Violations = append(w.res.Violations, v)
	}
	w.log(Entry{Kind: Broke, Engine: engine, Rank: -1, Req: req, What: fmt.Sprintf("%s: %s", rule, v.What)})
}

func (w *World) log(e Entry) {
	if !w.o.Log {
		return
	}
	e.At = w.Time()
	w.res.Log = append(w.res.Log, e)
}

// say logs something about an engine.
func (w *World) say(kind Kind, engine string, rank int, req, format string, args ...any) {
	if w.o.Log {
		w.log(Entry{Kind: kind, Engine: engine, Rank: rank, Req: req, What: fmt.Sprintf(format, args...)})
	}
}

// heardOfNet logs what the network does.
func (w *World) heardOfNet(e *simnet.Event) {
	from, to := w.agents[e.From], w.agents[e.To]
	if from == nil || to == nil || e.Kind == simnet.EvSent {
		return
	}
	k := map[simnet.EventKind]Kind{
		simnet.EvLost: Vanished, simnet.EvArrived: Arrived, simnet.EvPosted: Posted, simnet.EvLanded: Landed,
		simnet.EvFailed: Landed, simnet.EvBroken: Engines,
	}[e.Kind]
	w.log(Entry{Kind: k, Engine: from.place.spec.ID, Rank: from.rank, Peer: to.place.spec.ID, What: fmt.Sprintf("%v, rank %d, %d bytes", e.Kind, to.rank, e.Bytes)})
}

// linkOf is a link as the network has it.
func linkOf(l *Link) simnet.Link {
	return simnet.Link{
		Delay: l.Delay, Jitter: l.Jitter, Loss: l.Loss, Dup: l.Dup, Reorder: l.Reorder, Spread: l.Spread, ReadDelay: l.ReadDelay,
		DescTime: l.DescTime, ReadFail: l.ReadFail, Late: l.Late, Torn: l.Torn, RDMA: l.RDMA, Rate: l.Rate, Break: l.Break,
	}
}

// sites are those of a new context.
func (w *World) sites() *trace.Sites {
	w.contexts++
	return w.o.Sites.For(w.contexts)
}
