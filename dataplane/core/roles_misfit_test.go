package core

import (
	"errors"
	"strings"
	"testing"

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
}
