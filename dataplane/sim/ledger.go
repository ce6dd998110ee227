package sim

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// ledger is what the checker knows of one rank's leases by what the rank was told and has taken: from it follows what may and what must
// have become of each. It looks at the table from outside only: slots, rows, and what is told.
type ledger struct {
	r       *rankCtx
	w       *World
	slots   []entry
	past    []entry           // the use before, of each slot
	ids     map[string]uint32 // slot of the latest use that was granted or expected under an id
	last    clock.Instant     // time of the last step
	lastAt  clock.Instant     // its true time
	stalled clock.Instant     // of the last one behind a gap
	again   uint64            // grants that were repeated
}

// entry is one use of a slot at one rank.
type entry struct {
	use      uint32
	name, id string
	state    uint32 // as in the slot's state word
	fixed    bool
	least    clock.Instant // deadline: no earlier
	most     clock.Instant // and no later
	lastBeat clock.Instant // what the latest heartbeat gave
	stock    bool          // it was a stock one
	anyStock bool          // one has ever been
	native   bool          // named by a native message
	first    uint64        // the engine that it was
	shared   bool
	named    bool   // by a stock message
	row      uint64 // deadline that the row showed
	reports  []report
	complete bool          // all readers of one engine have reported
	open     int           // steps that found it held all the same
	fair     bool          // a release, or the death of the only engine that named it, ends it (L12)
	kept     bool          // a release came before the grant
	loose    clock.Instant // step since which somebody may read who does not check the fence; 0: nobody

	passed    clock.Instant // first step behind least, since the last heartbeat
	passedGap time.Duration
	looked    clock.Instant // first step behind most
	over      int           // steps that should have found it ended
	backlog   int           // steps that what had arrived by then takes
	second    clock.Instant // second look that a heartbeat which came behind the first does not spare it; 0: none
	mark      uint64        // messages that had arrived by then, all of which it waits for; 0: not known yet

	ended    clock.Instant // 0: it has not
	missed   bool          // it ended while a heartbeat waited that had arrived before its second look
	wanted   int           // steps that should have ended it, as its engine or its reader wanted
	doubtful bool          // something is not known: no bound is held against it
}

func newLedger(r *rankCtx) *ledger {
	return &ledger{r: r, w: r.life.w, slots: make([]entry, len(r.mem.Slots)), past: make([]entry, len(r.mem.Slots)), ids: map[string]uint32{}}
}

// over begins another era: what is known is void.
func (l *ledger) over() {
	copy(l.past, l.slots)
	for i := range l.past {
		l.past[i].doubtful = true
	}
	clear(l.slots)
	clear(l.ids)
}

// poisoned says that the rank's core is broken: no bound holds any more.
func (l *ledger) poisoned() {
	for i := range l.slots {
		l.slots[i].doubtful = true
	}
}

func (l *ledger) extension() time.Duration { return l.r.life.place.lease() * 2 / 3 }
func (l *ledger) interval() time.Duration  { return l.r.life.place.lease() / 6 }

// word is a slot's use and state now.
func (l *ledger) word(slot uint32) (use, bits uint32) {
	s := atomic.LoadUint64(&l.r.mem.Slots[slot].State)
	return uint32(s >> 32), uint32(s) & record.Mask
}

// sync takes over what has become of the slots. It is called before messages are taken, since the step has taken grants by then,
// and behind the step.
func (l *ledger) sync(now clock.Instant) {
	for s := range l.slots {
		use, bits := l.word(uint32(s))
		e := &l.slots[s]
		if e.use == use && e.state == bits {
			continue
		}
		if e.use > use {
			l.broke("L2", e, "slot %d went from use %d back to %d", s, e.use, use)
		}
		if e.use != use {
			if e.state == record.Granted { // it ended, and its slot was given back, within the step
				l.atEnd(e, now)
			}
			l.past[s] = *e
			*e = entry{use: use}
		}
		if bits != e.state {
			l.moved(uint32(s), e, bits, now)
		}
	}
}

// look compares the table with what is known, behind each step.
func (l *ledger) look(now clock.Instant) {
	l.sync(now)
	gap := time.Duration(0)
	if l.last != 0 {
		gap = now.Sub(l.last)
	}
	l.last, l.lastAt = now, l.w.now
	if gap > l.interval() {
		l.stalled = now
	}
	again := false
	if l.r.link != nil {
		n := l.r.link.Counters.Repeated + l.r.leases.Counters.Again
		again, l.again = n != l.again, n
	}
	l.accounts()
	_, rows := record.Board(l.r.mem.Board)
	for s := range l.slots {
		e := &l.slots[s]
		if e.state != record.Granted {
			continue
		}
		row := &rows[s]
		if row.Fence == record.FenceClosed {
			e.doubtful = true
		}
		if e.doubtful {
			continue
		}
		if row.DeadlineUs < e.row {
			l.broke("L1", e, "the row's deadline went from %d us back to %d", e.row, row.DeadlineUs)
		}
		e.row = row.DeadlineUs
		if again { // the host has told a grant once more, with the time left, but an extension at least
			e.most, e.looked, e.over = max(e.most, now.Add(l.extension()*9/8)), 0, 0
		}
		if e.complete {
			if e.open++; e.open == 2 {
				l.broke("L5", e, "all readers of one engine have reported, and it is held")
			}
		}
		l.asWanted(uint32(s), e)
		l.inTime(e, now, gap)
	}
}

// moved takes a change of a slot's state within one use.
func (l *ledger) moved(s uint32, e *entry, bits uint32, now clock.Instant) {
	before := e.state
	e.state = bits
	switch bits {
	case record.Granted, record.Expected:
	default:
		if before == record.Granted {
			l.atEnd(e, now)
		}
		return
	}
	g := l.r.life.app.leases[record.NewHandle(s, e.use)]
	if g == nil {
		e.doubtful = true
		return
	}
	e.name, e.fixed = g.name, g.fixed
	if e.ended != 0 || before == record.Ended || before == record.Lapsed {
		l.broke("L2", e, "use %d of slot %d came back after its end", e.use, s)
	}
	if last, ok := l.ids[g.id]; bits == record.Expected && (ok && last != s && l.endedIn(last, g.id, now) || l.passedBy(g)) {
		e.doubtful = true // nobody sees whether the id was free again when the expectation came
	}
	switch other := l.byID(g.id); {
	case other == e:
		e.id = g.id
	case other == nil:
		e.id, l.ids[g.id] = g.id, s
	case other.state == record.Expected && bits == record.Granted: // what was kept for the id is this one's
		e.id, l.ids[g.id] = g.id, s
		e.named = e.named || other.named
		if other.lastBeat > e.lastBeat {
			e.beat(l, now, other.lastBeat, other.stock)
		}
		for _, k := range other.reports {
			e.report(k, k.agent != "")
		}
	}
	if bits == record.Expected {
		return
	}
	ttl := g.ttl
	switch {
	case ttl == 0 && g.fixed:
		ttl = l.r.life.blocksTTL()
	case ttl == 0:
		ttl = l.r.life.place.lease()
	}
	if e.fixed {
		e.least, e.most = 0, 0
	}
	// The time left may run from when it was said, or from when this rank heard of it, and never from earlier.
	first := now.Add(ttl)
	if l.r.life.host != nil {
		first = first.Add(-l.w.now.Sub(g.at))
	}
	e.least = max(e.least, first)
	e.most = max(e.most, now.Add(ttl+l.extension()/8))
	if l.r.life.host != nil {
		e.most = max(e.most, now.Add(l.extension()*9/8))
	}
	e.passed, e.looked, e.over = 0, 0, 0
	l.loosen(e, now)
	e.fair = e.fair || e.kept && !e.shared && e.loose == 0
	if e.complete && e.id != "" && !e.doubtful {
		l.broke("L6", e, "all its readers had reported before the grant, and it is held")
	}
}

// endedIn reports that the lease of an id in a slot ended in the step at now.
func (l *ledger) endedIn(s uint32, id string, now clock.Instant) bool {
	for _, e := range []*entry{&l.slots[s], &l.past[s]} {
		if e.id == id && e.ended == now {
			return true
		}
	}
	use, bits := l.word(s) // its end is not noted yet
	e := &l.slots[s]
	return e.id == id && e.state == record.Granted && (use != e.use || bits != record.Granted)
}

// passedBy reports that a lease of the same id may have come and gone within this step, of which the slots show nothing.
func (l *ledger) passedBy(g *grant) bool {
	for h, o := range l.r.life.app.leases {
		if o == g || o.id != g.id || !o.granted || o.ended && o.at <= l.lastAt || int(h.Slot()) >= len(l.slots) {
			continue
		}
		use, bits := l.word(h.Slot())
		over := use > h.Use() || use == h.Use() && bits != record.Free && bits != record.Expected && bits != record.Granted
		e, p := &l.slots[h.Slot()], &l.past[h.Slot()]
		seen := e.use == h.Use() && e.name != "" || p.use == h.Use() && p.name != ""
		if over && !seen {
			return true
		}
	}
	return false
}

func (l *ledger) broke(rule Rule, e *entry, format string, args ...any) {
	l.w.broke(rule, l.r.who(), e.name, "rank %d: "+format+" (%s)", append(append([]any{l.r.n}, args...), e)...)
}

// String is what is known of a lease, for the text of a violation.
func (e *entry) String() string {
	return fmt.Sprintf("id %q, use %d, ended at %v, deadline %v to %v, last heartbeat until %v (stock %v), named by native %v, by stock %v, shared %v, reports %v, fair %v",
		e.id, e.use, e.ended, e.least, e.most, e.lastBeat, e.stock, e.native, e.named, e.shared, e.reports, e.fair)
}

// unit is what the table counts time in, and more.
const unit = time.Millisecond

// expiry is the least time at which a lease may be looked at as expired.
func (l *ledger) expiry(e *entry) clock.Instant {
	if e.stock && e.lastBeat != 0 && !e.fixed {
		return max(e.least, e.lastBeat.Add(l.linger()))
	}
	return e.least
}

// latest is the time behind which a lease is certainly over for whoever looks.
func (l *ledger) latest(e *entry) clock.Instant {
	if e.anyStock {
		return e.most.Add(l.linger())
	}
	return e.most
}

// inTime notes the looks at a lease that still stands, and holds it against the time at which it must have ended (L4).
func (l *ledger) inTime(e *entry, now clock.Instant, gap time.Duration) {
	if e.passed == 0 && now >= l.expiry(e).Add(-unit) {
		e.passed, e.passedGap = now, gap
	}
	if e.second != 0 { // the first look at a later deadline comes behind it
		if e.mark == 0 && now >= e.second {
			e.mark = l.r.tap.arrived()
		}
		if e.mark == 0 || l.r.tap.taken < e.mark {
			return
		}
		e.second, e.mark = 0, 0
	}
	until := l.latest(e)
	if now < until.Add(max(l.r.life.place.lease()/256, 10*time.Millisecond)) {
		return
	}
	if e.looked == 0 {
		e.looked = now
		return
	}
	if now < e.looked.Add(l.settle(e)) {
		return
	}
	if e.over == 0 {
		e.backlog = l.r.tap.Backlog()/l.r.life.place.spec.notifsMax() + 1
	}
	if e.over++; e.over == 4+e.backlog {
		l.broke("L4", e, "still held %v after its deadline, which a step found passed %v ago", now.Sub(until), now.Sub(e.looked))
	}
}

// settle is the most that lies between the two looks at a lease, but for what a step finds only when it comes.
func (l *ledger) settle(e *entry) time.Duration {
	if l.stalled >= e.least { // the stall may have begun before its deadline
		return l.interval() + unit
	}
	return settleWait + unit
}

func (l *ledger) linger() time.Duration {
	switch p := l.r.life.place.spec; {
	case p.StockLinger < 0:
		return 0
	case p.StockLinger > 0:
		return p.StockLinger
	}
	return l.extension()
}

// freed holds the reason that the engine was told for this rank against what is known.
func (l *ledger) freed(g *grant, reason int) {
	if l.r.gone || l.r.life.dead {
		return
	}
	s := g.handle.Slot()
	if reason == record.FreedPoisoned {
		l.brokenFreed(g)
	}
	// L10: whoever reads the row now must see that the lease is over. Of a rank that has made no map nobody knows where the rows are.
	_, rows := record.Board(l.r.mem.Board)
	if l.r.agent != nil && l.r.ownMap != nil && l.r.epoch == g.epoch && rows[s].Fence == l.r.base+uint64(g.handle.Use()) {
		l.w.broke("L10", l.r.who(), g.name, "freed as %s while the row of rank %d says that it may be read", freedNames[reason&15], l.r.n)
	}
	if l.r.poisoned || l.r.life.app.broken {
		return
	}
	e := &l.slots[s]
	if e.use != g.handle.Use() {
		e = &l.past[s]
	}
	if e.use != g.handle.Use() || e.ended == 0 || e.doubtful {
		return // it never was here, or is no longer known
	}
	switch reason {
	case record.FreedExpired:
		until := l.expiry(e)
		switch {
		case e.ended < until.Add(-unit):
			l.broke("L4", e, "expired %v before its time", until.Sub(e.ended))
		case e.passed == 0 || e.ended.Sub(e.passed) < settleWait-unit:
			l.broke("L8", e, "expired %v after the first look at its deadline", e.ended.Sub(max(e.passed, until)))
		case e.missed:
			l.broke("L8", e, "expired while a heartbeat waited that had arrived before its second look")
		case e.passedGap > l.interval() && l.latest(e).Add(unit) <= e.passed && e.ended.Sub(e.passed) < l.interval()-unit:
			l.broke("L8", e, "expired %v after a stall of %v", e.ended.Sub(e.passed), e.passedGap)
		}
	case record.FreedCompleted:
		if !e.complete {
			l.broke("L5", e, "completed, and not all readers of one engine have reported: %d reports", len(e.reports))
		}
	case record.FreedReleased:
		if !e.fair {
			l.broke("L12", e, "released, and nobody could say so, or somebody may read who does not check the fence")
		}
	case record.FreedRevoked:
		if e.unchecked() && !g.cancel && !(e.anyStock && e.ended >= e.least) {
			l.broke("L12", e, "revoked, and somebody may read who does not check the fence")
		}
	}
}

// unchecked reports that the lease ended although somebody may read who does not check the fence.
func (e *entry) unchecked() bool { return e.loose != 0 && e.loose < e.ended }
