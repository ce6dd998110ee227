package capacity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/internal/due"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/sim/internal/timeheap"
	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// ErrBroken is wrapped by the error of a run in which something happened that may never happen.
var ErrBroken = errors.New("capacity: the run is void")

// start is the time at which a run begins: no clock of an engine shows 0.
const start = clock.Instant(time.Hour)

// standMax is how long nothing may come of a run: longer than any restart, beside twenty terms.
const standMax = 48 * time.Hour

// aliveMax is the most requests that the router keeps.
const aliveMax = 1 << 20

// What happens in a run beside the network and the steps.
type kind uint8

const (
	evArrive    kind = iota // the next request of the load
	evRoute                 // a request that found no P, again
	evPrefilled             // a P has a request's blocks
	evHandover              // the parameters of a request are at the router, which looks for a D
	evAccept                // a D takes a request in
	evDecoded               //
	evCrash                 // an engine
	evRestart               //
	evStall                 //
	evHandshake             // a D hears who a P is
	evReborn                // all D that know a P hear of its new boot
	evTold                  // the death wires of an engine tell its end
	evSample                //
)

type happening struct {
	kind          kind
	engine, other int32
	token         uint64 // of a request; of a crash the epoch
}

// world is one run of one setting.
//
// Threads: one. Everything random is a hash of the seed and of what it is about.
type world struct {
	cfg Config
	set Setting
	now clock.Instant
	net *simnet.Net

	ps   []*prefiller
	ds   []*decoder
	all  []*engine
	next [2]int32 // of the router's round robin

	events timeheap.Heap[clock.Instant, happening]
	wakes  due.Heap // when engines step next
	load   *arrivals
	ahead  entry         // the request that evArrive brings
	over   bool          // all requests have arrived
	moved  clock.Instant // the last arrival, or until when somebody works

	reqs     []request
	freeReqs []int32
	alive    int // requests that have not ended
	arrived  uint64
	ends     [endsN]uint64

	tally
	clockCost time.Duration // what asking the clock takes
	steps     uint64
	broken    error
	params    wire.Params
	groups    [][]uint32
	text      []byte
	id        []byte
	evs       [64]record.Event
	runs      [1]record.Run
}

// Run plays a trace with one setting until everything has come to rest.
//
// Memory: what is alive at once, whatever the length of the trace. Errors: ErrConfig, a line of the trace, ErrBroken, ctx's.
func Run(ctx context.Context, cfg Config, set Setting, trace io.Reader) (*Result, error) {
	if err := Check(cfg, []Setting{set}); err != nil {
		return nil, err
	}
	runtime.LockOSThread() // the clock of the steps is that of the thread
	defer runtime.UnlockOSThread()
	began := time.Now()
	w, err := newWorld(cfg, set, trace)
	if err != nil {
		return nil, err
	}
	if err := w.run(ctx); err != nil {
		return nil, err
	}
	return w.result(time.Since(began)), nil
}

func newWorld(cfg Config, set Setting, trace io.Reader) (*world, error) {
	w := &world{
		cfg: cfg, set: set, now: start, load: newArrivals(trace, &cfg), wakes: due.New(cfg.P + cfg.D),
		net: simnet.New(simnet.Config{Seed: cfg.Seed, Start: start, Link: simnet.Link{Delay: cfg.Delay, RDMA: true}}),
	}
	w.groups, w.clockCost = [][]uint32{{0}}, clockCost()
	for i := range cfg.P + cfg.D {
		e := &engine{w: w, index: int32(i), phase: int64(draw(cfg.Seed, drawPhase, uint64(i)) % uint64(cfg.Pass))}
		var err error
		if i < cfg.P {
			e.id = fmt.Sprintf("p%d", i)
			w.ps = append(w.ps, newPrefiller(e))
			err = e.boot(w.owner())
		} else {
			e.id = fmt.Sprintf("d%d", i-cfg.P)
			w.ds = append(w.ds, newDecoder(e))
			err = e.boot(w.reader())
		}
		if err != nil {
			return nil, fmt.Errorf("engine %s: %w", e.id, err)
		}
		w.all = append(w.all, e)
		w.nextCrash(e)
		w.nextStall(e)
	}
	for _, p := range w.ps {
		p.begin()
	}
	w.at(start, happening{kind: evSample})
	return w, w.nextArrival()
}

// at makes something happen at a time.
func (w *world) at(t clock.Instant, h happening) { w.events.Push(t, h) }

// work is at for the end of somebody's work.
func (w *world) work(seconds float64, h happening) {
	t := w.now.Add(spanOf(seconds))
	w.moved = max(w.moved, t)
	w.at(t, h)
}

// wake lets an engine step in the next pass.
func (w *world) wake(e *engine) {
	if e.alive {
		w.wakeBy(e, w.now)
	}
}

// wakeBy lets an engine step in the first pass from t on, if it does not step sooner.
func (w *world) wakeBy(e *engine, t clock.Instant) {
	i := uint32(e.index)
	w.wakes.Set(i, min(e.align(t), w.wakes.At(i)))
}

// nextArrival puts the next request of the load into the queue of what happens.
func (w *world) nextArrival() error {
	e, err := w.load.next()
	if errors.Is(err, io.EOF) {
		if w.arrived == 0 {
			return fmt.Errorf("%w: the trace holds no request", ErrConfig)
		}
		w.over, w.moved = true, max(w.moved, w.now)
		return nil
	}
	if err != nil {
		return err
	}
	w.ahead = e
	w.at(start.Add(e.at), happening{kind: evArrive})
	return nil
}

// run goes on until everything has come to rest.
func (w *world) run(ctx context.Context) error {
	for n := 0; !w.rests(); n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.turn(); err != nil {
			return err
		}
	}
	if w.broken == nil {
		w.checkRest()
	}
	for _, e := range w.all {
		if e.alive {
			w.takeCounters(e)
		}
	}
	return w.broken
}

// turn goes to the next time at which something is due: the network first, then what happens beside it, then steps.
func (w *world) turn() error {
	t := w.net.NextEvent()
	if w.events.Len() > 0 {
		t = min(t, w.events.Top().At)
	}
	_, step := w.wakes.First()
	t = min(t, step)
	if t == clock.Never || w.over && t > w.moved.Add(standMax+20*w.set.Term) {
		w.violated("everything comes to its end", "", "%d requests and %d leases are left, and nothing comes of it", w.alive, w.held.n)
		return w.broken
	}
	w.now = max(w.now, t) // before the network wakes engines
	w.net.Advance(w.now)
	for w.broken == nil && w.events.Len() > 0 && w.events.Top().At <= t {
		if err := w.happen(w.events.Pop().What); err != nil {
			return err
		}
	}
	for w.broken == nil {
		i, at := w.wakes.First()
		if at > t {
			break
		}
		w.wakes.Set(i, clock.Never)
		w.step(w.all[i])
	}
	return w.broken
}

// rests reports that nothing is left to be told.
func (w *world) rests() bool {
	return w.broken != nil || w.over && w.alive == 0 && w.held.n == 0 && w.tracked() == 0
}

func (w *world) happen(h happening) error {
	switch h.kind {
	case evArrive:
		return w.arrive()
	case evSample:
		w.sample()
	case evCrash:
		w.crash(w.all[h.engine])
	case evRestart:
		return w.restart(w.all[h.engine])
	case evStall:
		w.stall(w.all[h.engine])
	case evTold:
		w.told(w.all[h.engine], h.token)
	case evHandshake:
		w.ds[h.engine-int32(w.cfg.P)].meets(w.ps[h.other], h.token)
	case evReborn:
		for _, d := range w.ds {
			d.meets(w.ps[h.engine], d.epoch)
		}
	case evPrefilled:
		if p := w.ps[h.engine]; p.alive {
			p.prefilled(h.token)
		}
	default:
		i := w.ofToken(h.token)
		if i == none {
			return nil // the attempt has ended
		}
		switch h.kind {
		case evRoute:
			w.route(i)
		case evHandover:
			w.handover(i)
		case evAccept:
			w.ds[w.reqs[i].d].accept(i)
		case evDecoded:
			w.ds[w.reqs[i].d].decoded(i)
		}
	}
	return nil
}

// arrive takes the next request of the load.
func (w *world) arrive() error {
	e := w.ahead
	w.arrived++
	i := w.take()
	r := &w.reqs[i]
	r.input, r.output, r.p, r.d = int32(e.input), int32(e.output), none, none
	r.blocks = int32((e.input + w.cfg.BlockTokens - 1) / w.cfg.BlockTokens)
	r.arrived, r.state = w.now, atRouter
	w.alive++
	if int(r.blocks) > w.cfg.CacheBlocks || w.alive > aliveMax {
		w.finish(i, turnedAway)
	} else {
		w.route(i)
	}
	return w.nextArrival()
}

// step runs one step of an engine, and what its host does between two steps.
func (w *world) step(e *engine) {
	if w.now < e.stalledTill {
		w.wakes.Set(uint32(e.index), e.align(e.stalledTill))
		return
	}
	e.last = w.now
	if w.steps++; mix(w.steps)%clockEvery != 0 {
		e.plane.Step(w.now)
		w.count(e, -1)
	} else {
		began := threadTime()
		e.plane.Step(w.now)
		w.count(e, max(threadTime()-began-w.clockCost, 0))
	}
	for {
		n := e.host.Poll(w.evs[:], w.now)
		for k := range n {
			e.poll(&w.evs[k])
		}
		if n < len(w.evs) {
			break
		}
	}
	if int(e.index) < w.cfg.P {
		w.ps[e.index].begin()
	} else {
		w.ds[int(e.index)-w.cfg.P].begin()
	}
	if due := e.due(); due != clock.Never {
		w.wakeBy(e, due)
	}
}

// violated notes the first thing that may never happen: rule, engine, what.
func (w *world) violated(rule, engine, format string, args ...any) {
	if w.broken != nil {
		return
	}
	if engine != "" {
		engine += ": "
	}
	w.broken = fmt.Errorf("%w: %s, seed %d, %v after the start: %s%s; the rule: %s",
		ErrBroken, w.set.Name(), w.cfg.Seed, w.now.Sub(start), engine, fmt.Sprintf(format, args...), rule)
}

// tracked counts the requests that trackers still know.
func (w *world) tracked() (n int) {
	for _, d := range w.ds {
		if d.alive {
			n += d.plane.Tracker.Alive()
		}
	}
	return n
}
