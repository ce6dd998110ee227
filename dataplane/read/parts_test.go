package read

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// What befalls a read between two of its parts.

// half is a read that has posted a part and has more to post.
func (b *bench) half(token uint64, s from) Job {
	b.t.Helper()
	j := b.commit(token, 1024, s)
	if parts := b.pass(); len(parts) == 0 || !b.m.NeedsStep() || !b.m.leftToPost(int32(uint32(j))-1) {
		b.t.Fatalf("%d parts posted, and nothing is left", len(parts))
	}
	return j
}

// What was posted is waited for before the blocks are given back, and nothing more is posted.
func TestAReadThatIsEndedBetweenItsPartsGivesItsBlocksBackBehindThem(t *testing.T) {
	for _, tc := range []struct {
		name    string
		end     func(b *bench, j Job)
		verdict uint8
	}{
		{"cancelled", func(b *bench, j Job) { b.ok(b.m.Cancel(j, b.now)) }, record.ReadCancelled},
		{"lost", func(b *bench, j Job) { b.ok(b.m.End(j, record.ReadLost, b.now)) }, record.ReadLost},
		{"closed", func(b *bench, _ Job) { b.m.Close(b.now) }, record.ReadCancelled},
		{"no room in the transport for so long", func(b *bench, _ Job) {
			b.f.postErr = transport.ErrFull
			b.step(readTimeout)
		}, record.ReadTimeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newPaced(t, overShm, 1, 1024, 64<<10)
			j := b.half(1, b.far(1, 64))
			posted := b.posts()
			tc.end(b, j)
			b.wantOutcome(1, tc.verdict, true)
			b.f.postErr = nil
			for range 3 {
				b.step(time.Millisecond)
				b.wantNone()
			}
			if b.posts() != posted {
				t.Errorf("%d posts after the end", b.posts()-posted)
			}
			for _, x := range b.f.posted {
				b.f.land(x)
			}
			b.step(0)
			b.wantBack(1)
			b.wantIdle()
		})
	}
}

// A peer that dies between parts refuses the next one, or fails those that are in flight.
func TestAPeerThatDiesBetweenPartsFailsTheRead(t *testing.T) {
	for _, refuses := range []bool{true, false} {
		b := newPaced(t, overShm, 1, 1024, 64<<10)
		b.half(1, b.far(1, 64))
		if refuses {
			b.f.postErr = transport.ErrPeer
		} else {
			b.f.posted[0].status = transport.Failed
		}
		b.step(0)
		at := b.posts()
		b.wantNone() // parts are in flight
		for _, x := range b.f.posted {
			if x.status == transport.Pending {
				b.f.land(x)
			}
		}
		b.step(0)
		if o := b.wantOutcome(1, record.ReadFailed, !refuses); o.Peer != 1 || b.posts() != at {
			t.Errorf("outcome %+v, %d posts after the failure", o, b.posts()-at)
		}
		if b.f.postErr = nil; !refuses {
			b.step(errorWait)
			b.wantBack(1)
		}
		b.wantIdle()
	}
}

// A stock owner is told once, with the last part, when all others have ended.
func TestTheCompletionOfAReadInPartsLeavesWithTheLast(t *testing.T) {
	b := newPaced(t, overShm, 1, 1024, 64<<10)
	s := b.far(1, 64)
	s.Fence, s.Notif = Fence{}, []byte("id:1")
	b.commit(1, 1024, s)
	var open []*fakeXfer
	for passes := 0; ; passes++ {
		for _, x := range b.pass() {
			if len(x.spec.Notif) > 0 && len(open) > 0 {
				t.Fatal("the completion left before all other parts had ended")
			}
			open = append(open, x)
		}
		if n := len(open); n > 0 && len(open[n-1].spec.Notif) > 0 {
			break
		}
		if passes%3 == 2 { // some at a time
			for _, x := range open[:(len(open)+1)/2] {
				b.f.land(x)
			}
			open = open[(len(open)+1)/2:]
		}
		if passes > 2000 {
			t.Fatal("the last part does not come")
		}
	}
	b.wantNone()
	b.f.land(open[0])
	b.step(0)
	b.wantOutcome(1, record.ReadOK, false)
	said := 0
	for _, x := range b.f.posted {
		if len(x.spec.Notif) > 0 {
			said++
		}
	}
	if said != 1 {
		t.Errorf("%d completions", said)
	}
	b.wantWhole(b.dataSince(0), 1024, 64<<10, 64)
	b.wantIdle()
}

// between is a read of whose parts none is in flight, and for whose next one the transport has no room.
func (b *bench) between(token uint64, s from) Job {
	b.t.Helper()
	j := b.half(token, s)
	b.f.postErr = transport.ErrFull
	for _, x := range b.f.posted {
		if x.status == transport.Pending {
			b.f.land(x)
		}
	}
	b.step(0)
	b.wantNone()
	if pending, aside := b.m.InFlight(s.Peer); pending+aside != 0 {
		b.t.Fatalf("%d in flight, %d aside between two parts", pending, aside)
	}
	return j
}

// Its memory will be written again: it may not be unregistered, nor its agent go.
func TestAReadBetweenItsPartsIsOpen(t *testing.T) {
	b := newPaced(t, overShm, 1, 1024, 64<<10)
	if n := b.m.Open(); n != 0 {
		t.Fatalf("%d open before", n)
	}
	j := b.between(1, b.far(1, 64))
	if n := b.m.Open(); n != 1 {
		t.Errorf("%d open, want 1", n)
	}
	b.ok(b.m.Cancel(j, b.now))
	b.wantOutcome(1, record.ReadCancelled, false)
	if n := b.m.Open(); n != 0 {
		t.Errorf("%d open after the end, want 0", n)
	}
	b.wantIdle()
}

func TestReadsWithSomethingToPostToAPeerThatIsForgottenEndAndNoOthers(t *testing.T) {
	b := newPaced(t, overShm, 1, 1024, 64<<10)
	b.between(1, b.far(1, 64))
	b.f.postErr = nil
	other := b.between(2, b.far(2, 64))
	at := b.posts()
	b.m.Lost(1, b.now)
	if o := b.wantOutcome(1, record.ReadFailed, false); o.Peer != 1 || o.Here {
		t.Errorf("outcome %+v, want it to speak against the connection", o)
	}
	b.f.postErr = nil
	parts := b.pass()
	b.wantNone()
	if len(parts) == 0 {
		t.Error("the read of another peer does not go on")
	}
	for _, x := range b.f.posted[at:] {
		if x.spec.Peer == 1 {
			t.Error("a post to the peer that is forgotten")
		}
		b.f.land(x)
	}
	b.ok(b.m.Cancel(other, b.now))
	b.wantOutcome(2, record.ReadCancelled, true)
	b.step(0)
	b.wantBack(2)
	b.wantIdle()
}

// All that was missing is the proof.
func TestAReadWhoseFenceWasToBePostedToAPeerThatIsForgottenIsUnproven(t *testing.T) {
	b := newPaced(t, overShm, 1, 16, 4<<10)
	b.commit(1, 16, b.far(1, 64))
	parts := b.pass()
	b.f.postErr = transport.ErrFull
	for _, x := range parts {
		b.f.land(x)
	}
	b.step(0)
	b.wantNone()
	b.m.Lost(1, b.now)
	b.wantOutcome(1, record.ReadUnproven, false)
	b.wantIdle()
}
