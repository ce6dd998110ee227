package read

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// C69: a long read is spread over steps, and a short one does not wait for its end.
func TestALongReadIsPostedOverStepsAndAShortOneGetsItsTurn(t *testing.T) {
	const step = 64
	local := layoutAt(0x4000_0000, 1, 20_000, 4096)
	f := &fake{t: t, remote: map[uint64]uint64{}}
	b := newBenchOver(t, Config{DescsStepMax: step}, f, f, local)
	long := b.source(1, 0, 1)
	long.Remote = layoutAt(kvBase, 1, 20_000, 4096)
	long.Remote.Regions[0].BlockStride *= 2
	f.onPost = f.land
	b.commit(1, 15_000, long)
	b.step(0)
	short := b.source(2, 0, 1)
	short.Remote = layoutAt(kvBase*2, 1, 20_000, 4096)
	b.commit(2, 3, short)
	total := 0
	for n := 0; ; n++ {
		at := b.posts()
		b.step(time.Millisecond)
		descs := 0
		for _, x := range f.posted[at:] {
			if !isFence(x) {
				descs += len(x.spec.Descs)
			}
		}
		if descs > step { // shows C69.1
			t.Fatalf("step %d posted %d descriptors, at most %d", n, descs, step)
		}
		total += descs
		if o := b.outcome(); o != nil {
			if o.Token == 2 {
				if n > 1 {
					t.Errorf("the short read ended in step %d", n)
				}
				continue
			}
			if n < 15_000/step-1 || n > 15_000/step+3 {
				t.Errorf("the long read took %d steps", n)
			}
			break
		}
		if n > 1000 {
			t.Fatal("the long read does not end")
		}
	}
	if b.m.Counters.PostsCut == 0 {
		t.Error("cut steps are not counted")
	}
	b.wantIdle()
}

func TestAReadHasAtMostPartsMaxInFlight(t *testing.T) {
	b := newBench(t, Config{DescsStepMax: 1, PartsMax: 3}, 8)
	b.commit(1, 1, b.source(1, 0, 8))
	for range 10 {
		b.step(time.Millisecond)
	}
	if b.posts() != 3 || b.m.NextDue() == 0 {
		t.Fatalf("%d parts in flight, want 3", b.posts())
	}
	for b.posts() < 8 {
		for _, x := range b.f.posted {
			if x.status == transport.Pending {
				b.f.land(x)
				break
			}
		}
		b.step(time.Millisecond)
	}
	b.f.onPost = b.f.land
	for _, x := range b.f.posted {
		x.status = transport.Done
	}
	b.step(0)
	b.step(0)
	b.wantOutcome(1, record.ReadOK, false)
	b.wantIdle()
}

func TestEndsPastTheBoundAreTakenByTheNextSteps(t *testing.T) {
	const n = 50
	b := newBench(t, Config{ReadsMax: n, EndsStepMax: 7, RowsMax: 1}, 1)
	for i := range uint64(n) {
		b.commit(i, 2, b.source(1, 0, 1))
	}
	b.step(0)
	for _, x := range b.f.posted {
		b.f.land(x)
	}
	b.f.onPost = b.f.land
	seen := map[uint64]bool{}
	for i := range n/7 + 1 {
		b.step(0)
		k := 0
		for o := b.outcome(); o != nil; o = b.outcome() {
			seen[o.Token] = true
			k++
		}
		if k > 7 {
			t.Fatalf("step %d took %d ends, at most 7", i, k)
		}
	}
	if len(seen) != n || b.m.Counters.EndsCut == 0 {
		t.Errorf("%d of %d reads ended, %d steps cut", len(seen), n, b.m.Counters.EndsCut)
	}
	b.wantIdle()
}

// Transfers that end all the time must not keep the step from those at the other end of the list.
func TestNoEndStarvesBehindOthers(t *testing.T) {
	b := newBench(t, Config{ReadsMax: 40, EndsStepMax: 4, RowsMax: 1}, 1)
	b.f.onPost = nil
	b.commit(999, 2, b.source(1, 0, 1))
	b.step(0)
	token := uint64(0)
	fill := func() {
		for b.m.freeJob.Left() > 0 {
			b.commit(token, 2, b.source(2, 0, 1))
			token++
		}
	}
	fill()
	b.step(0)
	for range 200 {
		for _, x := range b.f.posted {
			if x.status == transport.Pending {
				b.f.land(x)
			}
		}
		b.step(0)
		for o := b.outcome(); o != nil; o = b.outcome() {
			if o.Token == 999 {
				return
			}
		}
		fill()
	}
	t.Error("the first read never ends behind the others")
}

func TestTimeoutsAndQuarantinesPastTheBoundAreTakenByTheNextSteps(t *testing.T) {
	const n = 20
	b := newBench(t, Config{ReadsMax: n, EndsStepMax: 6}, 1)
	for i := range uint64(n) {
		b.commit(i, 2, b.source(1, 0, 1))
	}
	b.step(0)
	b.step(readTimeout)
	count := func() (k int) {
		for o := b.outcome(); o != nil; o = b.outcome() {
			k++
		}
		return k
	}
	for _, want := range []int{6, 6, 6, 2, 0} {
		if k := count(); k != want {
			t.Fatalf("%d time-outs in one step, want %d", k, want)
		}
		b.step(0)
	}
	for _, x := range b.f.posted {
		x.status = transport.Failed
	}
	for range 4 {
		b.step(0)
	}
	b.step(errorWait)
	for _, want := range []int{6, 6, 6, 2, 0} {
		k := 0
		for _, ok := b.m.NextBack(); ok; _, ok = b.m.NextBack() {
			k++
		}
		if k != want {
			t.Fatalf("%d quarantines ended in one step, want %d", k, want)
		}
		b.step(0)
	}
	b.wantIdle()
}

func TestFullRefusesNewReadsOnly(t *testing.T) {
	b := newBench(t, Config{ReadsMax: 2, RunsMax: runsPiece}, 1)
	j1, st := b.m.Begin(1, b.now)
	b.ok(st)
	b.ok(add(b.m, j1, b.source(1, 0, 1)))
	b.ok(b.m.AddRuns(j1, []record.Run{{N: 1}}))
	j2, st := b.m.Begin(2, b.now)
	b.ok(st)
	b.ok(add(b.m, j2, b.source(1, 0, 1)))
	if st := b.m.AddRuns(j2, []record.Run{{N: 1}}); st != Full {
		t.Errorf("runs past the pool: %v", st)
	}
	if st := b.m.Commit(j2, b.now); st != Stale {
		t.Errorf("commit of a read that lacks runs: %v", st)
	}
	if _, st := b.m.Begin(3, b.now); st != Full {
		t.Errorf("a third read: %v", st)
	}
	b.ok(b.m.Abort(j2))
	b.ok(b.m.Commit(j1, b.now))
	b.f.onPost = b.f.land
	b.step(0)
	b.wantOutcome(1, record.ReadOK, false)
	b.wantIdle()
}

func TestPeersPastTheTableWait(t *testing.T) {
	b := newBench(t, Config{PeersMax: 1}, 1)
	b.commit(1, 4, b.source(1, 0, 1))
	b.step(0)
	b.commit(2, 4, b.source(2, 0, 1))
	b.step(0)
	if b.posts() != 1 || b.m.Counters.TransportFull == 0 {
		t.Fatal("a second peer was posted to")
	}
	b.f.onPost = b.f.land
	b.f.land(b.f.posted[0])
	b.step(0)
	b.wantOutcome(1, record.ReadOK, false)
	b.step(0)
	b.wantOutcome(2, record.ReadOK, false)
	b.wantIdle()
}

func TestThePeerTableIsAMap(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 2))
		tab := newPeerTable(20)
		model := map[transport.Peer]int32{}
		for range 2000 {
			p := transport.Peer(1 + rng.IntN(60))
			if rng.IntN(2) == 0 {
				e := tab.get(p)
				if _, known := model[p]; (e == nil) != (!known && len(model) == 20) {
					t.Fatalf("seed %d: get of peer %d with %d peers", seed, p, len(model))
				}
				if e != nil {
					e.pending++
					model[p]++
				}
			} else if e := tab.find(p); e != nil {
				e.pending--
				if model[p]--; model[p] == 0 {
					delete(model, p)
				}
				tab.tidy(p)
			}
			if tab.n != len(model) {
				t.Fatalf("seed %d: %d peers, want %d", seed, tab.n, len(model))
			}
			for q := transport.Peer(1); q <= 60; q++ {
				e := tab.find(q)
				if n, known := model[q]; (e != nil) != known || known && e.pending != n {
					t.Fatalf("seed %d: peer %d is wrong", seed, q)
				}
			}
		}
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	f := &fake{t: t}
	l := layoutAt(1<<30, 1, 4, 64)
	small := Config{ReadsMax: 1, RowsMax: 1}
	for name, call := range map[string]func() error{
		"too little landing memory": func() error { _, err := New(small, f, make([]byte, LandingBytes(small)-1), l); return err },
		"crooked landing memory":    func() error { _, err := New(small, f, make([]byte, LandingBytes(small)+8)[1:], l); return err },
		"no local regions":          func() error { _, err := New(small, f, make([]byte, 4096), &Layout{}); return err },
		"a negative count": func() error {
			_, err := New(Config{ReadsMax: 1, PartsMax: -1, RowsMax: 1}, f, make([]byte, 4096), l)
			return err
		},
		"a negative time": func() error {
			_, err := New(Config{ReadsMax: 1, ReadTimeout: -1, RowsMax: 1}, f, make([]byte, 4096), l)
			return err
		},
	} {
		if call() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestPostStartsWhatWasCommittedAfterTheStepWithinItsBounds(t *testing.T) {
	b := newBench(t, Config{DescsStepMax: 3, PostsStepMax: 8}, 1)
	b.step(0)
	for i := range uint64(5) {
		b.commit(i, 4, b.source(1, 0, 1))
	}
	b.m.Post(b.now)
	b.m.Post(b.now)
	if b.posts() != 3 {
		t.Errorf("%d posts, want the 3 of the step's bound", b.posts())
	}
	b.f.onPost = b.f.land
	for _, x := range b.f.posted {
		b.f.land(x)
	}
	b.step(0)
	for i := range uint64(5) {
		if o := b.outcome(); o == nil || o.Status != record.ReadOK {
			t.Fatalf("outcome %d: %+v", i, o)
		}
	}
	b.wantIdle()
}

func TestTheLocalLayoutMayComeLater(t *testing.T) {
	f := &fake{t: t, remote: map[uint64]uint64{}}
	b := newBenchOver(t, Config{}, f, f, nil)
	j, st := b.m.Begin(1, b.now)
	b.ok(st)
	if st := add(b.m, j, b.source(1, 0, 1)); st != Invalid {
		t.Errorf("a source without local regions: %v", st)
	}
	local := layoutAt(0x4000_0000, 1, 64, 4096)
	if b.m.SetLocal(local) == nil {
		t.Error("the layout was changed under a read")
	}
	b.ok(b.m.Abort(j))
	if err := b.m.SetLocal(local); err != nil {
		t.Fatal(err)
	}
	local.Regions[0].Addr = 0 // the machine has its own copy
	b.commit(1, 4, b.source(1, 0, 1))
	b.step(0)
	if got := f.posted[0].spec.Descs[0].Local; got != 0x4000_0000 {
		t.Errorf("read into %#x", got)
	}
	if b.m.SetLocal(&Layout{}) == nil {
		t.Error("an empty layout was taken")
	}
}

func TestReadsTakeTurnsWithinAStep(t *testing.T) {
	b := newBench(t, Config{DescsStepMax: 8}, 16)
	for i := range uint64(3) {
		b.commit(i, 1, b.source(transport.Peer(i+1), 0, 16)) // 16 descriptors each
	}
	b.step(0)
	var got []int
	for _, x := range b.f.posted {
		got = append(got, int(x.spec.Peer), len(x.spec.Descs))
	}
	if diff := cmp.Diff([]int{1, 2, 2, 2, 3, 2, 1, 2}, got); diff != "" {
		t.Errorf("peer and descriptors of each part (-want +got):\n%s", diff)
	}
}

func TestRunsAreGivenBackWithTheLastPost(t *testing.T) {
	b := newBench(t, Config{}, 1)
	all := b.m.Gauges().RunsFree
	b.commit(1, 4, b.source(1, 0, 1))
	if n := b.m.Gauges().RunsFree; n != all-runsPiece {
		t.Errorf("%d runs free of %d while the read waits", n, all)
	}
	b.step(0)
	if n := b.m.Gauges().RunsFree; n != all {
		t.Errorf("%d runs free of %d with everything posted", n, all)
	}
}
