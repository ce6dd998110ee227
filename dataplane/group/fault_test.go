package group_test

import (
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
					step := 3
					if testing.Short() {
						step = 17
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
