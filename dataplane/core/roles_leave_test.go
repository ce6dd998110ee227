package core

import (
	"errors"
	"testing"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// A host that is closed in order has not crashed, and nobody has to see why.
func TestARankWhoseHostIsClosedSaysNoError(t *testing.T) {
	for _, carrier := range []string{stream.KindProcess, stream.KindShm} {
		t.Run(carrier, func(t *testing.T) {
			f := newFleet(t, carrier)
			p, d := f.team("P", 2, 1), f.team("D", 2, 1)
			f.connect(d, p)
			for _, m := range []*team{p, d} {
				f.until("closed", func() bool {
					err := m.core.Close(0)
					if err != nil && !errors.Is(err, ErrBusy) {
						t.Fatal(err)
					}
					return err == nil
				})
				for n, r := range m.ranks {
					f.until("a rank is told", func() bool { return kinds(r.evs, record.EvHostDown) == 1 })
					left := node{core: r.core}
					if lost := left.said(t, log.HostLost); len(lost) != 0 {
						t.Errorf("rank %d: %v", n, lost)
					}
					left.book.Want(t, log.HostLeft, "", "")
				}
			}
		})
	}
}
