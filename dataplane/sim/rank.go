package sim

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/deathwire"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// enginesMax is how many engines a context knows at once.
const enginesMax = 16

// rankCtx is a context with an agent: of role rank, or of role engine, which is its own host. It is put together as dataplane/core
// does it, without descriptors and goroutines.
type rankCtx struct {
	steps
	life *life
	n    uint32

	mem     *record.Memory
	epoch   uint64
	secret  [2]uint64
	base    uint64
	leases  *lease.Table
	tracker *heartbeat.Tracker
	reads   *read.Machine
	plane   *dataplane.Plane
	link    *dataplane.Link // nil: role engine
	carrier stream.Carrier  // likewise
	agent   *simnet.Agent   // of the present era; nil: no memory is registered
	tap     *tap
	cache   *cache
	sites   *trace.Sites

	blob     []byte // of the agent
	ownMap   []byte // our own handshake map
	told     record.Era
	in       uint64 // the era in which we registered
	spent    uint64 // the last that is over here
	unheard  bool   // memory came and went before any was told
	mapDue   bool
	mapped   bool // a map of it was ever made for its host
	agents   int
	poisoned bool
	brokeAt  clock.Instant // true time of that
	view     *ledger       // what the checker knows of this rank's leases
	lanes    [2]lane
}

// now is this context's clock.
func (r *rankCtx) now() clock.Instant {
	t := r.life.place.local(r.w.now)
	if r.link != nil {
		t = t.Add(r.life.place.spec.Ranks)
	}
	return t
}

func (r *rankCtx) who() string { return r.life.place.spec.ID }

// postBudget leaves 16 µs for descriptors, since a part costs 20 itself: a few of 1 to 8 µs (Engine.Posting).
const postBudget = 36 * time.Microsecond

// readConfig sizes the machine: small, since hundreds of them are made.
func (l *life) readConfig() read.Config {
	p := l.place
	c := read.Config{
		ReadsMax: 48, SourcesMax: 8, PartsMax: 4, RunsMax: 4096, PeersMax: 64, RowsMax: 128, RowsPeer: 64, DescsStepMax: 8,
		ReadTimeout: 4 * p.lease(), QuarantineErrorWait: max(p.lease(), quarantineLeast), FenceSpin: 1, FenceSpinFast: 1,
	}
	if p.spec.ReadTimeout > 0 {
		c.ReadTimeout = p.spec.ReadTimeout
	}
	if p.spec.Posting > 0 {
		c.PostBudget = postBudget
	}
	return c
}

// buildRank makes a context of rank n; carrier is nil for role engine.
func (l *life) buildRank(n uint32, carrier stream.Carrier) (*rankCtx, error) {
	p := l.place
	events, producers := 1<<12, 0
	if carrier == nil {
		events, producers = 1<<14, 1
	}
	r := &rankCtx{
		life: l, n: n, carrier: carrier, mem: memory(p.slots(), producers, events, true), cache: newCache(p, n),
		sites: l.w.sites(),
	}
	r.beginEra(l.era, l.base(n, l.eras))
	r.mem.Control.DurationNs = uint64(p.lease())
	r.tap = &tap{r: r}
	if err := r.newAgent(r.epoch); err != nil {
		return nil, err
	}
	rc := l.readConfig()
	rc.Sites = r.sites
	r.mem.Landing = words(read.LandingBytes(rc))
	header, rows := record.Board(r.mem.Board)
	lc := l.leaseConfig()
	lc.Sites, lc.TraceSample = r.sites, 1
	if carrier != nil {
		lc.ExpectMax = -1 // the host cancels expectations
	}
	var err error
	r.leases, err = lease.New(lc, lease.Memory{Control: r.mem.Control, Slots: r.mem.Slots, Header: header, Rows: rows}, r.secret, r.base, r.epoch)
	if err != nil {
		return nil, err
	}
	if r.reads, err = read.New(rc, r.tap, r.mem.Landing, nil); err != nil {
		return nil, err
	}
	out, err := dataplane.NewEvents(r.mem.Events, nil)
	if err != nil {
		return nil, err
	}
	var sink heartbeat.Events = out
	if carrier != nil {
		r.link = dataplane.NewLink(dataplane.LinkConfig{Rank: n, Engines: enginesMax, MapMax: 1 << 14, Era: r.eraTold}, r.mem, carrier)
		sink = r.link
	}
	r.tracker, err = heartbeat.New(heartbeat.Config{
		Self:  heartbeat.Identity{EngineHash: wire.EngineHash([]byte(l.id)), Epoch: r.epoch, Rank: n},
		Shape: p.shape(), KVHeads: headsN, Duration: p.lease(), Tracks: p.slots(), Engines: enginesMax, Links: enginesMax * 8, SourcesMax: 8,
		Owed: 64, RunsMax: 4096, RowStates: 256, LongIDs: 64, ReadTimeout: rc.ReadTimeout, Nonce: r.nonce, Seed: r.epoch,
		Sites: r.sites,
	}, r.tap, r.reads, r.mem.Tracks, r.mem.Control, sink)
	if err != nil {
		return nil, err
	}
	pc := dataplane.Config{RecordsStepMax: 1 << 16, NotifsStepMax: p.spec.notifsMax(), ParseMax: 1 << 16, StockPeers: !p.spec.StockOff,
		Engine: wire.EngineHash([]byte(l.id)), Rank: n, Sites: r.sites}
	if carrier != nil {
		r.plane, err = dataplane.NewRank(pc, r.mem, r.tap, r.leases, r.tracker, r.reads, out, r.link)
	} else {
		r.plane, err = dataplane.New(pc, r.mem, r.tap, r.leases, r.tracker, r.reads, out)
		r.plane.SetWires(l.side)
	}
	if err != nil {
		return nil, err
	}
	r.view = newLedger(r)
	r.steps.init(l, int(n), r.turn, r.nextDue)
	if carrier == nil {
		r.rank = 0
	}
	return r, nil
}

// leaseConfig is the configuration of a rank's table.
func (l *life) leaseConfig() lease.Config {
	p := l.place
	c := lease.Config{
		Duration: p.lease(), Extension: p.lease() * 2 / 3, Interval: p.lease() / 6, Settle: settleWait, StockLinger: p.lease() * 2 / 3,
		ExpectMax: p.spec.ExpectMax, FixedTTL: p.spec.BlocksTTL, AllPeersCheck: p.spec.AllPeersCheck, StockPeers: !p.spec.StockOff,
		Readers: 256, LongIDs: 64, Seed: l.era.epoch,
	}
	switch {
	case p.spec.StockLinger < 0:
		c.StockLinger = 0
	case p.spec.StockLinger > 0:
		c.StockLinger = p.spec.StockLinger
	}
	return c
}

// nonce is that of our death wire to an owner.
func (r *rankCtx) nonce(owner string) (n [16]byte) {
	if r.life.place.spec.WireGrace < 0 {
		return n
	}
	return deathwire.Nonce(r.secret, owner)
}

// newAgent makes the agent of an era.
func (r *rankCtx) newAgent(epoch uint64) error {
	name := fmt.Sprintf("%s.%d.%016x", r.life.id, r.n, epoch)
	a, err := r.life.w.net.Agent(name, simnet.AgentConfig{ReadsMax: int(r.life.place.spec.readsMax())})
	if err != nil {
		return err
	}
	r.life.w.agents[name] = &agentOf{place: r.life.place, rank: int(r.n), ctx: r}
	r.agent, r.tap.Transport = a, a
	r.agents++
	a.OnArrival(func() { r.wake() })
	if r.stopped > 0 {
		r.life.w.net.Stop(name)
	}
	for _, o := range r.life.w.places {
		if r.life.w.cut(r.life.place, o) {
			for _, other := range o.agentNames() {
				r.life.w.net.Partition(name, other, true)
			}
		}
	}
	return nil
}

// openEngine makes an engine of one context.
func (l *life) openEngine() error {
	r, err := l.buildRank(0, nil)
	if err != nil {
		return err
	}
	l.ranks = []*rankCtx{r}
	if l.app.host, err = host.New(r.mem, r.wake); err != nil {
		return err
	}
	l.app.host.Trace(r.sites)
	r.mem.Control.Asleep = record.Listens // each submission wakes it
	l.side.begin()
	return r.register()
}

// turn is one step of the context.
func (r *rankCtx) turn() {
	if r.poisoned {
		if r.link != nil {
			r.link.Poisoned()
			r.flushDelta()
		}
		r.settleReads()
		if r.link == nil {
			r.life.app.poll()
		}
		return
	}
	if r.stepSafely() && r.link == nil {
		r.life.app.poll()
	}
	if r.link != nil {
		r.flushDelta()
		if r.life.host != nil && r.life.host.pending() {
			r.life.host.wake()
		}
	}
}

// stepSafely runs the plane; a panic poisons the context.
func (r *rankCtx) stepSafely() (ok bool) {
	defer func() {
		if what := recover(); what != nil {
			r.w.broke(Broken, r.who(), "", "rank %d: panic in a step: %v\n%s", r.n, what, debug.Stack())
			r.poison()
		}
	}()
	now := r.now()
	if r.link == nil {
		r.life.side.step(now)
	}
	r.plane.Step(now)
	r.view.look(now)
	if r.link == nil {
		return true
	}
	if r.mem.Control.Poisoned != 0 { // the host said so
		r.poisoned, r.brokeAt = true, r.w.now
		return true
	}
	if r.mapDue {
		r.mapDue = false
		r.ownMap, r.mapped = wire.AppendHandshake(nil, r.describe()), true
		r.link.SetMap(r.ownMap)
		r.wake()
	}
	r.loadMaps()
	return true
}

// loadMaps is what a rank's loader does off the step.
func (r *rankCtx) loadMaps() {
	for {
		select {
		case m := <-r.link.Maps():
			_ = r.link.Load(m) // an engine that is gone meanwhile refuses it
			r.wake()
		default:
			return
		}
	}
}

// poison is what core.failSafe does when a step has panicked.
func (r *rankCtx) poison() {
	if r.poisoned {
		return
	}
	r.poisoned, r.brokeAt = true, r.w.now
	r.leases.FenceAll()
	r.mem.Control.PoisonNs = uint64(r.now())
	atomic.StoreUint32(&r.mem.Control.Poisoned, 1)
	r.plane.Flush()
	if r.link != nil {
		r.link.Poisoned()
	}
	r.view.poisoned()
	r.wake()
}

// settleReads follows the transfers of a broken context to their ends, as core does when it is closed.
func (r *rankCtx) settleReads() {
	r.reads.Close(r.now())
	r.reads.Step(r.now())
}

// kill ends the process without a word.
func (r *rankCtx) kill() {
	if r.steps.gone {
		return
	}
	r.end()
	if r.agent != nil {
		r.w.net.Kill(r.agent.Agent())
	}
}

// nextDue is when a step has something to do without anything new arriving.
func (r *rankCtx) nextDue() clock.Instant {
	if r.poisoned {
		if r.link == nil {
			return r.w.now.Add(r.life.place.lease() / 16)
		}
		return r.w.now.Add(r.life.place.lease() / 4)
	}
	now := r.now()
	switch {
	case r.plane.Pending(), r.reads.NeedsStep(), r.leases.Ending() > 0:
		return r.w.now.Add(1)
	case r.link != nil && r.carrier.Pending():
		return r.w.now.Add(1)
	}
	due := min(r.tracker.NextDue(now), r.leases.NextDue(now))
	if due == clock.Never {
		return due
	}
	if r.link != nil {
		due = due.Add(-r.life.place.spec.Ranks)
	}
	return r.life.place.truly(due)
}
