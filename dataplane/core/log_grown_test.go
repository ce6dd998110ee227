package core

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/handshake"
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

// A table at its limit is full again with each lease that ends, or stays full.
func TestATableThatIsFullAgainAndAgainOrStaysFullIsSaidAtGrowingDistances(t *testing.T) {
	l := newLab(t, `{}`)
	full := fullness{kind: log.LeasesFull}
	for at := time.Duration(0); at < 3*time.Minute; at += 100 * time.Millisecond {
		full.look(l.p.core.log.step(), 4, 4, clock.Instant(time.Hour+at))
		if at < 25*time.Second { // then it stays so
			full.look(l.p.core.log.step(), 3, 4, clock.Instant(time.Hour+at))
		}
	}
	if said := l.p.said(t, log.LeasesFull); len(said) != 5 || said[0].Values["leases"] != 4 || said[4].LeftOut != 0 {
		t.Errorf("said in three minutes, at their begin and after 10, 30, 70 and 150 s: %+v", said)
	}
}

// What waits for the next line is no trouble by itself: it is said when nothing more has come for two minutes, and what comes then is news.
func TestWhatWaitsForALineKeepsNoNewsQuiet(t *testing.T) {
	l := newLab(t, `{}`)
	n := uint64(0)
	g := grows(log.EventsWait, &n)
	for s := range 1100 {
		if s < 400 || s == 560 || s == 1000 {
			n++
		}
		g.look(l.p.core.log.step(), clock.Instant(time.Hour+time.Duration(s)*time.Second))
	}
	var got []uint64
	for _, line := range l.p.said(t, log.EventsWait) {
		got = append(got, line.Values["times"])
	}
	if diff := cmp.Diff([]uint64{1, 10, 20, 40, 80, 160, 89, 1, 1}, got); diff != "" {
		t.Errorf("said (-want +got):\n%s", diff)
	}
}

// A line that finds no room takes nothing with it: what it would have told is told by the next one.
func TestALineThatIsLeftOutTakesNoSumWithIt(t *testing.T) {
	l := newLab(t, `{}`)
	to, now := l.p.core.log.step(), clock.Instant(time.Hour)
	for i := range uint64(1000) { // all warnings together come too often
		to.Put(log.LeaseExpired, now, log.Entry{Hash: i})
		to.Put(log.LeaseUnread, now, log.Entry{Hash: i})
	}
	n, worst := uint64(0), uint64(9)
	g := grows(log.PumpOverslept, &n)
	g.most = &worst
	n = 3
	g.look(to, now)
	for s := range 60 {
		g.look(to, now.Add(time.Duration(s)*time.Second))
	}
	said := l.p.said(t, log.PumpOverslept)
	if len(said) != 1 || said[0].Values["times"] != 3 || said[0].Values["late_ns"] != 9 || said[0].LeftOut == 0 {
		t.Errorf("said %+v, want one line of three times", said)
	}
}

// That an engine is not reached, for as long as it may last, keeps nobody from hearing that it answers nonsense now.
func TestHandshakesThatFailForAnotherReasonAreSaidAtOnce(t *testing.T) {
	l := newSideLab(t)
	d := l.node("D", `{}`)
	p := &sidePeer{engine: 1 << 40, id: "P"}
	fails := func(why handshake.Class) int {
		n := len(d.said(t, log.HandshakeFailing))
		d.core.side.take(p, handshake.Result{Engine: p.engine, Err: errors.New(why.String()), Class: why})
		return len(d.said(t, log.HandshakeFailing)) - n
	}
	var got []int
	for _, why := range []handshake.Class{handshake.Unreachable, handshake.Unreachable, handshake.Metadata, handshake.Unreachable, handshake.Metadata} {
		got = append(got, fails(why))
	}
	if diff := cmp.Diff([]int{1, 0, 1, 0, 0}, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// Reads that get stuck when those before are back are other trouble, however soon.
func TestReadsThatGetStuckAnewAreSaidInTheirTime(t *testing.T) {
	l := newLab(t, `{}`)
	to := l.p.core.log
	wait := 2 * l.p.core.cfg.QuarantineWait
	at := clock.Instant(time.Hour)
	var s stuck
	hold := func(held int, span time.Duration) {
		for end := at.Add(span); at <= end; at = at.Add(time.Second) {
			s.look(to, held, at)
		}
	}
	hold(1, 20*wait)
	before := len(l.p.said(t, log.BlocksStuck))
	hold(0, 0)
	hold(2, wait+time.Second)
	if said := l.p.said(t, log.BlocksStuck); before < 3 || len(said) != before+1 || said[before].Values["reads"] != 2 {
		t.Errorf("%d lines before, and then: %+v", before, said[before:])
	}
}
