package clock

import (
	"math/rand/v2"
	"testing"
	"time"
)

const (
	ms = Instant(time.Millisecond)
	s  = Instant(time.Second)
)

func TestWithoutASampleNothingIsConverted(t *testing.T) {
	var o Offset
	if _, _, ok := o.Local(5); ok || o.Known() {
		t.Error("the zero value converts")
	}
	o.Observe(Sample{Sent: s, Received: s + 2*ms, Stamp: 500})
	if _, _, ok := o.Local(5); !ok || !o.Known() {
		t.Error("a sample does not convert")
	}
	o.Void()
	if _, _, ok := o.Local(5); ok || o.Known() {
		t.Error("a voided offset converts")
	}
}

func TestTheBoundIsHalfTheRoundTripAndTheDriftSince(t *testing.T) {
	var o Offset
	o.Observe(Sample{Sent: 100 * s, Received: 100*s + 2*ms, Stamp: RemoteInstant(7 * s)})
	for _, tc := range []struct {
		name  string
		t     RemoteInstant
		at    Instant
		bound time.Duration
	}{
		{"at the sample", RemoteInstant(7 * s), 100*s + ms, time.Millisecond},
		{"ten seconds later 2 ms of drift come to it", RemoteInstant(17 * s), 110*s + ms, 3 * time.Millisecond},
		{"480 seconds later 96 ms", RemoteInstant(487 * s), 580*s + ms, 97 * time.Millisecond},
		{"before the sample as after it", 0, 93*s + ms, 2400 * time.Microsecond},
	} {
		at, bound, ok := o.Local(tc.t)
		if !ok || at != tc.at || bound < tc.bound || bound > tc.bound+tc.bound/1000+3*time.Microsecond {
			t.Errorf("%s: %d +- %v %v, want %d +- %v", tc.name, at, bound, ok, tc.at, tc.bound)
		}
	}
}

func TestSamplesAreJudged(t *testing.T) {
	base := Sample{Sent: 100 * s, Received: 100*s + 2*ms, Stamp: RemoteInstant(7 * s)}
	after := func(d Instant, roundTrip Instant, off Instant) Sample {
		return Sample{Sent: base.Sent + d, Received: base.Sent + d + roundTrip, Stamp: RemoteInstant(7*s + d + off)}
	}
	for _, tc := range []struct {
		name string
		s    Sample
		want Verdict
	}{
		{"a longer round trip at once is worse", after(0, 3*ms, 0), Worse},
		{"a shorter one is better", after(0, ms, -ms/2), Better},
		{"a longer one is better when the old one has drifted further", after(20*s, 3*ms, 0), Better},
		{"a stamp that both round trips and the drift can explain is no jump", after(s, 4*ms, 4*ms), Worse},
		{"one that they cannot is", after(s, 4*ms, 5*ms), Jumped},
		{"a peer that was suspended for a second jumped", after(10*s, 2*ms, -s), Jumped},
		{"an answer before the question says nothing", Sample{Sent: 5, Received: 4, Stamp: 1}, Worse},
		{"a round trip of eleven seconds says nothing", after(0, 11*s, 0), Worse},
		{"a stamp below zero says nothing", Sample{Sent: 1, Received: 2, Stamp: -1}, Worse},
		{"a stamp beyond all clocks says nothing", Sample{Sent: 1, Received: 2, Stamp: 1<<63 - 1}, Worse},
		{"our own clock beyond all clocks says nothing", Sample{Sent: Never - 1, Received: Never, Stamp: 1}, Worse},
	} {
		var o Offset
		if o.Observe(base) != Better {
			t.Fatal("the first sample was not taken")
		}
		before := o
		if got := o.Observe(tc.s); got != tc.want {
			t.Errorf("%s: verdict %d, want %d", tc.name, got, tc.want)
		}
		if (o != before) != (tc.want != Worse) {
			t.Errorf("%s: sample in use changed: %v", tc.name, o != before)
		}
	}
}

func TestPointsThatNoClockShowsAreNotConverted(t *testing.T) {
	var o Offset
	o.Observe(Sample{Sent: 0, Received: 2, Stamp: instantMax})
	for _, at := range []RemoteInstant{-1, instantMax + 1, 1<<63 - 1, -1 << 63} {
		if _, _, ok := o.Local(at); ok {
			t.Errorf("%d was converted", at)
		}
	}
	if at, _, ok := o.Local(instantMax); !ok || at != 1 {
		t.Errorf("the last point: %d %v", at, ok)
	}
}

// A peer's clock that runs off by at most 200 ppm, messages of any delay: the true time is always within the bound.
func TestTheTrueTimeIsAlwaysWithinTheBound(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	tightest := 1.0
	for range 2000 {
		drift := (r.Float64()*2 - 1) * 200e-6
		start := Instant(r.Int64N(int64(1000 * s)))
		first := RemoteInstant(r.Int64N(int64(1000 * s)))
		theirs := func(at Instant) RemoteInstant { return first + RemoteInstant(float64(at-start)*(1+drift)) }
		var o Offset
		now := start
		for range 20 {
			there, back := Instant(r.ExpFloat64()*1e6), Instant(r.ExpFloat64()*1e6)
			if o.Observe(Sample{Sent: now, Received: now + there + back, Stamp: theirs(now + there)}) == Jumped {
				t.Fatalf("drift %g taken for a jump", drift)
			}
			now += there + back + Instant(r.Int64N(int64(60*s)))
			want := now + Instant(r.Int64N(int64(480*s)))
			at, bound, ok := o.Local(theirs(want))
			if off := at.Sub(want).Abs(); !ok || off > bound {
				t.Fatalf("drift %g: off by %v, bound %v", drift, off, bound)
			} else if bound > 0 {
				tightest = min(tightest, 1-float64(off)/float64(bound))
			}
		}
	}
	if tightest > 0.1 { // else a bound that is far too wide would pass as well
		t.Errorf("the error never came nearer to its bound than %.0f %%", 100*(1-tightest))
	}
}

func TestASuspendOfThisHostIsSeenOnce(t *testing.T) {
	var j Jump
	for _, tc := range []struct {
		name string
		boot Instant
		mono int64
		want bool
	}{
		{"the first look says nothing", 100 * s, int64(90 * s), false},
		{"time that passes is no jump", 200 * s, int64(190 * s), false},
		{"a pause of the thread between the readings is none", 201 * s, int64(191*s + 500*ms), false},
		{"nor is the next look after it", 202 * s, int64(192 * s), false},
		{"nor a few ms of reading", 203*s + 9*ms, int64(193 * s), false},
		{"a suspend is", 210 * s, int64(194 * s), true},
		{"and is told once", 211 * s, int64(195 * s), false},
	} {
		if got := j.Seen(tc.boot, tc.mono); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

func TestNothingInAConversionAllocates(t *testing.T) {
	var o Offset
	var j Jump
	n := testing.AllocsPerRun(100, func() {
		o.Observe(Sample{Sent: s, Received: s + ms, Stamp: 5})
		o.Local(7)
		j.Seen(s, 5)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
