package core

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
)

// An engine that is driven inline makes no step while no request comes. What it is for is that blocks are held, or asked for: only then has
// somebody waited for the step that did not come.
func TestOnlyAContextThatHasSomethingToDoStandsStill(t *testing.T) {
	const gap = 10 * time.Second
	for _, tc := range []struct {
		name    string
		begin   func(l *lab) (n *node)
		stalled bool
	}{
		{"an owner without a lease", func(l *lab) *node { return l.p }, false},
		{"an owner whose lease has ended", func(l *lab) *node {
			_, remote := l.grant("a", 1, blocks(0, 8))
			track := l.track(remote, "d", 1)
			l.run(time.Second, 30*time.Millisecond)
			l.read(track, blocks(40, 8), blocks(0, 8))
			l.run(time.Second, 30*time.Millisecond)
			if freed := l.p.take(record.EvFreed); len(freed) != 1 {
				t.Fatalf("freed %+v", freed)
			}
			return l.p
		}, false},
		{"an owner with a lease", func(l *lab) *node { l.grant("a", 1, blocks(0, 8)); return l.p }, true},
		{"an owner that expects one", func(l *lab) *node {
			if _, err := l.p.host.Expect([]byte("a")); err != nil {
				t.Fatal(err)
			}
			return l.p
		}, true},
		{"a reader that has read all", func(l *lab) *node { return l.d }, false},
		{"a reader that tracks a request", func(l *lab) *node {
			_, remote := l.grant("a", 1, blocks(0, 8))
			l.track(remote, "d", 1)
			return l.d
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, `{}`)
			l.run(time.Second, 30*time.Millisecond)
			n := tc.begin(l)
			l.step(30 * time.Millisecond)
			before := n.core.leases.Times.StallGap.Count()
			l.now = l.now.Add(gap)
			if _, err := n.host.Grant(host.Grant{ID: []byte("next"), Blocks: 1}, l.now); err != nil { // what ends the rest
				t.Fatal(err)
			}
			l.stepOne(n)
			if got := n.core.leases.Times.StallGap.Count() - before; got != map[bool]uint64{true: 1}[tc.stalled] {
				t.Errorf("%d stalls", got)
			}
			if said := len(n.said(t, log.Stall)) > 0; said != tc.stalled {
				t.Errorf("said: %v", said)
			}
		})
	}
}
