package heartbeat

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// party is an engine of several ranks, each an owner of its own.
type party struct {
	r     *rig
	id    string
	shape topology.Shape
	ranks []*owner
	reach []uint32
}

// party adds an engine whose ranks hold blocks of len bytes.
func (r *rig) party(id string, shape topology.Shape, stock bool, blockBytes uint64) *party {
	r.t.Helper()
	p := &party{r: r, id: id, shape: shape}
	for i := range shape.Ranks() {
		p.ranks = append(p.ranks, r.begin(&owner{
			name: fmt.Sprint(id, ".", i), engine: id, rank: i, epoch: 5000 + uint64(len(r.owners)-int(i)), base: 1<<40 + uint64(i)<<20,
			stock: stock, blockBytes: blockBytes,
		}))
	}
	var err error
	p.reach, err = topology.Reach(r.k.cfg.Shape, shape, r.k.cfg.Self.Rank)
	must(r.t, err)
	return p
}

func (p *party) add() uint64 {
	p.r.t.Helper()
	h, err := p.r.k.AddEngine(EngineDesc{ID: p.id, TP: p.shape.TP, PP: p.shape.PP})
	must(p.r.t, err)
	return h
}

func (p *party) maps() []PeerRank {
	var all []PeerRank
	for _, k := range p.reach {
		all = append(all, PeerRank{Rank: k, Map: p.ranks[k].handshake()})
	}
	return all
}

func (p *party) connect() uint64 {
	p.r.t.Helper()
	e := p.add()
	must(p.r.t, p.r.k.LoadEngine(e, p.maps()))
	return e
}

func shaped(tp, pp, rank uint32) func(*Config) {
	return func(c *Config) { c.Shape, c.Self.Rank = topology.Shape{TP: tp, PP: pp}, rank }
}

func (p *party) heard(what string) (ranks []uint32) {
	for i, o := range p.ranks {
		if o.count(what) > 0 {
			ranks = append(ranks, uint32(i))
		}
	}
	return ranks
}

// Who hears of a request, and n of the completion, for each ratio.
func TestEveryRankThatIsReachedHearsHelloBeatsAndCompletionsAndNoOther(t *testing.T) {
	for _, tc := range []struct {
		name       string
		self, peer topology.Shape
		rank       uint32
		bytes      uint64 // of the owner's blocks
		reach      []uint32
		n          uint16
		bare       []uint32 // of a stock owner: read from no block
	}{
		{"1:1", topology.Shape{TP: 1, PP: 1}, topology.Shape{TP: 1, PP: 1}, 0, 64, []uint32{0}, 1, nil},
		{"2:1, its second rank", topology.Shape{TP: 2, PP: 1}, topology.Shape{TP: 1, PP: 1}, 1, 128, []uint32{0}, 2, nil},
		{"1:2", topology.Shape{TP: 1, PP: 1}, topology.Shape{TP: 2, PP: 1}, 0, 32, []uint32{0, 1}, 1, nil},
		{"2:4, its second rank", topology.Shape{TP: 2, PP: 1}, topology.Shape{TP: 4, PP: 1}, 1, 32, []uint32{2, 3}, 1, nil},
		{"4:2, its fourth rank", topology.Shape{TP: 4, PP: 1}, topology.Shape{TP: 2, PP: 1}, 3, 128, []uint32{1}, 2, nil},
		{"MLA 1:2", topology.Shape{TP: 1, PP: 1}, topology.Shape{TP: 2, PP: 1}, 0, 64, []uint32{0, 1}, 1, []uint32{1}},
		{"MLA 1:8", topology.Shape{TP: 1, PP: 1}, topology.Shape{TP: 8, PP: 1}, 0, 64, []uint32{0, 1, 2, 3, 4, 5, 6, 7}, 1, []uint32{1, 2, 3, 4, 5, 6, 7}},
		{"PP 2, TP 2: all stages, and both halves of each", topology.Shape{TP: 1, PP: 1}, topology.Shape{TP: 2, PP: 2}, 0, 32, []uint32{0, 1, 2, 3}, 1, nil},
		{"PP 2 on both sides: the other stage hears of it, too", topology.Shape{TP: 1, PP: 2}, topology.Shape{TP: 1, PP: 2}, 1, 64, []uint32{0, 1}, 2, []uint32{0}},
	} {
		for _, stock := range []bool{false, true} {
			t.Run(fmt.Sprint(tc.name, ", stock ", stock), func(t *testing.T) {
				layers := 1
				if tc.self.PP < tc.peer.PP {
					layers = int(tc.peer.PP / tc.self.PP)
				}
				r := newRigOf(t, shaped(tc.self.TP, tc.self.PP, tc.rank), nil, layers)
				p := r.party("P", tc.peer, stock, tc.bytes)
				e := p.connect()
				var h record.Handle
				if stock {
					h = r.trackStock(e, "x")
				} else {
					h = r.track(e, p.ranks[0], 1, 0)
				}
				r.run(sec(8), 500*time.Millisecond) // a link is loaded a step
				r.read(h, record.Run{Local: 3, N: 1})
				r.run(sec(13), time.Second)
				r.wantSaid(h, "done") // shows C22.1
				beat, end := "renew", "complete"
				if stock {
					beat, end = "HB", "done"
				}
				for _, what := range []string{beat, end} {
					if diff := cmp.Diff(tc.reach, p.heard(what)); diff != "" { // shows C57.2
						t.Errorf("%s (-want +got):\n%s", what, diff)
					}
				}
				for _, k := range tc.reach {
					o := p.ranks[k]
					if o.count(end) != 1 { // shows C11.2, C57.1
						t.Errorf("rank %d heard %d completions, want 1", k, o.count(end))
					}
					for _, m := range o.heard {
						if m.what == end && (stock && m.n != int(tc.n) || !stock && m.h.Readers != tc.n) {
							t.Errorf("rank %d: completion of %d or %d readers, want %d", k, m.n, m.h.Readers, tc.n)
						}
					}
					if want := map[bool]int{false: 1}[stock]; len(o.hellos) != want || want == 1 && o.hellosAt[0] != 0 {
						t.Errorf("rank %d heard %d hellos, want %d, before all else: %v", k, len(o.hellos), want, o.hellosAt)
					}
				}
				if c := r.k.Counters(); stock && c.Attached != 1 {
					t.Errorf("%d completions rode on READs of a request, want 1", c.Attached)
				}
				r.run(sec(60), time.Second)
				r.wantRest()
			})
		}
	}
}

// Two ranks hold the halves of a block; each byte comes from the one that has it.
func TestABlockIsFilledFromAllRanksAndEachFenceCounts(t *testing.T) {
	for _, tc := range []struct {
		name  string
		stale int // the rank whose row is raised before the read; -1: none
		want  string
	}{{"both rows stand", -1, "done"}, {"the first does not", 0, "failed(1)"}, {"the second does not", 1, "failed(1)"}} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			p := r.party("P", topology.Shape{TP: 2, PP: 1}, false, blockLen/2)
			e := p.connect()
			h := r.track(e, p.ranks[0], 1, 0)
			r.step(sec(1))
			r.step(sec(2))
			if tc.stale >= 0 {
				p.ranks[tc.stale].rows[1].Fence++
			}
			r.read(h, record.Run{Local: 5, Remote: 2, N: 1})
			r.step(sec(2.1))
			r.wantSaid(h, tc.want)
			r.run(sec(5), time.Second)
			if tc.stale >= 0 {
				if diff := cmp.Diff([]uint32{0, 1}, p.heard("release")); diff != "" {
					t.Errorf("released at (-want +got):\n%s", diff)
				}
				return
			}
			for i := range blockLen {
				o := p.ranks[i/(blockLen/2)]
				if got, want := r.kv[5*blockLen+i], o.kv[2*(blockLen/2)+i%(blockLen/2)]; got != want {
					t.Fatalf("byte %d is %d, want %d", i, got, want)
				}
			}
		})
	}
}

func TestARowOfOneRankThatShowsTheEndIsTheEnd(t *testing.T) {
	for k := range 2 {
		r := newRig(t, nil)
		p := r.party("P", topology.Shape{TP: 2, PP: 1}, false, blockLen/2)
		e := p.connect()
		h := r.track(e, p.ranks[0], 1, 0)
		r.run(sec(3), time.Second)
		p.ranks[k].rows[1].Fence++
		r.run(sec(9), time.Second)
		r.wantSaid(h, "gone")
		r.k.Untrack(h, r.now)
		r.run(sec(20), time.Second)
		r.wantRest()
		if p.ranks[1-k].count("release") != 1 {
			t.Error("the rank that holds it still was not told that nobody will read")
		}
	}
}

// A rank that nothing is read from has ended the lease: what the others have is proven, and they hear that it was read.
func TestARankThatIsNotReadFromDoesNotKeepACompletionFromTheOthers(t *testing.T) {
	r := newRig(t, nil)
	p := r.party("P", topology.Shape{TP: 2, PP: 1}, false, blockLen) // each has the whole block
	e := p.connect()
	h := r.track(e, p.ranks[0], 1, 0)
	r.run(sec(3), time.Second)
	r.d.HoldReads(true)
	r.read(h, record.Run{Local: 5, Remote: 2, N: 1})
	r.step(sec(3.1))
	p.ranks[1].rows[1].Fence++
	r.k.leaseGone(r.k.requests[h.Slot()].remote) // the row of rank 1 has come before the data
	r.d.HoldReads(false)
	r.run(sec(15), time.Second)
	r.wantSaid(h, "done")
	if p.ranks[0].count("complete") != 1 {
		t.Error("the rank that was read from was not told")
	}
	r.wantRest()
}

func TestALeaseIsAtRiskIfOneRankDoesNotMove(t *testing.T) {
	r := newRig(t, nil)
	p := r.party("P", topology.Shape{TP: 2, PP: 1}, false, blockLen/2)
	e := p.connect()
	h := r.track(e, p.ranks[0], 1, 0)
	p.ranks[1].deaf = true
	r.run(sec(20), time.Second)
	r.wantSaid(h, "risk")
	p.ranks[1].deaf = false
	r.run(sec(40), time.Second)
	p.ranks[0].deaf = true // another episode
	r.run(sec(60), time.Second)
	r.wantSaid(h, "risk risk")
	p.ranks[0].deaf = false
	r.run(sec(80), time.Second)
	p.ranks[0].deaf, p.ranks[1].deaf = true, true // one episode, however many ranks
	r.run(sec(110), time.Second)
	r.wantSaid(h, "risk risk risk")
}

// What rode on the READ of one rank has gone although that of another failed: no stock rank may count us twice.
func TestAStockOwnerOfSeveralRanksIsNotToldAgainWhenOneReadFailed(t *testing.T) {
	r := newRig(t, nil)
	p := r.party("P", topology.Shape{TP: 2, PP: 1}, true, blockLen/2)
	e := p.connect()
	h := r.trackStock(e, "x")
	r.run(sec(6), time.Second)
	r.d.HoldReads(true)
	r.read(h, record.Run{N: 1})
	r.step(sec(6.1))
	r.d.LetReads(1)
	r.step(sec(6.2))
	r.d.FailNext(loopback.OpRead, transport.ErrPeer)
	r.d.HoldReads(false)
	r.run(sec(100), time.Second)
	if got := r.said(h); got != "failed(3)+held back" && got != "failed(3)" {
		t.Errorf("events %q", got)
	}
	if a, b := p.ranks[0].count("done"), p.ranks[1].count("done"); a > 1 || b > 1 || a+b != 1 {
		t.Errorf("the ranks heard %d and %d completions, want one that rode on its READ", a, b)
	}
	r.wantRest()
}

func TestAnEngineThatWasKnownBeforeMemoryIsReadFromOnceThereIsSome(t *testing.T) {
	r := newRig(t, nil)
	local := r.k.reg.local
	must(t, r.k.SetLocal(nil))
	p := r.party("P", topology.Shape{TP: 2, PP: 1}, false, blockLen/2)
	e := p.connect()
	a, b := r.track(e, p.ranks[0], 1, 0), r.track(e, p.ranks[0], 2, 0)
	r.run(sec(4), time.Second)
	r.read(a, record.Run{N: 1}) // waits, as for an engine
	r.run(sec(5), time.Second)
	r.wantSaid(a, "")
	must(t, r.k.SetLocal(local))
	r.run(sec(6), time.Second)
	r.wantSaid(a, "done")
	r.read(b, record.Run{N: 1})
	r.run(sec(7), time.Second)
	r.wantSaid(b, "done")
	if c := r.k.Counters(); c.Loads != 2 {
		t.Errorf("%d loads, want 2: only the maps are new", c.Loads)
	}
}

func TestAnEngineThatIsLoadedWhileMemoryIsRegisteredIsReadFrom(t *testing.T) {
	r := newRig(t, nil)
	local := r.k.reg.local
	p := r.party("P", topology.Shape{TP: 2, PP: 1}, false, blockLen/2)
	e := p.add()
	maps := p.maps()
	for n := range 3000 {
		must(t, r.k.SetLocal(nil))
		var both sync.WaitGroup
		both.Go(func() { must(t, r.k.LoadEngine(e, maps)) })
		for range n % 100 { // somewhere within the load
			runtime.Gosched()
		}
		must(t, r.k.SetLocal(local))
		both.Wait()
		r.k.reg.mu.Lock()
		bare := r.k.reg.seats[record.Handle(e).Slot()].now.given.bare
		r.k.reg.mu.Unlock()
		if bare {
			t.Fatalf("turn %d: it is never read from", n)
		}
	}
}

func TestOnlyTheBrokenLinkIsLoadedAgainAndNoLeaseIsLost(t *testing.T) {
	r := newRig(t, nil)
	p := r.party("P", topology.Shape{TP: 2, PP: 1}, false, blockLen/2)
	e := p.connect()
	h := r.track(e, p.ranks[0], 1, 0)
	r.run(sec(10), 100*time.Millisecond)
	loads := r.k.Counters().Loads
	for range 5 { // a peer that resets again and again
		r.hub.Cut("D", p.ranks[1].agent.Agent())
		r.run(r.now.Add(10*time.Second), 100*time.Millisecond)
	}
	if c := r.k.Counters(); c.Loads-loads != 5 || c.Heals != 5 {
		t.Errorf("%d loads, %d heals, want 5 of each", c.Loads-loads, c.Heals)
	}
	for k, o := range p.ranks {
		at := sec(0)
		for _, m := range o.heard {
			if m.what == "renew" && m.at.Sub(at) > 2*5*time.Second {
				t.Errorf("rank %d heard nothing from %v to %v", k, at.Sub(sec(0)), m.at.Sub(sec(0)))
			}
			at = m.at
		}
	}
	r.read(h, record.Run{N: 1})
	r.run(r.now.Add(time.Second), 100*time.Millisecond)
	r.wantSaid(h, "done")
}

// C-heal: a read that does not end holds up healing for HealWait, its blocks until the bytes have landed.
func TestHealingAbandonsAReadThatDoesNotEndAndItsBlocksStayAsideUntilItHas(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	a, b := r.track(e, o, 1, 0), r.track(e, o, 2, 0)
	r.run(sec(6), 100*time.Millisecond)
	r.d.HoldReads(true)
	r.read(a, record.Run{Local: 3, N: 1})
	r.run(sec(6.5), 100*time.Millisecond)
	r.d.FailNext(loopback.OpSend, transport.ErrPeer) // the next heartbeat: at 10 or so
	r.run(sec(14), 100*time.Millisecond)
	if c := r.k.Counters(); c.Disconnects == 0 || c.Abandons != 0 || c.Heals != 0 {
		t.Fatalf("%d disconnects, %d abandoned, %d healed at 14; want some, 0, 0", c.Disconnects, c.Abandons, c.Heals)
	}
	r.run(sec(17), 100*time.Millisecond)
	if c := r.k.Counters(); c.Abandons != 1 || c.Heals != 1 {
		t.Fatalf("%d abandoned, %d healed at 17; want one of each", c.Abandons, c.Heals)
	}
	r.wantSaid(a, "failed(3)+held")
	r.wantSaid(b, "") // its lease was never without heartbeats for an extension
	if g := r.k.Gauges(); g.BlocksHeld != 1 {
		t.Errorf("%d requests with blocks held, want 1", g.BlocksHeld)
	}
	r.d.HoldReads(false)
	r.run(sec(60), 100*time.Millisecond)
	r.wantSaid(a, "failed(3)+held back")
	r.read(b, record.Run{Local: 4, N: 1})
	r.run(sec(61), 100*time.Millisecond)
	r.wantSaid(b, "done")
	r.run(sec(90), 100*time.Millisecond)
	r.wantRest()
}

func TestARankWithoutRoomGetsItsCompletionLaterAndAStockOneNoneTwice(t *testing.T) {
	for _, stock := range []bool{false, true} {
		r := newRig(t, nil)
		p := r.party("P", topology.Shape{TP: 2, PP: 1}, stock, blockLen/2)
		e := p.connect()
		var h record.Handle
		if stock {
			h = r.trackStock(e, "x")
		} else {
			h = r.track(e, p.ranks[0], 1, 0)
		}
		r.run(sec(3), time.Second)
		r.k.Untrack(h, r.now)
		r.d.FailNext(loopback.OpSend, transport.ErrFull)
		r.run(sec(9), 100*time.Millisecond)
		want := []int{1, 2} // the first send fails: the second rank hears it twice
		what := "release"
		if stock {
			want, what = []int{1, 1}, "done"
		}
		for k, o := range p.ranks {
			if o.count(what) != want[k] {
				t.Errorf("stock %v: rank %d heard %d ends, want %d", stock, k, o.count(what), want[k])
			}
		}
		r.wantRest()
	}
}

func TestHandshakesOfAnEngineAreASetOfOneBoot(t *testing.T) {
	r := newRig(t, nil)
	p := r.party("P", topology.Shape{TP: 2, PP: 1}, false, blockLen/2)
	e := p.add()
	all := p.maps()
	other := p.ranks[1].handshake()
	other.Lease.Epoch++
	for name, ranks := range map[string][]PeerRank{
		"one is missing": all[:1], "one is there twice": {all[0], all[0]}, "a rank that is not reached": {all[0], {Rank: 7, Map: all[1].Map}},
		"two boots": {all[0], {Rank: 1, Map: other}}, "nothing": nil, "no map": {all[0], {Rank: 1}},
	} {
		if err := r.k.LoadEngine(e, ranks); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	r.run(sec(1), 100*time.Millisecond)
	if c := r.k.Counters(); c.Handshakes != 0 {
		t.Errorf("%d handshakes taken, want 0", c.Handshakes)
	}
	// One by one: those of another boot are put aside.
	must(t, r.k.LoadHandshake(e, 1, other))
	must(t, r.k.LoadHandshake(e, 0, all[0].Map))
	r.run(sec(2), 100*time.Millisecond)
	if r.k.View(e).State != Absent && r.k.View(e).State != Idle {
		t.Errorf("state %v with ranks of two boots", r.k.View(e).State)
	}
	must(t, r.k.LoadHandshake(e, 1, all[1].Map))
	r.run(sec(3), 100*time.Millisecond)
	if r.k.View(e).State != Connected {
		t.Errorf("state %v, want connected", r.k.View(e).State)
	}
}

func TestHandshakesOfAllRanksMayBeHandedInAtOnce(t *testing.T) {
	for round := range 50 {
		r := newRig(t, nil)
		p := r.party("P", topology.Shape{TP: 8, PP: 1}, false, blockLen/8)
		e := p.add()
		var all sync.WaitGroup
		start := make(chan struct{})
		for _, m := range p.maps() {
			all.Go(func() {
				<-start
				if err := r.k.LoadHandshake(e, m.Rank, m.Map); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		all.Wait()
		r.run(sec(1), 100*time.Millisecond)
		if s := r.k.View(e).State; s != Connected {
			t.Fatalf("round %d: state %v, want connected", round, s)
		}
	}
}

func TestAnEngineOfAnotherShapeIsRefused(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Engines, c.Links = 4, 5 })
	for _, d := range []EngineDesc{{ID: "a", TP: 3, PP: 40}, {ID: "b", TP: 100}} {
		if _, err := r.k.AddEngine(d); err == nil {
			t.Errorf("%+v was taken", d)
		}
	}
	e, err := r.k.AddEngine(EngineDesc{ID: "P", TP: 2})
	must(t, err)
	if same, err := r.k.AddEngine(EngineDesc{ID: "P", TP: 2, PP: 1}); err != nil || same != e {
		t.Errorf("the same again: %#x %v", same, err)
	}
	if _, err := r.k.AddEngine(EngineDesc{ID: "P", TP: 4}); err == nil {
		t.Error("the same id with another shape was taken")
	}
	if _, err := r.k.AddEngine(EngineDesc{ID: "Q", TP: 4}); err == nil {
		t.Error("6 links of 5 were given out")
	}
	must(t, r.k.RemoveEngine(e))
	r.run(sec(1), 100*time.Millisecond)
	if _, err := r.k.AddEngine(EngineDesc{ID: "Q", TP: 4}); err != nil {
		t.Errorf("after the removal there is room for 4: %v", err)
	}
}

func TestTheHelloCarriesTheNonceOfTheEngineItGoesTo(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Nonce = func(engine string) [16]byte { return [16]byte{engine[0], 9} } })
	p := r.party("P", topology.Shape{TP: 2, PP: 1}, false, blockLen/2)
	p.connect()
	r.run(sec(1), 100*time.Millisecond) // nothing is tracked
	for k, o := range p.ranks {
		want := []wire.HelloBody{{Duration: 30 * time.Second, BatchBytesMax: 16 << 10, Nonce: [16]byte{'P', 9}}}
		if diff := cmp.Diff(want, o.hellos); diff != "" {
			t.Errorf("rank %d (-want +got):\n%s", k, diff)
		}
	}
}
