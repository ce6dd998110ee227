package probe

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/trace"
)

const isAMD64 = runtime.GOARCH == "amd64"

// D is an engine that reads, P one that owns; numbers of two contexts of one process.
const engineD, engineP, ctxD, ctxP = 0xd0d0d0d0d0d0d0d0, 0xb0b0b0b0b0b0b0b0, 1, 2

func TestAMessageIsTimedFromTheHookToTheRenewalAtAnotherProcess(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	d, owner := startHost(t), startHost(t)
	attach(t, p, fs, d.pid)
	attach(t, p, fs, owner.pid)

	const number = 7
	d.fire(trace.HookSubmit, ctxD, 3, 100, 1)
	d.fire(trace.HookSubmit, ctxD, 3, 164, 1)
	d.fire(trace.HookSubmit, ctxD, 3, 228, 1)
	d.fire(trace.StepBegin, ctxD, 0, 0, 0)
	d.fire(trace.HookDrained, ctxD, 3, 164, 2)
	d.fire(trace.BatchPosted, engineD, engineP, 1<<32|2, number<<32|5)
	d.fire(trace.StepEnd, ctxD, 0, 2, 0)
	owner.fire(trace.StepBegin, ctxP, 0, 0, 0)
	owner.fire(trace.NotificationSeen, engineD, engineP, 1<<32|2, number<<32|5)
	owner.fire(trace.BatchExtended, engineD, engineP, number<<32|4, 1_000_000)
	owner.fire(trace.StepEnd, ctxP, 0, 1, 0)
	owner.fire(trace.StallGap, ctxP, 5_000_000, 1_000_000, 0)

	s := read(t, p)
	ctx := func(h *host, n uint64) uint64 { return uint64(h.pid)<<32 | n }
	got := map[Stage]uint64{}
	for i := range s.Series {
		got[s.Series[i].Stage] += s.Series[i].Count
	}
	want := map[Stage]uint64{Drained: 2, Posted: 1, Seen: 1, Extended: 1, Renewed: 1, Slack: 1, Step: 2, Stall: 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counts by stage (-want +got):\n%s", diff)
	}
	if n := s.series(Drained, ctx(d, ctxD), 0).Count; n != 2 {
		t.Errorf("%d hooks of D were drained", n)
	}
	seen, extended, renewed := s.series(Seen, engineD, engineP), s.series(Extended, engineD, engineP), s.series(Renewed, engineD, engineP)
	if seen.Sum+extended.Sum != renewed.Sum || seen.Sum == 0 || extended.Sum == 0 {
		t.Errorf("posted to seen %d ns and seen to extended %d ns, in all %d ns", seen.Sum, extended.Sum, renewed.Sum)
	}
	if h := s.series(Slack, engineD, engineP); h.Sum != 1_000_000 || h.Max != 1_000_000 {
		t.Errorf("slack: %d ns, most %d", h.Sum, h.Max)
	}
	if h := s.series(Stall, ctx(owner, ctxP), 0); h.Sum != 5_000_000 {
		t.Errorf("stall gap: %d ns", h.Sum)
	}
	counters := s.Counters
	if counters.Hits != 12 {
		t.Errorf("%d hits", counters.Hits)
	}
	counters.Hits = 0
	if diff := cmp.Diff(Counters{}, counters); diff != "" {
		t.Errorf("something was lost or not paired (-want +got):\n%s", diff)
	}
	want2 := []Alias{{Context{uint32(d.pid), ctxD}, engineD}, {Context{uint32(owner.pid), ctxP}, engineP}}
	slices.SortFunc(s.Aliases, func(a, b Alias) int { return int(a.Context.Number) - int(b.Context.Number) })
	if diff := cmp.Diff(want2, s.Aliases); diff != "" {
		t.Errorf("aliases (-want +got):\n%s", diff)
	}
}

func TestEachHookThatTookLongIsToldByItsOwnPlaceInTheRing(t *testing.T) {
	p, fs := open(t, Config{Outliers: 1}), newFiles(t)
	d := startHost(t)
	attach(t, p, fs, d.pid)
	for _, position := range []uint64{100, 164, 228} {
		d.fire(trace.HookSubmit, ctxD, 3, position, 1)
	}
	d.fire(trace.HookDrained, ctxD, 3, 228, 3)
	var positions []uint64
	for range 3 {
		got, err := p.Outlier(time.Now().Add(10 * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		positions = append(positions, got.What)
	}
	if diff := cmp.Diff([]uint64{100, 164, 228}, positions); diff != "" {
		t.Errorf("positions (-want +got):\n%s", diff)
	}
}

func TestHooksOfAProcessThatDiedDoNotHoldUpThoseOfTheNextOfItsNumber(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	d := startHost(t)
	attach(t, p, fs, d.pid)
	for i := range uint64(70) {
		d.fire(trace.HookSubmit, ctxD, 0, 5000+i, 0) // nobody takes them any more
	}
	for i := range uint64(3) { // a ring that begins anew
		d.fire(trace.HookSubmit, ctxD, 0, 40*(i+1), 0)
	}
	d.fire(trace.HookDrained, ctxD, 0, 120, 3)
	s := read(t, p)
	if n := s.series(Drained, uint64(d.pid)<<32|ctxD, 0).Count; n != 3 || s.Counters.HooksSkipped != 6 {
		t.Errorf("%d hooks timed, %d skipped, wanted 3 and 6", n, s.Counters.HooksSkipped)
	}
}

func TestAReadIsTimedFromItsPostToItsEvent(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	d := startHost(t)
	attach(t, p, fs, d.pid)
	for track := uint64(10); track < 13; track++ {
		d.fire(trace.ReadPosted, ctxD, track, engineP, 4096)
	}
	d.fire(trace.DataArrived, ctxD, 10, engineP, 0)
	d.fire(trace.FenceChecked, ctxD, 10, trace.FenceEqual, 0)
	d.fire(trace.ReadReported, ctxD, 10, 0, 5)
	d.fire(trace.DataArrived, ctxD, 11, engineP, 0)
	d.fire(trace.FenceChecked, ctxD, 11, trace.FenceStale, 0)
	d.fire(trace.ReadReported, ctxD, 11, 2, 5)
	d.fire(trace.ReadReported, ctxD, 12, 3, 5) // timed out: nothing arrived
	d.fire(trace.ReadReported, ctxD, 13, 3, 0) // nothing was posted
	d.fire(trace.ReadReported, ctxD, 14, 3, 9) // posted before we came

	s := read(t, p)
	from := uint64(d.pid)<<32 | ctxD
	for stage, want := range map[Stage]uint64{Arrived: 2, Fenced: 2, Reported: 2, Read: 1, ReadFailed: 2} {
		if n := s.series(stage, from, engineP).Count; n != want {
			t.Errorf("%v: %d, wanted %d", stage, n, want)
		}
	}
	parts := s.series(Arrived, from, engineP).Sum + s.series(Fenced, from, engineP).Sum + s.series(Reported, from, engineP).Sum
	if all := s.series(Read, from, engineP).Sum; all == 0 || parts <= all { // parts are of two reads
		t.Errorf("one read took %d ns, the parts of two %d ns", all, parts)
	}
	if s.Counters.ReadNoPost != 1 {
		t.Errorf("%d reads without a post, wanted 1", s.Counters.ReadNoPost)
	}
}

func TestTheFenceOfOneRankMayAnswerBeforeTheDataOfAnotherIsThere(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	d := startHost(t)
	attach(t, p, fs, d.pid)
	d.fire(trace.ReadPosted, ctxD, 10, engineP, 4096)
	d.fire(trace.FenceChecked, ctxD, 10, trace.FenceEqual, 0) // of the first rank
	d.fire(trace.DataArrived, ctxD, 10, engineP, 7)
	d.fire(trace.FenceChecked, ctxD, 10, trace.FenceEqual, 0)
	d.fire(trace.ReadReported, ctxD, 10, 0, 9)
	s := read(t, p)
	from := uint64(d.pid)<<32 | ctxD
	for _, stage := range []Stage{Arrived, Fenced, Reported, Read} {
		if n := s.series(stage, from, engineP).Count; n != 1 {
			t.Errorf("%v: %d, wanted 1", stage, n)
		}
	}
	if diff := cmp.Diff(Counters{Hits: 5}, s.Counters); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
}

func TestWhatDoesNotGoTogetherIsCountedAndNotTimed(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	d := startHost(t)
	attach(t, p, fs, d.pid)
	d.fire(trace.BatchPosted, engineD, engineP, 0, 1<<32|5) // no step
	d.fire(trace.BatchPosted, engineD, engineP, 0, 1<<32|5) // the same number again: nobody saw the first
	d.fire(trace.NotificationSeen, engineD, engineP, 0, 1<<32|6)
	d.fire(trace.NotificationSeen, engineD, engineP, 0, 9<<32|6)
	d.fire(trace.BatchExtended, engineD, engineP, 5<<32|5, 1<<63-1)
	d.fire(trace.StepEnd, ctxD, 0, 0, 0)
	d.fire(trace.BatchPosted, engineD, engineP, 0, 2<<32|5)
	d.fire(trace.NotificationSeen, engineD, engineP, 0, 2<<32) // stock text: its requests are not counted yet
	for i := range uint64(70) {
		d.fire(trace.HookSubmit, ctxD, 0, i, 0)
	}
	s := read(t, p)
	got := s.Counters
	got.Hits = 0
	want := Counters{PostNoStep: 3, PostUnseen: 1, SeenDiffers: 1, SeenNoPost: 1, ExtendedNoSeen: 1, StepNoBegin: 1, HooksSkipped: 6}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
	if len(s.Series) != 1 || s.series(Seen, engineD, engineP).Count != 1 {
		t.Errorf("series: %+v", s.Series)
	}
}

// What is on its way beyond what is kept is forgotten and counted, pairs of engines beyond what is kept are one.
func TestTooMuchAtATimeIsCountedAndTotalsStay(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	d := startHost(t)
	attach(t, p, fs, d.pid)
	reads := p.objects.LruReads.MaxEntries()
	if got := d.number("posts 0 %d", reads+5000); got != uint64(reads)+5000 {
		t.Fatalf("%d posts", got)
	}
	s := read(t, p)
	if s.Counters.Evicted < 5000 || s.Counters.Evicted > uint64(reads) {
		t.Errorf("%d evicted of %d reads, %d are kept", s.Counters.Evicted, reads+5000, reads)
	}
	pairs := uint64(p.objects.Histograms.MaxEntries()) + 100
	if got := d.number("gaps 0 %d", pairs); got != pairs {
		t.Fatalf("%d gaps", got)
	}
	s = read(t, p)
	var all, other uint64
	for i := range s.Series {
		if e := &s.Series[i]; e.Stage == Stall {
			all += e.Count
			if e.From == 0 {
				other += e.Count
			}
		}
	}
	if all != pairs || other < 100 || s.Counters.Folded != other || s.Counters.ValuesLost != 0 {
		t.Errorf("%d of %d spans, %d of them in the series for others, %+v", all, pairs, other, s.Counters)
	}
}

func TestTheClockOfTheProbeAgreesWithTheProcesss(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	d := startHost(t)
	attach(t, p, fs, d.pid)
	for _, tc := range []struct {
		what  string
		stage Stage
		to    uint64
	}{{"steps", Step, 0}, {"spans", Read, 77}} {
		const n = 200
		said := d.number("%s 0 %d 300000", tc.what, n)
		h := read(t, p).series(tc.stage, uint64(d.pid)<<32|1, tc.to)
		if h.Count != n {
			t.Errorf("%v: %d timed, %d were made", tc.stage, h.Count, n)
		}
		t.Logf("%v: %d of %v, the process says %v", tc.stage, h.Count, h.Mean(), time.Duration(said/n))
		if off := float64(h.Sum)/float64(said) - 1; off < -0.1 || off > 0.1 {
			t.Errorf("%v: the probe's sum is %d ns, the process's %d ns", tc.stage, h.Sum, said)
		}
	}
}

func TestOutliersAreToldAndThoseThatFindNoRoomCounted(t *testing.T) {
	p, fs := open(t, Config{Outliers: 20 * time.Millisecond}), newFiles(t)
	d := startHost(t)
	attach(t, p, fs, d.pid)
	d.fire(trace.StallGap, ctxD, 19_999_999, 0, 4)
	d.fire(trace.StallGap, ctxD, 20_000_000, 0, 4)
	got, err := p.Outlier(time.Now().Add(10 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if got.Ago <= 0 || got.Ago > time.Minute || got.Thread == 0 {
		t.Errorf("%+v", got)
	}
	want := Outlier{
		Stage: Stall, From: uint64(d.pid)<<32 | ctxD, Context: Context{uint32(d.pid), ctxD}, Took: 20 * time.Millisecond, What: 4, PID: uint32(d.pid),
		Ago: got.Ago, Thread: got.Thread,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outlier (-want +got):\n%s", diff)
	}
	if _, err := p.Outlier(time.Now().Add(time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no more: %v", err)
	}

	const n = 10_000 // more than the ring holds
	if got := d.number("gaps 0 %d", n); got != n {
		t.Fatalf("%d gaps", got)
	}
	told := uint64(0)
	for {
		if _, err := p.Outlier(time.Now().Add(time.Millisecond)); err != nil {
			break
		}
		told++
	}
	if lost := read(t, p).Counters.OutliersLost; lost == 0 || told+lost != n {
		t.Errorf("%d told and %d lost of %d", told, lost, n)
	}
}
