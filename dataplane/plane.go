// Package dataplane is the plane: one run over everything that can happen to one rank of an engine.
package dataplane

import (
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/submit"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Config are the bounds of a step.
type Config struct {
	RecordsStepMax int  // submission records taken in one step, over all producers
	NotifsStepMax  int  // notifications applied in one step
	ParseMax       int  // largest notification that is read, bytes
	StockPeers     bool // listen to peers that do not speak kvlease

	Engine uint64       // wire.EngineHash of our engine id, for trace sites
	Rank   uint32       // ours, likewise
	Sites  *trace.Sites // nil: nobody can attach
	Log    *log.Writer  // of the step; nil: nothing is said
}

// batch is how many entries of a heartbeat are applied at once.
const batch = 64

// Plane joins leases, heartbeats and reads over one transport.
//
// Threads: one at a time; the core holds its lock around Step.
// Memory: all from New. A step makes no Go allocation.
// Time: the caller passes now; the plane reads no clock. Given submissions, deliveries and now, a step's result is fixed.
type Plane struct {
	cfg     Config
	mem     *record.Memory
	tr      transport.Transport
	Leases  *lease.Table
	Tracker *heartbeat.Tracker
	Reads   *read.Machine

	sources *submit.Sources
	link    *Link // to the host; nil if the host's rings are here
	out     *Events
	inbox   *transport.Inbox
	wires   Wires // nil: nobody is told
	// Scratch of one batch of a heartbeat, as many as the table overlaps the cache misses of.
	entries  [batch]lease.Entry
	ids      [batch][]byte
	outcomes [batch]lease.Outcome

	msg     message
	numbers stockNumbers
	polled  uint64 // notifications taken from the transport
	arrived uint64 // notifications known to have arrived
	applied uint64 // notifications applied
	last    clock.Instant
	started bool
	rested  bool // the step before left nothing that needs further ones: who has nothing to do does not stand still

	awaited awaited

	Counters Counters
	Times    Times
}

// Counters of the plane itself; those of its parts stand in the parts. All only grow.
type Counters struct {
	Steps             uint64
	Records           uint64 // submission records taken
	RecordsBad        uint64 // submission records of unknown kind or wrong length: a bug of the host side
	RecordsCut        uint64 // steps that left records for the next one
	EntriesCut        uint64 // steps that left received messages for the next one
	NotifsReceived    uint64
	NotifsTooLong     uint64 // longer than parse_max
	BatchesReceived   uint64 // renew messages and stock heartbeats
	BeatsReceived     uint64 // requests named in them
	BeatsApplied      uint64 // of these, those that named a lease or an expected request
	CompletesReceived uint64 // requests named in completions
	ReleasesReceived  uint64
	HellosReceived    uint64
	LeavingsReceived  uint64
	StockReceived     uint64 // stock messages of any kind
	StockIgnored      uint64 // stock messages while stock_peers is off
	MalformedNative   uint64
	MalformedStock    uint64
	UnknownKinds      uint64 // native messages of a newer kind or version: skipped
	PushRegs          uint64 // push registrations, not served
	EventsHeld        uint64 // publications put off because the completion ring was full
	ReadyFired        uint64 // leases whose device event has fired
	ReadyFailed       uint64 // leases that are never offered, since their device event could not be asked
}

// New joins the parts. Every ring in mem is formatted; the parts were made over the same memory and transport.
func New(cfg Config, mem *record.Memory, tr transport.Transport, leases *lease.Table, tracker *heartbeat.Tracker, reads *read.Machine, out *Events) (*Plane, error) {
	sources, err := submit.New(mem, cfg.Sites)
	if err != nil {
		return nil, err
	}
	return &Plane{cfg: cfg, mem: mem, tr: tr, Leases: leases, Tracker: tracker, Reads: reads, out: out, sources: sources,
		inbox: transport.NewInbox(cfg.NotifsStepMax, cfg.ParseMax+4096)}, nil
}

// NewRank is New for a rank: its records come over link, and there go its events. leases and tracker were made over mem,
// tracker with link for its events. out is the rank's own completion ring, which tells only of the host.
func NewRank(cfg Config, mem *record.Memory, tr transport.Transport, leases *lease.Table, tracker *heartbeat.Tracker, reads *read.Machine, out *Events, link *Link) (*Plane, error) {
	p, err := New(cfg, mem, tr, leases, tracker, reads, out)
	if err != nil {
		return nil, err
	}
	p.link = link
	link.join(p)
	return p, nil
}

// Step runs once over everything that can happen. now is not before the now of the previous step.
func (p *Plane) Step(now clock.Instant) {
	gap := time.Duration(0)
	if p.started {
		gap = now.Sub(p.last)
	}
	p.last, p.started = now, true
	p.out.Begin(now)
	p.Tracker.Begin(now)

	if p.link != nil {
		p.link.take(p.cfg.RecordsStepMax, now)
	} else {
		p.sources.Drain(p.cfg.RecordsStepMax, (*direct)(p), now)
	}
	p.askReady()
	p.receive(now)
	p.Tracker.Step(now)
	if !p.rested {
		p.Leases.SayGap(now, gap, p.arrived-p.applied)
	}
	p.Leases.Sweep(now, gap, p.arrived, p.applied)
	p.Leases.TraceEnds()
	p.publishEnds()
	if p.link != nil {
		p.link.tell(now)
	}
	p.out.Flush()

	p.Counters.Steps++
	p.count()
	atomic.StoreUint64(&p.mem.Control.Steps, p.Counters.Steps)
	held := p.Alive()
	p.rested = held == 0
	if p.link != nil && p.link.telling() {
		held++ // a loop that sleeps looks again, although nothing is held
	}
	atomic.StoreUint32(&p.mem.Control.Held, uint32(held))
}

// Rest says that what was held was given up between two steps, as when memory is unregistered: the next one may be long in coming.
func (p *Plane) Rest() { p.rested = true }

// Alive counts what would need further steps: leases expected, held or not yet reported, tracked requests, reads.
func (p *Plane) Alive() int {
	return p.Leases.Held() + p.Leases.Expected() + p.Leases.Ending() + p.Tracker.Alive()
}

// Pending reports that a step now would find work without anything new arriving: records left, notifications left,
// events that did not fit.
func (p *Plane) Pending() bool {
	if p.arrived != p.applied {
		return true
	}
	if p.link != nil {
		return p.link.pending()
	}
	return p.sources.Pending()
}

// count takes over what the parts of the plane count for themselves.
func (p *Plane) count() {
	in := &p.sources.Counters
	if p.link != nil {
		in = &p.link.in
	}
	p.Counters.Records, p.Counters.RecordsBad, p.Counters.RecordsCut = in.Records, in.RecordsBad, in.RecordsCut
	p.Counters.EventsHeld = p.out.held
}

// WrapTransport puts a transport in front of the one that notifications come from, for tests of what a fault there does.
func (p *Plane) WrapTransport(tr transport.Transport) { p.tr = tr }

// Untaken is how many bytes of its host's records no step has taken. Any thread.
func (p *Plane) Untaken() uint64 { return p.sources.Untaken() }

// Backlog is the number of notifications that are known to have arrived and are not applied.
func (p *Plane) Backlog() uint64 { return p.arrived - p.applied }

// Work counts what has been done so far; it stands still while the plane only waits.
func (p *Plane) Work() uint64 {
	return p.Counters.Records + p.Counters.NotifsReceived + p.out.total + p.told()
}

// Traffic is Work without renewals: they come as regularly as the clock ticks, and nothing follows them.
func (p *Plane) Traffic() uint64 { return p.Work() - p.Counters.BatchesReceived }

func (p *Plane) told() uint64 {
	if p.link == nil {
		return 0
	}
	return p.link.Counters.Told
}
