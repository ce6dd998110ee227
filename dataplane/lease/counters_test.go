package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

// Metrics are all that an operator sees: each counter counts what its name says, once.
func TestWhatHappensToLeasesIsCountedOnce(t *testing.T) {
	shared := func(r *rig) record.Handle {
		h := r.grant("a")
		r.t.Renew(r.entry(h), engineD, r.now)
		r.t.Renew(r.entry(h), engineE, r.now)
		return h
	}
	for _, tc := range []struct {
		name   string
		change func(*Config)
		do     func(r *rig)
		got    func(c *Counters) uint64
		want   uint64
	}{
		{name: "grants", do: func(r *rig) { r.grant("a"); r.grant("b") }, got: func(c *Counters) uint64 { return c.Grants }, want: 2},
		{name: "expectations", do: func(r *rig) { r.expect("a") }, got: func(c *Counters) uint64 { return c.Expects }, want: 1},
		{name: "stock heartbeats", do: func(r *rig) { r.grant("a"); r.beat("a"); r.beat("a") }, got: func(c *Counters) uint64 { return c.Renewed }, want: 2},
		{name: "stock heartbeats kept", do: func(r *rig) { r.expect("a"); r.beat("a") }, got: func(c *Counters) uint64 { return c.Kept }, want: 1},
		{name: "stock completions kept", do: func(r *rig) { r.expect("a"); r.done("a", "D", 1) }, got: func(c *Counters) uint64 { return c.Kept }, want: 1},
		{name: "stock completions told again before the grant", do: func(r *rig) { r.expect("a"); r.done("a", "D", 1); r.done("a", "D", 1) },
			got: func(c *Counters) uint64 { return c.Repeated }, want: 1},
		{name: "heartbeats of a fixed lease", do: func(r *rig) {
			h := r.grant("a", fixed)
			r.beat("a")
			r.t.Renew(r.entry(h), engineD, r.now)
		}, got: func(c *Counters) uint64 { return c.FixedRenew }, want: 2},
		{name: "first looks", do: func(r *rig) { r.grant("a"); r.run(at(30.03)) }, got: func(c *Counters) uint64 { return c.Due }, want: 1},
		{name: "first looks after a stall", do: func(r *rig) { r.grant("a"); r.now = at(31); r.step() }, got: func(c *Counters) uint64 { return c.DueStalled }, want: 1},
		{name: "duplicates", do: func(r *rig) { r.grant("a"); r.grant("a") }, got: func(c *Counters) uint64 { return c.Duplicate }, want: 1},
		{name: "grants of a use that is over", do: func(r *rig) { r.mem.Rows[1].Fence = testBase + 5; r.say(record.NewHandle(1, 4), "b") },
			got: func(c *Counters) uint64 { return c.EndedBefore }, want: 1},
		{name: "grants of another era", do: func(r *rig) { r.grant("a", func(g *record.Grant) { g.Key++ }) }, got: func(c *Counters) uint64 { return c.OtherEra }, want: 1},
		{name: "the most ends that waited", do: func(r *rig) {
			for _, h := range []record.Handle{r.grant("a"), r.grant("b"), r.grant("c")} {
				r.t.Cancel(h, r.now)
			}
			r.drain()
			r.t.Cancel(r.grant("d"), r.now)
		}, got: func(c *Counters) uint64 { return c.EndsOpen }, want: 3},
		{name: "steps whose looks at renewed leases were cut", change: func(c *Config) { c.SweepMax = 1 }, do: func(r *rig) {
			for i := range 40 {
				r.grant(fmt.Sprint(i))
			}
			r.now = at(5)
			for i := range 40 {
				r.beat(fmt.Sprint(i))
			}
			r.now = at(29.9)
			r.step()
			for r.now < at(30.5) {
				r.now = r.now.Add(tick)
				r.step()
			}
		}, got: func(c *Counters) uint64 { return c.ExamineCut }, want: 2}, // 40 looks, 16 a step
		{name: "leases that a dead engine shares", do: func(r *rig) { shared(r); r.t.EngineGone(engineE.Engine, engineE.Epoch, r.now) },
			got: func(c *Counters) uint64 { return c.GoneKept }, want: 1},
		{name: "dead engines", do: func(r *rig) { r.t.EngineGone(1, 1, r.now); r.t.EngineGone(2, 1, r.now) }, got: func(c *Counters) uint64 { return c.Gone }, want: 2},
		{name: "dead engines that had left", do: func(r *rig) { r.t.Leaving(1, 1); r.t.EngineGone(1, 1, r.now) }, got: func(c *Counters) uint64 { return c.GoneLeft }, want: 1},
		{name: "releases of what is shared", do: func(r *rig) { r.t.Release(r.entry(shared(r)), engineD, r.now) }, got: func(c *Counters) uint64 { return c.ReleaseRefused }, want: 1},
		{name: "releases of no slot", do: func(r *rig) { r.t.Release(Entry{Slot: 99}, engineD, r.now) }, got: func(c *Counters) uint64 { return c.UnknownRelease }, want: 1},
		{name: "releases of a use to come", do: func(r *rig) {
			r.grant("a")
			r.t.Release(Entry{Slot: 0, Generation: 1, Key: Key(r.secret, 0, 1)}, engineD, r.now)
		}, got: func(c *Counters) uint64 { return c.UnknownRelease }, want: 1},
		{name: "completions of no slot", do: func(r *rig) { r.t.Complete(Entry{Slot: 99}, engineD, 1, r.now) }, got: func(c *Counters) uint64 { return c.UnknownDone }, want: 1},
		{name: "heartbeats of no slot", do: func(r *rig) {
			r.t.Renew(Entry{Slot: 99}, engineD, r.now)
			r.t.RenewEntries([]Entry{{Slot: 99}}, engineD, r.now, nil)
		}, got: func(c *Counters) uint64 { return c.UnknownRenew }, want: 2},
		{name: "late releases", do: func(r *rig) {
			h := r.grant("a")
			e := r.entry(h)
			r.t.Cancel(h, r.now)
			r.drain()
			r.t.Release(e, engineD, r.now)
		}, got: func(c *Counters) uint64 { return c.LateRelease }, want: 1},
		{name: "revokes that wait", do: func(r *rig) { r.t.Revoke(r.grant("a"), r.now) }, got: func(c *Counters) uint64 { return c.RevokeWaits }, want: 1},
		{name: "wrong handles", do: func(r *rig) {
			r.t.Cancel(0, r.now)
			r.t.Revoke(record.NewHandle(99, 0), r.now)
			r.t.Cancel(record.NewHandle(0, 5), r.now)
			r.say(record.NewHandle(99, 0), "a")
		}, got: func(c *Counters) uint64 { return c.BadHandle }, want: 4},
		{name: "submissions said again", do: func(r *rig) {
			h := r.expect("a")
			r.t.Expect(h, []byte("a"), r.now)
			r.grantExpected(h, "a")
			r.say(h, "a")
			r.t.Cancel(h, r.now)
			r.t.Cancel(h, r.now)
		}, got: func(c *Counters) uint64 { return c.Again }, want: 3},
		{name: "expectations cancelled", do: func(r *rig) { r.t.Cancel(r.expect("a"), r.now); r.t.Revoke(r.expect("b"), r.now) },
			got: func(c *Counters) uint64 { return c.Cancelled }, want: 2},
		{name: "readers cut by the deadline", do: func(r *rig) { r.grant("a"); r.done("a", "D", 3); r.done("a", "E", 3); r.run(at(31)) },
			got: func(c *Counters) uint64 { return c.ReadersCut }, want: 2},
		{name: "blocks freed by a time", do: func(r *rig) { r.grant("a"); r.run(at(31)) }, got: func(c *Counters) uint64 { return c.Freed[record.FreedExpired] }, want: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 64, func(c *Config) {
				if tc.change != nil {
					tc.change(c)
				}
			})
			tc.do(r)
			if got := tc.got(r.c); got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
		})
	}
}

func TestAnEndTellsHowLongTheLeaseWasHeld(t *testing.T) {
	r := newRig(t, 4)
	a := r.grant("a")
	b := r.grant("b", func(g *record.Grant) { g.SaidNs = uint64(at(2)) })
	r.now = at(10)
	c := r.grant("c", func(g *record.Grant) { g.SaidNs = uint64(at(4)) }) // it was six seconds on its way
	r.now = at(12)
	for _, h := range []record.Handle{a, b, c} {
		r.t.Cancel(h, r.now)
	}
	r.drain()
	held := map[record.Handle]time.Duration{}
	for _, e := range r.ends {
		held[e.Handle] = e.Held
	}
	for h, want := range map[record.Handle]time.Duration{a: 12 * time.Second, b: 12 * time.Second, c: 8 * time.Second} {
		if held[h] != want {
			t.Errorf("lease %#x was held for %v, want %v", uint64(h), held[h], want)
		}
	}
}
