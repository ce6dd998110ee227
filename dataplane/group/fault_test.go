package group_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/topology"
)

// story is one run of everything that a host says, and what the engines were told: the end of it must not depend on what the
// stream to one rank loses.
func story(t *testing.T, fault func(p, d *engine)) (events []string, sent map[string]int) {
	l := newLab(t)
	two := topology.Shape{TP: 2, PP: 1}
	p, d := l.engine("P", two, stream.KindDelta, nil), l.engine("D", two, stream.KindDelta, nil)
	fault(p, d)
	p.ready()
	d.ready()
	peer := d.know(p)

	// Granted, waited for, read, with an expectation before.
	expected, err := p.host.Expect([]byte("a"))
	must(t, err)
	l.run(40*time.Millisecond, 20*time.Millisecond)
	for _, r := range p.ranks {
		r.fill(1, 0, 4)
	}
	_, a := p.grantAs(host.Grant{ID: []byte("a"), Blocks: 4, User: 1, Expected: expected})
	readA := d.track(peer, a, 11)
	// Untracked before it is read: released.
	_, b := p.grant("b", 2, 4, 4)
	dropB := d.track(peer, b, 12)
	// Cancelled by its owner while the reader waits for it.
	cancelC, c := p.grant("c", 3, 8, 4)
	goneC := d.track(peer, c, 13)
	// Revoked, an expectation cancelled, a long id, a read of many parts.
	revokeD, _ := p.grant("d", 4, 12, 4)
	dropE, err := p.host.Expect([]byte("e"))
	must(t, err)
	long := make([]byte, 700)
	for i := range long {
		long[i] = 'a' + byte(i%26)
	}
	for _, r := range p.ranks {
		r.fill(6, 16, 16)
	}
	_, f := p.grantAs(host.Grant{ID: long, Blocks: 16, User: 6})
	readF := d.track(peer, f, 16)
	_, _ = p.grantAs(host.Grant{ID: long, Blocks: 1, User: 7}) // a duplicate
	l.run(100*time.Millisecond, 20*time.Millisecond)

	must(t, d.host.Read(readA, runs(32, 0, 4)))
	must(t, d.host.Untrack(dropB))
	must(t, p.host.Cancel(cancelC))
	must(t, p.host.Revoke(revokeD))
	must(t, p.host.Cancel(dropE))
	var parts []record.Run
	for i := range uint32(300) { // two parts
		parts = append(parts, record.Run{Group: 0, Local: 40 + i%16, Remote: 16 + i%16, N: 1})
	}
	must(t, d.host.Read(readF, parts))
	l.run(6*time.Second, 250*time.Millisecond)
	if d.count(record.EvLeaseGone) > 0 {
		must(t, d.host.Untrack(goneC))
	}
	l.until("the end of all", func() bool {
		return l.idle() == "" && d.group.Tracked() == 0
	})
	l.run(2*time.Second, 250*time.Millisecond)
	if what := l.idle(); what != "" {
		t.Errorf("left: %s", what)
	}
	for _, r := range d.ranks {
		if !r.right(1, 32, 4, two, two) || !r.right(6, 40, 16, two, two) {
			t.Errorf("rank %d of the reader has wrong data", r.n)
		}
	}
	sent = map[string]int{}
	for _, e := range l.engines {
		for _, ev := range e.evs {
			if ev.Kind == record.EvAtRisk || ev.Kind == record.EvRankUp {
				continue
			}
			events = append(events, fmt.Sprintf("%s kind %d status %d handle %x user %d value0 %d reasons %x", e.id, ev.Kind, ev.Status, ev.Handle, ev.User, ev.Value0, ev.Reasons))
		}
		for dir, way := range [2]string{"up", "down"} {
			sent[e.id+way] = e.ranks[1].sent[dir]
		}
	}
	return events, sent
}

func sorted(in []string) map[string]int {
	out := map[string]int{}
	for _, s := range in {
		out[s]++
	}
	return out
}

// faults of the nth message: what becomes of it.
var faults = []struct {
	name string
	on   func(r *rank, dir int, nth int, msg []byte, at int) [][]byte
}{
	{"lost", func(_ *rank, _, nth int, msg []byte, at int) [][]byte {
		if nth == at {
			return nil
		}
		return [][]byte{msg}
	}},
	{"doubled", func(_ *rank, _, nth int, msg []byte, at int) [][]byte {
		if nth == at {
			return [][]byte{msg, msg}
		}
		return [][]byte{msg}
	}},
	{"swapped", func(r *rank, dir, nth int, msg []byte, at int) [][]byte {
		switch nth {
		case at:
			r.late[dir] = msg
			return nil
		case at + 1:
			return [][]byte{msg, r.late[dir]}
		}
		return [][]byte{msg}
	}},
}

// Most messages of a story say nothing but that one is there; the windows below see to those that say something.
var stride = flag.Int("group.stride", 7, "which messages of a story are hit: 1 is each")

func TestEachMessageOfOneRankLostDoubledOrSwappedChangesNothingInTheEnd(t *testing.T) {
	want, sent := story(t, func(p, d *engine) {})
	if len(want) < 8 {
		t.Fatalf("the story tells only %d events: %v", len(want), want)
	}
	t.Logf("messages of rank 1: %v", sent)
	for _, who := range []string{"P", "D"} {
		for dir, way := range [2]string{"up", "down"} {
			n := sent[who+way]
			for _, f := range faults {
				t.Run(who+" "+way+" "+f.name, func(t *testing.T) {
					step := *stride
					if testing.Short() {
						step *= 3
					}
					for at := 0; at < n && !t.Failed(); at += step {
						t.Run(fmt.Sprint(at), func(t *testing.T) { // its contexts are closed with it
							got, _ := story(t, func(p, d *engine) {
								e := p
								if who == "D" {
									e = d
								}
								r := e.ranks[1]
								r.fault = func(fromHost bool, nth int, msg []byte) [][]byte {
									if fromHost != (dir == 1) {
										return [][]byte{msg}
									}
									return f.on(r, dir, nth, msg, at)
								}
							})
							if diff := cmp.Diff(sorted(want), sorted(got)); diff != "" {
								t.Fatalf("message %d of %d (-want +got):\n%s", at, n, diff)
							}
						})
					}
				})
			}
		}
	}
}

// silence is a window in which nothing of what one rank says, or hears, arrives.
func (r *rank) silence(fromHost bool, on *bool) {
	r.fault = func(dir bool, _ int, msg []byte) [][]byte {
		if *on && dir == fromHost {
			return nil
		}
		return [][]byte{msg}
	}
}

func TestWhatARankSaidWhileNothingOfItArrivedIsSaidOnceMore(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, p, d *engine, lease, track record.Handle)
		want func(p, d *engine) bool
	}{
		{"the end of a lease", func(t *testing.T, p, d *engine, lease, _ record.Handle) { must(t, p.host.Cancel(lease)) },
			func(p, _ *engine) bool { return p.count(record.EvFreed) == 1 }},
		{"the outcome of a read", func(t *testing.T, p, d *engine, _, track record.Handle) { must(t, d.host.Read(track, runs(20, 0, 4))) },
			func(_, d *engine) bool { return d.count(record.EvReadDone) == 1 && d.group.Tracked() == 0 }},
		{"the end of an untracked request", func(t *testing.T, p, d *engine, _, track record.Handle) { must(t, d.host.Untrack(track)) },
			func(_, d *engine) bool { return d.group.Tracked() == 0 }},
		{"a lease that is gone", func(t *testing.T, p, d *engine, lease, _ record.Handle) {
			d.ranks[0].stopped = true // only rank 1 can see it
			must(t, p.host.Cancel(lease))
		}, func(_, d *engine) bool { return d.count(record.EvLeaseGone) == 1 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, p, d, peer := pair(t, stream.KindDelta, two, two)
			lease, remote := p.grant("a", 1, 0, 4)
			track := d.track(peer, remote, 9)
			l.run(100*time.Millisecond, 10*time.Millisecond)
			silent := true
			p.ranks[1].silence(false, &silent)
			d.ranks[1].silence(false, &silent)
			tc.do(t, p, d, lease, track)
			l.run(6*time.Second, 50*time.Millisecond)
			if tc.want(p, d) {
				t.Fatal("it arrived while nothing could")
			}
			silent = false
			l.until("told", func() bool { return tc.want(p, d) })
			again := p.ranks[1].link.Counters.ToldAgain + d.ranks[1].link.Counters.ToldAgain + p.ranks[1].link.Counters.Repeated + d.ranks[1].link.Counters.Repeated
			if again == 0 {
				t.Error("nothing was told again: the silence lost nothing")
			}
		})
	}
}

func TestWhatTheHostSaidWhileNothingOfItArrivedIsInTheFullState(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, p, d *engine, peer uint64, lease, track record.Handle)
		want func(p, d *engine) bool
	}{
		{"a cancel", func(t *testing.T, p, _ *engine, _ uint64, lease, _ record.Handle) { must(t, p.host.Cancel(lease)) },
			func(p, _ *engine) bool { return p.count(record.EvFreed) == 1 && p.evs[0].Status == record.FreedRevoked }},
		{"a revoke", func(t *testing.T, p, _ *engine, _ uint64, lease, _ record.Handle) { must(t, p.host.Revoke(lease)) },
			func(p, _ *engine) bool { return p.count(record.EvFreed) == 1 && p.evs[0].Status == record.FreedRevoked }},
		{"an untrack", func(t *testing.T, _, d *engine, _ uint64, _, track record.Handle) { must(t, d.host.Untrack(track)) },
			func(_, d *engine) bool { return d.group.Tracked() == 0 }},
		{"a read in parts", func(t *testing.T, _, d *engine, _ uint64, _, track record.Handle) {
			var parts []record.Run
			for i := range uint32(600) {
				parts = append(parts, record.Run{Local: 20 + i%4, Remote: i % 4, N: 1})
			}
			must(t, d.host.Read(track, parts))
		}, func(_, d *engine) bool { return d.count(record.EvReadDone) == 1 && d.evs[0].Value0 == 2*600*blockLen }},
		{"a grant and its cancel", func(t *testing.T, p, _ *engine, _ uint64, lease, _ record.Handle) {
			must(t, p.host.Cancel(lease))
			h, _ := p.grantAs(host.Grant{ID: []byte("z"), Blocks: 1})
			must(t, p.host.Cancel(h))
		}, func(p, _ *engine) bool { return p.count(record.EvFreed) == 2 }},
		{"an expectation that is cancelled, and the next use of its slot", func(t *testing.T, p, _ *engine, _ uint64, lease, _ record.Handle) {
			e, err := p.host.Expect([]byte("e"))
			must(t, err)
			p.lab.step(10 * time.Millisecond)
			must(t, p.host.Cancel(e))
			p.lab.step(10 * time.Millisecond)
			h, _ := p.grantAs(host.Grant{ID: []byte("z"), Blocks: 1})
			if h.Slot() != e.Slot() {
				t.Fatalf("slot %d is not %d", h.Slot(), e.Slot())
			}
			must(t, p.host.Cancel(h))
		}, func(p, _ *engine) bool { return p.count(record.EvFreed) == 1 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, p, d, peer := pair(t, stream.KindDelta, two, two)
			lease, remote := p.grant("a", 1, 0, 4)
			track := d.track(peer, remote, 9)
			l.run(100*time.Millisecond, 10*time.Millisecond)
			p.evs, d.evs = nil, nil
			silent := true
			p.ranks[1].silence(true, &silent)
			d.ranks[1].silence(true, &silent)
			tc.do(t, p, d, peer, lease, track)
			l.run(500*time.Millisecond, 50*time.Millisecond)
			if tc.want(p, d) {
				t.Fatal("it happened while rank 1 heard nothing")
			}
			silent = false
			l.until("done", func() bool { return tc.want(p, d) })
		})
	}
}

func TestPartsOfAReadThatAFullStateRepeatsCountOnce(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grant("a", 1, 0, 6)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	h := record.NewHandle(100, 0) // the host's side is played here
	c := d.hosts.End(0)
	track := func() {
		record.PutTrack(c.Reserve(record.TagTrack, record.TrackLen+1), record.TrackReq{
			Track: h, Engine: peer, Epoch: remote.Epoch, Key: remote.Key, Slot: remote.Slot, Generation: remote.Generation, Native: 1, RemoteLen: 1,
		}, []byte("a"), nil)
	}
	part := func(n uint32) {
		record.PutRead(c.Reserve(record.TagRead, record.ReadLen+record.RunLen), record.Read{Track: h, Part: n, Parts: 3, N: 1}, runs(20+2*n, 2*n, 2))
	}
	track()
	part(0)
	part(1)
	c.Publish()
	d.ranks[0].plane.Step(l.now)
	track()
	part(0)
	part(1)
	part(1)
	part(2)
	part(2)
	c.Publish()
	l.until("an outcome", func() bool {
		k := d.ranks[0].plane.Tracker.Counters()
		return k.Outcomes[record.ReadOK]+k.Outcomes[record.ReadFailed] > 0
	})
	l.run(100*time.Millisecond, 10*time.Millisecond)
	if k := d.ranks[0].plane.Tracker.Counters(); k.Outcomes[record.ReadOK] != 1 || k.BadParts != 0 || k.Reads != 1 {
		t.Errorf("outcomes %v, bad parts %d, reads %d", k.Outcomes, k.BadParts, k.Reads)
	}
	if !d.ranks[0].right(1, 20, 6, two, two) {
		t.Error("wrong data")
	}
}
