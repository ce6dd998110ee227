package core

import (
	"fmt"
	"testing"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// Every ratio of ranks, over every carrier: each byte of each head comes from the rank that has it.
func TestBlocksAreReadWholeWhateverTheRanksOfBothSides(t *testing.T) {
	type shape struct{ tp, pp int }
	type way struct {
		carrier, drive string
		side           bool
	}
	ways := []way{
		{stream.KindProcess, "inline", false}, {stream.KindShm, "inline", false}, {stream.KindDelta, "inline", false},
		{stream.KindProcess, "pump", true}, {stream.KindShm, "pump", true}, {stream.KindShm, "inline", true},
	}
	for i, tc := range []struct {
		owner, reader shape
		mla           bool
	}{
		{owner: shape{1, 1}, reader: shape{1, 1}},
		{owner: shape{1, 1}, reader: shape{2, 1}},
		{owner: shape{2, 1}, reader: shape{1, 1}},
		{owner: shape{2, 1}, reader: shape{2, 1}},
		{owner: shape{4, 1}, reader: shape{2, 1}},
		{owner: shape{2, 1}, reader: shape{4, 1}},
		{owner: shape{2, 1}, reader: shape{4, 1}, mla: true},
		{owner: shape{4, 1}, reader: shape{2, 1}, mla: true},
		{owner: shape{1, 2}, reader: shape{1, 1}},
		{owner: shape{1, 1}, reader: shape{1, 2}},
		{owner: shape{1, 2}, reader: shape{1, 2}},
		{owner: shape{2, 2}, reader: shape{2, 1}},
		{owner: shape{2, 1}, reader: shape{2, 2}},
	} {
		for j, w := range ways {
			if testing.Short() && (i+j)%3 != 0 {
				continue
			}
			t.Run(fmt.Sprintf("TP x PP %v reads from %v, mla %v, %+v", tc.reader, tc.owner, tc.mla, w), func(t *testing.T) {
				f := newFleet(t, w.carrier)
				f.drive, f.side = w.drive, w.side
				if w.drive == "pump" {
					f.side = true
				}
				var edit []func(*team)
				if tc.mla {
					edit = append(edit, replicated)
				}
				p, d := f.team("P", tc.owner.tp, tc.owner.pp, edit...), f.team("D", tc.reader.tp, tc.reader.pp, edit...)
				e := f.connect(d, p)
				there, here := blocks(3, 8), blocks(20, 8)
				lease, remote := p.grant("r1", 7, there)
				track := d.track(e, remote, 70)
				d.read(track, here, there)
				done := d.event(record.EvReadDone, track)
				if bad := d.wrong(7, here); bad != 0 {
					t.Errorf("%d bytes are wrong", bad)
				}
				if done.User != 70 {
					t.Errorf("done: %+v", done)
				}
				freed := p.event(record.EvFreed, lease)
				if freed.Status != record.FreedCompleted || freed.Reasons != eachRank(len(p.ranks), record.FreedCompleted) || freed.User != 7 || freed.Value0 != 8 {
					t.Errorf("freed: %+v", freed)
				}
				f.until("nothing is left", func() bool { return p.alive()+d.alive() == 0 })
				f.turns(20)
				if n := p.of(record.EvFreed, lease) + d.of(record.EvReadDone, track); n != 2 {
					t.Errorf("%d ends, want one of each", n)
				}
				for i, c := range p.cores() {
					if n := c.stat("lease_unknown_renew") + c.stat("lease_unknown_done") + c.stat("lease_unknown_release"); n != 0 { // shows C11.3
						t.Errorf("rank %d was told of %d unknown requests", i, n)
					}
				}
			})
		}
	}
}

// alive counts what is left of an engine, at its host and its ranks.
func (m *team) alive() (n int) {
	for _, c := range append([]*Core{m.core}, m.cores()...) {
		c.mu.Lock()
		n += c.half().Alive()
		c.mu.Unlock()
	}
	return n
}

func (m *team) cores() (all []*Core) {
	for _, r := range m.ranks {
		all = append(all, r.core)
	}
	return all
}
