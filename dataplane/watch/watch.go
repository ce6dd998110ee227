// Package watch is the stats page: one file of shared memory in which a context shows itself to tools of the same user, and to its
// own process. Its step writes, at most every 100 ms; whoever reads costs it nothing. What is in the page it says itself: a table of
// names, kinds, units and help texts.
//
// The parts that change lie there twice, with a number of the last whole state: the writer fills the copy that this number does not
// name. So one that stands still, or was killed in the middle, leaves the last good state readable.
package watch

import (
	"errors"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/histogram"
)

// Errors of a reader. Each is wrapped by one that says what was found.
var (
	ErrNotAPage = errors.New("no stats page")               // another file, or one that contradicts itself
	ErrVersion  = errors.New("stats page of another build") // its layout is not known here
	ErrTorn     = errors.New("stats page changes too fast") // no state stood still for long enough to be read: try again
)

// Kind says how a value moves.
type Kind uint8

const (
	Counter Kind = iota + 1 // only grows
	Gauge                   // what there is now
)

// String is the kind's name in metrics.
func (k Kind) String() string {
	switch k {
	case Counter:
		return "counter"
	case Gauge:
		return "gauge"
	}
	return "unknown"
}

// Value is one number under its name in kvl_stats. Of an array there each element has a Label: which one it is.
type Value struct {
	Name, Label string
	Kind        Kind
	Unit        string // "ns", "bytes", "ms"; empty: things, which the name says
	Help        string
	V           uint64
}

// Histogram is one distribution, in native buckets of schema 2.
type Histogram struct {
	Name string
	Unit string // "seconds", or what is counted: then a bucket's end is a number of them, and so is Sum
	Help string
	histogram.Histogram
}

// Reader is an engine that reads from here: what it holds, and how close it is to losing it.
type Reader struct {
	Name   string // agent name of a stock reader, id of one of ours if it is known here; else empty: join Hash over pages
	Row    int    // its place among the readers: what the lease table calls its account
	Hash   uint64 // wire.EngineHash of one of ours; 0: of a stock reader, or of none
	Epoch  uint64
	Native bool

	Unnamed bool // nobody: the leases that no reader has named yet
	Other   bool // all readers that found no place of their own

	Leases, Blocks uint64
	Bytes          uint64        // Blocks x Head.BlockBytes
	Oldest         clock.Instant // grant of the oldest lease without a fixed life, as of a scan that takes a while; 0: none
	LastBeat       clock.Instant // 0: none
	LeastSlack     time.Duration // least time that a renewal found left, of the last two to four intervals; -1: there was none

	// Leases ended while this reader was the last that had named them.
	Completed, Released, Revoked, Expired, Poisoned, Duplicate, Closed uint64

	number uint64
}

// Remote is an engine that is read from here.
type Remote struct {
	Engine  uint64 // handle
	ID      string
	Hash    uint64
	Address string // host:port of its side channel; empty: its maps came otherwise
	State   string // heartbeat.State: that of the connection; asleep: our own memory was unregistered on purpose; withdrawn: its was, or it was closed
	Since   clock.Instant
	Native  bool
	Epoch   uint64
	Ranks   int // those that this rank talks to

	Handshake time.Duration // the last connection, from when the engine was known to be without one; 0: none yet
	Connects  uint64        // handshakes that ended well, healed connections too
	LastBeat  clock.Instant // round of heartbeats that began last; 0: none
	LastRow   clock.Instant // one-sided read that ended last: a row, a sign of life or data; 0: none
	Fails     uint64        // of its worst rank, since it was heard

	Tracked uint64 // requests
	Reads   uint64 // in flight, those with blocks aside too
	Bytes   uint64 // read so far
	Unheard uint64 // bytes sent that it has not taken in, as far as is known
	Missed  bool   // it fails, and requests are tracked there, or were lost, given up or not read there for it (heartbeat.Wanted)

	OffsetKnown bool
	Offset      time.Duration // our CLOCK_BOOTTIME minus its CLOCK_MONOTONIC

	Asked Asked // as of now, whoever steps
}

// Asked is how asking an engine for its maps over its side channel stands.
type Asked struct {
	State string        // handshake.State; empty: it is not asked here, since its maps came otherwise, our memory is not registered, or the host asks for a rank
	Fails uint64        // attempts in a row that have failed
	Since clock.Instant // the end of the first of them; 0: none has failed
	Why   string        // handshake.Class of the last; empty: it has not failed
}

// End is one of the leases that ended last.
type End struct {
	Number uint64 // from 1 on, over all ends of the context
	At     clock.Instant
	Lease  uint64 // handle
	User   uint64 // the engine's own number
	IDHash uint64 // wire.EngineHash of the id, the same in all processes
	ID     string // its first 96 bytes
	IDLen  int
	Reason string // expired, completed, ...
	Reader Reader // Name, Hash, Epoch, Native, Unnamed and Other of who named it last
	Held   time.Duration
	Blocks uint64
}

// Table is memory of the process that kvlease dump looks into: control, slots, rows (record.Control, Slot, Row), hot, granted, index and
// long_ids (lease.Places).
type Table struct {
	Name          string
	Addr          uint64
	Stride, Count uint64 // bytes of an entry, and how many there are
}

// Head says whose page it is.
type Head struct {
	Path     string // of the file; empty: nobody else sees it
	PID      int
	Started  uint64 // of the process, clock ticks after boot
	UID      int
	Context  int // number of the context in its process
	Library  string
	Role     string // engine, host or rank
	Engine   string // id
	Hash     uint64 // wire.EngineHash of it
	Rank     int
	TP, PP   int
	Drive    string // inline or pump
	Carrier  string // of host and rank
	Provider string // the transport: nixl, loopback

	Duration, Interval, Extension time.Duration
	Opened                        clock.Instant

	// What follows may change.
	Epoch      uint64
	Stepped    clock.Instant // the step that wrote the page last
	Published  uint64        // times that it was written
	Poisoned   bool
	Draining   bool
	Closed     bool
	BlockBytes uint64 // of one block over all regions; a mean where groups differ; 0: not known
	Tables     []Table

	Alive bool          // the process lives, and the context is open
	Age   time.Duration // since Stepped: a context that stands still shows what was true then
}

// Snapshot is one state of a page. Read fills it; its slices are used again.
type Snapshot struct {
	Head
	Values     []Value
	Histograms []Histogram
	Readers    []Reader // first those of nobody and of all others
	Remotes    []Remote
	Ends       []End // oldest first

	SkipEnds bool // said by the caller: Ends is left empty, which makes Read cheaper
}

// Value gives a value by name and label.
func (s *Snapshot) Value(name, label string) (uint64, bool) {
	for i := range s.Values {
		if v := &s.Values[i]; v.Name == name && v.Label == label {
			return v.V, true
		}
	}
	return 0, false
}

// Histogram gives a distribution by name, or nil.
func (s *Snapshot) Histogram(name string) *Histogram {
	for i := range s.Histograms {
		if s.Histograms[i].Name == name {
			return &s.Histograms[i]
		}
	}
	return nil
}
