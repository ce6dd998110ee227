package core

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// A rank that was given other leases than its host would beat, expire and promise differently from the others.
func TestARankWithAnotherDurationTakesNoPartAndSaysWhy(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	m := &team{f: f, id: "P", tp: 2, pp: 1}
	m.core, m.host = f.context("host", "P", 2, 1, 0)
	config := f.config
	for rank := range 2 {
		if rank == 1 {
			f.config = strings.TrimSuffix(teamConfig, "}") + `,"kv_lease_duration":31}`
		}
		c, h := f.context("rank", "P", 2, 1, rank)
		m.ranks = append(m.ranks, m.newRank(rank, c, h))
	}
	f.config = config
	f.teams = append(f.teams, m)
	t.Cleanup(func() { m.close(0) })
	m.register(0)
	m.register(1)
	misfit := m.ranks[1].core
	f.until("rank 0 is registered, and rank 1 has heard its host", func() bool {
		_, err := m.core.OwnHandshake(0)
		return err == nil && misfit.counters()["misfit"] == 1
	})
	_, err := misfit.OwnHandshake(1)
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "kv_lease_duration") || !strings.Contains(err.Error(), "31 s here and") {
		t.Errorf("the rank's map: %v, want an error that names the key and both values", err)
	}
	if _, err := m.core.OwnHandshake(1); err == nil {
		t.Error("the host has a map of the rank")
	}
	if m.ranks[0].core.counters()["misfit"] != 0 {
		t.Error("rank 0 counts as misfit")
	}
	f.turns(20)
	if evs := m.ranks[1].evs; len(evs) != 1 || evs[0].Kind != record.EvHostDown || evs[0].Status != record.HostRefuses {
		t.Errorf("its own loop is told %+v", evs)
	}
	self := misfit.cfg.EngineID + " rank 1"
	if said := (&node{core: misfit}).said(t, log.RankMisfit); len(said) == 0 || said[0].Self != self {
		t.Errorf("it says %+v, want a line of %s", said, self)
	}
	if len(m.ranks[0].evs) != 0 {
		t.Errorf("rank 0 is told %+v", m.ranks[0].evs)
	}
}

// Its worker would wait for work that never comes, and only statistics would say so.
func TestARankThatItsHostDoesNotTakeIsToldSoOnce(t *testing.T) {
	for _, carrier := range []string{stream.KindProcess, stream.KindShm} {
		for _, why := range []string{"other sizes", "its place is taken"} {
			t.Run(carrier+": "+why, func(t *testing.T) {
				f := newFleet(t, carrier)
				p := f.team("P", 2, 1)
				tp, rank := 4, 3
				if why == "its place is taken" {
					tp, rank = 2, 1
				}
				c, h := f.context("rank", "P", tp, 1, rank)
				defer c.Close(0)
				var evs []record.Event
				for end := time.Now().Add(teamWait); len(evs) == 0; time.Sleep(time.Millisecond) {
					f.stepOne(c)
					evs = drainEvents(h, evs, f.now())
					if time.Now().After(end) {
						t.Fatal("never told")
					}
				}
				for range 50 { // it goes on asking
					f.stepOne(c)
					time.Sleep(time.Millisecond)
				}
				if evs = drainEvents(h, evs, f.now()); len(evs) != 1 || evs[0].Kind != record.EvHostDown || evs[0].Status != record.HostRefuses {
					t.Errorf("told %+v", evs)
				}
				wantLine(t, c, log.HostRefuses, "")
				if !p.whole() || len(p.ranks[1].evs) != 0 {
					t.Errorf("those that were there before: %v, told %+v", p.whole(), p.ranks[1].evs)
				}
			})
		}
	}
}

// "Call kvl_register first" would send an engine that has done so to a call that refuses it.
func TestARegisteredRankSaysWhatItWaitsFor(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	alone := &team{f: f, id: "alone", tp: 2, pp: 1}
	c, h := f.context("rank", "alone", 2, 1, 0)
	defer c.Close(0)
	alone.ranks = []*teamRank{alone.newRank(0, c, h)}
	says := func(what string, of *Core, rank uint32, want string) {
		t.Helper()
		_, err := of.OwnHandshake(rank)
		if !errors.Is(err, ErrState) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error that says %q", what, err, want)
		}
	}
	says("not registered", c, 0, "call kvl_register first")
	alone.register(0)
	f.stepOne(c)
	says("no host", c, 0, "host has not been heard")

	p := f.team("P", 2, 1)
	p.unregister(0)
	says("unregistered", p.ranks[0].core, 0, "call kvl_register first")
	f.turns(20)
	says("unregistered, asked at the host", p.core, 0, "call kvl_register on its context")
	p.register(0)
	f.turns(20)
	says("registered again, the other rank has not slept", p.ranks[0].core, 0, "every rank has called kvl_unregister")
	says("the same, asked at the host", p.core, 0, "if that has been done, ask there")
	p.unregister(1)
	f.turns(20)
	p.register(1)
	f.until("another era", p.whole)
}
