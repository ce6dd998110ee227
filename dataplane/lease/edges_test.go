package lease

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

func TestIdsOfEveryLengthAreToldApart(t *testing.T) {
	r := newRig(t, 40, func(c *Config) { c.LongIDs = 40 })
	hs := map[string]record.Handle{}
	for _, n := range []int{1, 2, 63, 64, 95, 96, 97, 98, 500, 1023, 1024} {
		for _, c := range "ab" {
			id := strings.Repeat("x", n-1) + string(c)
			hs[id] = r.grant(id)
		}
	}
	for id, h := range hs {
		r.want(r.beat(id), Applied)
		r.want(r.done(id, "D", 1), Ended)
		r.wantEnded(record.FreedCompleted, h)
		r.want(r.beat(id), Late)
	}
	r.wantEmpty()
}

func TestIdsWithCommasAreCountedUntilTheirEndsAreTold(t *testing.T) {
	r := newRig(t, 8)
	want := func(n int) {
		t.Helper()
		if got := r.t.CommaIDs(); got != n {
			t.Fatalf("%d ids with commas, want %d", got, n)
		}
	}
	r.grant("plain")
	want(0)
	r.grant("a,b")
	e := r.expect("c,d")
	want(2)
	r.grant("a,b") // a duplicate
	r.drain()
	r.grantExpected(e, "c,d")
	want(2)
	r.want(r.t.TryID([]byte("a,b"), agentD, r.now), Applied)
	r.want(r.t.TryID([]byte("b,c"), agentD, r.now), Unknown)
	r.wantCount("unknown", r.c.UnknownRenew, 0)
	r.done("a,b", "D", 1)
	want(2)
	r.drain()
	want(1)
	x := r.expect("x,y")
	r.grant("x,y") // takes the expectation's entry
	r.t.Cancel(x, r.now)
	want(2)
	r.run(at(31))
	want(0)
	r.wantEmpty()
}

func TestALongIdWithoutRoomIsHeldAndKnownByKeyOnly(t *testing.T) {
	r := newRig(t, 8, func(c *Config) { c.LongIDs = 1 })
	one, two := strings.Repeat("1", 200), strings.Repeat("2", 200)
	a, b := r.grant(one), r.grant(two)
	r.want(r.done(two, "D", 1), Unknown)
	r.want(r.t.Complete(r.entry(b), engineD, 1, r.now), Ended)
	r.wantCount("ids too long", r.c.LongFull, 1)
	r.want(r.done(one, "D", 1), Ended)
	r.wantEnded(record.FreedCompleted, a, b)
	c := r.grant(two) // room again
	r.want(r.done(two, "D", 1), Ended)
	r.wantEnded(record.FreedCompleted, c)
	r.wantEmpty()
}

func TestAnExpectationOfAnIdThatIsHeldGetsItsTurn(t *testing.T) {
	r := newRig(t, 8)
	a := r.grant("a")
	b := r.expect("a") // the same id starts to run again
	r.want(r.done("a", "D", 1), Ended)
	r.wantEnded(record.FreedCompleted, a)
	r.grantExpected(b, "a")
	r.want(r.beat("a"), Applied)
	r.want(r.done("a", "D", 1), Ended)
	r.wantEnded(record.FreedCompleted, b)
	r.wantEmpty()
}

func TestASlotOutOfGenerationsIsRetired(t *testing.T) {
	r := newRig(t, 1)
	h := record.NewHandle(0, record.None-1)
	r.mem.Slots[0].State = record.State(h.Use(), record.Granted)
	r.want(r.say(h, "a"), Applied)
	r.done("a", "D", 1)
	r.wantEnded(record.FreedCompleted, h)
	if r.mem.Control.LeaseFree != record.None {
		t.Error("a slot whose next handle would be none went back to the host")
	}
	r.wantCount("retired", r.c.Retired, 1)
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	good := Config{Duration: time.Second}
	for name, tc := range map[string]struct {
		cfg  Config
		mem  Memory
		base uint64
	}{
		"no leases":     {good, newMemory(0), 0},
		"no control":    {good, Memory{Slots: make([]record.Slot, 1), Rows: make([]record.Row, 1), Header: &record.BoardHeader{}}, 0},
		"no duration":   {Config{}, newMemory(1), 0},
		"negative time": {Config{Duration: 1, Settle: -1}, newMemory(1), 0},
		"large base":    {good, newMemory(1), 1 << 62},
		"few rows":      {good, Memory{Control: &record.Control{}, Slots: make([]record.Slot, 2), Rows: make([]record.Row, 1), Header: &record.BoardHeader{}}, 0},
	} {
		if _, err := New(tc.cfg, tc.mem, [2]uint64{}, tc.base, 1); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestWhatIsToComeIsRoundedUpAndWhatHasPassedIsRoundedDown(t *testing.T) {
	for _, tc := range []struct {
		at         clock.Instant
		come, past uint64
	}{
		{-1, 0, 0}, {0, 0, 0}, {1, 1, 0}, {nsPerUnit - 1, 1, 0}, {nsPerUnit, 1, 1}, {nsPerUnit + 1, 2, 1},
		{clock.Never, unitsMax, unitsMax - 1}, // what does not fit is never passed
	} {
		if come, past := units(tc.at), unitsPast(tc.at); come != tc.come || past != tc.past {
			t.Errorf("%d ns: %d units to come and %d past, want %d and %d", tc.at, come, past, tc.come, tc.past)
		}
	}
}

func TestNextDueIsNeverLate(t *testing.T) {
	r := newRig(t, 8)
	if got := r.t.NextDue(r.now); got != clock.Never {
		t.Errorf("empty table is due at %d, want never", got)
	}
	a := r.grant("a")
	for i := 0; len(r.ended(a)) == 0; i++ { // only the times that NextDue names are stepped
		due := r.t.NextDue(r.now)
		if i > 20 || due == clock.Never {
			t.Fatalf("not ended after %d wakes, next %d", i, due)
		}
		r.now = max(due, r.now+1)
		r.t.Sweep(r.now, 0, 0, 0)
	}
	if r.now > at(30.2) {
		t.Errorf("ended at %v by following NextDue", time.Duration(r.now))
	}
}

// A rank whose memory goes drops its expectations, and may have no room to tell ends for a while. The host knows nothing of that: it
// grants what it has expected, or cancels it and uses the slot again.
func TestL3AGrantOfWhatHasLapsedEndsAlthoughItsLapseWaitsToBeTold(t *testing.T) {
	for _, next := range []uint32{0, 1} {
		t.Run(fmt.Sprintf("uses later=%d", next), func(t *testing.T) {
			r := newRig(t, 4, func(c *Config) { c.ExpectMax = -1 })
			old := record.NewHandle(2, 1)
			if o := r.t.Expect(old, []byte("old"), r.now); o != Applied {
				t.Fatalf("expect: %d", o)
			}
			r.t.FenceAll()
			r.t.EndAll(record.FreedClosed, r.now)
			h := record.NewHandle(2, 1+next)
			g := record.Grant{Lease: h, Key: Key(r.secret, 2, 1+next), User: 7, Blocks: 3}
			r.want(r.t.Grant(&g, []byte("new"), r.now), Ended)
			r.want(r.t.Grant(&g, []byte("new"), r.now), Ended) // said again
			r.drain()
			want := End{Handle: h, User: 7, Blocks: 3, Reason: record.FreedClosed}
			if len(r.ends) != 1 || r.ends[0] != want {
				t.Errorf("ends %+v, want %+v", r.ends, want)
			}
			r.want(r.t.Grant(&g, []byte("new"), r.now), Late)
			r.wantEmpty()
		})
	}
}
