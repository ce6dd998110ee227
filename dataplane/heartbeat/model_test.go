package heartbeat

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// lifetime is what a test knows of one tracking.
type lifetime struct {
	owner     *party
	epoch     uint64
	slot, gen uint32
	native    bool
	said      bool // read or untrack
	reads     bool
	runs      int
}

// Whatever happens to engines, connections, leases and the completion ring: every tracking ends once, every read has one
// outcome, no wrong byte is handed out by a peer of ours, and in the end nothing is left.
func TestModelEveryTrackingEndsOnceAndNothingIsLeft(t *testing.T) {
	seeds := 60
	if testing.Short() {
		seeds = 16
	}
	if v, err := strconv.Atoi(os.Getenv("KVLEASE_SEEDS")); err == nil {
		seeds = v
	}
	var accepted, refused int
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			a, b, wrong := runModel(t, uint64(seed), true)
			if wrong > 0 {
				t.Errorf("%d reads handed out wrong data", wrong)
			}
			accepted += a
			refused += b
		})
	}
	if accepted < 100 || refused < 100 {
		t.Errorf("%d reads accepted, %d refused: the model does not reach both", accepted, refused)
	}
}

// Positive control: an owner that uses blocks again without raising the fence word must get wrong data accepted in most seeds.
func TestModelWithoutTheFenceHandsOutWrongData(t *testing.T) {
	bad := 0
	for seed := range uint64(10) {
		if _, _, wrong := runModel(t, seed, false); wrong > 0 {
			bad++
		}
	}
	if bad < 5 {
		t.Errorf("wrong data in %d of 10 seeds, want at least 5: the model does not look", bad)
	}
	t.Logf("wrong data accepted in %d of 10 seeds", bad)
}

func runModel(t *testing.T, seed uint64, fence bool) (accepted, refused, wrong int) {
	rnd := rand.New(rand.NewPCG(seed, 4))
	m := modelShapes[seed%uint64(len(modelShapes))]
	t.Log(m.name)
	const n = 24 // tracking slots; local block = slot
	r := newRigOf(t, func(c *Config) {
		c.Shape, c.Self.Rank = m.self, m.rank
		c.Tracks, c.Owed, c.LongIDs, c.Engines, c.Seed = n, 8, 4, 5, seed
		c.RowsStepMax, c.BatchesStepMax, c.EndsStepMax, c.EventsStepMax = 8, 2, 2, 8
		c.BatchBytesMax = batchBytesLeast
		c.RowStates = 3 * n // less than all would need with four ranks
		c.Duration = 3 * time.Second
		c.UnheardBytesMax = 64 << 10
		c.RunsMax = 8 * runsChunk
	}, nil, m.layers)
	var engines []uint64
	var silent []bool
	var parties []*party
	gens := map[*party]*[blockCount]uint32{}
	fill := func(p *party, block uint32, gen uint32) {
		for _, o := range p.ranks {
			for i := range int(o.blockBytes) {
				o.kv[int(block)*int(o.blockBytes)+i] = mark(p.ranks[0].epoch, block, gen)
			}
		}
	}
	boot := func(p *party) {
		gens[p] = new([blockCount]uint32)
		for i := range uint32(blockCount) {
			fill(p, i, 0)
		}
	}
	for i := range 4 {
		p := r.party(fmt.Sprint("P", i), m.peer, i == 3, m.bytes)
		for _, o := range p.ranks {
			o.l = 3 * time.Second
		}
		boot(p)
		parties = append(parties, p)
		engines = append(engines, p.add())
		silent = append(silent, false)
	}
	one := func(p *party) *owner { return p.ranks[rnd.IntN(len(p.ranks))] }
	wantBytes := func(h record.Handle, l *lifetime) bool {
		want := mark(l.epoch, l.slot, l.gen)
		for layer := range m.layers {
			at := (layer*blockCount + int(h.Slot())) * blockLen
			for _, got := range r.kv[at : at+blockLen] {
				if got != want {
					return false
				}
			}
		}
		return true
	}
	live := map[record.Handle]*lifetime{}
	all := map[record.Handle]*lifetime{}
	var order []record.Handle
	pick := func() record.Handle {
		if len(order) == 0 {
			return 0
		}
		return order[rnd.IntN(len(order))]
	}
	seen, back := 0, map[record.Handle]string{}
	check := func() {
		for ; seen < len(r.events); seen++ {
			e := r.events[seen]
			if e.Kind == record.EvEngineUp || e.Kind == record.EvEngineDown {
				continue
			}
			h := record.Handle(e.Handle)
			l := all[h]
			if l == nil {
				t.Fatalf("event %s of a handle that was never given: %#x", kindNames[e.Kind], h)
			}
			back[h] += kindNames[e.Kind] + " "
			switch e.Kind {
			case record.EvReadDone:
				accepted++
				if l.runs > 0 && l.native {
					if !wantBytes(h, l) {
						wrong++
						if fence {
							t.Logf("read of slot %d use %d of %s handed out wrong bytes", l.slot, l.gen, l.owner.id)
						}
					}
				}
			case record.EvReadFailed:
				refused++
				if e.Flags&record.FlagBlocksHeld != 0 {
					back[h] += "held "
				}
			}
			if e.Kind == record.EvReadDone || e.Kind == record.EvReadFailed {
				delete(live, h)
			}
		}
		for i := 0; i < len(order); i++ {
			if live[order[i]] == nil {
				order[i] = order[len(order)-1]
				order = order[:len(order)-1]
				i--
			}
		}
	}
	free := func() int { return len(r.next) }
	for range 3000 {
		i := rnd.IntN(4)
		o := parties[i]
		first := o.ranks[0]
		switch p := rnd.IntN(100); {
		case p < 30:
			r.step(r.now.Add(time.Duration(rnd.IntN(200)) * time.Millisecond))
			check()
			if free() == 0 { // takes what came back
				for s := record.TakeFree(&r.control.TrackFree); s != record.None; s = r.tracks[s].Next {
					r.next = append(r.next, s)
					r.uses[s] = uint32(r.tracks[s].State >> 32)
				}
			}
		case p < 55:
			if free() == 0 {
				continue
			}
			h := r.slot()
			l := &lifetime{owner: o, epoch: first.epoch, slot: uint32(rnd.IntN(blockCount)), native: !first.stock}
			l.gen = gens[o][l.slot]
			id := fmt.Sprintf("%s-%d-%d", o.id, l.slot, l.gen)
			if rnd.IntN(20) == 0 {
				id += fmt.Sprintf("%0200d", l.slot)
			}
			req := first.req(h, engines[i], l.slot, l.gen, r.now)
			if first.stock {
				req.Native = 0
			}
			if rnd.IntN(6) == 0 { // of the second turn
				if req.ExpiresNs = uint64(r.now.Add(time.Duration(rnd.IntN(20))*time.Second)) - 1000e9; rnd.IntN(2) == 0 {
					req.LeftNs = uint64(rnd.IntN(10)+1) * 1e9
				}
			}
			live[h], all[h] = l, l
			order = append(order, h)
			r.k.Track(req, []byte(id), nil, r.now)
		case p < 65:
			if h := pick(); h != 0 {
				r.k.Untrack(h, r.now)
				if l := live[h]; !l.reads {
					delete(live, h)
				}
				l := all[h]
				l.said = true
				check()
			}
		case p < 80:
			if h := pick(); h != 0 && !live[h].reads && !live[h].said {
				l := live[h]
				l.reads, l.said = true, true
				switch rnd.IntN(8) {
				case 0:
					r.read(h)
				case 1: // in two parts
					l.runs = 2
					r.k.ReadPart(&record.Read{Track: h, Part: 0, Parts: 2, N: 1}, []record.Run{{Local: h.Slot(), Remote: l.slot, N: 1}}, r.now)
					r.k.ReadPart(&record.Read{Track: h, Part: 1, Parts: 2}, nil, r.now)
				default:
					l.runs = 1
					r.read(h, record.Run{Local: h.Slot(), Remote: l.slot, N: 1})
				}
			}
		case p < 86: // the owner ends a lease, then uses its block
			s := uint32(rnd.IntN(blockCount))
			gens[o][s]++
			for _, k := range o.ranks {
				if fence {
					k.rows[s].Fence = k.base + uint64(gens[o][s])
				}
				k.rows[s].GenBeats = uint64(gens[o][s])
			}
			fill(o, s, gens[o][s])
		case p < 90:
			switch rnd.IntN(4) {
			case 0:
				must(t, r.k.SetOffset(engines[i], known(r.now)))
			case 1: // one rank's alone, as it comes out of band
				k := o.reach[rnd.IntN(len(o.reach))]
				must(t, r.k.LoadHandshake(engines[i], k, o.ranks[k].handshake()))
			default:
				must(t, r.k.LoadEngine(engines[i], o.maps()))
			}
		case p < 92:
			r.hub.Cut("D", one(o).agent.Agent())
		case p < 93:
			for _, k := range o.ranks {
				k.reboot()
			}
			boot(o)
			if rnd.IntN(2) == 0 {
				must(t, r.k.EngineDead(engines[i]))
			}
		case p < 94:
			silent[i] = !silent[i]
			if silent[i] {
				r.hub.Stop(one(o).agent.Agent())
				continue
			}
			for _, k := range o.ranks {
				r.hub.Resume(k.agent.Agent())
			}
		case p < 95:
			r.d.HoldReads(rnd.IntN(2) == 0)
		case p < 96:
			r.full = rnd.IntN(3) == 0
		case p < 97:
			r.d.FailNext(loopback.Op(rnd.IntN(6)), []error{transport.ErrFull, transport.ErrPeer, transport.ErrInvalid}[rnd.IntN(3)])
		case p < 98:
			must(t, r.k.RemoveEngine(engines[i]))
			for {
				e, err := r.k.AddEngine(EngineDesc{ID: o.id, TP: m.peer.TP, PP: m.peer.PP})
				if err == nil {
					engines[i] = e
					break
				}
				r.full = false // five places for four engines: the removed ones go when their events are out and nothing is open
				r.d.HoldReads(false)
				clear(silent)
				for _, q := range r.owners {
					r.hub.Resume(q.agent.Agent())
				}
				r.step(r.now.Add(time.Second))
				check()
			}
		default:
			if h := pick(); h != 0 {
				r.k.Reject(first.req(0, engines[i], uint32(rnd.IntN(blockCount)), 0, r.now), []byte("rejected"), r.now)
			}
		}
	}
	// Calm: everything answers, everything is untracked.
	r.full = false
	r.d.HoldReads(false)
	for _, o := range r.owners {
		r.hub.Resume(o.agent.Agent())
	}
	for i, p := range parties {
		must(t, r.k.LoadEngine(engines[i], p.maps()))
	}
	for h := range all {
		r.k.Untrack(h, r.now)
	}
	r.run(r.now.Add(300*time.Second), 50*time.Millisecond)
	check()
	r.wantRest()
	// And everything still works: each engine is reached, heartbeats arrive, a read is done. The first time around the
	// failures that were still planned are used up.
	for pass := range 2 {
		var last []record.Handle
		for i, p := range parties {
			for s := range uint32(blockCount) {
				gens[p][s]++
				for _, o := range p.ranks {
					o.rows[s].Fence = o.base + uint64(gens[p][s])
				}
				fill(p, s, gens[p][s])
			}
			h := r.slot()
			req := p.ranks[0].req(h, engines[i], 3, gens[p][3], r.now)
			if p.ranks[0].stock {
				req.Native = 0
			}
			for _, o := range p.ranks {
				o.heard = nil
			}
			r.k.Track(req, []byte("last"), nil, r.now)
			last = append(last, h)
		}
		r.run(r.now.Add(10*time.Second), 50*time.Millisecond)
		for i, p := range parties {
			for _, k := range p.reach {
				if n := p.ranks[k].count("renew") + p.ranks[k].count("HB"); n < 18 && pass > 0 {
					t.Errorf("rank %d of engine %d heard %d heartbeats in 10 s of calm, want about 20", k, i, n)
				}
			}
			r.read(last[i], record.Run{Local: last[i].Slot(), Remote: 3, N: 1})
		}
		r.run(r.now.Add(20*time.Second), 50*time.Millisecond)
		for _, h := range last {
			if pass > 0 {
				r.wantSaid(h, "done")
			}
		}
	}
	for h, l := range all {
		done, failed, held, backs, gone := count(back[h], "done "), count(back[h], "failed "), count(back[h], "held "), count(back[h], "back "), count(back[h], "gone ")
		want := 0
		if l.reads {
			want = 1
		}
		if done+failed != want || held != backs || gone > 1 {
			t.Errorf("tracking %#x (read %v): %s", h, l.reads, back[h])
		}
	}
	if c := r.k.Counters(); t.Failed() {
		t.Logf("seed %d: %+v", seed, c)
	}
	return accepted, refused, wrong
}

// modelShapes are the sizes of both engines.
var modelShapes = []struct {
	name       string
	self, peer topology.Shape
	rank       uint32
	bytes      uint64 // of a block of the owner's
	layers     int    // here
}{
	{"1:1", topology.Shape{TP: 1, PP: 1}, topology.Shape{TP: 1, PP: 1}, 0, blockLen, 1},
	{"1:2", topology.Shape{TP: 1, PP: 1}, topology.Shape{TP: 2, PP: 1}, 0, blockLen / 2, 1},
	{"2:1", topology.Shape{TP: 2, PP: 1}, topology.Shape{TP: 1, PP: 1}, 1, blockLen * 2, 1},
	{"4:2", topology.Shape{TP: 4, PP: 1}, topology.Shape{TP: 2, PP: 1}, 2, blockLen * 2, 1},
	{"2:4", topology.Shape{TP: 2, PP: 1}, topology.Shape{TP: 4, PP: 1}, 1, blockLen / 2, 1},
	{"MLA 1:2", topology.Shape{TP: 1, PP: 1}, topology.Shape{TP: 2, PP: 1}, 0, blockLen, 1},
	{"two stages", topology.Shape{TP: 1, PP: 1}, topology.Shape{TP: 1, PP: 2}, 0, blockLen, 2},
	{"two stages of two ranks", topology.Shape{TP: 1, PP: 1}, topology.Shape{TP: 2, PP: 2}, 0, blockLen / 2, 2},
}

func mark(epoch uint64, block, gen uint32) byte {
	return byte(epoch*31 + uint64(block)*7 + uint64(gen)*3 + 1)
}

func count(s, word string) int {
	n := 0
	for i := 0; i+len(word) <= len(s); i++ {
		if s[i:i+len(word)] == word {
			n++
		}
	}
	return n
}
