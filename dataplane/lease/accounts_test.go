package lease

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/siphash"
)

// checkAccounts holds the accounts against the slots: every held lease is in exactly one, and no end is lost.
func (r *rig) checkAccounts() {
	t := r.t
	want := make([]Account, t.accounts.inUse)
	for s := range t.hot {
		k := &t.hot[s]
		a := &want[k.account()]
		switch {
		case k.phase() == phaseHeld:
			a.Leases++
			a.Blocks += uint64(t.mem.Slots[s].Blocks)
		case k.account() != NobodysAccount:
			a.early++
		}
	}
	held, blocks := uint64(0), uint64(0)
	var ended [len(record.FreedNames)]uint64
	for i := range t.accounts.inUse {
		got := &t.accounts.all[i]
		if got.Leases != want[i].Leases || got.Blocks != want[i].Blocks || got.early != want[i].early {
			r.tb.Fatalf("account %d has %d leases, %d blocks, %d early words, the slots have %d, %d, %d",
				i, got.Leases, got.Blocks, got.early, want[i].Leases, want[i].Blocks, want[i].early)
		}
		held, blocks = held+got.Leases, blocks+got.Blocks
		for reason, n := range got.Ended {
			ended[reason] += n
		}
	}
	if held != uint64(t.held) || blocks != t.blocks {
		r.tb.Fatalf("accounts have %d leases and %d blocks, the table %d and %d", held, blocks, t.held, t.blocks)
	}
	for reason, n := range t.Counters.Freed {
		if ended[reason] != n {
			r.tb.Fatalf("accounts have %d ends %q, the table %d", ended[reason], record.FreedNames[reason], n)
		}
	}
}

// of gives the account of a lease.
func (r *rig) of(h record.Handle) *Account { return &r.t.accounts.all[r.t.hot[h.Slot()].account()] }

func engine(n int) Reader { return Reader{Engine: uint64(n) + 100, Epoch: 1 + uint64(n)%3} }
func agent(n int) []byte  { return fmt.Appendf(nil, "agent-%d", n) }

func TestEveryLeaseIsInExactlyOneAccount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRig(t, 320, func(c *Config) { c.Duration, c.SweepMax = 6*time.Second, 1000 })
		type named struct {
			id     string
			native int // the engine of ours that named it last
			stock  int // the first agent that did
		}
		live := map[record.Handle]*named{}
		var order []record.Handle // of maps there is none
		readers := rapid.SampledFrom([]int{3, 100, 400}).Draw(t, "readers")
		ids := 0
		forget := func() {
			r.drain()
			for _, e := range r.ends {
				delete(live, e.Handle)
			}
			r.ends = r.ends[:0]
			kept := order[:0]
			for _, h := range order {
				if live[h] != nil {
					kept = append(kept, h)
				}
			}
			order = kept
		}
		some := func() (record.Handle, *named) {
			h := order[rapid.IntRange(0, len(order)-1).Draw(t, "lease")]
			return h, live[h]
		}
		reader := rapid.IntRange(0, readers-1)
		for range rapid.IntRange(1, 600).Draw(t, "steps") {
			op := rapid.IntRange(0, 11).Draw(t, "op")
			if len(order) == 0 {
				op = 0
			}
			switch op {
			case 0, 1, 2:
				if h, ok := r.take(record.Granted); ok {
					ids++
					n := &named{fmt.Sprint("id", ids), -1, -1}
					if rapid.Bool().Draw(t, "early") { // a native word before the grant
						n.native = reader.Draw(t, "reader")
						r.t.Renew(r.entry(h), engine(n.native), r.now)
					}
					live[h], order = n, append(order, h)
					r.say(h, n.id)
				}
			case 3, 4, 5:
				h, n := some()
				n.native = reader.Draw(t, "reader")
				r.t.Renew(r.entry(h), engine(n.native), r.now)
			case 6, 7:
				_, n := some()
				by := reader.Draw(t, "agent")
				if n.stock < 0 {
					n.stock = by
				}
				r.t.RenewIDs([][]byte{[]byte(n.id)}, agent(by), r.now, nil)
			case 8:
				h, n := some()
				n.native = reader.Draw(t, "reader")
				r.t.Complete(r.entry(h), engine(n.native), 1, r.now)
			case 9:
				h, n := some()
				n.native = reader.Draw(t, "reader")
				r.t.Release(r.entry(h), engine(n.native), r.now)
			case 10:
				e := engine(reader.Draw(t, "reader"))
				r.t.EngineGone(e.Engine, e.Epoch, r.now)
			case 11:
				r.now = r.now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
				r.t.Sweep(r.now, tick, 0, 0)
			}
			r.now++
			forget()
			r.checkAccounts()
			for _, h := range order {
				n, a := live[h], r.of(h)
				switch {
				case a == &r.t.accounts.all[OthersAccount]:
					if r.t.accounts.inUse < AccountsMax {
						t.Fatalf("%v is with the others, although there is room", h)
					}
				case n.native >= 0:
					if e := engine(n.native); !a.Native || a.Engine != e.Engine || a.Epoch != e.Epoch {
						t.Fatalf("%s was named by %+v and is in %+v", n.id, e, a)
					}
				case n.stock >= 0:
					if got := r.t.accounts.names[r.t.hot[h.Slot()].account()]; a.Native || string(got) != string(agent(n.stock)) {
						t.Fatalf("%s was named by %s first and is with %q", n.id, agent(n.stock), got)
					}
				case a != &r.t.accounts.all[NobodysAccount]:
					t.Fatalf("%s was named by nobody and is in %+v", n.id, a)
				}
			}
		}
	})
}

func TestAFloodOfReadersCostsNoTotal(t *testing.T) {
	r := newRig(t, AccountsMax+50)
	var last record.Handle
	for i := range AccountsMax + 50 {
		last = r.grant(fmt.Sprint("id", i))
		r.t.Renew(r.entry(last), engine(i), r.now)
	}
	others := &r.t.accounts.all[OthersAccount]
	if others.Leases != 52 || others.LastBeat != r.now { // two places are taken by no reader
		t.Errorf("the others have %d leases, heard at %d", others.Leases, others.LastBeat)
	}
	r.checkAccounts()
	r.now = at(1)
	for i := range 100_000 { // names without a lease: an entry with a wrong key is nobody's
		r.t.Renew(Entry{Slot: last.Slot(), Key: uint64(i)}, Reader{Engine: uint64(i) << 20, Epoch: 1}, r.now)
	}
	if others.LastBeat == r.now || r.t.accounts.number != AccountsMax {
		t.Errorf("wrong keys were heard at %d, accounts were opened %d times", others.LastBeat, r.t.accounts.number)
	}
}

func TestTheReaderHeardTheLongestAgoGivesItsPlace(t *testing.T) {
	r := newRig(t, AccountsMax)
	keep := r.grant("kept")
	r.t.Renew(r.entry(keep), engine(0), r.now)
	for i := 1; i < AccountsMax-firstAccount; i++ {
		r.now++
		r.t.Complete(r.entry(r.grant(fmt.Sprint("id", i))), engine(i), 1, r.now)
		r.drain()
	}
	if n := r.t.accounts.inUse; n != AccountsMax {
		t.Fatalf("%d places are used", n)
	}
	r.now++
	h := r.grant("x")
	r.t.Renew(r.entry(h), engine(1000), r.now) // 0 was heard longer ago, and holds a lease
	if a := r.of(h); a.Engine != engine(1000).Engine || a.Number != AccountsMax+1 {
		t.Errorf("the new reader is in %+v", a)
	}
	if r.t.accounts.find(r.t.who(engine(1))) != NobodysAccount || r.t.accounts.find(r.t.who(engine(0))) == NobodysAccount {
		t.Error("another one than the reader without leases that was heard the longest ago gave its place")
	}
	if n := r.t.accounts.all[OthersAccount].Ended[record.FreedCompleted]; n != 1 {
		t.Errorf("the others have %d leases completed, want that of the reader that went", n)
	}
	r.checkAccounts()
}

// An engine that starts again and again fills the table with its boots. What it has come to, over its boots, is a counter for whoever looks
// at it by its name.
func TestTheEndsOfAnEngineDoNotGoBackOverItsBoots(t *testing.T) {
	r := newRig(t, AccountsMax)
	sum := func(engine uint64) (n uint64) {
		for i := firstAccount; i < r.t.accounts.inUse; i++ {
			if a := &r.t.accounts.all[i]; a.Native && a.Engine == engine {
				n += a.Ended[record.FreedCompleted]
			}
		}
		return n
	}
	for i := range 3 * AccountsMax {
		r.now++
		reader := Reader{Engine: 7, Epoch: uint64(i + 1)}
		if i%100 == 99 {
			reader.Engine = uint64(1000 + i)
		}
		r.t.Complete(r.entry(r.grant(fmt.Sprint("id", i))), reader, 1, r.now)
		r.drain()
		if got, want := sum(7), uint64(i+1-(i+1)/100); got != want {
			t.Fatalf("after %d boots its leases that ended are %d, want %d", i+1, got, want)
		}
		r.checkAccounts()
	}
}

func TestAReaderKeepsItsAccountInTheNextEra(t *testing.T) {
	r := newRig(t, 4)
	h := r.grant("a")
	r.t.Renew(r.entry(h), engineD, r.now)
	g := r.grant("b")
	r.beat("b")
	native, stock := r.of(h).Number, r.of(g).Number
	r.t.FenceAll()
	r.t.EndAll(record.FreedClosed, r.now)
	r.drain()
	r.secret = [2]uint64{33, 44}
	if err := r.t.Reset(r.secret, testBase*2, testEpoch+1); err != nil {
		t.Fatal(err)
	}
	h, g = r.grant("a"), r.grant("b")
	r.t.Renew(r.entry(h), engineD, r.now)
	r.beat("b")
	if r.of(h).Number != native || r.of(g).Number != stock {
		t.Errorf("accounts %d and %d, before %d and %d", r.of(h).Number, r.of(g).Number, native, stock)
	}
	r.checkAccounts()
}

func TestWhatARenewalFoundLeftIsItsSlack(t *testing.T) {
	r := newRig(t, 4)
	h := r.grant("native")
	r.grant("stock")
	near := func(what string, got, want time.Duration) {
		t.Helper()
		if d := got - want; d < -8*nsPerUnit || d > 8*nsPerUnit { // each is rounded by two
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	sum := func() time.Duration { return time.Duration(r.t.Times.Slack.Sum * 1e9) }
	r.now = at(10)
	r.t.Renew(r.entry(h), engineD, r.now)
	near("a native renewal of a grant of 30 s after 10", sum(), 20*time.Second)
	near("as traced", r.t.TakeSlack(), 0) // it was never taken before
	r.beat("stock")
	near("the first stock one", sum(), 40*time.Second)
	near("as traced", r.t.TakeSlack(), 20*time.Second)
	r.now = at(18)
	r.t.Renew(r.entry(h), engineD, r.now) // 10 + 20
	near("a native one after a native one", sum(), 52*time.Second)
	r.beat("stock")
	near("a stock one after a stock one", sum(), 64*time.Second)
	for i := range r.t.Accounts() {
		if a, _ := r.t.Account(i); i >= firstAccount {
			near("the least of an account", a.LeastSlack, 12*time.Second)
			if a.LastBeat != r.now {
				t.Errorf("account %d was heard at %d", i, a.LastBeat)
			}
		}
	}
	r.run(at(38.02)) // past both deadlines, once looked at
	if r.c.Due != 2 {
		t.Fatalf("%d leases were looked at", r.c.Due)
	}
	zero := r.t.Times.Slack.Zero
	r.t.Renew(r.entry(h), engineD, r.now)
	r.beat("stock")
	if got := r.t.Times.Slack.Zero - zero; got != 2 {
		t.Errorf("%d renewals between the two looks have no slack, want 2", got)
	}
	for range 3 { // what was least some time ago is forgotten
		r.now = r.now.Add(11 * time.Second)
		r.t.Look(r.now)
	}
	for i := range r.t.Accounts() {
		if a, _ := r.t.Account(i); a.LeastSlack != NoSlack {
			t.Errorf("account %d still has the slack %v", i, a.LeastSlack)
		}
	}
}

func TestTheTimeFromADeadReadersLastBeatIsTakenAtEachEndThatItsDeathBrought(t *testing.T) {
	r := newRig(t, 8, checkedPeers)
	a, b, c := r.grant("a"), r.grant("b"), r.grant("c")
	r.grant("d")
	r.now = at(1)
	r.t.Renew(r.entry(a), engineD, r.now)
	r.t.Renew(r.entry(b), engineE, r.now)
	r.t.Renew(r.entry(c), engineE, r.now)
	h := &r.t.Times.DeathFree
	r.now = at(3)
	r.t.EngineGone(engineD.Engine, engineD.Epoch, r.now)
	r.drain()
	if h.Count() != 1 || h.Sum != 2 {
		t.Errorf("a wire that fell 2 s after a beat: %d times, %g s", h.Count(), h.Sum)
	}
	r.now = at(25)
	r.t.Renew(r.entry(c), engineE, r.now) // E lives, and has given b up; d was never named
	r.run(at(32))
	if h.Count() != 1 || r.c.Freed[record.FreedExpired] != 2 {
		t.Errorf("%d times after %d leases expired whose reader lives", h.Count(), r.c.Freed[record.FreedExpired])
	}
	r.run(at(50))
	if h.Count() != 2 || r.c.Freed[record.FreedExpired] != 3 {
		t.Errorf("%d times after %d leases expired", h.Count(), r.c.Freed[record.FreedExpired])
	}
}

func TestTheLastEndsSayWhoseLeaseItWasAndWhy(t *testing.T) {
	r := newRig(t, 4)
	long := strings.Repeat("x", 300)
	a, b := r.grant("short"), r.grant(long)
	r.now = at(2)
	r.t.Complete(r.entry(a), engineD, 1, r.now)
	r.t.Cancel(b, r.now)
	last := r.t.LastEnds()
	if last.Total != 2 {
		t.Fatalf("%d ends", last.Total)
	}
	e := last.Ring[0]
	if e.Number != 1 || e.Lease != a || e.AtNs != uint64(r.now) || e.Reason != record.FreedCompleted || e.ReaderHash != engineD.Engine ||
		e.HeldNs != uint64(2*time.Second) || e.Blocks != 8 || e.User != uint64(a)+1 || string(e.ID[:e.IDLen]) != "short" || e.IDHash != 0 {
		t.Errorf("the first end is %+v", e)
	}
	e = last.Ring[1]
	if e.Number != 2 || e.Reason != record.FreedRevoked || e.Reader != 1 || int(e.IDLen) != 300 || string(e.ID[:]) != long[:96] || e.IDHash != siphash.Sum64(0, 0, []byte(long)) {
		t.Errorf("the second end is %+v", e)
	}
	for i := range 2 * record.LastEndsMax {
		r.t.Cancel(r.grant(fmt.Sprint(i)), r.now)
		r.drain()
	}
	if n := last.Ring[(last.Total-1)%record.LastEndsMax].Number; n != last.Total || last.Total != 2+2*record.LastEndsMax {
		t.Errorf("the last of %d ends has number %d", last.Total, n)
	}
}

func TestALookAtAllSlotsFindsTheOldestLeaseOfEachReader(t *testing.T) {
	n := lookMax + 100
	r := newRig(t, n)
	var first record.Handle
	var b [8]byte
	for i := range n {
		r.now++
		binary.BigEndian.PutUint64(b[:], uint64(i))
		h := r.grant(string(b[:]))
		if i == 0 {
			first = h
		}
		if i%2 == 1 {
			r.t.Renew(r.entry(h), engineD, r.now)
		}
	}
	r.t.Look(r.now)
	if a, _ := r.t.Account(NobodysAccount); a.Oldest != 0 {
		t.Errorf("half a look says %d", a.Oldest)
	}
	r.t.Look(r.now)
	nobody, _ := r.t.Account(NobodysAccount)
	d, _ := r.t.Account(firstAccount)
	if nobody.Oldest != 1 || d.Oldest != 2 {
		t.Errorf("oldest leases are of %d and %d, want 1 and 2", nobody.Oldest, d.Oldest)
	}
	r.t.Cancel(first, r.now)
	for range 3 {
		r.t.Look(r.now)
	}
	if nobody, _ = r.t.Account(NobodysAccount); nobody.Oldest != 3 {
		t.Errorf("the oldest is of %d, want 3", nobody.Oldest)
	}
}

// Blocks for a next turn are held for minutes without a heartbeat.
func TestALeaseOfAFixedLifeIsNoOldestOne(t *testing.T) {
	r := newRig(t, 8)
	oldest := func() clock.Instant {
		r.t.Look(r.now)
		r.t.Look(r.now)
		a, _ := r.t.Account(NobodysAccount)
		return a.Oldest
	}
	r.now++
	r.grant("next turn", fixed)
	if at := oldest(); at != 0 {
		t.Errorf("the oldest lease is of %d, want none", at)
	}
	r.now++
	r.grant("a")
	if at := oldest(); at != r.now {
		t.Errorf("the oldest lease is of %d, want %d", at, r.now)
	}
}

func TestAccountsAllocateNothing(t *testing.T) {
	r := newRig(t, 1000)
	var names [600][]byte
	for i := range names {
		names[i] = agent(i)
	}
	ids := [][]byte{[]byte("id")}
	i := 0
	if n := testing.AllocsPerRun(2000, func() {
		i++
		h, _ := r.take(record.Granted)
		g := record.Grant{Lease: h, Blocks: 1}
		r.t.Grant(&g, ids[0], r.now)
		if i%2 == 0 {
			r.t.Renew(r.entry(h), engine(i), r.now)
		}
		r.t.RenewIDs(ids, names[i%len(names)], r.now, nil)
		r.t.Cancel(h, r.now)
		r.t.NextEnd()
		r.t.PopEnd()
		r.t.Look(r.now)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	r.checkAccounts()
}
