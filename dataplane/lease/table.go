// Package lease is the lease table of one owner rank: rules L1 to L12 of ARCHITECTURE.md, each with a test of its name.
package lease

import (
	"fmt"
	"hash/maphash"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/trace"
)

// Config is what a table is opened with. A zero of the first group is an error or takes the default named; a zero of
// StockLinger means none, so the opener decides.
type Config struct {
	Duration    time.Duration // first term of a grant that names none
	Extension   time.Duration // what a heartbeat gives; default two thirds of Duration
	Interval    time.Duration // heartbeat interval; default a sixth of Duration
	Settle      time.Duration // from the first look at a passed deadline to the second; default 50 ms
	StallGap    time.Duration // a longer gap before the first look makes the wait one Interval; default Interval
	StockLinger time.Duration // longer hold after the deadline of a lease last renewed by a stock reader
	ExpectMax   time.Duration // life of an expectation; default ten times Duration, negative for ever: the host of a rank cancels it
	FixedTTL    time.Duration // life of a fixed grant that names none; default sixteen times Duration
	Jitter      time.Duration // grants are spread by up to this, later only; default an eighth of Extension, negative none
	SweepMax    int           // ends per step and cause; default 256
	LongIDs     int           // ids of more than 96 bytes at once; default one hundredth of the leases
	Readers     int           // readers of incomplete sets that can be remembered at once; default a sixteenth of the leases, at least 1,024

	AllPeersCheck bool   // every reader checks the fence: grants start checked (L12)
	StockPeers    bool   // stock messages are heard
	Seed          uint64 // of the jitter

	Sites       *trace.Sites // nil: nobody can attach
	Log         *log.Writer  // of the step; nil: nothing is said
	TraceSample int          // ends that run through a site of their own: one lease in so many, a power of two, by the hash of its id; 0: none
}

// Memory is what the table works on: C memory in the library, slices in tests. Leases = len(Slots) = len(Rows).
type Memory struct {
	Control *record.Control
	Slots   []record.Slot
	Header  *record.BoardHeader
	Rows    []record.Row
}

// LeasesMax is the largest table: a slot's number has 23 bits in an index entry.
const LeasesMax = 1<<23 - 1

// Table holds the leases of one rank.
//
// Threads: one, the step's. The host changes state words beside it, as record.Slot says.
// Memory: all of it from New. No other method touches the heap.
// Time: callers pass now, never less than the call before; the table reads no clock and counts in units of 2^19 ns,
// deadlines rounded up. Past 18 years after boot nothing expires any more.
// Limit: len(Memory.Slots) leases. The host refuses grants past that, since it hands out the slots (L7).
type Table struct {
	cfg    Config
	mem    Memory
	secret [2]uint64
	base   uint64
	seed   maphash.Seed

	hot     []hot
	granted []int64 // ns of the grant; once ended: ns held
	timed   lists   // wheel buckets, due, noted, ended: a slot is in at most one
	worth   lists   // revocable, lingering: a slot is in at most one
	wheel   wheel
	index   index
	graves  graves
	readers readers
	from    []byte // agent of the message that is applied; nil: nobody has said
	long    longIDs
	jitter  uint64

	extUs     uint64
	spreadMax uint64 // units
	settle    uint64 // units
	interval  uint64 // units
	linger    uint64 // units

	slotsUsed int // slots below this were used at least once
	gone      gone
	left      graves // engines that have said good-bye
	wanted    uint64 // blocks that pressure still wants
	ripens    uint64 // units: when what wanted waits for may be taken; 0: it does not wait
	looks     looks
	stalled   uint64 // units: when the last stall ended
	stalls    stalls
	endCursor int
	closed    bool
	touched   uint64 // keeps the loads of RenewIDs
	traced    traced

	held, expected, ended int
	lingering             int
	blocks                uint64

	accounts accounts
	last     record.LastEnds

	// Counters and Times are for the reader of a stats page; nothing in the table looks at them.
	Counters Counters
	Times    Times
}

// hot is what a native message touches: half a cache line.
type hot struct {
	key uint64 // of the present use, valid while granted
	who uint64 // last engine of ours that named the lease, mixed with its epoch; 0 none
	a   uint64 // units << 24 | flags. Units: the grant's or expectation's end; while due the time of the first look; while noted the count of arrivals
	b   uint64 // units << 24 | set. Units: end that the last native heartbeat gave, 0 none. Set: first reader, 0 none
}

// Low bits of hot.a.
const (
	phaseFree     = 0
	phaseExpected = 1
	phaseHeld     = 2
	phaseEnded    = 3
	phaseMask     = 3

	isUnchecked   = 1 << 2  // L12
	namedStock    = 1 << 3  // a stock message named it: unchecked for good
	namedNative   = 1 << 4  // a native message named it: stock ones cannot end it
	isShared      = 1 << 5  // L12: a second engine of ours named it
	noIndex       = 1 << 6  // its id is not in the index: a duplicate, or no room
	isFixed       = 1 << 7  // heartbeats do not extend it
	isDue         = 1 << 8  // looked at once
	isNoted       = 1 << 9  // looked at twice, waits for what had arrived
	isLingering   = 1 << 10 // past its deadline, L9
	revokeSaid    = 1 << 11 // revoke waits for unchecked to clear
	keptDone      = 1 << 12 // completed before its grant
	keptReleased  = 1 << 13 // released before its grant
	hasLapsed     = 1 << 14 // ended as an expectation
	isRevocable   = 1 << 15 // in the list for pressure
	accountShift  = 16      // and 8 bits: the account
	lowBits       = 24
	lowMask       = 1<<lowBits - 1
	unitShift     = 19
	unitsMax      = 1<<40 - 1
	nsPerUnit     = 1 << unitShift
	pressureLooks = 16 // entries looked at per end that pressure may make
	examineFactor = 16 // wheel entries looked at per end that a sweep may make
	scanMax       = 32768
)

// units is an Instant rounded up, held inside 40 bits.
func units(t clock.Instant) uint64 {
	if t <= 0 {
		return 0
	}
	return min((uint64(t)+nsPerUnit-1)>>unitShift, unitsMax)
}

// unitsPast is an Instant rounded down: what has passed for certain. It never reaches unitsMax, so that an end that
// does not fit is never passed.
func unitsPast(t clock.Instant) uint64 {
	if t <= 0 {
		return 0
	}
	return min(uint64(t)>>unitShift, unitsMax-1)
}

func unitsOf(d time.Duration) uint64 { return units(clock.Instant(d)) }

// New opens a table on mem, writes the board's header and opens every row for its first use.
// base is the fence word of use 0, below 2^62.
func New(cfg Config, mem Memory, secret [2]uint64, base, epoch uint64) (*Table, error) {
	n := len(mem.Slots)
	switch {
	case mem.Control == nil || mem.Header == nil:
		return nil, fmt.Errorf("lease table: control page or board header missing")
	case n == 0 || n > LeasesMax:
		return nil, fmt.Errorf("lease table: %d leases, want 1 to %d", n, LeasesMax)
	case len(mem.Rows) < n:
		return nil, fmt.Errorf("lease table: %d rows for %d leases", len(mem.Rows), n)
	case cfg.Duration <= 0:
		return nil, fmt.Errorf("lease table: duration %v", cfg.Duration)
	case cfg.Extension < 0 || cfg.Interval < 0 || cfg.Settle < 0 || cfg.StallGap < 0 || cfg.StockLinger < 0 || cfg.FixedTTL < 0:
		return nil, fmt.Errorf("lease table: a negative time in %+v", cfg)
	case cfg.SweepMax < 0 || cfg.LongIDs < 0 || cfg.Readers < 0:
		return nil, fmt.Errorf("lease table: a negative bound in %+v", cfg)
	case cfg.TraceSample < 0 || cfg.TraceSample&(cfg.TraceSample-1) != 0:
		return nil, fmt.Errorf("lease table: a sample of one in %d, want a power of two", cfg.TraceSample)
	case base >= 1<<62:
		return nil, fmt.Errorf("lease table: base %#x, want less than 2^62", base)
	}
	cfg.Extension = or(cfg.Extension, cfg.Duration*2/3)
	cfg.Interval = or(cfg.Interval, cfg.Duration/6)
	cfg.Settle = or(cfg.Settle, 50*time.Millisecond)
	cfg.StallGap = or(cfg.StallGap, cfg.Interval)
	cfg.ExpectMax = or(cfg.ExpectMax, 10*cfg.Duration)
	cfg.FixedTTL = or(cfg.FixedTTL, 16*cfg.Duration)
	cfg.Jitter = max(or(cfg.Jitter, cfg.Extension/8), 0)
	cfg.SweepMax = or(cfg.SweepMax, 256)
	cfg.LongIDs = or(cfg.LongIDs, n/100+1)
	cfg.Readers = min(or(cfg.Readers, max(n/16, 1024)), lowMask-1)

	t := &Table{
		cfg: cfg, mem: mem, secret: secret, base: base, seed: maphash.MakeSeed(),
		hot: make([]hot, n), granted: make([]int64, n),
		index: newIndex(n), graves: newGraves(gravesMax), gone: newGone(), left: newGraves(leftMax), readers: newReaders(cfg.Readers), long: newLongIDs(cfg.LongIDs),
		accounts:  newAccounts(),
		jitter:    cfg.Seed | 1,
		extUs:     uint64(cfg.Extension / time.Microsecond),
		spreadMax: unitsOf(cfg.Jitter), settle: unitsOf(cfg.Settle), interval: unitsOf(cfg.Interval), linger: unitsOf(cfg.StockLinger),
	}
	t.wheel = newWheel(cfg.Duration, n)
	t.timed = newLists(n, t.wheel.buckets+timedLists)
	t.worth = newLists(n, worthLists)
	mem.Header.Version = record.BoardVersion
	mem.Header.DurationNs = uint64(cfg.Duration)
	mem.Header.Base = base
	mem.Header.Epoch = epoch
	for i := range n {
		record.Raise(&mem.Rows[i].Fence, base)
	}
	return t, nil
}

func or[T int | time.Duration](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}

// Held is the number of leases granted and not ended.
func (t *Table) Held() int { return t.held }

// Expected is the number of expectations.
func (t *Table) Expected() int { return t.expected }

// Ending is the number of ends that wait for PopEnd.
func (t *Table) Ending() int { return t.ended }

// Lingering is the number of held leases that are past their deadline and held for a stock reader (L9).
func (t *Table) Lingering() int { return t.lingering }

// Blocks is the number of blocks under held leases.
func (t *Table) Blocks() uint64 { return t.blocks }

func (h *hot) phase() uint64     { return h.a & phaseMask }
func (h *hot) is(f uint64) bool  { return h.a&f != 0 }
func (h *hot) end() uint64       { return h.a >> lowBits }
func (h *hot) setEnd(u uint64)   { h.a = u<<lowBits | h.a&lowMask }
func (h *hot) beat() uint64      { return h.b >> lowBits }
func (h *hot) setBeat(u uint64)  { h.b = u<<lowBits | h.b&lowMask }
func (h *hot) set() uint32       { return uint32(h.b & lowMask) }
func (h *hot) setSet(s uint32)   { h.b = h.b&^lowMask | uint64(s) }
func (h *hot) setPhase(p uint64) { h.a = h.a&^phaseMask | p }

// CommaIDs is the number of slots whose id has a comma: while it is 0 a heartbeat's elements need not be rejoined.
func (t *Table) CommaIDs() int { return t.long.commas }
