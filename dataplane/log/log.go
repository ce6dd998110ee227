// Package log keeps what a context has to say to people: bounded rings of records of a fixed size, which a step fills without a lock or
// an allocation, and from which lines of text are made elsewhere.
package log

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
)

// Level says how bad a record is. The lower the worse.
type Level uint8

const (
	Error   Level = iota // somebody has to do something: requests fail, or blocks are lost, until then
	Warning              // requests were computed again or delayed; nobody got wrong data
	Info                 // what a person who looks into the past wants to see
)

var levelNames = [...]string{Error: "error", Warning: "warning", Info: "info"}

// String is the level as lines and the configuration have it.
func (l Level) String() string { return levelNames[l] }

// LevelOf reads a level's name; what is none is Warning.
func LevelOf(name string) Level {
	for l, n := range levelNames {
		if n == name {
			return Level(l)
		}
	}
	return Warning
}

// Bounds of a record's texts in bytes. What is longer is cut, and the line says so.
const (
	engineMax  = 64
	requestMax = 64
	textMax    = 256
)

// Entry is what a caller says beside kind and time. Nothing of it is kept: texts are copied.
type Entry struct {
	Engine  string // id of the engine that it is about; "": Agent or Hash alone, or none
	Agent   []byte // the name of a stock agent in its place
	Hash    uint64 // wire.EngineHash of that id, 0: none
	Request []byte // id of the request as the other side knows it
	A, B    uint64 // what Def.Values names
	Text    string // an error's words
}

// record is an entry as it waits.
type record struct {
	kind                       Kind
	cut                        uint8 // bits: engine, request, text were longer
	engineLen, reqLen, textLen uint16
	left                       uint32 // records left out before this one
	at                         clock.Instant
	hash, a, b                 uint64
	engine                     [engineMax]byte
	request                    [requestMax]byte
	text                       [textMax]byte
}

// Rate of each kind and class of engines, and of all that is no Error: so many at once, then one each while. So whatever peers do, a day's
// lines are some ten megabytes.
const (
	burst    = 5
	every    = 10 * time.Second
	classes  = 16
	allBurst = 100
	allEvery = time.Second
	ringLen  = 256
	errorLen = 32 // of these, for errors alone: a host that takes lines late hears of them, whatever else it has missed
)

// bucket is a token bucket as the time at which it would be full again.
type bucket struct {
	full clock.Instant
	left uint32 // out since the last record
}

// Writer takes records from one place. nil takes none.
//
// Threads: of the step's, one at a time, as the step is; of the other, any (Shared).
// Memory: all from New. Put touches no heap and waits for nothing but, if shared, others in Put.
// Limit: 256 records wait, 224 that are no errors; more are lost, and counted.
type Writer struct {
	shared bool
	mu     sync.Mutex // of a shared one
	least  Level      // worse ones and this are taken

	buckets [kinds][classes]bucket
	all     clock.Instant // the bucket of everything that is no Error
	ring    [ringLen]record
	// Edge L1: the writer's release store of tail; pairs with L2, the reader's acquire in next. Records below it are written.
	// L3 and L4 are the same the other way for head: places below it are free.
	tail, head atomic.Uint64
	lost, out  atomic.Uint64 // records without a place; records left out by the rate
	lostAt     atomic.Int64  // when the last one found none
}

// Put says something. now is the step's time, or CLOCK_BOOTTIME beside it. It reports whether there will be a line: who adds up what
// has come between lines goes on adding otherwise.
func (w *Writer) Put(k Kind, now clock.Instant, e Entry) bool {
	if w == nil || Defs[k].Level > w.least {
		return false
	}
	if w.shared {
		w.mu.Lock()
		defer w.mu.Unlock()
	}
	b := &w.buckets[k][class(&e)]
	b.full, w.all = max(b.full, now), max(w.all, now)
	if b.full.Sub(now) > (burst-1)*every || Defs[k].Level != Error && w.all.Sub(now) > (allBurst-1)*allEvery {
		b.left++
		w.out.Add(1)
		return false
	}
	tail, room := w.tail.Load(), uint64(ringLen)
	if Defs[k].Level != Error {
		room -= errorLen
	}
	if tail-w.head.Load() >= room { // L4
		w.lostAt.Store(int64(now))
		w.lost.Add(1)
		return false
	}
	if b.full = b.full.Add(every); Defs[k].Level != Error {
		w.all = w.all.Add(allEvery)
	}
	r := &w.ring[tail%ringLen]
	r.kind, r.at, r.left, r.hash, r.a, r.b = k, now, b.left, e.Hash, e.A, e.B
	b.left = 0
	n := copy(r.engine[:], e.Engine)
	n += copy(r.engine[n:], e.Agent)
	r.engineLen, r.reqLen, r.textLen = uint16(n), uint16(copy(r.request[:], e.Request)), uint16(copy(r.text[:], e.Text))
	r.cut = 0
	if len(e.Engine)+len(e.Agent) > engineMax {
		r.cut |= cutEngine
	}
	if len(e.Request) > requestMax {
		r.cut |= cutRequest
	}
	if len(e.Text) > textMax {
		r.cut |= cutText
	}
	w.tail.Store(tail + 1) // L1
	return true
}

const (
	cutEngine = 1 << iota
	cutRequest
	cutText
)

// class spreads engines over the buckets of a kind, so that one that is in trouble leaves room for the others. What names none has
// a class of its own.
func class(e *Entry) uint64 {
	h := e.Hash
	if h == 0 {
		if len(e.Engine)+len(e.Agent) == 0 {
			return 0
		}
		h = 14695981039346656037 // FNV-1a
		for i := range len(e.Engine) {
			h = (h ^ uint64(e.Engine[i])) * 1099511628211
		}
		for _, c := range e.Agent {
			h = (h ^ uint64(c)) * 1099511628211
		}
	}
	h ^= h >> 32
	return 1 + (h^h>>16)%(classes-1)
}

// Log is what a context says: its step's records and those of everything beside it. nil has none.
//
// Threads: Take and Empty any, one after the other by a lock of its own.
type Log struct {
	Step *Writer
	Side *Writer // shared

	mu      sync.Mutex
	told    [2]uint64 // records lost, as far as lines have said it
	name    func(hash uint64) string
	wall    func(clock.Instant) time.Time
	context uint64
	self    string
	pending []byte // a line that did not fit
}

// Config says how lines are made.
type Config struct {
	Least   Level
	Context uint64                        // number in the process
	Self    string                        // who speaks: lines of many processes may meet in one place
	Name    func(hash uint64) string      // id of an engine, "" if it is not known; nil: none is. Called by Take
	Wall    func(clock.Instant) time.Time // the time of day that an instant was
}

// New makes a log.
func New(cfg Config) *Log {
	return &Log{
		Step: &Writer{least: cfg.Least}, Side: &Writer{least: cfg.Least, shared: true},
		name: cfg.Name, wall: cfg.Wall, context: cfg.Context, self: clean([]byte(cfg.Self), false),
	}
}

// Lost counts the records that found no place.
func (l *Log) Lost() uint64 { return l.Step.lost.Load() + l.Side.lost.Load() }

// LeftOut counts those that came more often than their rate.
func (l *Log) LeftOut() uint64 { return l.Step.out.Load() + l.Side.out.Load() }

// Empty reports that Take would give nothing.
func (l *Log) Empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending) == 0 && l.Step.empty() && l.Side.empty() && l.told[0]+l.told[1] == l.Lost()
}

func (w *Writer) empty() bool { return w.tail.Load() == w.head.Load() }

// next takes the oldest record of both. That some were lost is told where they would have stood. Under the lock.
func (l *Log) next(into *record) bool {
	var from *Writer
	var at clock.Instant
	for _, w := range [...]*Writer{l.Step, l.Side} {
		if w.tail.Load() == w.head.Load() { // L2
			continue
		}
		if from == nil || w.oldest().at < at {
			from, at = w, w.oldest().at
		}
	}
	for i, w := range [...]*Writer{l.Step, l.Side} {
		lost := w.lost.Load()
		when := clock.Instant(w.lostAt.Load())
		if lost == l.told[i] || from != nil && at <= when {
			continue
		}
		*into = record{kind: RecordsLost, a: lost - l.told[i], at: when}
		l.told[i] = lost
		return true
	}
	if from == nil {
		return false
	}
	*into = *from.oldest()
	from.head.Store(from.head.Load() + 1) // L3
	return true
}

func (w *Writer) oldest() *record { return &w.ring[w.head.Load()%ringLen] }
