package lease

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/log/logtest"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// Each kind of the owner's side comes from its cause, and names the request and, if one has come, its reader.
func TestWhatGoesWrongForAnOwnerIsSaidWithReaderAndRequest(t *testing.T) {
	for _, tc := range []struct {
		name            string
		kind            log.Kind
		engine, request string
		change          func(*Config)
		do              func(r *rig)
	}{
		{name: "nobody came for it", kind: log.LeaseUnread, request: "a", do: func(r *rig) { r.grant("a"); r.run(at(31)) }},
		{name: "a reader of ours fell silent", kind: log.LeaseExpired, engine: "#000000000000000d", request: "a", do: func(r *rig) {
			a := r.grant("a")
			r.run(at(20))
			r.t.Renew(r.entry(a), Reader{Engine: 13, Epoch: 1}, r.now)
			r.run(at(41))
		}},
		{name: "a reader of ours whose agent has its name fell silent", kind: log.LeaseExpired, engine: "D", request: "a", do: func(r *rig) {
			a := r.grant("a")
			r.run(at(20))
			r.t.From([]byte("D.1.0a1b2c3d4e5f6071"))
			r.t.Renew(r.entry(a), Reader{Engine: wire.EngineHash([]byte("D")), Epoch: 1}, r.now)
			r.run(at(41))
		}},
		{name: "a stock reader fell silent", kind: log.LeaseExpired, engine: "agent D", request: "a", do: func(r *rig) {
			r.grant("a")
			r.run(at(20))
			r.beat("a")
			r.run(at(70))
		}},
		{name: "two leases under one id", kind: log.DuplicateGrant, request: "a", do: func(r *rig) { r.grant("a"); r.grant("a") }},
		{name: "an expectation without a grant", kind: log.ExpectLapsed, request: "a", change: func(c *Config) { c.ExpectMax = 10 * time.Second },
			do: func(r *rig) { r.expect("a"); r.run(at(12)) }},
		{name: "one long id too many", kind: log.LeaseIDsFull, request: strings.Repeat("2", 64) + "...", change: func(c *Config) { c.LongIDs = 1 },
			do: func(r *rig) { r.grant(strings.Repeat("1", 200)); r.grant(strings.Repeat("2", 200)) }},
		{name: "ids that hash to one place", kind: log.LeaseUnindexed, request: "a", do: func(r *rig) {
			tag := r.t.tag([]byte("a"))
			for i := uint64(1); r.t.index.insert(tag+i, 0); i++ {
			}
			r.grant("a")
		}},
		{name: "steps too far apart", kind: log.Stall, do: func(r *rig) {
			r.run(at(1))
			r.now = at(9)
			r.step()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			book := logtest.New()
			r := newRig(t, 8, func(c *Config) {
				c.Log = book.Log.Step
				if tc.change != nil {
					tc.change(c)
				}
			})
			tc.do(r)
			book.Want(t, tc.kind, tc.engine, tc.request)
		})
	}
}

// Of a lease that expired the line says how long it was held, and since when its reader is silent.
func TestTheLineOfAnExpiredLeaseHasItsTimes(t *testing.T) {
	book := logtest.New()
	r := newRig(t, 8, func(c *Config) { c.Log = book.Log.Step })
	a := r.grant("a")
	fixed := r.grant("fixed", func(g *record.Grant) { g.Flags, g.TTLNs = record.GrantFixed, uint64(10*time.Second) })
	r.run(at(20))
	r.t.Renew(r.entry(a), Reader{Engine: 13, Epoch: 1}, r.now)
	r.run(at(45))
	r.wantEnded(record.FreedExpired, a, fixed)
	said := book.Of(t, log.LeaseExpired)
	if len(said) != 1 || len(book.Lines) != 1 { // of the fixed one nothing: nobody has to come for it
		t.Fatalf("said: %+v", book.Lines)
	}
	held, silent := time.Duration(said[0].Values["held_ns"]), time.Duration(said[0].Values["silent_ns"])
	if held < 40*time.Second || held > 41*time.Second || silent < 20*time.Second || silent > 21*time.Second {
		t.Errorf("held %v, silent %v; want 40 s and 20 s", held, silent)
	}
}

// A machine that is busy for long makes one gap after the other: the next line has the longest of those that were not said.
func TestGapsBetweenStepsAreSaidAtGrowingDistances(t *testing.T) {
	book := logtest.New()
	r := newRig(t, 8, func(c *Config) { c.Log = book.Log.Step })
	for i := range 12 { // one each 6 s
		r.t.SayGap(at(float64(6*i)), r.t.cfg.StallGap+time.Duration(1+i%5)*time.Second, 0)
	}
	var longest []int
	for _, n := range book.Of(t, log.Stall) {
		longest = append(longest, int((n.Values["gap_ns"]-uint64(r.t.cfg.StallGap))/1e9))
	}
	if diff := cmp.Diff([]int{1, 3, 5}, longest); diff != "" {
		t.Errorf("beyond what is allowed, in s (-want +got):\n%s", diff)
	}
}

// The longest gap may come right behind a short one, and be the last.
func TestALongGapBehindAShortOneIsSaid(t *testing.T) {
	book := logtest.New()
	r := newRig(t, 8, func(c *Config) { c.Log = book.Log.Step })
	r.t.SayGap(at(0), r.t.cfg.StallGap+1, 0)
	r.t.SayGap(at(3), r.t.cfg.StallGap+time.Minute, 0)
	for s := 3.0; s < 3600; s += 0.5 {
		r.t.Sweep(at(s), 0, 0, 0)
	}
	r.t.SayGap(at(3600), r.t.cfg.StallGap+2, 0)
	want := []time.Duration{1, time.Minute, 2}
	var got []time.Duration
	for _, n := range book.Of(t, log.Stall) {
		got = append(got, time.Duration(n.Values["gap_ns"]-uint64(r.t.cfg.StallGap)))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("beyond what is allowed (-want +got):\n%s", diff)
	}
}
