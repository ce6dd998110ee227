package group_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/topology"
)

// The rank has more ends to tell than the stream takes when the grant of what it has dropped comes.
func TestAGrantEndsOnARankThatUnregistersWhileTheStreamIsFull(t *testing.T) {
	l := newLab(t)
	p := l.engine("P", topology.Shape{TP: 1, PP: 1}, stream.KindProcess, nil)
	p.ready()
	const n = 250
	for i := range n {
		p.grantAs(host.Grant{ID: fmt.Append(nil, i), Blocks: 1})
		l.step(time.Millisecond)
	}
	expected, err := p.host.Expect([]byte("late"))
	must(t, err)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	table := p.ranks[0].plane.Leases
	table.FenceAll()
	table.EndAll(record.FreedClosed, l.now)
	p.ranks[0].plane.PublishEnds()
	if table.Ending() < 2 {
		t.Fatal("the stream has taken all")
	}
	h, _ := p.grantAs(host.Grant{ID: []byte("late"), Blocks: 1, Expected: expected, User: 9})
	l.run(time.Second, 10*time.Millisecond)
	freed := p.take(record.EvFreed)
	if len(freed) != n+1 || p.group.Held() != 0 {
		t.Fatalf("%d of %d leases ended, the host holds %d", len(freed), n+1, p.group.Held())
	}
	last := freed[n]
	if last.Handle != uint64(h) || last.Status != record.FreedClosed || last.User != 9 || last.Value0 != 1 {
		t.Errorf("freed %+v", last)
	}
	if what := l.idle(); what != "" {
		t.Error(what)
	}
}
