package handshake

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestDeadPeersDoNotDelayLiveOnes(t *testing.T) {
	for _, tc := range []struct {
		name         string
		dead         int
		first, again time.Duration // most that a live one may wait
	}{
		{"a hundred", 100, 700 * ms, 100 * ms},
		{"five hundred", 500, 3500 * ms, 100 * ms},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inLab(t, Config{}, func(l *lab) {
				for i := range tc.dead {
					id := fmt.Sprint("dead", i)
					l.put(id, hangs)
					l.want(uint64(i+100), id, 4)
					l.Track(uint64(i+100), true)
				}
				l.put("live", l.engine("live", 10*ms))
				began := time.Now()
				l.want(1, "live", 4)
				ready := func() bool { synctest.Wait(); return l.status(1).State == Ready }
				for !ready() {
					time.Sleep(ms)
				}
				took := time.Since(began)
				t.Logf("first after %v", took)
				if took > tc.first {
					t.Errorf("the live engine was known after %v, want at most %v", took, tc.first)
				}
				// Whenever it is asked anew while the dead ones are tried again and again.
				var worst time.Duration
				for range 20 {
					l.sleep(1237 * ms)
					began := time.Now()
					if err := l.Retry(1); err != nil {
						t.Fatal(err)
					}
					fetched := l.Stats().Fetched
					for synctest.Wait(); l.Stats().Fetched == fetched; synctest.Wait() {
						time.Sleep(ms)
					}
					worst = max(worst, time.Since(began))
				}
				s := l.Stats()
				t.Logf("again after at most %v; %d attempts, %d at once, %d parked, %d cut", worst, s.Attempts, l.openMost, s.Parkings, s.Cut)
				if s.Failures[Silent] == 0 || s.Failures[Silent]+s.Fetched+uint64(s.Active+s.Parked) != s.Attempts {
					t.Errorf("a cut attempt is a silent one, too: %+v", s)
				}
				if worst > tc.again {
					t.Errorf("the live engine was known again after %v, want at most %v", worst, tc.again)
				}
				if most := activeMax + parkedMax + activeMax; l.openMost > most { // those that were cut are closing
					t.Errorf("%d connections at once, want at most %d", l.openMost, most)
				}
			})
		})
	}
}

func TestEightAttemptsAreBusyAtOnce(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		const each = patience - ms // never silent enough to be parked
		for i := range 3 * activeMax {
			id := fmt.Sprint("P", i)
			l.put(id, l.engine(id, each))
			l.want(uint64(i), id, 5)
		}
		for n := 1; n <= 3; n++ {
			synctest.Wait()
			if s := l.Stats(); s.Active != activeMax || s.Parked != 0 {
				t.Errorf("round %d: %d busy, %d parked", n, s.Active, s.Parked)
			}
			l.sleep(5 * each)
			if s := l.Stats(); s.Fetched != uint64(n*activeMax) {
				t.Errorf("round %d: %d fetched", n, s.Fetched)
			}
		}
	})
}

func TestAParkedAttemptGoesOn(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		for i := range 2 * activeMax {
			id := fmt.Sprint("P", i)
			l.put(id, l.engine(id, 3*time.Second))
			l.want(uint64(i), id, 1)
		}
		l.sleep(patience)
		if s := l.Stats(); s.Active != activeMax || s.Parked != activeMax {
			t.Errorf("%d busy, %d parked", s.Active, s.Parked)
		}
		l.sleep(3 * time.Second)
		if s := l.Stats(); s.Engines[Ready] != 2*activeMax || s.Active+s.Parked != 0 || s.Attempts != 2*activeMax {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestEachRankHasItsTimeAndAllTogetherAMinute(t *testing.T) {
	for _, tc := range []struct {
		ranks uint32
		each  time.Duration
		after time.Duration
		class Class
	}{
		{10, 4 * time.Second, 40 * time.Second, None},
		{2, 5*time.Second + ms, 5 * time.Second, Silent},
		{20, 4 * time.Second, time.Minute, Silent},
	} {
		t.Run(fmt.Sprintf("%d ranks of %v", tc.ranks, tc.each), func(t *testing.T) {
			inLab(t, Config{}, func(l *lab) {
				l.put("P", l.engine("P", tc.each))
				l.want(1, "P", tc.ranks)
				l.sleep(tc.after - ms)
				if got := l.take(); got != nil {
					t.Fatalf("too early: %v", got)
				}
				l.sleep(ms)
				if r := l.takeOne(); r.Class != tc.class || (r.Err == nil) != (len(r.Maps) == int(tc.ranks)) {
					t.Errorf("result %+v, want class %v", r, tc.class)
				}
			})
		})
	}
}
