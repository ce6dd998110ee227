// Package group is the plane of a host context: it takes what the engine's producers say, keeps what its ranks must know of it,
// tells it to them over their streams, and makes one event of what they report.
package group

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/internal/list"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/submit"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/trace"
)

// Config of a Group. Zero values take the defaults named; Self and Duration have none.
type Config struct {
	Self      topology.Shape // carriers has one for each rank
	Duration  time.Duration  // first term of a grant that names none
	Extension time.Duration  // what a heartbeat gives; default two thirds of Duration
	FixedTTL  time.Duration  // life of a fixed grant that names none; default 480 s
	ExpectMax time.Duration  // life of an expectation; default ten times Duration
	// ReadTimeout is how long a read of a fixed lease waits for its engine's clock; default 4 x Duration.
	ReadTimeout time.Duration

	RecordsStepMax int  // submission records of a step, and records of each rank; default 65,536
	EventsStepMax  int  // leases and requests whose ends are told in a step; default 4,096
	Engines        int  // remote engines; default 4,096
	LongIDs        int  // ids longer than 96 bytes at once, of leases and of tracked requests each; default 1 % of the slots, at least 64
	RunsMax        int  // runs of reads that not every rank has ended; default 262,144
	MapMax         int  // longest handshake map of a rank of ours, bytes; default 1 MiB
	Between        bool // the carriers go between machines: no time of this one means anything there
	// TransitMax is the longest way of a record to a rank that is believed where Between: the rank counts the time left of a fixed
	// lease from when it hears of it, and a stock owner has no fence that would show a longer one. Default a third of Duration.
	TransitMax time.Duration
	Seed       uint64
	Sites      *trace.Sites // nil: nobody can attach
	Log        *log.Writer  // of the step; nil: nothing is said
}

func (c *Config) setDefaults(mem *record.Memory) error {
	switch {
	case c.Self.Ranks() == 0 || c.Self.Ranks() > stream.RanksMax:
		return fmt.Errorf("group: TP %d x PP %d ranks, want 1 to %d", c.Self.TP, c.Self.PP, stream.RanksMax)
	case c.Duration <= 0:
		return fmt.Errorf("group: lease duration %v, want more than 0", c.Duration)
	case len(mem.Slots) == 0 || len(mem.Tracks) == 0:
		return fmt.Errorf("group: %d lease slots and %d tracking slots", len(mem.Slots), len(mem.Tracks))
	}
	def(&c.Extension, c.Duration*2/3)
	def(&c.FixedTTL, 480*time.Second)
	def(&c.ExpectMax, 10*c.Duration)
	def(&c.ReadTimeout, 4*c.Duration)
	def(&c.TransitMax, c.Duration/3)
	def(&c.RecordsStepMax, 1<<16)
	def(&c.EventsStepMax, 4096)
	def(&c.Engines, 4096)
	def(&c.LongIDs, max(len(mem.Slots)/100, len(mem.Tracks)/100, 64))
	def(&c.RunsMax, 262144)
	def(&c.MapMax, 1<<20)
	for _, n := range []int{c.RecordsStepMax, c.EventsStepMax, c.Engines, c.LongIDs, c.RunsMax, c.MapMax} {
		if n < 0 {
			return fmt.Errorf("group: a bound of %d", n)
		}
	}
	if c.Extension < 0 || c.FixedTTL < 0 || c.ExpectMax < 0 || c.ReadTimeout < 0 || c.TransitMax < 0 {
		return fmt.Errorf("group: a negative time in %+v", *c)
	}
	return nil
}

func def[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// Out is the completion ring (dataplane.Events). Put reports false if it is full: the event then stays with what it speaks of.
type Out interface {
	Begin(now clock.Instant)
	Put(ev *record.Event) bool
	Flush()
	Total() uint64
}

// none is no entry: the end of a list, of a chain.
const none = list.None

// Group is the plane of a host context.
//
// Threads: one at a time; the core holds its lock around Step. AddEngine, RemoveEngine, LoadEngine, SetOffset and OwnMap may be
// called by any goroutine.
// Memory: all from New, but for what AddEngine and LoadEngine are handed. Step touches no heap.
// Time: the caller passes now, never less than before; the group reads no clock.
// Limit: a slot of mem for each lease and each tracked request; a rank that stands still costs its ring and no more.
type Group struct {
	cfg     Config
	mem     *record.Memory
	out     Out
	sources *submit.Sources
	times   Times
	last    record.LastEnds
	ranks   []rank
	all     uint64 // a bit for every rank
	dead    uint64 // ranks whose word is waited for no more: lost, or their core broke a lease's life ago
	gone    uint64 // of these, those that write nothing any more: their process has ended, or their context was closed
	lost    uint64 // ranks whose stream is gone
	awake   uint64 // ranks that have their memory registered

	leases     []lease
	leasesUsed uint32
	expects    list.List // oldest first
	ends       list.List // leases and expectations with an event
	ids        ids       // of the slots, long ones
	names      index
	held       int
	expected   int
	blocks     uint64

	tracks     []track
	tracksUsed uint32
	remotes    pool // long remote ids
	runs       runPool
	news       list.List // requests with an event
	waiting    list.List // requests of fixed leases that wait for their engine's clock
	stuck      list.List // of these, those whose read waits, oldest first
	tracked    int
	reading    int
	blocksHeld int

	reg        *registry
	engines    []engine
	places     int       // of engines, used so far
	engineNews list.List // engines with an event
	rankNews   uint64

	pressure   uint32 // blocks wanted that no rank was told of yet
	era        record.Era
	pauseSaid  uint64
	drainEnd   clock.Instant
	draining   bool
	poisonTold uint64 // ranks that were told that this host is broken
	rowsClosed uint64 // of these, those that have said since that their rows are closed
	allClosed  bool   // no row was open at closedAt
	closedAt   clock.Instant
	now        clock.Instant
	ev         record.Event
	grant      record.Grant
	req        record.TrackReq
	part       [record.RunsMax]record.Run
	synthetic  [16]byte

	later laters
	wires Wires // nil: nobody is told

	Counters Counters
}

// Wires is told what readers have said to ranks about their death wires (dataplane.Wires).
type Wires interface {
	Heard(engine, epoch uint64, nonce [16]byte)
	Left(engine, epoch uint64)
}

// SetWires says who is told. Before the first step.
func (g *Group) SetWires(w Wires) { g.wires = w }

// New makes the plane of a host over its memory: carriers[r] is the stream to rank r.
func New(cfg Config, mem *record.Memory, carriers []stream.Carrier, out Out) (*Group, error) {
	if err := cfg.setDefaults(mem); err != nil {
		return nil, err
	}
	if len(carriers) != int(cfg.Self.Ranks()) {
		return nil, fmt.Errorf("group: %d carriers for %d ranks", len(carriers), cfg.Self.Ranks())
	}
	sources, err := submit.New(mem, cfg.Sites)
	if err != nil {
		return nil, err
	}
	g := &Group{
		cfg: cfg, mem: mem, out: out, sources: sources, all: ^uint64(0) >> (64 - len(carriers)),
		leases: make([]lease, len(mem.Slots)), expects: list.New(), ends: list.New(), ids: ids{newPool(cfg.LongIDs)},
		names:  newIndex(len(mem.Slots), cfg.Seed),
		tracks: make([]track, len(mem.Tracks)), remotes: newPool(cfg.LongIDs), runs: newRunPool(cfg.RunsMax), news: list.New(), waiting: list.New(), stuck: list.New(),
		reg: newRegistry(cfg.Engines), engines: make([]engine, cfg.Engines), engineNews: list.New(),
		ranks: make([]rank, len(carriers)),
	}
	for i, c := range carriers {
		g.ranks[i] = rank{n: uint32(i), bit: 1 << i, carrier: c, own: newOwnMap(cfg.MapMax)}
	}
	mem.Control.DurationNs = uint64(cfg.Duration)
	return g, nil
}

// Step runs once over everything that can happen. now is not before the now of the previous step.
func (g *Group) Step(now clock.Instant) {
	g.now = now
	g.out.Begin(now)
	for i := range g.ranks {
		g.listen(&g.ranks[i], now)
	}
	g.takeRegistry(now)
	for i := range g.ranks {
		g.tellEra(&g.ranks[i]) // before the grants of it that are drained now
	}
	g.sources.Drain(g.cfg.RecordsStepMax, (*said)(g), now)
	g.lapse(now)
	g.stopWaiting(now)
	g.tellPressure()
	g.tellPause(now)
	for i := range g.ranks {
		g.speak(&g.ranks[i], now)
	}
	g.dropLater()
	g.publish()
	g.out.Flush()
	g.Counters.Steps++
	atomic.StoreUint64(&g.mem.Control.Steps, g.Counters.Steps)
	held := g.Alive()
	if g.telling() {
		held++ // a loop that sleeps looks again, although nothing is held
	}
	atomic.StoreUint32(&g.mem.Control.Held, uint32(held))
}

// telling reports that a rank has not been told all: a step says a bounded part, and a full stream takes none.
func (g *Group) telling() bool {
	for i := range g.ranks {
		if g.ranks[i].busy() {
			return true
		}
	}
	return false
}

// Alive counts what would need further steps: leases expected, held or not yet reported, tracked requests.
func (g *Group) Alive() int {
	return g.held + g.expected + g.ends.N + g.tracked
}

// Held counts the leases that are granted and not ended by every rank.
func (g *Group) Held() int { return g.held }

// Blocks is what Held holds.
func (g *Group) Blocks() uint64 { return g.blocks }

// Expected counts the expectations that were not granted yet.
func (g *Group) Expected() int { return g.expected }

// Tracked counts the requests whose slot was not given back.
func (g *Group) Tracked() int { return g.tracked }

// Pending reports that a step now would find work without anything new arriving.
func (g *Group) Pending() bool {
	if g.sources.Pending() || g.reg.news.Load() > 0 {
		return true
	}
	for i := range g.ranks {
		if g.ranks[i].carrier.Pending() {
			return true
		}
	}
	return false
}

// Backlog is 0: notifications come to the ranks.
func (g *Group) Backlog() uint64 { return 0 }

// Work counts what has been done so far; it stands still while the group only waits.
func (g *Group) Work() uint64 {
	return g.sources.Counters.Records + g.Counters.Received + g.Counters.Sent + g.out.Total()
}

// Traffic is Work: renewals come to the ranks.
func (g *Group) Traffic() uint64 { return g.Work() }

// NextDue is when a step has something to do without anything new arriving; clock.Never: nothing.
func (g *Group) NextDue(now clock.Instant) clock.Instant {
	if g.ends.N+g.news.N+g.engineNews.N > 0 || g.rankNews != 0 || g.pressure != 0 {
		return now
	}
	due := clock.Never
	for i := range g.ranks {
		r := &g.ranks[i]
		if r.broken && g.dead&r.bit == 0 {
			due = min(due, r.brokenAt.Add(g.cfg.Duration))
		}
		switch {
		case !r.busy():
		case r.scan, !r.gap && r.carrier.Fits(2*fullSpare):
			return now
		default: // it stands still: nothing is gained by looking all the time
			due = min(due, now.Add(fullRetry))
		}
	}
	if g.expects.Head != none {
		due = min(due, g.leases[g.expects.Head].end)
	}
	if g.stuck.Head != none {
		due = min(due, g.tracks[g.stuck.Head].deadline)
	}
	return due
}

// Sleeping says to every rank whether this context sleeps.
func (g *Group) Sleeping(sleeps bool) {
	for i := range g.ranks {
		g.ranks[i].carrier.Sleeping(sleeps)
	}
}

// Flush publishes the events of a step that did not come to its end.
func (g *Group) Flush() { g.out.Flush() }

// SetEra says who this engine is to its readers from now on: ranks are told before any grant that comes after.
func (g *Group) SetEra(e record.Era) {
	g.era = e
	for i := range g.ranks {
		g.ranks[i].eraDue = true
	}
}

// EraOver reports that every rank that is left has unregistered since the present era began to be used: the next
// registration begins another. One whose memory came and went in it before it was ever known ends it alone: no reader has got the
// maps of all ranks, and what was granted for that memory must not meet the next.
func (g *Group) EraOver() bool {
	if g.era.Era == 0 {
		return false
	}
	used, all := false, true
	for i := range g.ranks {
		r := &g.ranks[i]
		if g.dead&r.bit != 0 {
			continue
		}
		if r.state.Flags&record.RankSpent != 0 && r.state.Era == g.era.Era && r.upIn != g.era.Era {
			return true
		}
		all = all && r.state.Flags&record.RankRegistered == 0
		used = used || r.eraUsed == g.era.Era && r.everUp
	}
	return used && all
}

// Drain has the ranks tell owners what will not be read, and say on their boards that this engine leaves.
func (g *Group) Drain(left time.Duration, now clock.Instant) {
	g.draining, g.drainEnd = true, now.Add(left)
	for i := range g.ranks {
		g.ranks[i].drainDue = true
	}
}

// DrainLeft counts what has still to happen after Drain: leases, reads, blocks held, ranks that have still to tell owners.
func (g *Group) DrainLeft() int {
	n := g.held + g.expected + g.reading + g.blocksHeld
	for i := range g.ranks {
		if r := &g.ranks[i]; r.carrier.State() == stream.Attached && !r.broken && r.state.Flags&record.RankDrained == 0 {
			n++
		}
	}
	return n
}

// Poison tells the ranks to close every row for ever, each until a stream has taken it and again when that has lost something:
// kvl_fence_all was called here, or the core broke. No step runs after that; call it again and again. It reports whether all that are
// attached were told.
//
// It touches no slot and no event: C tells the ends from the slots. That they may be told is said here, one lease duration after the
// last row was closed, since a reader that does not check rows may have renewed until then (L12). A rank that stands still has its
// rows open, so its host tells nothing (L10).
func (g *Group) Poison(now clock.Instant) bool {
	told := true
	for i := range g.ranks {
		told = g.tellBroken(&g.ranks[i]) && told
	}
	switch {
	case !g.allClosed:
		if g.RowsClosed(now) {
			g.allClosed, g.closedAt = true, now
		}
	case now.Sub(g.closedAt) >= g.cfg.Duration:
		// B1: release; pairs with B2 in kvl_poll. Who sees it sees the rows closed, as this thread has by the ranks' words.
		atomic.StoreUint32(&g.mem.Control.RowsClosed, 1)
	}
	return told
}

// tellBroken has one rank close its rows. What broke may be its very stream: then the others are told all the same.
func (g *Group) tellBroken(r *rank) (told bool) {
	defer func() { _ = recover() }()
	g.hearClosed(r)
	gap := r.carrier.Gap()
	if g.poisonTold&r.bit != 0 && !gap || r.carrier.State() == stream.Lost {
		return true
	}
	if gap { // a new run of records: the mark alone begins it
		r.carrier.Begin()
	}
	if !r.carrier.Fits(record.PoisonLen) {
		return r.carrier.State() != stream.Attached
	}
	record.PutPoison(r.carrier.Reserve(record.TagPoison, record.PoisonLen))
	r.carrier.Publish()
	g.poisonTold |= r.bit
	return true
}

// hearClosed takes of what a rank says to a broken host only the word that its rows are closed.
func (g *Group) hearClosed(r *rank) {
	for range g.cfg.RecordsStepMax {
		tag, rec, ok := r.carrier.Next()
		if !ok {
			break
		}
		if s, ok := record.AsRankState(rec); ok && tag == record.TagState && s.Flags&(record.RankPoisoned|record.RankClosed) != 0 {
			g.rowsClosed |= r.bit
		}
	}
	r.carrier.Release()
}

// RowsClosed reports that no row of a broken host is open on a rank that has attached: each has said so, its process is gone, or it
// has been lost for one duration, in which it sees that, too.
func (g *Group) RowsClosed(now clock.Instant) bool {
	done := true
	for i := range g.ranks {
		done = g.closed(&g.ranks[i], now) && done
	}
	return done
}

func (g *Group) closed(r *rank, now clock.Instant) (ok bool) {
	defer func() { _ = recover() }() // of a stream that is what broke nothing is known
	switch state := r.carrier.State(); {
	case g.rowsClosed&r.bit != 0, g.dead&r.bit != 0, state == stream.Waiting, r.state.Flags&record.RankPoisoned != 0:
		return true
	case state != stream.Lost:
		return false
	case r.over():
		return true
	case !r.cut:
		r.cut, r.brokenAt = true, now
	}
	return now.Sub(r.brokenAt) >= g.cfg.Duration
}
