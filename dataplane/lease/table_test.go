package lease

import (
	"sync/atomic"
	"time"

	"pgregory.net/rapid"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// rig is a table with the host beside it: it takes slots and sets state words as the C library does.
type rig struct {
	tb      rapid.TB
	t       *Table
	c       *Counters
	mem     Memory
	secret  [2]uint64
	free    []uint32
	never   uint32
	now     clock.Instant
	stepped clock.Instant
	arrived uint64
	applied uint64
	ends    []End
}

const (
	testBase  = 1 << 40
	testEpoch = 77
	tick      = 10 * time.Millisecond
)

func newMemory(n int) Memory {
	return Memory{Control: &record.Control{LeaseFree: record.None}, Slots: make([]record.Slot, n), Header: &record.BoardHeader{}, Rows: make([]record.Row, n)}
}

// newRig opens a table of n leases with the times of the fault cases: lease 30 s, interval 5 s, extension 20 s, no jitter.
func newRig(tb rapid.TB, n int, change ...func(*Config)) *rig {
	tb.Helper()
	cfg := Config{Duration: 30 * time.Second, Jitter: -1, StockPeers: true, Seed: 1}
	for _, c := range change {
		c(&cfg)
	}
	r := &rig{tb: tb, mem: newMemory(n), secret: [2]uint64{11, 22}}
	var err error
	if r.t, err = New(cfg, r.mem, r.secret, testBase, testEpoch); err != nil {
		tb.Fatal(err)
	}
	r.c = &r.t.Counters
	return r
}

func checkedPeers(c *Config) { c.AllPeersCheck = true }

// at is a time of the fault cases, in seconds.
func at(s float64) clock.Instant { return clock.Instant(s * 1e9) }

// take gives a free slot and its use, and sets its state word.
func (r *rig) take(bits uint32) (record.Handle, bool) {
	if len(r.free) == 0 && int(r.never) < len(r.mem.Slots) {
		r.free = append(r.free, r.never)
		r.never++
	}
	if len(r.free) == 0 {
		for s := record.TakeFree(&r.mem.Control.LeaseFree); s != record.None; s = r.mem.Slots[s].Next {
			r.free = append(r.free, s)
		}
	}
	if len(r.free) == 0 {
		return 0, false
	}
	s := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	old := atomic.LoadUint64(&r.mem.Slots[s].State)
	use := stateUse(old)
	if old&record.Mask != record.Free || !atomic.CompareAndSwapUint64(&r.mem.Slots[s].State, old, record.State(use, bits)) {
		r.tb.Fatalf("slot %d of the free list has state %#x", s, old)
	}
	return record.NewHandle(s, use), true
}

func (r *rig) expect(id string) record.Handle {
	h, ok := r.take(record.Expected)
	if !ok {
		r.tb.Fatalf("no slot to expect %q", id)
	}
	r.t.Expect(h, []byte(id), r.now)
	return h
}

// grant grants id in a slot of its own.
func (r *rig) grant(id string, change ...func(*record.Grant)) record.Handle {
	h, ok := r.take(record.Granted)
	if !ok {
		r.tb.Fatalf("no slot to grant %q", id)
	}
	r.say(h, id, change...)
	return h
}

// grantExpected grants an expectation; it reports false if the expectation has lapsed.
func (r *rig) grantExpected(h record.Handle, id string, change ...func(*record.Grant)) bool {
	if !atomic.CompareAndSwapUint64(&r.mem.Slots[h.Slot()].State, record.State(h.Use(), record.Expected), record.State(h.Use(), record.Granted)) {
		return false
	}
	r.say(h, id, change...)
	return true
}

func (r *rig) say(h record.Handle, id string, change ...func(*record.Grant)) Outcome {
	g := record.Grant{Lease: h, Key: Key(r.secret, h.Slot(), h.Use()), User: uint64(h) + 1, Blocks: 8, IDLen: uint32(len(id))}
	for _, c := range change {
		c(&g)
	}
	return r.t.Grant(&g, []byte(id), r.now)
}

func ttl(d time.Duration) func(*record.Grant) { return func(g *record.Grant) { g.TTLNs = uint64(d) } }

func fixed(g *record.Grant) { g.Flags |= record.GrantFixed }

func (r *rig) beat(id string) Outcome {
	var out [1]Outcome
	r.t.RenewIDs([][]byte{[]byte(id)}, agentD, r.now, out[:])
	return out[0]
}

func (r *rig) done(id, agent string, n uint32) Outcome {
	return r.t.CompleteID([]byte(id), []byte(agent), n, r.now)
}

func (r *rig) entry(h record.Handle) Entry {
	return Entry{Slot: h.Slot(), Generation: h.Use(), Key: Key(r.secret, h.Slot(), h.Use())}
}

var (
	engineD = Reader{Engine: 0xD, Epoch: 1}
	agentD  = []byte("agent D")
	engineE = Reader{Engine: 0xE, Epoch: 1}
)

func (d Reader) at(rank uint32) Reader { d.Rank = rank; return d }

// step runs one sweep at r.now and takes the ends.
func (r *rig) step() {
	r.t.SayGap(r.now, r.now.Sub(r.stepped), r.arrived-r.applied)
	r.t.Sweep(r.now, r.now.Sub(r.stepped), r.arrived, r.applied)
	r.stepped = r.now
	r.drain()
}

// drain takes the ends that wait.
func (r *rig) drain() {
	for {
		e, ok := r.t.NextEnd()
		if !ok {
			return
		}
		r.t.PopEnd()
		r.ends = append(r.ends, e)
	}
}

// run steps every tick until the time has come.
func (r *rig) run(until clock.Instant) {
	for r.now < until {
		r.now = min(r.now.Add(tick), until)
		r.step()
	}
}

// ended gives the reasons of the ends of a lease seen so far; a lapse is 0.
func (r *rig) ended(h record.Handle) (reasons []uint16) {
	r.drain()
	for _, e := range r.ends {
		if e.Handle == h {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons
}

func (r *rig) wantHeld(hs ...record.Handle) {
	r.tb.Helper()
	for _, h := range hs {
		if got := r.ended(h); len(got) != 0 {
			r.tb.Fatalf("at %v lease %#x has ended (%v), want held", time.Duration(r.now), uint64(h), got)
		}
		if k := &r.t.hot[h.Slot()]; k.phase() != phaseHeld {
			r.tb.Fatalf("at %v lease %#x is in phase %d, want held", time.Duration(r.now), uint64(h), k.phase())
		}
	}
}

func (r *rig) wantEnded(reason uint16, hs ...record.Handle) {
	r.tb.Helper()
	for _, h := range hs {
		if got := r.ended(h); len(got) != 1 || got[0] != reason {
			r.tb.Fatalf("at %v lease %#x has ends %v, want one with reason %d", time.Duration(r.now), uint64(h), got, reason)
		}
	}
}

func (r *rig) want(o, want Outcome) {
	r.tb.Helper()
	if o != want {
		r.tb.Fatalf("at %v outcome %d, want %d", time.Duration(r.now), o, want)
	}
}

func (r *rig) wantCount(name string, got, want uint64) {
	r.tb.Helper()
	if got != want {
		r.tb.Fatalf("at %v %s is %d, want %d", time.Duration(r.now), name, got, want)
	}
}

// wantEmpty checks that no table holds anything.
func (r *rig) wantEmpty() {
	r.tb.Helper()
	t := r.t
	if t.held != 0 || t.expected != 0 || t.ended != 0 || t.lingering != 0 || t.blocks != 0 || t.index.used != 0 || t.readers.free.Used() != 0 {
		r.tb.Fatalf("left over: held %d expected %d ended %d lingering %d blocks %d index %d readers %d",
			t.held, t.expected, t.ended, t.lingering, t.blocks, t.index.used, t.readers.free.Used())
	}
	if used := t.long.free.Used(); used != 0 {
		r.tb.Fatalf("left over: %d long ids", used)
	}
	for i := range t.timed.links {
		if t.timed.links[i] != (link{}) {
			r.tb.Fatalf("left over: slot %d is in a ring", i)
		}
	}
}

// wantFence checks a row's fence word.
func (r *rig) wantFence(h record.Handle, want uint64) {
	r.tb.Helper()
	if got := r.mem.Rows[h.Slot()].Fence; got != want {
		r.tb.Fatalf("fence of lease %#x is %#x, want %#x", uint64(h), got, want)
	}
}
