package core

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/trace/tracetest"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// attachAll attaches a recorder to all sites of the contexts that the test opens from now on.
func attachAll(t *testing.T) *tracetest.Recorder {
	t.Helper()
	rec := new(tracetest.Recorder)
	rec.AttachAll()
	rec.Room()
	before := trace.Process()
	trace.SetProcess(rec.Sites())
	t.Cleanup(func() { trace.SetProcess(before) })
	return rec
}

// newTracedLab is a lab whose sites are the recorder's.
func newTracedLab(t *testing.T, config string) (*lab, *tracetest.Recorder) {
	t.Helper()
	rec := attachAll(t)
	l := newLab(t, config)
	for _, n := range []*node{l.p, l.d} {
		n.host.Trace(n.core.Sites())
	}
	return l, rec
}

func TestContextsOfAProcessHaveNumbersOfTheirOwn(t *testing.T) {
	l := newLab(t, `{}`)
	if p, d := l.p.core.Number(), l.d.core.Number(); p == 0 || d != p+1 {
		t.Errorf("contexts %d and %d", p, d)
	}
}

func TestEachStageOfARequestRunsThroughItsSite(t *testing.T) {
	l, rec := newTracedLab(t, `{}`)
	p, d := l.p.core.Number(), l.d.core.Number()
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote := l.grant("r1", 7, there)
	_, other := l.grant("r2", 8, blocks(16, 4))
	start := l.now
	track := l.track(remote, "d-r1", 70)
	l.track(other, "d-r2", 71)
	l.run(12*time.Second, 30*time.Millisecond)
	l.read(track, here, there)
	l.run(300*time.Millisecond, 30*time.Millisecond)
	hits := rec.Take()
	of := func(s trace.Site) [][4]uint64 { return tracetest.Of(hits, s) }

	var tags []uint64
	pushed, taken := map[uint64]uint64{}, map[uint64]uint64{}
	for _, h := range hits {
		switch c := h.Args[0]; h.Site {
		case trace.HookSubmit:
			tags = append(tags, c<<32|h.Args[3])
			if h.Args[2] <= pushed[c] {
				t.Errorf("context %d: position %d after %d", c, h.Args[2], pushed[c])
			}
			pushed[c] = h.Args[2]
		case trace.HookDrained:
			taken[c] += h.Args[3]
			if h.Args[2] != pushed[c] {
				t.Errorf("context %d: drained to %d, pushed to %d", c, h.Args[2], pushed[c])
			}
		}
	}
	if diff := cmp.Diff([]uint64{p<<32 | record.TagGrant, p<<32 | record.TagGrant, d<<32 | record.TagTrack, d<<32 | record.TagTrack, d<<32 | record.TagRead}, tags); diff != "" {
		t.Errorf("pushed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[uint64]uint64{p: 2, d: 3}, taken); diff != "" {
		t.Errorf("records taken (-want +got):\n%s", diff)
	}

	posted := of(trace.BatchPosted)
	if diff := cmp.Diff(posted, of(trace.NotificationSeen)); diff != "" || len(posted) != 3 {
		t.Errorf("%d messages, seen (-posted +seen):\n%s", len(posted), diff)
	}
	if want := [2]uint64{wire.EngineHash([]byte("D")), wire.EngineHash([]byte("P"))}; posted[0][0] != want[0] || posted[0][1] != want[1] {
		t.Errorf("from %x to %x", posted[0][0], posted[0][1])
	}
	for i, e := range of(trace.BatchExtended) {
		if e[0] != posted[i][0] || e[1] != posted[i][1] || e[2] != posted[i][3] {
			t.Errorf("extended %x, posted %x", e, posted[i])
		}
		// Of the 30 s of the grant and its jitter; 20 s from a beat on are less.
		left := time.Duration(e[3])
		if least := []time.Duration{29 * time.Second, 24 * time.Second, 19 * time.Second}[i]; left < least || left > least+4*time.Second {
			t.Errorf("message %d: %v left", i, left)
		}
	}

	read := uint64(track)
	want := map[trace.Site][][4]uint64{
		trace.ReadPosted:   {{d, read, wire.EngineHash([]byte("P")), 8 * labLayers * labBlockLen}},
		trace.DataArrived:  {{d, read, wire.EngineHash([]byte("P")), 0}},
		trace.FenceChecked: {{d, read, trace.FenceEqual, 0}},
		trace.ReadReported: {{d, read, record.ReadOK, 0}},
		trace.StallGap:     nil,
	}
	for s, w := range want {
		if diff := cmp.Diff(w, of(s)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", s, diff)
		}
	}
	freed := of(trace.LeaseFreed)
	if len(freed) != 1 || freed[0][0] != p || freed[0][1] != record.FreedCompleted || freed[0][2] != 1 || time.Duration(freed[0][3]) < 12*time.Second || time.Duration(freed[0][3]) > l.now.Sub(start) {
		t.Errorf("freed %v", freed)
	}
	begun, ended := map[uint64]uint64{}, map[uint64]uint64{}
	work := map[uint64]uint64{}
	for _, s := range of(trace.StepBegin) {
		begun[s[0]]++
	}
	for _, s := range of(trace.StepEnd) {
		ended[s[0]]++
		work[s[0]] += s[2]
	}
	steps := map[uint64]uint64{p: l.p.core.plane.Counters.Steps, d: l.d.core.plane.Counters.Steps}
	if diff := cmp.Diff(steps, begun) + cmp.Diff(steps, ended); diff != "" {
		t.Errorf("steps begun and ended (-counted +fired):\n%s", diff)
	}
	if done := map[uint64]uint64{p: l.p.core.plane.Work(), d: l.d.core.plane.Work()}; cmp.Diff(done, work) != "" {
		t.Errorf("work: %v counted, %v at the sites", done, work)
	}
	var states []uint64
	for _, h := range of(trace.HandshakeState) {
		if h[0] == d {
			states = append(states, h[2])
		}
	}
	if diff := cmp.Diff([]uint64{trace.ConnectionIdle, trace.ConnectionLoading, trace.ConnectionConnected}, states); diff != "" {
		t.Errorf("states of the connection (-want +got):\n%s", diff)
	}
}

func TestEndsOfAStepAreToldOnceAReason(t *testing.T) {
	l, rec := newTracedLab(t, `{"trace_sample":1}`)
	for i := range 5 {
		lease, _ := l.grant(string(rune('a'+i)), uint64(i), []uint32{uint32(i)})
		if i < 2 {
			if err := l.p.host.Cancel(lease); err != nil {
				t.Fatal(err)
			}
		}
	}
	rec.Take()
	l.run(time.Minute, 10*time.Second) // the other three expire, in as few steps as their jitter leaves
	hits := rec.Take()
	sum := map[uint64]uint64{}
	most := 0
	for _, f := range tracetest.Of(hits, trace.LeaseFreed) {
		sum[f[1]] += f[2]
		most = max(most, int(f[2]))
	}
	if diff := cmp.Diff(map[uint64]uint64{record.FreedRevoked: 2, record.FreedExpired: 3}, sum); diff != "" {
		t.Errorf("freed by reason (-want +got):\n%s", diff)
	}
	if most < 2 {
		t.Error("each end was told alone")
	}
	if one := tracetest.Of(hits, trace.LeaseFreedOne); len(one) != 5 {
		t.Errorf("%d single ends with a sample of one in one, want 5", len(one))
	}
	if gaps := tracetest.Of(hits, trace.StallGap); len(gaps) == 0 || gaps[0][1] != uint64(10*time.Second) || gaps[0][2] != uint64(5*time.Second) {
		t.Errorf("stalls %v, want steps 10 s apart where 5 s are allowed", gaps)
	}
}

func TestEndsThatAreBroughtByACloseAreTold(t *testing.T) {
	l, rec := newTracedLab(t, `{}`)
	l.grant("r1", 7, blocks(3, 8))
	l.grant("r2", 8, blocks(16, 4))
	l.run(300*time.Millisecond, 30*time.Millisecond)
	rec.Take()
	if err := l.p.core.Close(time.Second); err != nil {
		t.Fatal(err)
	}
	freed := tracetest.Of(rec.Take(), trace.LeaseFreed)
	if len(freed) != 1 || freed[0][1] != record.FreedClosed || freed[0][2] != 2 {
		t.Errorf("freed %v", freed)
	}
}

// The engine is adopted by the first record that names it, before that step has come to the engines.
func TestAnEngineIsAsOldAsTheStepThatFirstHeardOfIt(t *testing.T) {
	l, rec := newTracedLab(t, `{}`)
	_, remote := l.grant("r1", 7, blocks(3, 8))
	l.track(remote, "d-r1", 70) // before D's first step
	l.run(300*time.Millisecond, 30*time.Millisecond)
	for _, h := range tracetest.Of(rec.Take(), trace.HandshakeState) {
		if in := time.Duration(h[3]); in > time.Second {
			t.Errorf("%v in the state before %d", in, h[2])
		}
	}
	if h := shown(t, l.d.core).Histogram("handshake_time"); h.Count() != 1 || h.Sum > 1 {
		t.Errorf("%d handshakes of %.3f s", h.Count(), h.Sum)
	}
}

func TestASampleIsTheSameEverywhere(t *testing.T) {
	var first map[string]bool
	for range 2 { // two engines: other secrets and seeds
		l, rec := newTracedLab(t, `{"trace_sample":4}`)
		names := map[uint64]string{}
		for i := range 64 {
			name := string([]byte{'q', byte(i)})
			lease, _ := l.grant(name, uint64(i), []uint32{uint32(i)})
			names[uint64(lease)] = name
			if err := l.p.host.Cancel(lease); err != nil {
				t.Fatal(err)
			}
		}
		l.step(time.Second)
		got := map[string]bool{}
		for _, h := range tracetest.Of(rec.Take(), trace.LeaseFreedOne) {
			got[names[h[1]]] = true
		}
		if len(got) < 4 || len(got) > 32 {
			t.Errorf("%d of 64 with a sample of one in four", len(got))
		}
		if first != nil && cmp.Diff(first, got) != "" {
			t.Errorf("another sample:\n%s", cmp.Diff(first, got))
		}
		first = got
	}
	if _, err := ParseConfig([]byte(`{"trace_sample":3}`)); err == nil {
		t.Error("a sample of one in three was taken")
	}
}

// A message that names nothing that is held here has found nothing left.
func TestAMessageThatExtendsNothingHasNoSlack(t *testing.T) {
	l, rec := newTracedLab(t, `{}`)
	_, remote := l.grant("r1", 7, blocks(0, 2))
	remote.Key++
	l.track(remote, "d-r1", 70)
	l.run(time.Second, 30*time.Millisecond)
	got := tracetest.Of(rec.Take(), trace.BatchExtended)
	if len(got) == 0 || got[0][2]&math.MaxUint32 != 0 || got[0][3] != math.MaxInt64 {
		t.Errorf("extended %x, want no request, and no slack", got)
	}
}

func TestStepsWithAllSitesAttachedAllocateNothing(t *testing.T) {
	steps := 100_000
	if testing.Short() {
		steps = 20_000
	}
	l, rec := newTracedLab(t, `{"trace_sample":1}`)
	round := l.busyRounds()
	for i := range 1000 {
		round(i)
	}
	_, remote := l.grant("standing", 1, []uint32{60})
	l.track(remote, "standing", 1)
	got := grewBy(func() {
		for i := range steps / 2 {
			round(i)
		}
	})
	if got > strayMallocs {
		t.Errorf("%d busy steps made %d allocations", steps, got)
	}
	for s := range trace.Count {
		if s != trace.StallGap && rec.Fired(s) == 0 {
			t.Errorf("nothing ran through %v", s)
		}
	}
}
