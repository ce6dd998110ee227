package group_test

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// A rank that missed the end of an expectation would expect until the slot's next use, perhaps for ever: the full state that heals the
// loss says it once more, and of a slot that is used again says that instead.
func TestARankThatMissedTheEndOfAnExpectationHearsItWithTheFullState(t *testing.T) {
	for _, end := range []string{"cancelled", "lapsed", "cancelled, and the slot is used again", "cancelled, and so is the slot's next use"} {
		t.Run(end, func(t *testing.T) {
			l := newLab(t)
			p := l.engine("P", two, stream.KindDelta, nil)
			p.ready()
			h, err := p.host.Expect([]byte("a"))
			must(t, err)
			l.until("both expect", func() bool { return p.ranks[0].plane.Leases.Expected()+p.ranks[1].plane.Leases.Expected() == 2 })
			lost := 0
			p.ranks[1].fault = func(fromHost bool, _ int, msg []byte) [][]byte {
				if fromHost && lost == 0 {
					lost++
					return nil
				}
				return [][]byte{msg}
			}
			again := func() record.Handle {
				b, err := p.host.Expect([]byte("b"))
				must(t, err)
				if b.Slot() != h.Slot() {
					t.Fatalf("slot %d, want %d once more", b.Slot(), h.Slot())
				}
				return b
			}
			want := 0
			switch end {
			case "lapsed":
				l.step(11 * duration) // the message with the cancel is the first that is lost
				l.until("lapsed", func() bool { return p.count(record.EvExpectLapsed) == 1 })
			case "cancelled, and so is the slot's next use": // all of it goes in the message that is lost
				p.ranks[1].stopped = true
				must(t, p.host.Cancel(h))
				l.until("rank 0 has heard it", func() bool { return p.ranks[0].plane.Leases.Expected() == 0 })
				b := again()
				l.until("rank 0 expects again", func() bool { return p.ranks[0].plane.Leases.Expected() == 1 })
				must(t, p.host.Cancel(b))
				l.until("and no more", func() bool { return p.ranks[0].plane.Leases.Expected() == 0 })
				p.ranks[1].stopped = false
			default:
				must(t, p.host.Cancel(h))
			}
			l.until("it is lost", func() bool { return lost == 1 })
			if end == "cancelled, and the slot is used again" {
				again()
				want = 1
			}
			l.until("healed", func() bool { return !p.group.Rank(1).Behind && p.group.Rank(1).FullStates == 2 })
			l.run(time.Second, 50*time.Millisecond)
			for _, r := range p.ranks {
				if n := r.plane.Leases.Expected(); n != want {
					t.Errorf("rank %d expects %d, want %d", r.n, n, want)
				}
			}
		})
	}
}

// The host's loop may poll late: of a rank that came, went and came in the meantime it is told once that it came.
func TestARankIsToldToBeDownOnlyWhereItWasToldToBeUp(t *testing.T) {
	l := newLab(t)
	p := l.engine("P", two, stream.KindProcess, nil)
	p.ready()
	for _, r := range p.ranks {
		r.link.SetMap(nil)
	}
	l.until("both down", func() bool { return p.count(record.EvRankDown) == 2 })
	p.take(record.EvRankDown)
	r := p.ranks[0]
	r.link.SetMap(make([]byte, 100))
	r.plane.Step(l.now) // says that it is up
	r.link.SetMap(nil)
	r.link.SetMap(make([]byte, 100))
	r.plane.Step(l.now)
	l.run(time.Second, 50*time.Millisecond) // the host hears both in one step
	if up, down := p.count(record.EvRankUp), p.count(record.EvRankDown); up != 1 || down != 0 {
		t.Errorf("told to be up %d times and down %d times", up, down)
	}
}

// Maps and the death of their boot may reach a rank in one step, and its loader comes later.
func TestADeathIsTakenBehindTheMapsThatWereSaidBeforeIt(t *testing.T) {
	l, p, d, e := pair(t, stream.KindProcess, two, two)
	must(t, d.group.EngineOver(e, heartbeat.Died))
	l.until("it is dead", func() bool { return d.group.View(e).State == heartbeat.Broken })
	r := d.ranks[0]
	must(t, d.group.LoadEngine(e, p.maps())) // it lives after all
	d.group.Step(l.now)
	r.plane.Step(l.now)
	d.ranks[1].plane.Step(l.now)
	must(t, d.group.EngineOver(e, heartbeat.Died)) // no, it does not
	d.group.Step(l.now)
	r.plane.Step(l.now)
	d.ranks[1].plane.Step(l.now)
	d.load(r) // not before now
	d.load(d.ranks[1])
	l.run(time.Second, 100*time.Millisecond)
	_, remote := p.grant("a", 1, 0, 4)
	d.track(e, remote, 9)
	l.run(time.Second, 100*time.Millisecond)
	if d.count(record.EvLeaseGone) != 1 {
		t.Error("a dead engine is believed to live: what is tracked there waits for it")
	}
}

// A rank at the other end of messages counts from when it hears of a fixed lease. A stock owner has no fence that shows a longer way.
func TestTheEndOfAStockOwnersFixedLeaseLeavesRoomForTheWayToARank(t *testing.T) {
	for _, tc := range []struct {
		between, native bool
		way             time.Duration
		want            time.Duration
	}{
		{false, false, 0, 60 * time.Second}, {false, true, 0, 60 * time.Second},
		{true, false, 0, 50 * time.Second}, // a third of 30 s
		{true, false, 4 * time.Second, 56 * time.Second},
		{true, false, 80 * time.Second, 1}, // over at once: no rank could read it in time for certain
		{true, true, 4 * time.Second, 60 * time.Second},
	} {
		b := newBare(t, func(c *group.Config) { c.Between, c.TransitMax = tc.between, tc.way })
		e, err := b.g.AddEngine(group.EngineDesc{ID: "P", TP: 2})
		must(t, err)
		var off clock.Offset
		off.Observe(clock.Sample{Sent: b.now, Received: b.now, Stamp: clock.RemoteInstant(b.now)})
		must(t, b.g.SetOffset(e, off))
		for range 3 {
			b.step()
		}
		now := b.now.Add(time.Millisecond)
		_, bound, _ := off.Local(clock.RemoteInstant(now.Add(60 * time.Second)))
		_, err = b.h.Track(e, &host.Remote{ID: []byte("r"), Native: tc.native, ExpiresNs: uint64(now.Add(60 * time.Second))}, nil, 1, now)
		must(t, err)
		b.step()
		want := max(tc.want-bound, 1)
		for _, r := range b.ends[1].down {
			if q, _, _, ok := record.AsTrack(r.b); r.tag == record.TagTrack && ok {
				if got := time.Duration(q.LeftNs); got != want {
					t.Errorf("%+v: %v are left, want %v", tc, got, want)
				}
				want = -1
			}
		}
		if want != -1 {
			t.Errorf("%+v: not told", tc)
		}
	}
}
