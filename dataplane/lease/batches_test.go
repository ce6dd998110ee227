package lease

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

// Entries and ids are looked up in groups, whose cache misses overlap.
func TestALongBatchTellsTheOutcomeOfEachEntryAtItsPlace(t *testing.T) {
	const n = 3*batchMax + 5
	r := newRig(t, n)
	entries, ids, want := make([]Entry, n), make([][]byte, n), make([]Outcome, n)
	for i := range n {
		id := fmt.Sprint("id", i)
		h := r.grant(id)
		entries[i], ids[i], want[i] = r.entry(h), []byte(id), Applied
		if i%7 == 3 {
			entries[i].Key++
			ids[i] = append(ids[i], '?')
		}
	}
	native, stock := make([]Outcome, n), make([]Outcome, n)
	r.t.RenewEntries(entries, engineD, r.now, native)
	named := r.t.RenewIDs(ids, agentD, r.now, stock)
	if others := r.t.RenewIDs([][]byte{[]byte("nobody's")}, agentD, r.now, nil); named != n-n/7 || others != 0 {
		t.Errorf("%d of %d ids named a lease, and %d of one that is no id", named, n, others)
	}
	for i := range n {
		wantN, wantS := Applied, Applied
		if i%7 == 3 {
			wantN, wantS = BadKey, Unknown
		}
		if native[i] != wantN || stock[i] != wantS {
			t.Fatalf("entry %d: %v and %v, want %v and %v", i, native[i], stock[i], wantN, wantS)
		}
	}
	short := make([]Outcome, batchMax+1) // fewer outcomes than entries
	r.t.RenewEntries(entries, engineD, r.now, short)
	r.t.RenewIDs(ids, agentD, r.now, short)
	if c := r.c.RenewedNative; c != 2*uint64(n-n/7) {
		t.Errorf("%d heartbeats applied, want %d", c, 2*(n-n/7))
	}
}

// An expectation holds the only place for a long id. A grant of the same id in another slot takes its entry over, but not the place.
func TestAGrantOfALongIdThatIsExpectedElsewhereFindsNoRoom(t *testing.T) {
	r := newRig(t, 4, func(c *Config) { c.LongIDs = 1 })
	id := strings.Repeat("x", 200)
	x := r.expect(id)
	h := r.grant(id)
	r.wantCount("ids too long", r.c.LongFull, 1)
	r.wantHeld(h)
	r.want(r.t.Complete(r.entry(h), engineD, 1, r.now), Ended)
	r.wantEnded(record.FreedCompleted, h)
	r.t.Cancel(x, r.now)
	r.run(at(1))
	r.wantEmpty()
}

// Its second look waits for what has arrived, and meanwhile a heartbeat comes and a stall that outlives what it gave. Then the
// lease lingers like any other: two looks at the new deadline, and pressure may have it.
func TestL9ALeaseThatWasRenewedInItsSecondLookLingersLikeAnyOther(t *testing.T) {
	r := newRig(t, 4, func(c *Config) { c.StockLinger = 20 * time.Second })
	a := r.grant("a")
	r.run(at(30.03)) // first look
	r.arrived, r.applied = 100, 40
	r.run(at(30.2)) // second look: waits for 100
	r.want(r.beat("a"), Applied)
	r.arrived, r.applied = 100, 100
	r.now = at(51) // its extension is over at 50.2
	r.step()
	r.wantHeld(a)
	r.run(at(57)) // one interval, as after every stall
	r.wantHeld(a)
	if r.t.Lingering() != 1 {
		t.Fatalf("%d leases linger, want 1", r.t.Lingering())
	}
	if got := r.t.Pressure(1, r.now); got != 8 {
		t.Errorf("pressure freed %d blocks, want the 8 of the lease that lingers", got)
	}
	r.drain()
	r.wantEnded(record.FreedRevoked, a)
	r.wantEmpty()
}

// A lease that one reader has named and nothing has happened to since takes the short way. It asks for the same proof.
func TestL12AWarmLeaseIsRenewedByItsKeyAndGenerationOnly(t *testing.T) {
	r := newRig(t, 4, checkedPeers)
	h := r.grant("a")
	e := r.entry(h)
	r.want(r.t.Renew(e, engineD, r.now), Applied)
	otherKey, otherUse := e, e
	otherKey.Key++
	otherUse.Generation++
	for _, wrong := range []Entry{otherKey, otherUse} {
		r.now = at(10)
		r.want(r.t.Renew(wrong, engineD, r.now), BadKey)
		var out [1]Outcome
		r.t.RenewEntries([]Entry{wrong}, engineD, r.now, out[:])
		r.want(out[0], BadKey)
		r.want(r.t.Complete(wrong, engineD, 1, r.now), BadKey)
		r.want(r.t.Release(wrong, engineD, r.now), BadKey)
	}
	r.wantCount("heartbeats applied", r.c.RenewedNative, 1)
	r.wantHeld(h)
	r.run(at(30.2)) // the one heartbeat was at 0
	r.wantEnded(record.FreedExpired, h)
}

func TestL4EndsThatWaitedForWhatHadArrivedAreBoundedInAStep(t *testing.T) {
	r := newRig(t, 16, func(c *Config) { c.SweepMax = 4 })
	for i := range 9 {
		r.grant(fmt.Sprint(i))
	}
	r.run(at(30.01))
	r.arrived, r.applied = 100, 40
	r.run(at(30.5)) // all are looked at twice, and wait for 100
	if n := len(r.ends); n != 0 {
		t.Fatalf("%d ended before what had arrived was applied", n)
	}
	r.applied = 100
	for _, want := range []int{4, 8, 9} {
		cut := r.c.SweepCut
		r.now = r.now.Add(tick)
		r.step()
		if r.drain(); len(r.ends) != want || r.c.SweepCut-cut != uint64(min(1, 9-want)) {
			t.Errorf("%d ends and %d cuts, want %d ends, and a cut while some are left", len(r.ends), r.c.SweepCut-cut, want)
		}
	}
	r.wantEmpty()
}

func TestAnIdThatBeginsWithACommaIsCountedOnce(t *testing.T) {
	r := newRig(t, 4)
	for range 3 {
		h := r.expect(",x")
		if n := r.t.CommaIDs(); n != 1 {
			t.Fatalf("%d ids with commas, want 1", n)
		}
		r.t.Cancel(h, r.now)
		if n := r.t.CommaIDs(); n != 0 {
			t.Fatalf("%d ids with commas, want none", n)
		}
	}
}
