package core

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// hanging is a lab whose D registers over twins whose reads do not end.
func hanging(t *testing.T) (l *lab, held *[]*loopback.Agent) {
	held = new([]*loopback.Agent)
	l, _ = newScripted(t, `{}`, func(tw *transport.Twin) error {
		a := tw.Transport.(*loopback.Agent)
		a.HoldReads(true)
		*held = append(*held, a)
		return nil
	})
	return l, held
}

// TestManyTwinsThatHangAreNoMoreToWaitForThanOne: an engine that tries to register again and again leaves one each time.
func TestManyTwinsThatHangAreNoMoreToWaitForThanOne(t *testing.T) {
	proofsTake(t, time.Millisecond)
	l, held := hanging(t)
	for i := range straysMax {
		if err := l.d.core.Register(l.d.regions); !errors.Is(err, ErrTransport) {
			t.Fatalf("try %d: %v", i, err)
		}
	}
	if len(strays.list) != straysMax {
		t.Fatalf("%d twins are kept, want %d: their reads may land", len(strays.list), straysMax)
	}
	looks, seen := 0, map[*looked]bool{}
	for _, p := range strays.list {
		p.twin.Transport = &looked{Transport: p.twin.Transport, looks: &looks, seen: seen, ends: *held}
	}
	if left := strays.close(closeLooks); left != 0 || looks > 3*straysMax {
		t.Errorf("%d twins are left, after %d looks at %d", left, looks, straysMax)
	}
}

// TestTwinsThatHangForEverAreAFew, whatever contexts they were of.
func TestTwinsThatHangForEverAreAFew(t *testing.T) {
	proofsTake(t, time.Millisecond)
	l, held := hanging(t)
	other, none := hanging(t)
	third, _ := newScripted(t, `{}`, func(*transport.Twin) error { return nil })
	for range straysMax + 2 {
		if err := l.d.core.Register(l.d.regions); !errors.Is(err, ErrTransport) {
			t.Fatal(err)
		}
	}
	if len(*held) != straysMax || len(strays.list) != straysMax {
		t.Fatalf("%d twins were opened and %d are kept, want %d", len(*held), len(strays.list), straysMax)
	}
	if err := l.d.core.Close(time.Second); err != nil {
		t.Fatal(err)
	}
	err := other.d.core.Register(other.d.regions)
	if !errors.Is(err, ErrTransport) || len(*none) != 0 {
		t.Errorf("another context: %v, %d twins", err, len(*none))
	}
	for _, w := range []string{"reads of 8 have not ended", "Remedy: start the process anew", "self_read"} {
		if err != nil && !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	dev := &device{current: map[int]bool{}, noNIC: true} // peers have another way, so nothing was shown by those that hang
	other.d.core.UseDevices(dev.open)
	regions := mixed(other.d.regions)
	regions[0].Mem = transport.VRAM
	if err := other.d.core.Register(regions); err != nil {
		t.Errorf("device memory that no NIC is to reach: %v", err)
	}
	if said := other.d.said(t, log.MemoryUnproven); len(said) != 1 || !strings.Contains(said[0].What, "reads of 8 have not ended") {
		t.Errorf("said %+v", said)
	}
	for _, a := range *held {
		a.HoldReads(false)
	}
	if err := third.d.core.Register(third.d.regions); err != nil || len(strays.list) != 0 {
		t.Errorf("once they have ended: %v, %d twins are left", err, len(strays.list))
	}
}

// many are thousands of regions.
func many(l *lab) (list []Region) {
	at := l.d.regions[0]
	for i := range uint64(2000) {
		list = append(list, Region{Addr: at.Addr + 8*i, Bytes: 8, BlockLen: 8, BlockStride: 8, Blocks: 1, Group: -1})
	}
	return list
}

func TestThousandsOfRegionsUnderATwinThatHangsAreNoMoreThanOne(t *testing.T) {
	proofsTake(t, 5*time.Millisecond)
	reads := map[uint64]uint64{}
	l, _ := newScripted(t, `{}`, func(tw *transport.Twin) error {
		tw.Transport.(*loopback.Agent).HoldReads(true)
		tw.Transport = &noting{tw.Transport, reads}
		return nil
	})
	if err := l.d.core.Register(many(l)); !errors.Is(err, ErrTransport) || !strings.Contains(err.Error(), "region 0") {
		t.Errorf("Register: %v", err)
	}
	if len(reads) != transport.TwinReads || len(strays.list) != 1 {
		t.Errorf("%d reads were posted, %d twins are kept", len(reads), len(strays.list))
	}
}

// trickling is a twin of which one read ends at a time, each a millisecond after the one before.
type trickling struct {
	transport.Transport
	ended int
}

func (s *trickling) PollReads(xfers []transport.Xfer, out []transport.Status, spinNs int64) {
	time.Sleep(time.Millisecond)
	s.ended++
	last := len(xfers) - 1
	s.Transport.PollReads(xfers[last:], out[last:], spinNs)
}

func TestATwinThatHasNotReadAllInItsTimeIsNotWaitedFor(t *testing.T) {
	proofsTake(t, 20*time.Millisecond)
	var s *trickling
	l, _ := newScripted(t, `{}`, func(tw *transport.Twin) error {
		s = &trickling{Transport: tw.Transport}
		tw.Transport = s
		return nil
	})
	if err := l.d.core.Register(many(l)); !errors.Is(err, ErrTransport) || !strings.Contains(err.Error(), "had not ended after 20ms") {
		t.Errorf("Register: %v, after %d reads", err, s.ended)
	}
}

// proofsTake makes the time of a proof that so long, and forgets what a test leaves of twins.
func proofsTake(t *testing.T, most time.Duration) {
	was := proofMax
	proofMax = most
	t.Cleanup(func() { proofMax, strays.list = was, nil })
}

// looked counts the looks at all twins, and lets all their reads end once each twin was looked at.
type looked struct {
	transport.Transport
	looks *int
	seen  map[*looked]bool
	ends  []*loopback.Agent
}

func (l *looked) PollReads(xfers []transport.Xfer, out []transport.Status, spinNs int64) {
	*l.looks++
	if l.seen[l] = true; len(l.seen) == len(l.ends) {
		for _, a := range l.ends {
			a.HoldReads(false)
		}
	}
	l.Transport.PollReads(xfers, out, spinNs)
}
