package handshake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/dataplane/zmtp"
)

// The tests here run in a bubble with its own time: all spans are exact.

const ms = time.Millisecond

func seconds(at ...int) (out []time.Duration) {
	for _, s := range at {
		out = append(out, time.Duration(s)*time.Second)
	}
	return out
}

func TestWaitsBetweenAttempts(t *testing.T) {
	incompatible := func(l *lab) peer {
		p := l.engine("P", 0)
		return func(ctx context.Context, r *Rank) ([][]byte, error) {
			reply, err := p(ctx, r)
			if r != nil {
				reply[0] = append([]byte(nil), reply[0]...)
				copy(reply[0][22:], hashB) // after map of 2, key of 19 bytes and str8 of 64
			}
			return reply, err
		}
	}
	for _, tc := range []struct {
		name    string
		peer    func(l *lab) peer
		tracked bool
		want    []time.Duration
		class   Class
	}{
		{"double from one second to one minute", func(*lab) peer { return refuses }, false,
			seconds(0, 1, 3, 7, 15, 31, 63, 123, 183), Unreachable},
		{"begin when the time-out of a silent peer is over", func(*lab) peer { return hangs }, false,
			seconds(0, 6, 13, 22, 35, 56, 93, 158), Silent},
		{"are no longer than the heartbeat interval while requests are tracked", func(*lab) peer { return refuses }, true,
			seconds(0, 1, 3, 7, 12, 17, 22, 27), Unreachable},
		{"are a minute for an incompatible peer, tracked or not", incompatible, true,
			seconds(0, 60, 120, 180), Incompatible},
		{"double for another engine at the address", func(l *lab) peer { return l.engine("P2", 0) }, false,
			seconds(0, 1, 3, 7, 15, 31), WrongEngine},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inLab(t, Config{Hash: hashA}, func(l *lab) {
				l.put("P", tc.peer(l))
				l.want(1, "P", 1)
				if err := l.Track(1, tc.tracked); err != nil {
					t.Fatal(err)
				}
				for n, at := range tc.want {
					time.Sleep(time.Until(l.start.Add(at)))
					synctest.Wait()
					if got := len(l.dialed("P")); got != n+1 {
						t.Fatalf("%d attempts after %v, want %d: %v", got, at, n+1, l.dialed("P"))
					}
				}
				if diff := cmp.Diff(tc.want, l.dialed("P")); diff != "" { // shows C52.2, C55.3
					t.Errorf("attempts at (-want +got):\n%s", diff)
				}
				l.sleep(5 * time.Second)
				s, n := l.status(1), len(l.dialed("P"))
				if s.Class != tc.class || s.Err == nil || s.Failures != n || l.Stats().Failures[tc.class] != uint64(n) { // shows C52.1
					t.Errorf("status %+v after %d attempts, want class %v", s, n, tc.class)
				}
				if r := l.takeOne(); r.Class != tc.class || r.Failures != n || r.Engine != 1 || r.Maps != nil {
					t.Errorf("result %+v, want the last failure", r)
				}
			})
		})
	}
}

func TestDoubtsAreFollowedAtOnceAndThenWithTheWaitsOfFailures(t *testing.T) {
	const far = 10 * time.Minute
	for _, tc := range []struct {
		name    string
		tracked bool
		peer    func(l *lab) peer // from the first doubt on
		want    []time.Duration
	}{
		{"of an engine that nobody waits for", false, func(l *lab) peer { return l.engine("P", 0) },
			[]time.Duration{0, far, far + time.Second, far + 3*time.Second, far + 7*time.Second, far + 15*time.Second, far + 31*time.Second}},
		{"of a tracked engine, an interval apart at the longest", true, func(l *lab) peer { return l.engine("P", 0) },
			[]time.Duration{0, far, far + time.Second, far + 3*time.Second, far + 7*time.Second, far + 12*time.Second, far + 17*time.Second}},
		{"of an engine that answers no more, as of any other that fails", true, func(*lab) peer { return refuses },
			[]time.Duration{0, far, far + time.Second, far + 3*time.Second, far + 7*time.Second, far + 12*time.Second, far + 17*time.Second}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inLab(t, Config{}, func(l *lab) {
				l.put("P", l.engine("P", 0))
				l.want(1, "P", 1)
				l.Track(1, tc.tracked)
				l.sleep(far)
				l.put("P", tc.peer(l))
				last := tc.want[len(tc.want)-1]
				for time.Since(l.start) <= last {
					if err := l.Doubt(1); err != nil {
						t.Fatal(err)
					}
					l.sleep(10 * ms)
				}
				if diff := cmp.Diff(tc.want, l.dialed("P")); diff != "" {
					t.Errorf("attempts at (-want +got):\n%s", diff)
				}
				n := len(tc.want)
				l.put("P", l.engine("P", 0))
				l.sleep(2 * time.Minute) // nobody doubts: nobody asks, but for what had failed
				if s, now := l.status(1), len(l.dialed("P")); s.State != Ready || now > n+1 {
					t.Errorf("%d attempts after %d, status %+v", now, n, s)
				}
				n = len(l.dialed("P"))
				l.Doubt(1)
				l.sleep(0)
				if got := len(l.dialed("P")); got != n+1 {
					t.Errorf("after a pause a doubt was followed by %d attempts", got-n)
				}
			})
		})
	}
}

func TestAWordOfAChangeIsNotHeldUpByDoubtsBeforeIt(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		l.put("P", l.engine("P", 0))
		l.want(1, "P", 1)
		l.sleep(time.Minute)
		for range 100 {
			l.Doubt(1)
			l.sleep(100 * ms)
		}
		n := len(l.dialed("P"))
		l.Retry(1)
		l.sleep(retryGap)
		if got := len(l.dialed("P")); got != n+1 {
			t.Errorf("%d attempts, want 1", got-n)
		}
	})
}

func TestAPeerThatComesUpIsKnownWithinAnIntervalIfRequestsAreTracked(t *testing.T) { // C52
	inLab(t, Config{}, func(l *lab) {
		l.want(1, "P", 1)
		l.Track(1, true)
		l.sleep(8 * time.Second)
		l.put("P", l.engine("P", 0))
		l.sleep(5 * time.Second)
		if s := l.status(1); s.State != Ready || s.Failures != 0 || s.Err != nil { // shows C52.3
			t.Errorf("status %+v", s)
		}
	})
}

func TestTheAgeOfAFailureIsThatOfTheFirstInARow(t *testing.T) { // C50
	inLab(t, Config{}, func(l *lab) {
		l.want(1, "P", 1)
		l.sleep(time.Hour)
		s := l.status(1)
		if age := time.Since(s.Failing); age != time.Hour || l.Stats().Failing != 1 {
			t.Errorf("failing for %v, stats %+v", age, l.Stats())
		}
		l.put("P", l.engine("P", 0))
		l.sleep(time.Minute)
		if s := l.status(1); !s.Failing.IsZero() || l.Stats().Failing != 0 {
			t.Errorf("status %+v, stats %+v", s, l.Stats())
		}
	})
}

func TestTheMapsOfAnEngineAreBoundedTogether(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		big := strings.Repeat("x", 1000000)
		l.put("P", func(_ context.Context, r *Rank) ([][]byte, error) {
			return [][]byte{payload("P", big), l.stamp()}, nil
		})
		l.want(1, "P", 16)
		l.sleep(0)
		if r := l.takeOne(); r.Err != nil {
			t.Errorf("result %+v", r.Err)
		}
		l.Want(2, Desc{ID: "P", Addr: "P", Ranks: allRanks(1, 17)})
		l.sleep(0)
		if r := l.takeOne(); r.Class != Metadata || !errors.Is(r.Err, wire.ErrTooLong) {
			t.Errorf("class %v, error %v", r.Class, r.Err)
		}
	})
}

func TestTrackingShortensAWaitThatRunsAlready(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		l.want(1, "P", 1)
		l.sleep(64 * time.Second) // failed at 63, next at 123
		l.Track(1, true)
		l.sleep(10 * time.Second)
		if diff := cmp.Diff(seconds(0, 1, 3, 7, 15, 31, 63, 68, 73), l.dialed("P")); diff != "" {
			t.Errorf("attempts at (-want +got):\n%s", diff)
		}
	})
}

func TestMapsComeInTheOrderOfTheRanks(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		l.put("P", l.engine("P", ms))
		ranks := []Rank{{0, 0}, {0, 1}, {1, 0}, {1, 1}}
		if err := l.Want(7, Desc{ID: "P", Addr: "P", Ranks: allRanks(2, 2)}); err != nil {
			t.Fatal(err)
		}
		l.sleep(time.Second)
		r := l.takeOne()
		if r.Err != nil || r.Engine != 7 {
			t.Fatalf("result %+v", r)
		}
		var got []Rank
		for _, m := range r.Maps {
			got = append(got, m.Rank)
			if blob := string(m.Handshake.AgentMetadata); blob != m.Rank.String() || m.Hash != hashA {
				t.Errorf("%s: blob %q, hash %q", m.Rank, blob, m.Hash)
			}
		}
		if diff := cmp.Diff(ranks, got) + cmp.Diff(ranks, l.asked); diff != "" {
			t.Errorf("ranks (-want +got):\n%s", diff)
		}
		if n := len(l.dialed("P")); n != 1 {
			t.Errorf("%d connections, want one", n)
		}
		l.sleep(time.Hour)
		if n := len(l.dialed("P")); n != 1 {
			t.Errorf("a known engine was asked again: %v", l.dialed("P"))
		}
	})
}

func TestForgetEndsAnAttemptAtOnce(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		l.put("P", hangs)
		l.want(1, "P", 1)
		l.sleep(time.Second)
		l.Forget(1)
		l.Forget(1) // nothing more
		l.sleep(0)
		if l.open != 0 || l.Stats().Active != 0 {
			t.Errorf("%d connections, stats %+v", l.open, l.Stats())
		}
		l.sleep(time.Hour)
		if got := l.take(); got != nil || len(l.dialed("P")) != 1 {
			t.Errorf("results %v, attempts %v", got, l.dialed("P"))
		}
		if err := l.Retry(1); !errors.Is(err, ErrUnknown) {
			t.Errorf("error %v, want %v", err, ErrUnknown)
		}
	})
}

func TestForgetTakesBackWhatWasNotTaken(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		l.put("P", l.engine("P", 0))
		l.want(1, "P", 1)
		l.want(2, "dead", 1)
		l.sleep(100 * ms)
		l.Forget(1)
		if r := l.takeOne(); r.Engine != 2 {
			t.Errorf("result %+v", r)
		}
		l.Forget(2) // while it waits
		l.sleep(time.Hour)
		if n := len(l.dialed("dead")); n != 1 {
			t.Errorf("attempts %v", l.dialed("dead"))
		}
	})
}

func TestAnotherDescriptionStartsAnew(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		l.put("a", hangs)
		l.put("b", l.engine("P", 0))
		at := func(addr string) {
			if err := l.Want(1, Desc{ID: "P", Addr: addr, Ranks: allRanks(1, 1)}); err != nil {
				t.Fatal(err)
			}
			l.sleep(ms)
		}
		at("a")
		at("a") // nothing new
		l.Track(1, true)
		at("b")
		at("b")
		if !l.engines[1].tracked {
			t.Error("it was tracked")
		}
		if r := l.takeOne(); r.Err != nil || len(l.dialed("a")) != 1 || len(l.dialed("b")) != 1 || l.open != 0 {
			t.Errorf("result %+v, attempts %v and %v, %d open", r, l.dialed("a"), l.dialed("b"), l.open)
		}
	})
}

func TestRetry(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		l.put("P", l.engine("P", 200*ms))
		l.want(1, "P", 1)
		l.sleep(100 * ms)
		l.Retry(1) // while it runs: it may have been too early to see the news
		l.sleep(600 * ms)
		if diff := cmp.Diff([]time.Duration{0, 200 * ms}, l.dialed("P")); diff != "" {
			t.Errorf("attempts at (-want +got):\n%s", diff)
		}
		l.put("P", refuses)
		l.sleep(time.Until(l.start.Add(time.Second)))
		l.Retry(1)
		l.sleep(500 * ms)
		if s := l.status(1); s.State != Failed || s.Fetched.IsZero() {
			t.Errorf("status %+v", s)
		}
		l.Retry(1) // ends the wait
		l.sleep(0)
		if diff := cmp.Diff([]time.Duration{0, 200 * ms, time.Second, 1500 * ms}, l.dialed("P")); diff != "" {
			t.Errorf("attempts at (-want +got):\n%s", diff)
		}
	})
}

func TestAFloodOfRetriesMakesTenAttemptsASecond(t *testing.T) {
	for _, live := range []bool{false, true} {
		t.Run(fmt.Sprintf("live %v", live), func(t *testing.T) {
			inLab(t, Config{}, func(l *lab) {
				if live {
					l.put("P", l.engine("P", 5*ms))
				}
				l.want(1, "P", 1)
				for range 10000 {
					l.Retry(1)
					l.Refresh(1)
					l.sleep(ms / 10)
				}
				if n := len(l.dialed("P")); n < 9 || n > 11 {
					t.Errorf("%d attempts in a second", n)
				}
			})
		})
	}
}

func TestTheLatestResultOfAnEngineStands(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		l.want(1, "P", 1)
		l.want(2, "Q", 1)
		l.sleep(500 * ms)
		l.put("P", l.engine("P", 0))
		l.sleep(time.Second)
		got := l.take()
		slices.SortFunc(got, func(a, b Result) int { return int(a.Engine) - int(b.Engine) })
		if len(got) != 2 || got[0].Engine != 1 || got[0].Err != nil || got[1].Engine != 2 || got[1].Failures != 2 {
			t.Errorf("results %+v", got)
		}
		if s := l.Stats(); s.Replaced != 2 || s.Pending != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestNotifyTellsOfTheFirstResultAndHoldsNoLock(t *testing.T) {
	var l *lab
	var calls, taken atomic.Int32
	var drain atomic.Bool
	notify := func() {
		calls.Add(1)
		if drain.Load() {
			taken.Add(int32(len(l.take())))
		}
	}
	inLab(t, Config{Notify: notify}, func(in *lab) {
		l = in
		l.want(1, "P", 1)
		l.sleep(0)
		l.want(2, "Q", 1)
		l.sleep(0)
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls for two results, want 1", n)
		}
		taken.Store(int32(len(l.take())))
		drain.Store(true)
		l.sleep(10 * time.Second)
		if calls.Load() < 4 || taken.Load() != 2*4 { // at 0, 1, 3 and 7 seconds
			t.Errorf("%d calls, %d results taken", calls.Load(), taken.Load())
		}
	})
}

func TestCloseEndsAllAtOnce(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		for i := range 20 {
			l.put(fmt.Sprint(i), hangs)
			l.want(uint64(i), fmt.Sprint(i), 1)
		}
		l.want(30, "refuses", 1)
		l.sleep(time.Second)
		began := time.Now()
		l.Close()
		l.Close()
		if took := time.Since(began); took != 0 || l.open != 0 {
			t.Errorf("close took %v, %d connections", took, l.open)
		}
		if err := l.Want(1, Desc{ID: "P", Addr: "P", Ranks: allRanks(1, 1)}); !errors.Is(err, ErrClosed) {
			t.Errorf("want: error %v", err)
		}
		if err := l.Retry(30); !errors.Is(err, ErrClosed) {
			t.Errorf("retry: error %v", err)
		}
		if got := l.take(); got != nil {
			t.Errorf("results %v", got)
		}
		l.sleep(time.Hour)
		if n := len(l.dialed("refuses")); n != 1 {
			t.Errorf("attempts after close: %v", l.dialed("refuses"))
		}
	})
}

func TestAPanicFailsOneAttempt(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		l.put("P", func(context.Context, *Rank) ([][]byte, error) { panic("of a test") })
		l.put("Q", l.engine("Q", 0))
		l.want(1, "P", 1)
		l.want(2, "Q", 1)
		l.sleep(100 * ms)
		if s := l.status(1); s.Class != Internal || !errors.Is(s.Err, ErrInternal) {
			t.Errorf("status %+v", s)
		}
		if s := l.status(2); s.State != Ready {
			t.Errorf("status of the other %+v", s)
		}
	})
}

func TestTheNumberOfEnginesIsBounded(t *testing.T) {
	inLab(t, Config{EnginesMax: 2}, func(l *lab) {
		l.want(1, "P", 1)
		l.want(2, "Q", 1)
		d := Desc{ID: "R", Addr: "R", Ranks: allRanks(1, 1)}
		if err := l.Want(3, d); !errors.Is(err, ErrFull) {
			t.Errorf("error %v, want %v", err, ErrFull)
		}
		if err := l.Want(2, d); err != nil {
			t.Errorf("another description: %v", err)
		}
		for _, bad := range []Desc{{Addr: "R", Ranks: d.Ranks}, {ID: "R", Ranks: d.Ranks}, {ID: "R", Addr: "R"}, {ID: "R", Addr: "R", Ranks: make([]Rank, RanksMax+1)}} {
			if err := l.Want(2, bad); !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: error %v", bad, err)
			}
		}
	})
}

func TestARankThatIsHungUpOnIsAWrongRank(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		p := l.engine("P", 0)
		l.put("P", func(ctx context.Context, r *Rank) ([][]byte, error) {
			if r != nil && r.Transfer > 1 {
				return nil, fmt.Errorf("fake: %w", zmtp.ErrHungUp)
			}
			return p(ctx, r)
		})
		l.want(1, "P", 3)
		l.sleep(0)
		r := l.takeOne()
		if r.Class != WrongRanks || !errors.Is(r.Err, ErrRanks) || !errors.Is(r.Err, zmtp.ErrHungUp) {
			t.Errorf("result %+v", r)
		}
	})
}
