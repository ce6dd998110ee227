package read

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/trace/tracetest"
	"github.com/kvlease/kvlease/dataplane/transport"
)

func TestAReadRunsThroughItsSites(t *testing.T) {
	for _, tc := range []struct {
		name    string
		word    uint64
		end     transport.Status
		verdict uint64
		status  uint8
	}{
		{"proven", want, transport.Done, trace.FenceEqual, record.ReadOK},
		{"stale", want + 1, transport.Done, trace.FenceStale, record.ReadStale},
		{"unproven", want, transport.Failed, trace.FenceUnproven, record.ReadUnproven},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var rec tracetest.Recorder
			rec.AttachAll()
			b := newBench(t, Config{Sites: rec.Sites().For(5)}, 1)
			s := b.source(3, 0, 1)
			s.Owner = 77
			b.commit(9, 4, s)
			b.step(0)
			b.f.land(b.f.posted[0])
			b.step(3 * time.Second)
			b.f.remote[rowAddr(3, 0)] = tc.word
			b.f.land(b.f.posted[1])
			b.f.posted[1].status = tc.end
			b.step(2 * time.Second)
			b.wantOutcome(9, tc.status, false)
			want := []tracetest.Hit{
				{Site: trace.ReadPosted, Args: [4]uint64{5, 9, 77, 4 * 4096}},
				{Site: trace.DataArrived, Args: [4]uint64{5, 9, 77, uint64(3 * time.Second)}},
				{Site: trace.FenceChecked, Args: [4]uint64{5, 9, tc.verdict, uint64(2 * time.Second)}},
			}
			if diff := cmp.Diff(want, rec.Take()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAReadFromSeveralRanksHasArrivedWithTheLastOfThem(t *testing.T) {
	var rec tracetest.Recorder
	rec.AttachAll()
	b := newBench(t, Config{Sites: rec.Sites(), PartsMax: 8}, 2)
	job, st := b.m.Begin(1, b.now)
	b.ok(st)
	for _, s := range b.halves() {
		b.ok(b.m.AddSource(job, s))
	}
	b.ok(b.m.AddRuns(job, []record.Run{{N: 4}, {Local: 8, Remote: 8, N: 2}}))
	b.ok(b.m.Commit(job, b.now))
	b.step(0)
	b.f.land(b.f.posted[0])
	b.step(time.Second)
	if got := tracetest.Of(rec.Take(), trace.DataArrived); len(got) != 0 {
		t.Errorf("arrived while one rank's half was on its way: %v", got)
	}
	n := b.posts()
	for _, x := range b.f.posted[:n] {
		if x.status == transport.Pending {
			b.f.land(x)
		}
	}
	b.step(time.Second)
	for _, x := range b.f.posted[n:] {
		b.f.land(x)
	}
	b.step(time.Second)
	o := b.wantOutcome(1, record.ReadOK, false)
	hits := rec.Take()
	if got := tracetest.Of(hits, trace.DataArrived); len(got) != 1 || got[0][3] != uint64(2*time.Second) {
		t.Errorf("arrivals %v, want one after 2 s", got)
	}
	if got := tracetest.Of(hits, trace.FenceChecked); len(got) != 2 {
		t.Errorf("fences %v, want one of each rank", got)
	}
	if o.Bytes != 2*6*4096 {
		t.Errorf("%d bytes", o.Bytes)
	}
}

// What the site says before the first byte has moved is what has landed in the end.
func TestTheBytesOfAPostedReadAreThoseThatLand(t *testing.T) {
	for _, regions := range []int{1, 3} {
		var rec tracetest.Recorder
		rec.Attach(trace.ReadPosted)
		b := newBench(t, Config{Sites: rec.Sites(), DescsStepMax: 2}, regions)
		b.f.onPost = b.f.land
		job, st := b.m.Begin(1, b.now)
		b.ok(st)
		for _, s := range b.halves() {
			b.ok(b.m.AddSource(job, s))
		}
		b.ok(b.m.AddRuns(job, []record.Run{{Local: 3, Remote: 3, N: 7}, {Local: 20, Remote: 12, N: 1}}))
		b.ok(b.m.Commit(job, b.now))
		for range 100 {
			b.step(time.Millisecond)
		}
		o := b.wantOutcome(1, record.ReadOK, false)
		if got := tracetest.Of(rec.Take(), trace.ReadPosted); len(got) != 1 || got[0][3] != o.Bytes || o.Bytes == 0 {
			t.Errorf("%d regions: posted %v, landed %d", regions, got, o.Bytes)
		}
	}
}
