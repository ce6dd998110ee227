package core

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
)

// A busy machine wakes the pump late again and again: each line has what has come since the one before, the worst of it among it, and
// nothing is left out.
func TestTroubleThatOnlyCountersShowIsSummedUpBetweenLines(t *testing.T) {
	l := newLab(t, `{}`)
	from, late := uint64(7), uint64(0)
	other := uint64(0)
	g := grows(log.PumpOverslept, &from, &other)
	g.most = &late
	look := func(at time.Duration) { g.look(l.p.core.log.step(), clock.Instant(time.Hour+at)) }
	look(0) // nothing has come yet
	for s := range 100 {
		from++
		other += 2
		late = max(late, uint64(time.Second)*uint64(100-s))
		look(time.Duration(s) * time.Second)
	}
	look(150 * time.Second) // what has come last
	look(300 * time.Second)
	var got [][2]uint64 // times, and the latest in s
	for _, n := range l.p.said(t, log.PumpOverslept) {
		got = append(got, [2]uint64{n.Values["times"], n.Values["late_ns"] / 1e9})
		if n.LeftOut != 0 {
			t.Errorf("%d are left out", n.LeftOut)
		}
	}
	if diff := cmp.Diff([][2]uint64{{3, 100}, {30, 99}, {60, 89}, {120, 69}, {87, 29}}, got); diff != "" {
		t.Errorf("said (-want +got):\n%s", diff)
	}
}

// A table at its limit is full again with each lease that ends.
func TestATableThatIsFullAgainAndAgainIsSaidAtGrowingDistances(t *testing.T) {
	l := newLab(t, `{}`)
	full := fullness{kind: log.LeasesFull}
	for at := time.Duration(0); at < 60*time.Second; at += 100 * time.Millisecond {
		full.look(l.p.core.log.step(), 4, 4, clock.Instant(time.Hour+at))
		full.look(l.p.core.log.step(), 3, 4, clock.Instant(time.Hour+at))
	}
	if said := l.p.said(t, log.LeasesFull); len(said) != 3 || said[0].Values["leases"] != 4 || said[2].LeftOut != 0 {
		t.Errorf("said in a minute, at its begin, after 10 s and after 30 s: %+v", said)
	}
}
