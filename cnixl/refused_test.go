package cnixl

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// What NIXL and UCX refuse, and what that says: of the peer, of what was asked, or of neither.

func TestTheFirstBackendErrorLosesThePeerUntilItIsLoadedAgain(t *testing.T) {
	for _, st := range []int{-2, -6, -4} {
		t.Run(fmt.Sprint("status ", st), func(t *testing.T) {
			l := newLinked(t)
			l.do("fail gen_notif 1 %d", st)
			for range 5 {
				if err := l.a.Send(l.toB, []byte("x")); !errors.Is(err, transport.ErrPeer) {
					t.Fatalf("status %d: %v, want ErrPeer", st, err)
				}
				if _, err := l.a.PostRead(l.spec(1)); !errors.Is(err, transport.ErrPeer) {
					t.Fatalf("status %d: read: %v, want ErrPeer", st, err)
				}
			}
			if n := l.do("count gen_notif"); n != 1 { // shows F4.1
				t.Errorf("NIXL was asked %d times, want once: each failing send writes a line to stderr", n)
			}
			blob, err := l.b.Metadata()
			if err != nil {
				t.Fatal(err)
			}
			if err := l.a.Drop(l.toB); err != nil {
				t.Fatal(err)
			}
			if l.toB, err = l.a.Load(blob); err != nil {
				t.Fatal(err)
			}
			if err := l.a.Send(l.toB, []byte("x")); err != nil {
				t.Errorf("after drop and load: %v", err)
			}
		})
	}
}

func TestAStatusOfTheAgentLayerEndsNoRead(t *testing.T) {
	l := newLinked(t)
	l.do("hold D 1")
	l.memB[0] = 7
	x, err := l.a.PostRead(l.spec(4))
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range []int{-6, -3, -4} {
		l.do("fail get_xfer_status 1 %d", st)
		if got := status(l.a, x, 0); got != transport.Pending {
			t.Fatalf("status %d made the read %d, want Pending", st, got)
		}
		l.do("fail get_xfer_status 1 %d", st)
		if err := l.a.Release(x); !errors.Is(err, transport.ErrInvalid) {
			t.Fatalf("release under status %d: %v, want ErrInvalid", st, err)
		}
	}
	if n := l.a.Counters().StatusAgent; n != 6 {
		t.Errorf("%d such statuses counted, want 6", n)
	}
	if l.memA[0] != 0 || l.do("count release_xfer_req") != 0 {
		t.Error("NIXL was asked to release a read in flight")
	}
	l.do("hold D 0")
	if got := status(l.a, x, 0); got != transport.Done || l.memA[0] != 7 {
		t.Errorf("status %d, byte %d", got, l.memA[0])
	}
	if err := l.a.Release(x); err != nil {
		t.Error(err)
	}
}

func TestABackendErrorOfATransferFailsItAndLosesThePeer(t *testing.T) {
	l := newLinked(t)
	l.do("hold D 1")
	x, err := l.a.PostRead(l.spec(4))
	if err != nil {
		t.Fatal(err)
	}
	l.do("fail get_xfer_status 1 -2")
	for range 3 { // an end stays an end
		if got := status(l.a, x, 0); got != transport.Failed {
			t.Fatalf("status %d, want Failed", got)
		}
	}
	if err := l.a.Send(l.toB, []byte("x")); !errors.Is(err, transport.ErrPeer) { // shows F4.1
		t.Errorf("send after it: %v, want ErrPeer", err)
	}
	if err := l.a.Drop(l.toB); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("drop over a handle that is kept: %v, want ErrInvalid", err)
	}
	if err := l.a.Release(x); err != nil {
		t.Fatal(err)
	}
	if n := l.do("land"); n != 1 {
		t.Fatalf("the fake knows %d reads released in flight, want 1: after an error bytes may still land", n)
	}
}

// UCX's "invalid parameter" of a get that it had put off is NIXL's own status of the read from then on: it ends it, and speaks against nobody.
func TestAReadThatNIXLCallsInvalidHasFailedHere(t *testing.T) {
	l := newLinked(t)
	l.do("hold D 1")
	x, err := l.a.PostRead(l.spec(4))
	if err != nil {
		t.Fatal(err)
	}
	l.do("fail get_xfer_status 1 -1")
	for range 3 {
		if got := status(l.a, x, 0); got != transport.FailedHere {
			t.Fatalf("status %d, want FailedHere", got)
		}
	}
	if err := l.a.Send(l.toB, []byte("x")); err != nil {
		t.Errorf("send after it: %v", err)
	}
	if err := l.a.Release(x); err != nil {
		t.Fatal(err)
	}
	if err := l.a.Drop(l.toB); err != nil {
		t.Error(err)
	}
}

// A message that UCX calls invalid is refused alone: what comes after it leaves over the same connection.
func TestASendThatNIXLCallsInvalidLosesNoPeer(t *testing.T) {
	l := newLinked(t)
	l.do("fail gen_notif 1 -1")
	if err := l.a.Send(l.toB, []byte("x")); !errors.Is(err, transport.ErrInvalid) {
		t.Fatalf("%v, want ErrInvalid", err)
	}
	if err := l.a.Send(l.toB, []byte("y")); err != nil {
		t.Errorf("the next one: %v", err)
	}
	if n := l.a.Counters().SendsFailed; n != 1 {
		t.Errorf("%d sends counted, want 1", n)
	}
}

// A get that was begun lands, also where NIXL refuses the post behind it: memory that was given back would be written.
func TestAPostThatIsRefusedBehindItsGetIsAReadWhoseMemoryIsKept(t *testing.T) {
	for _, descs := range []int{1, 4} {
		t.Run(fmt.Sprint(descs), func(t *testing.T) {
			l := newLinked(t)
			l.memB[0] = 7
			l.do("choke D 1")
			x, err := l.a.PostRead(l.spec(descs))
			if err != nil {
				t.Fatalf("%v: nobody would know that its bytes may land", err)
			}
			if got := status(l.a, x, 0); got != transport.Failed {
				t.Errorf("status %d, want Failed", got)
			}
			if err := l.a.Release(x); err != nil {
				t.Fatal(err)
			}
			if n := l.do("land"); n != 1 || l.memA[0] != 7 {
				t.Errorf("%d reads landed behind the refusal, byte %d", n, l.memA[0])
			}
		})
	}
}

// The connection may be lost behind the get, and NIXL says the same as if it had been before: a read of one descriptor, too, has failed.
func TestAPostThatFindsTheConnectionLostIsAFailedRead(t *testing.T) {
	for _, descs := range []int{1, 4} {
		t.Run(fmt.Sprint(descs), func(t *testing.T) {
			l := newLinked(t)
			l.do("kill P")
			x, err := l.a.PostRead(l.spec(descs))
			if err != nil || status(l.a, x, 0) != transport.Failed {
				t.Fatalf("handle %d, %v, want a failed read", x, err)
			}
			if _, err := l.a.PostRead(l.spec(1)); !errors.Is(err, transport.ErrPeer) {
				t.Errorf("the next one: %v, want ErrPeer: one lost connection keeps one read", err)
			}
			if err := l.a.Drop(l.toB); !errors.Is(err, transport.ErrInvalid) {
				t.Errorf("drop beside it: %v, want ErrInvalid", err)
			}
			if err := errors.Join(l.a.Release(x), l.a.Drop(l.toB)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAPostThatIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name   string
		descs  int
		status int
		want   error
		ended  transport.Status // if there is a read
	}{
		{"of one descriptor may have started it, so it is a failed read", 1, -2, nil, transport.Failed},
		{"before the backend has started nothing", 8, -6, transport.ErrPeer, 0},
		{"of several may have started some, so it is a failed read", 8, -2, nil, transport.Failed},
		{"for what it asks, of one", 1, -1, transport.ErrInvalid, 0},
		{"for what one of several asks", 8, -1, nil, transport.FailedHere},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLinked(t)
			l.do("fail post_xfer_req 1 %d", tc.status)
			x, err := l.a.PostRead(l.spec(tc.descs))
			if !errors.Is(err, tc.want) || (err == nil) != (x != 0) {
				t.Fatalf("handle %d, %v, want %v", x, err, tc.want)
			}
			if tc.want == nil {
				if got := status(l.a, x, 0); got != tc.ended {
					t.Errorf("status %d, want %d", got, tc.ended)
				}
				if err := l.a.Release(x); err != nil {
					t.Error(err)
				}
			}
			if err := l.a.Send(l.toB, []byte("x")); errors.Is(err, transport.ErrPeer) != (tc.status != -1) {
				t.Errorf("send after it: %v, want ErrPeer only where the peer may be lost", err)
			}
			if err := l.a.Drop(l.toB); err != nil {
				t.Errorf("drop: %v: the read is still counted as open", err)
			}
		})
	}
}

func TestAWrongAddressDoesNotLookLikeALostPeer(t *testing.T) {
	l := newLinked(t)
	spec := l.spec(2)
	spec.Descs[1].Remote += 1 << 30
	if _, err := l.a.PostRead(spec); err != transport.ErrRange {
		t.Errorf("%v, want ErrRange", err)
	}
	spec = l.spec(2)
	spec.Descs[1].Local += 1 << 30
	if _, err := l.a.PostRead(spec); err != transport.ErrInvalid {
		t.Errorf("%v, want ErrInvalid", err)
	}
	if err := l.a.Send(l.toB, []byte("x")); err != nil {
		t.Errorf("send after it: %v", err)
	}
	l.do("fail create_xfer_req 1 -2") // and nothing is wrong with the addresses
	if _, err := l.a.PostRead(l.spec(2)); !errors.Is(err, transport.ErrPeer) {
		t.Errorf("%v, want ErrPeer", err)
	}
}
