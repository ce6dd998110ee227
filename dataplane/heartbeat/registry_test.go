package heartbeat

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/wire"
)

func TestAHandshakeThatCannotBeUsedIsRefusedByNameAndChangesNothing(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(h *wire.Handshake)
		want   error
	}{
		{"no agent metadata", func(h *wire.Handshake) { h.AgentMetadata = nil }, ErrHandshake},
		{"no regions", func(h *wire.Handshake) { h.BaseAddrs = nil }, ErrHandshake},
		{"fewer lengths than regions", func(h *wire.Handshake) { h.BlockLens = nil }, ErrHandshake},
		{"fewer strides than regions", func(h *wire.Handshake) { h.BlockStrides = nil }, ErrHandshake},
		{"two kinds of memory for one region", func(h *wire.Handshake) { h.RegionMemTypes = make([]wire.RegionMem, 2) }, ErrHandshake},
		{"no blocks", func(h *wire.Handshake) { h.NumBlocks = 0 }, ErrHandshake},
		{"2^32 blocks", func(h *wire.Handshake) { h.NumBlocks = 1 << 32 }, ErrHandshake},
		{"group 32", func(h *wire.Handshake) { h.RegionGroupIDs = []int64{32} }, ErrHandshake},
		{"group -2", func(h *wire.Handshake) { h.RegionGroupIDs = []int64{-2} }, ErrHandshake},
		{"epoch 0", func(h *wire.Handshake) { h.Lease.Epoch = 0 }, ErrHandshake},
		{"base 2^62", func(h *wire.Handshake) { h.Lease.Base = 1 << 62 }, ErrHandshake},
		{"no board", func(h *wire.Handshake) { h.Lease.Board = 0 }, ErrHandshake},
		{"a board that is not aligned", func(h *wire.Handshake) { h.Lease.Board++ }, ErrHandshake},
		{"a board that wraps the address space", func(h *wire.Handshake) { h.Lease.Board = ^uint64(0) - 7 }, ErrHandshake},
		{"a duration of 1 ms", func(h *wire.Handshake) { h.Lease.Duration = time.Millisecond }, ErrHandshake},
		{"a duration of 25 h", func(h *wire.Handshake) { h.Lease.Duration = 25 * time.Hour }, ErrHandshake},
		{"another engine", func(h *wire.Handshake) { h.EngineID = "Q" }, ErrEngine},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", false)
			e := r.connect(o)
			k := r.track(e, o, 1, 0)
			r.run(sec(2), time.Second)
			h := o.handshake()
			tc.change(h)
			if err := r.k.LoadHandshake(e, 0, h); !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
			before := r.k.Counters().Handshakes
			r.run(sec(6), time.Second)
			r.wantSaid(k, "")
			r.wantEngine(e, "up")
			if n := r.k.Counters().Handshakes - before; n != 0 {
				t.Errorf("%d handshakes taken", n)
			}
		})
	}
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.add(o)
	for name, err := range map[string]error{
		"nil":             r.k.LoadHandshake(e, 0, nil),
		"another rank":    r.k.LoadHandshake(e, 1, o.handshake()),
		"no such handle":  r.k.LoadHandshake(e+1, 0, o.handshake()),
		"handle 0":        r.k.LoadHandshake(0, 0, o.handshake()),
		"a later use":     r.k.LoadHandshake(e+1<<32, 0, o.handshake()),
		"remove handle 0": r.k.RemoveEngine(0),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestTheSameMetadataUnderAnotherEpochIsAnotherEngine(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	h := r.track(e, o, 1, 0)
	r.run(sec(3), time.Second)
	o.epoch++
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.run(sec(5), time.Second)
	r.wantSaid(h, "gone")
	r.wantEngine(e, "up down up")
}

func TestConfigurationErrorsSayWhatIsWrong(t *testing.T) {
	good := Config{Self: Identity{Epoch: 1}, Duration: time.Second, Tracks: 4}
	for _, tc := range []struct {
		name   string
		change func(c *Config)
	}{
		{"no duration", func(c *Config) { c.Duration = 0 }},
		{"no epoch", func(c *Config) { c.Self.Epoch = 0 }},
		{"more slots than there are", func(c *Config) { c.Tracks = 5 }},
		{"messages too short for a long id", func(c *Config) { c.BatchBytesMax = 1000 }},
		{"messages longer than a peer reads", func(c *Config) { c.BatchBytesMax = wire.ParseMax + 1 }},
		{"negative rows", func(c *Config) { c.RowsStepMax = -1 }},
	} {
		c := good
		tc.change(&c)
		var ctl record.Control
		if _, err := New(c, &null{}, nil, make([]record.Track, 4), &ctl, &bulk{}); err == nil {
			t.Errorf("%s: no error", tc.name)
		}
	}
}

// Engines come and go on other goroutines while steps run; the race detector looks on.
func TestEnginesAreAddedAndRemovedByOtherThreadsWhileStepsRun(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Engines = 8 })
	var blobs []*wire.Handshake
	for i := range 4 {
		blobs = append(blobs, r.owner(fmt.Sprint("P", i), false).handshake())
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	for i := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := range 300 {
				e, err := r.k.AddEngine(EngineDesc{ID: blobs[i].EngineID, User: uint64(n)})
				if errors.Is(err, ErrFull) {
					continue
				}
				if err != nil {
					t.Error(err)
				}
				if err := r.k.LoadHandshake(e, 0, blobs[i]); err != nil {
					t.Error(err)
				}
				if n%3 == 0 {
					if err := r.k.RemoveEngine(e); err != nil {
						t.Error(err)
					}
				}
			}
		}()
	}
	go func() { wg.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		r.step(r.now.Add(time.Millisecond))
	}
	r.run(r.now.Add(time.Second), time.Millisecond)
	for i := range 4 {
		e, err := r.k.AddEngine(EngineDesc{ID: blobs[i].EngineID})
		must(t, err)
		must(t, r.k.LoadHandshake(e, 0, blobs[i]))
		r.run(r.now.Add(time.Second), 10*time.Millisecond)
		if s := r.k.View(e).State; s != Connected {
			t.Errorf("engine %d is %v in the end", i, s)
		}
	}
}

func TestAnEngineThatWasHardToLoadIsUpOnceItAnswersThoughNothingIsTracked(t *testing.T) {
	for _, stock := range []bool{false, true} {
		r := newRig(t, nil)
		o := r.owner("P", stock)
		r.d.FailNext(loopback.OpLoad, transport.ErrPeer)
		e := r.connect(o)
		r.hub.Stop("P")
		r.run(sec(5), time.Second)
		r.wantEngine(e, "")
		r.hub.Resume("P")
		r.run(sec(7), time.Second)
		r.wantEngine(e, "up")
	}
}

func TestAReadForABootThatIsNotTheOneFoundDoesNotStandInTheWayOfOthers(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.add(o)
	h := r.slot()
	req := o.req(h, e, 1, 0, r.now)
	req.Epoch = 4711
	r.k.Track(req, []byte("of another boot"), nil, r.now)
	r.read(h, record.Run{N: 1})
	good := r.track(e, o, 1, 0)
	r.read(good, record.Run{N: 1})
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.run(sec(3), time.Second)
	r.wantSaid(good, "done")
	r.wantSaid(h, "")
	r.run(sec(35), time.Second)
	r.wantSaid(h, "failed(6)")
	r.wantRest()
}

func TestAnEngineIsSeenAsStrangeWhileRequestsOfABootThatNobodyKnowsWaitThere(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.add(o)
	early := r.track(e, o, 1, 0)
	r.step(r.now.Add(10 * time.Millisecond))
	if v := r.k.View(e); v.Strange {
		t.Errorf("before its handshake: %+v", v)
	}
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.run(sec(2), 10*time.Millisecond)
	if v := r.k.View(e); v.Strange || v.State != Connected {
		t.Errorf("with requests of its boot: %+v", v)
	}
	r.k.Untrack(early, r.now)
	o.reboot()
	next := r.track(e, o, 2, 0)
	r.step(sec(2.1))
	if v := r.k.View(e); !v.Strange {
		t.Errorf("with a request of the next boot: %+v", v)
	}
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	for range 200 {
		if r.step(r.now.Add(10 * time.Millisecond)); r.k.View(e).Strange {
			t.Fatal("it is strange though the maps are there")
		}
	}
	r.read(next, record.Run{N: 1})
	r.run(sec(6), 100*time.Millisecond)
	r.wantSaid(next, "done")

	never := r.slot()
	req := o.req(never, e, 3, 0, r.now)
	req.Epoch = 4711
	r.k.Track(req, []byte("of no boot"), nil, r.now)
	breaks := r.k.View(e).Breaks
	for range 3 {
		must(t, r.k.LoadHandshake(e, 0, o.handshake()))
		r.run(r.now.Add(time.Second), 100*time.Millisecond)
		if v := r.k.View(e); !v.Strange || v.Breaks != breaks || v.State != Connected {
			t.Errorf("with a request of no boot, and the same maps once more: %+v", v)
		}
	}
	r.run(r.now.Add(40*time.Second), 100*time.Millisecond)
	if v := r.k.View(e); v.Strange {
		t.Errorf("when it is over: %+v", v)
	}
	r.wantSaid(never, "gone")
	r.k.Untrack(never, r.now)
	r.run(r.now.Add(40*time.Second), 100*time.Millisecond)
	r.wantRest()
}

// A pump that sleeps until NextDue loses nothing.
func TestStepsOnlyAtNextDueKeepEveryHeartbeatOnTime(t *testing.T) {
	r := newRig(t, nil)
	for i := range 3 {
		o := r.owner(fmt.Sprint("P", i), i == 2)
		e := r.connect(o)
		if o.stock {
			r.trackStock(e, "x")
		} else {
			r.track(e, o, 1, 0)
		}
	}
	steps := 0
	for r.now < sec(100) {
		due := r.k.NextDue(r.now)
		if due == clock.Never {
			t.Fatal("nothing due while requests are tracked")
		}
		r.step(max(due, r.now.Add(time.Millisecond)))
		if r.reads.NeedsStep() {
			r.step(r.now.Add(time.Millisecond))
		}
		steps++
	}
	for i, o := range r.owners {
		if n := o.count("renew") + o.count("HB"); n < 21 || n > 22 {
			t.Errorf("engine %d heard %d heartbeats in a little more than 100 s, want 21 or 22", i, n)
		}
	}
	if steps > 150 {
		t.Errorf("%d steps for 60 heartbeats", steps)
	}
}

func TestAReadThatDoesNotFitAnEmptyMachineFailsInsteadOfBlockingTheOthers(t *testing.T) {
	r := newRigOver(t, nil, func(c *read.Config) { c.RunsMax = 1024 })
	o := r.owner("P", false)
	e := r.connect(o)
	big, small := r.track(e, o, 1, 0), r.track(e, o, 2, 0)
	r.run(sec(2), time.Second)
	const parts = 20 // 5,060 runs, none of which follows the one before
	runs := make([]record.Run, record.RunsMax)
	for i := range runs {
		runs[i] = record.Run{Local: uint32(i*7) % blockCount, Remote: uint32(i*11) % blockCount, N: 1}
	}
	for p := range uint32(parts) {
		r.k.ReadPart(&record.Read{Track: big, Part: p, Parts: parts, N: uint32(len(runs))}, runs, r.now)
	}
	r.read(small, record.Run{N: 1})
	r.run(sec(5), time.Second)
	r.wantSaid(big, "failed(3)")
	r.wantSaid(small, "done")
}

func TestTheIndexOfRemotesFindsWhatIsInItAndNothingElse(t *testing.T) {
	const seed = 11
	rnd := rand.New(rand.NewPCG(seed, 1))
	const n = 64
	r := newRemotes(n, 8, 0, seed)
	type entry struct {
		v identity
		i uint32
	}
	have := map[string]entry{}
	for step := range 200000 {
		v := identity{engine: uint32(rnd.IntN(3)), id: []byte(fmt.Sprintf("r%0*d", []int{1, 8, 120}[rnd.IntN(3)], rnd.IntN(30)))}
		if rnd.IntN(2) == 0 {
			v.native, v.slot, v.gen, v.epoch = true, uint32(rnd.IntN(4)), uint32(rnd.IntN(2)), uint64(rnd.IntN(2))
		}
		name := fmt.Sprintf("%d %v %d %d %d %s", v.engine, v.native, v.slot, v.gen, v.epoch, v.id)
		h := r.hashOf(&v)
		got := r.find(&v, h)
		e, ok := have[name]
		if ok != (got != none) || ok && got != e.i {
			t.Fatalf("seed %d step %d: %s found at %d, want %v", seed, step, name, int32(got), e)
		}
		switch {
		case ok && rnd.IntN(2) == 0:
			r.drop(got)
			delete(have, name)
		case !ok && r.free.Left() > 0:
			i, longFull := r.take(&v, h)
			if longFull {
				r.drop(i)
				break
			}
			have[name] = entry{v, i}
		}
	}
	for _, e := range have {
		r.drop(e.i)
	}
	if r.free.Used() != 0 || r.longFree.Left() != 8 {
		t.Errorf("%d left, %d long places", r.free.Used(), r.longFree.Left())
	}
	for p, e := range r.table {
		if e != 0 {
			t.Errorf("place %d still names %d", p, e-1)
		}
	}
}

// Entries come and go under the cursor: none that was there all through a round is missed.
func TestARoundMissesNothingThatStaysWhileEntriesComeAndGo(t *testing.T) {
	const seed = 9
	rnd := rand.New(rand.NewPCG(seed, 1))
	p := newChunkPool(40)
	d := emptyDense()
	where := map[uint32][2]uint32{}
	var ids []uint32
	next := uint32(0)
	add := func() {
		c, at := p.add(&d, beatEntry{slot: next}, next)
		where[next] = [2]uint32{c, at}
		ids = append(ids, next)
		next++
	}
	end := cursor{chunk: none}
	remove := func() uint32 {
		k := rnd.IntN(len(ids))
		id := ids[k]
		ids[k] = ids[len(ids)-1]
		ids = ids[:len(ids)-1]
		w := where[id]
		delete(where, id)
		if moved := p.remove(&d, w[0], w[1], &end); moved != none {
			where[moved] = w
		}
		return id
	}
	for range 500 {
		add()
	}
	for range 300 {
		stays := map[uint32]bool{}
		for _, id := range ids {
			stays[id] = true
		}
		seen := map[uint32]bool{}
		end = d.start()
		for {
			e, m, ok := p.next(&end)
			if !ok {
				break
			}
			if e.slot != m {
				t.Fatalf("seed %d: entry of %d at the place of %d", seed, e.slot, m)
			}
			seen[m] = true
			for range rnd.IntN(3) {
				if rnd.IntN(2) == 0 && len(ids) < 900 {
					add()
				} else if len(ids) > 100 {
					delete(stays, remove())
				}
			}
		}
		for id := range stays {
			if !seen[id] {
				t.Fatalf("seed %d: %d was missed", seed, id)
			}
		}
		if d.n != len(ids) {
			t.Fatalf("seed %d: %d entries, want %d", seed, d.n, len(ids))
		}
	}
}

var _ transport.Transport = (*null)(nil)
