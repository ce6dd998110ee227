package handshake

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/clock"
)

// wantOffset fails unless o says that the peer's clock is `ahead` of ours, with an error of about half a round trip.
func wantOffset(l *lab, o clock.Offset, roundTrip time.Duration) {
	l.t.Helper()
	at := l.now()
	got, bound, ok := o.Local(clock.RemoteInstant(at.Add(ahead)))
	if !ok {
		l.t.Error("the offset is not known")
		return
	}
	if off := got.Sub(at).Abs(); off > bound {
		l.t.Errorf("off by %v, more than the bound %v", off, bound)
	}
	if most := roundTrip/2 + ms; bound < roundTrip/2 || bound > most {
		l.t.Errorf("bound %v for a round trip of %v", bound, roundTrip)
	}
}

func TestTheOffsetIsThatOfTheShortestRoundTrip(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		spans := []time.Duration{80 * ms, 20 * ms, 60 * ms}
		l.put("P", func(ctx context.Context, r *Rank) ([][]byte, error) {
			if r == nil {
				return nil, pause(ctx, time.Second) // connecting is no part of it
			}
			return l.engine("P", spans[r.Transfer])(ctx, r)
		})
		l.want(1, "P", 3)
		l.sleep(2 * time.Second)
		wantOffset(l, l.takeOne().Offset, 20*ms)
		wantOffset(l, l.status(1).Offset, 20*ms)
		if e := l.status(1).OffsetError; e < 10*ms || e > 11*ms {
			t.Errorf("error %v", e)
		}
	})
}

func TestARefreshAsksTheFirstRankAndBoundsTheErrorAnew(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		l.put("P", l.engine("P", 20*ms))
		l.want(1, "P", 2)
		l.sleep(time.Second)
		l.take()
		l.sleep(time.Hour)
		if e := l.status(1).OffsetError; e < 700*ms {
			t.Errorf("error %v after an hour without a refresh: it must grow", e)
		}
		l.asked = nil
		if err := l.Refresh(1); err != nil {
			t.Fatal(err)
		}
		if s := l.status(1); s.State != Ready {
			t.Errorf("state %v while a refresh runs", s.State)
		}
		l.sleep(time.Second)
		r := l.takeOne()
		if r.Maps != nil || r.Err != nil || r.Jumped {
			t.Errorf("result %+v", r)
		}
		wantOffset(l, r.Offset, 20*ms)
		if diff := cmp.Diff([]Rank{{0, 0}, {0, 0}, {0, 0}}, l.asked); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
		if s := l.Stats(); s.Attempts != 1 || s.Refreshes != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestARefreshThatFindsOtherMetadataFetchesAll(t *testing.T) {
	for _, tc := range []struct {
		name string
		peer func(l *lab) peer
		want State
	}{
		{"other blob", func(l *lab) peer {
			return func(_ context.Context, r *Rank) ([][]byte, error) {
				return [][]byte{payload("P", "new"), l.stamp()}, nil
			}
		}, Ready},
		{"other engine", func(l *lab) peer { return l.engine("P2", 0) }, Failed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inLab(t, Config{}, func(l *lab) {
				l.put("P", l.engine("P", ms))
				l.want(1, "P", 2)
				l.sleep(time.Second)
				l.take()
				l.put("P", tc.peer(l))
				l.Refresh(1)
				l.sleep(500 * ms)
				if s := l.status(1); s.State != tc.want {
					t.Errorf("status %+v", s)
				}
				if r := l.takeOne(); (r.Err == nil) != (tc.want == Ready) || r.Err == nil && string(r.Maps[1].Handshake.AgentMetadata) != "new" {
					t.Errorf("result %+v", r)
				}
				if s := l.Stats(); s.Attempts != 2 || s.Refreshes != 1 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

func TestAFailedRefreshChangesNothingAndIsNotRepeatedAtOnce(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		l.put("P", l.engine("P", ms))
		l.want(1, "P", 1)
		l.sleep(time.Second)
		l.take()
		l.put("P", nil)
		for range 1000 { // ten seconds
			l.Refresh(1)
			l.sleep(10 * ms)
		}
		if s := l.status(1); s.State != Ready || !s.Offset.Known() {
			t.Errorf("status %+v", s)
		}
		if diff := cmp.Diff(seconds(0, 1, 2, 4, 8), l.dialed("P")); diff != "" {
			t.Errorf("attempts at (-want +got):\n%s", diff)
		}
		if got := l.take(); got != nil || l.Stats().RefreshFailures[Unreachable] != 4 {
			t.Errorf("results %v, stats %+v", got, l.Stats())
		}
		l.Retry(1) // this one tells
		l.sleep(0)
		if r := l.takeOne(); r.Class != Unreachable {
			t.Errorf("result %+v", r)
		}
	})
}

func TestANewsOfTheClockLeavesTheMapsToBeTaken(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		l.put("P", l.engine("P", 80*ms))
		l.want(1, "P", 1)
		l.sleep(time.Second)
		l.put("P", l.engine("P", 0))
		l.Refresh(1)
		l.sleep(0)
		r := l.takeOne()
		if len(r.Maps) != 1 || r.Jumped {
			t.Errorf("result %+v", r)
		}
		if e := r.Offset.ErrorAt(l.now()); e > ms {
			t.Errorf("the error is %v: that of the first sample", e)
		}
	})
}

func TestAPeerWhoseClockIsAnotherIsToldAsJumped(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		shift := time.Duration(0)
		l.put("P", func(_ context.Context, r *Rank) ([][]byte, error) {
			return [][]byte{payload("P", ""), stamp(clock.RemoteInstant(l.now().Add(ahead + shift)))}, nil
		})
		l.want(1, "P", 1)
		l.sleep(time.Second)
		l.take()
		shift = time.Minute // it was suspended for us
		l.Refresh(1)
		l.sleep(0)
		if r := l.takeOne(); !r.Jumped {
			t.Errorf("result %+v", r)
		}
		l.Refresh(1)
		l.sleep(time.Second)
		if r := l.takeOne(); r.Jumped {
			t.Errorf("result %+v", r)
		}
	})
}

func TestAnotherProcessAtTheAddressHasAnotherClock(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		l.put("P", func(_ context.Context, r *Rank) ([][]byte, error) { // 5 ms off: the two samples could both be true
			return [][]byte{payload("P", "first"), stamp(clock.RemoteInstant(l.now().Add(ahead + 5*ms)))}, nil
		})
		l.want(1, "P", 1)
		l.sleep(time.Second)
		l.take()
		l.put("P", l.engine("P", 20*ms))
		l.Retry(1)
		l.sleep(time.Second)
		wantOffset(l, l.takeOne().Offset, 20*ms)
	})
}

func TestSamplesTakenAcrossAJumpOfOurClocksAreNotUsed(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		l.put("P", l.engine("P", 20*ms))
		l.put("Q", l.engine("Q", 0))
		l.want(1, "P", 1)
		l.want(2, "Q", 1)
		l.sleep(10 * ms) // Q's result is there, P's attempt runs
		l.VoidClocks()
		l.sleep(time.Second)
		for _, r := range l.take() {
			if len(r.Maps) != 1 || r.Offset.Known() {
				t.Errorf("result %+v", r)
			}
		}
		if s := l.status(1); s.OffsetError >= 0 {
			t.Errorf("status %+v", s)
		}
		l.Refresh(1)
		l.sleep(time.Second)
		wantOffset(l, l.takeOne().Offset, 20*ms)
	})
}
