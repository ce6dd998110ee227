package core

import (
	"fmt"
	"math"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
)

// logs is what a context has to say (package log), and who makes lines of it: a goroutine that writes them to stderr, until the host
// takes the first one. nil: the key log is "off".
//
// Steps put records; beside a step's they come from the side channel and from look, which finds out what only counters show.
type logs struct {
	core *Core
	log  *log.Log

	now    clock.Instant // of the last look at what steps count; the step's
	grown  []growth
	leases fullness // the step's, as are the rest
	tracks fullness
	muted  bool
	stuck  stuck

	drain bool // it has been said that we drain

	poisoned atomic.Bool // it has been said
	taken    atomic.Bool // the host takes lines
	beside   beside
	err      *errWriter // nil: the host alone takes them
}

// stuck watches reads that have neither failed nor come to an end.
type stuck struct {
	since clock.Instant // 0: none is open
	least int           // since then
	pace  log.Pace
}

// lookEvery is how often counters are looked at: of step time, and beside it.
const lookEvery = time.Second

// makeLog makes the log of a context, before its parts.
func (c *Core) makeLog() {
	if c.cfg.Log == "off" {
		return
	}
	l := &logs{core: c}
	self := c.cfg.EngineID
	if c.cfg.Role == "rank" {
		self = fmt.Sprintf("%s rank %d", self, c.cfg.Rank())
	}
	l.leases.kind, l.tracks.kind = log.LeasesFull, log.TracksFull
	l.log = log.New(log.Config{Least: log.LevelOf(c.cfg.LogLevel), Context: c.number, Self: self, Name: c.engineName, Wall: log.Wall(c.clock)})
	c.log = l
}

// drains says that we drain, once: whoever waits for the end calls Drain again and again. A part of a step.
func (l *logs) drains(held int, now clock.Instant) {
	if l != nil && !l.drain {
		l.drain = true
		l.step().Put(log.Draining, now, log.Entry{A: uint64(held)})
	}
}

// watch begins to look at counters, once the parts are there. A pump may be stepping by then.
func (l *logs) watch() {
	if l == nil {
		return
	}
	l.watchCounters()
	l.beside.begin()
	if l.core.cfg.Log == "stderr" {
		l.err = startErrWriter(l)
	}
}

func (l *logs) watchCounters() {
	c := l.core
	c.mu.Lock()
	defer c.mu.Unlock()
	add := func(kind log.Kind, at ...*uint64) { l.grown = append(l.grown, grows(kind, at...)) }
	if c.hosted != nil {
		n := &c.hosted.group.Counters
		add(log.SubmissionsBad, &n.BadHandle)
		add(log.EventsWait, &n.EventsHeld)
		add(log.RunsFull, &n.RunsFull)
	} else {
		n, beats := &c.plane.Counters, c.tracker.CountersAt()
		add(log.MessagesTooLong, &n.NotifsTooLong)
		add(log.SubmissionsBad, &n.RecordsBad, &c.leases.Counters.BadHandle)
		add(log.EventsWait, &n.EventsHeld)
		add(log.RunsFull, &beats.RunsFull)
		add(log.TransfersFailHere, &c.reads.Counters.FailedHere)
	}
	if c.pump != nil {
		add(log.PumpOverslept, &c.pump.counters.Overslept)
		l.grown[len(l.grown)-1].most = &c.pump.lateMost
	}
}

// step and side are the writers of the parts.
func (l *logs) step() *log.Writer {
	if l == nil {
		return nil
	}
	return l.log.Step
}

func (l *logs) side() *log.Writer {
	if l == nil {
		return nil
	}
	return l.log.Side
}

// stepped looks at what a step has left behind. Under the core's lock.
func (l *logs) stepped(now clock.Instant) {
	if l == nil {
		return
	}
	c := l.core
	if c.leases != nil {
		l.leases.look(l.log.Step, c.leases.Held()+c.leases.Expected()+c.leases.Ending(), len(c.mem.Slots), now)
		l.tracks.look(l.log.Step, c.tracker.Tracked(), len(c.mem.Tracks), now)
	}
	if now < l.now.Add(lookEvery) {
		return
	}
	l.now = now
	for i := range l.grown {
		l.grown[i].look(l.log.Step, now)
	}
	if c.reads != nil {
		l.stuck.look(l, c.reads.Gauges().Held, now)
	}
}

// look says how many reads have been open for as long as the transport may take, twice over.
func (s *stuck) look(l *logs, held int, now clock.Instant) {
	switch {
	case held == 0: // what gets stuck from now on is other trouble
		*s = stuck{}
		return
	case s.since == 0:
		s.since, s.least = now, held
		return
	}
	s.least = min(s.least, held)
	if now.Sub(s.since) < 2*l.core.cfg.QuarantineWait || !s.pace.Due(now) {
		return
	}
	l.log.Step.Put(log.BlocksStuck, now, log.Entry{A: uint64(s.least)})
	s.since, s.least = now, held
}

// broke says what has poisoned the context, from within the step that it broke.
func (l *logs) broke(what any) {
	if l == nil || l.poisoned.Swap(true) {
		return
	}
	l.log.Side.Put(log.Poisoned, l.core.clock(), log.Entry{Text: fmt.Sprintf("%v%s", what, where(debug.Stack()))})
}

// where is the first place of our own below a panic, as " at file.go:12".
func where(stack []byte) string {
	_, below, _ := strings.Cut(string(stack), "\npanic(")
	for line := range strings.Lines(below) {
		if at, _, _ := strings.Cut(strings.TrimSpace(line), " +"); strings.Contains(at, "/dataplane/") && strings.Contains(at, ".go:") {
			return " at " + filepath.Base(at)
		}
	}
	return ""
}

// Log takes lines of what the context has to say, as JSON, whole ones only, at most room bytes; need is the length of the first one
// if it does not fit. From the first call on nothing goes to stderr. Any goroutine.
func (c *Core) Log(room int) (lines []byte, need int) {
	if c.log == nil {
		return nil, 0
	}
	c.log.taken.Store(true)
	c.log.beside.look(c.log)
	return c.log.log.Take(room)
}

// engineName is the id of an engine that is known here, "" if none of that hash is.
func (c *Core) engineName(hash uint64) string {
	if c.side == nil {
		return ""
	}
	return c.side.idOf(hash)
}

func (l *logs) close() {
	if l != nil && l.err != nil {
		l.err.close()
	}
}

// beside looks at what happens beside steps and shows in counters only.
//
// Threads: any, one after the other by its lock.
type beside struct {
	busy  atomic.Bool
	at    time.Time
	stats sideStats
	grown []growth
	pause []metrics.Sample
	slow  []uint64 // stops for collections, by bucket
}

// collectionLong is from when on a stop for a collection is worth a line. Tests make it small.
var collectionLong = 10 * time.Millisecond

// collections are of the process: what one of its contexts has told of them no other tells. told is up to where, by bucket.
var collections struct {
	sync.Mutex
	told []uint64
	seen uint64   // how many of them were long, at the look before of any context
	pace log.Pace // of Now
}

// begin takes the counters as they are: what was before is not news.
func (b *beside) begin() {
	v := &b.stats
	b.grown = []growth{
		grows(log.WireDisputed, &v.readers.Disputed), grows(log.ReaderWiresFull, &v.readers.Full),
		grows(log.SideMalformed, &v.readers.Malformed, &v.wire.Malformed),
		grows(log.SideUnregistered, &v.server.Unregistered), grows(log.SideUnknownRank, &v.server.Unknown),
		grows(log.SideRefused, &v.wire.Refused, &v.wire.Evicted, &v.readers.Crowded),
		grows(log.SideNoDescriptors, &v.wire.AcceptErrors), grows(log.SidePanic, &v.wire.Panics),
	}
	b.pause = []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}}
	b.stops(nil)
}

// look says what has come since the look before, at most once a second.
func (b *beside) look(l *logs) {
	if !b.busy.CompareAndSwap(false, true) { // somebody does
		return
	}
	defer b.busy.Store(false)
	c := l.core
	if atomic.LoadUint32(&c.mem.Control.Poisoned) != 0 && !l.poisoned.Swap(true) {
		l.log.Side.Put(log.Fenced, c.clock(), log.Entry{})
	}
	if time.Since(b.at) < lookEvery {
		return
	}
	b.at = time.Now()
	b.stops(l)
	if c.side == nil {
		return
	}
	b.stats.read(c.side)
	for i := range b.grown {
		b.grown[i].look(l.log.Side, c.clock())
	}
}

// stops looks for stops of all threads for collections. l is nil at the first look.
func (b *beside) stops(l *logs) {
	metrics.Read(b.pause)
	if b.pause[0].Value.Kind() != metrics.KindFloat64Histogram {
		return
	}
	h := b.pause[0].Value.Float64Histogram()
	collections.Lock()
	defer collections.Unlock()
	longest, long := time.Duration(0), uint64(0)
	for i, n := range h.Counts {
		least := h.Buckets[i]
		if math.IsInf(least, -1) || time.Duration(least*1e9) < max(collectionLong, 1) {
			continue
		}
		if long += n; l != nil && n != b.slow[i] && (i >= len(collections.told) || n > collections.told[i]) {
			longest = max(longest, time.Duration(least*1e9))
		}
	}
	if longest > 0 && log.LevelOf(l.core.cfg.LogLevel) >= log.Warning { // else another context may tell it
		came := long != collections.seen
		collections.seen = long
		if !collections.pace.Look(came, Now()) || !l.log.Side.Put(log.CollectionLong, l.core.clock(), log.Entry{A: uint64(longest)}) {
			return // the next line has it
		}
		collections.told = append(collections.told[:0], h.Counts...)
	}
	b.slow = append(b.slow[:0], h.Counts...)
}

// mute says once that heartbeats have stopped since the forward loop is not heard of. Under the core's lock.
func (l *logs) mute(muted bool, now, passed clock.Instant) {
	if l == nil {
		return
	}
	if muted && !l.muted {
		l.log.Step.Put(log.HeartbeatsMuted, now, log.Entry{A: uint64(now.Sub(passed))})
	}
	l.muted = muted
}

// sayMisfit says that a rank was given other leases than its host.
func (l *logs) sayMisfit(told record.Era, here time.Duration, now clock.Instant) {
	l.step().Put(log.RankMisfit, now, log.Entry{A: told.DurationNs, B: uint64(here)})
}
