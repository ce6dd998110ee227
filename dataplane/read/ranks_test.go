package read

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// model of a KV cache: what stands where, whoever holds it.
type cache struct {
	layers, blocks int
	heads          uint32 // of the model
	headLen        uint64
	parts          uint32
	mla            func(layer int) bool // every rank holds the layer whole
}

// at is the byte of a block, by what it is and not by where it lies.
func (c *cache) at(engine, layer, block int, part, head uint32, b uint64) byte {
	x := uint64(engine)*1_000_003 + uint64(layer)*7919 + uint64(block)*104_729 + uint64(part)*31_337 + uint64(head)*257 + b*13
	return byte(x ^ x>>8 ^ x>>17)
}

// layersOf gives the layers of a stage.
func (c *cache) layersOf(stage, stages int) (first, n int) {
	per := (c.layers + stages - 1) / stages
	first = min(stage*per, c.layers)
	return first, min(per, c.layers-first)
}

// headsOf gives the heads of a rank, by the definition of the protocol.
func (c *cache) headsOf(tp, ranks uint32, layer int) (out []uint32) {
	if c.mla(layer) {
		return []uint32{0}
	}
	for h := range c.heads {
		if c.heads >= ranks && h*ranks/c.heads == tp || c.heads < ranks && tp*c.heads/ranks == h {
			out = append(out, h)
		}
	}
	return out
}

// rank is one rank of an engine on the loopback.
type rank struct {
	c      *cache
	engine int
	shape  topology.Shape
	no     uint32
	kv     []byte
	layout *Layout
	agent  *loopback.Agent
	board  []byte
	row    *record.Row
}

const rankWant = 5000 // base + g of every lease in these tests

func newRank(t rapid.TB, hub *loopback.Hub, c *cache, engine int, shape topology.Shape, no uint32, stride uint64, told, named bool) *rank {
	t.Helper()
	r := &rank{c: c, engine: engine, shape: shape, no: no, layout: &Layout{}}
	first, n := c.layersOf(int(no/shape.TP), int(shape.PP))
	size := uint64(0)
	for layer := first; layer < first+n; layer++ {
		blockLen := uint64(c.parts) * uint64(len(c.headsOf(no%shape.TP, shape.TP, layer))) * c.headLen
		g := Region{Addr: size, BlockLen: blockLen, BlockStride: blockLen + stride, Blocks: uint32(c.blocks), Group: -1}
		if told {
			g.Parts, g.Replicated = c.parts, c.mla(layer)
		}
		if named {
			g.Name = fmt.Sprintf("model.layers.%d", layer)
		}
		r.layout.Regions = append(r.layout.Regions, g)
		size += uint64(c.blocks)*g.BlockStride + 64
	}
	r.kv = make([]byte, size)
	for i := range r.layout.Regions {
		r.layout.Regions[i].Addr += record.Addr(r.kv)
	}
	var err error
	if r.agent, err = hub.New(fmt.Sprintf("e%d-%d", engine, no), loopback.Config{}); err != nil {
		t.Fatal(err)
	}
	r.board = make([]byte, record.BoardHeadLen+record.RowLen)
	_, rows := record.Board(r.board)
	r.row = &rows[0]
	record.Raise(&r.row.Fence, rankWant)
	for _, mem := range [][]byte{r.kv, r.board} {
		if err := r.agent.Register([]transport.Region{{Addr: record.Addr(mem), Bytes: uint64(len(mem))}}); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// each calls f with every byte of every block of the rank: its place in kv, and what should stand there.
func (r *rank) each(f func(layer, block int, at uint64, content func(engine, block int) byte)) {
	first, _ := r.c.layersOf(int(r.no/r.shape.TP), int(r.shape.PP))
	for i := range r.layout.Regions {
		g := &r.layout.Regions[i]
		heads := r.c.headsOf(r.no%r.shape.TP, r.shape.TP, first+i)
		for block := range r.c.blocks {
			at := g.Addr - record.Addr(r.kv) + uint64(block)*g.BlockStride
			for part := range r.c.parts {
				for _, h := range heads {
					for b := range r.c.headLen {
						f(first+i, block, at, func(engine, block int) byte { return r.c.at(engine, first+i, block, part, h, b) })
						at++
					}
				}
			}
		}
	}
}

// ranksLab is two engines: every rank of the owner, and one rank of the reader with its machine.
type ranksLab struct {
	*bench
	hub     *loopback.Hub
	owners  []*rank // those that are reached, in the order of Reach
	peers   []transport.Peer
	maps    []*Map
	me      *rank
	landing []byte
}

type ranksCase struct {
	name          string
	reader, owner topology.Shape
	cache
	told        bool // parts and replicated
	kvHeads     uint32
	named       bool
	here, there uint64 // what strides are longer than blocks
	config      Config
}

func newRanksLab(t rapid.TB, tc *ranksCase, r uint32) *ranksLab {
	t.Helper()
	if tc.layers == 0 {
		tc.layers = 4
	}
	tc.blocks = 24
	if tc.headLen == 0 {
		tc.headLen = 16
	}
	if tc.mla == nil {
		tc.mla = func(int) bool { return false }
	}
	l := &ranksLab{hub: loopback.NewHub()}
	l.me = newRank(t, l.hub, &tc.cache, 1, tc.reader, r, tc.here, tc.told, tc.named)
	cfg := tc.config
	cfg.ReadsMax, cfg.RowsMax, cfg.RunsMax, cfg.ReadTimeout, cfg.QuarantineErrorWait = 8, 8, 4096, readTimeout, errorWait
	l.landing = make([]byte, LandingBytes(cfg))
	if err := l.me.agent.Register([]transport.Region{{Addr: record.Addr(l.landing), Bytes: uint64(len(l.landing))}}); err != nil {
		t.Fatal(err)
	}
	m, err := New(cfg, l.me.agent, l.landing, l.me.layout)
	if err != nil {
		t.Fatal(err)
	}
	l.bench = &bench{t: t, m: m}
	reach, err := topology.Reach(tc.reader, tc.owner, r)
	if err != nil {
		t.Fatal(err)
	}
	var remotes []Remote
	for _, o := range reach {
		p := newRank(t, l.hub, &tc.cache, 2, tc.owner, o, tc.there, tc.told, tc.named)
		p.each(func(_, block int, at uint64, content func(int, int) byte) { p.kv[at] = content(2, block) })
		l.owners = append(l.owners, p)
		remotes = append(remotes, Remote{o, p.layout})
		blob, err := p.agent.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		peer, err := l.me.agent.Load(blob)
		if err != nil {
			t.Fatal(err)
		}
		l.peers = append(l.peers, peer)
	}
	if l.maps, err = NewMaps(l.me.layout, tc.reader, r, tc.owner, tc.kvHeads, remotes); err != nil {
		t.Fatal(err)
	}
	return l
}

// begin starts a read of runs from every rank that gives something.
func (l *ranksLab) begin(token uint64, runs []record.Run) {
	l.t.Helper()
	j, st := l.m.Begin(token, l.now)
	l.ok(st)
	for i, how := range l.maps {
		if how == nil {
			continue
		}
		l.ok(l.m.AddSource(j, Source{
			Peer: l.peers[i], Map: how,
			Fence: Fence{Native: true, Addr: record.Addr(l.owners[i].board) + record.BoardHeadLen, Want: rankWant},
		}))
	}
	l.ok(l.m.AddRuns(j, runs))
	l.ok(l.m.Commit(j, l.now))
}

// end steps until the read has its outcome.
func (l *ranksLab) end() Outcome {
	l.t.Helper()
	for range 10_000 {
		l.step(1)
		if o := l.outcome(); o != nil {
			return *o
		}
	}
	l.t.Fatal("the read does not end")
	return Outcome{}
}

// check compares every byte of this rank: what was read, and what must not have been touched.
func (l *ranksLab) check(runs []record.Run) {
	l.t.Helper()
	from := map[int]int{} // local block -> remote block
	for _, r := range runs {
		for i := range r.N {
			from[int(r.Local+i)] = int(r.Remote + i)
		}
	}
	want := make([]byte, len(l.me.kv))
	for i := range want {
		want[i] = 0xee
	}
	l.me.each(func(_, block int, at uint64, content func(int, int) byte) {
		if remote, ok := from[block]; ok {
			want[at] = content(2, remote)
		}
	})
	for i := range want {
		if l.me.kv[i] != want[i] {
			l.t.Fatalf("rank %d: byte %d of the cache is %#x, want %#x", l.me.no, i, l.me.kv[i], want[i])
		}
	}
}

// bytesOf is what the blocks of runs have in all regions of this rank.
func (l *ranksLab) bytesOf(runs []record.Run) (bytes uint64) {
	for _, run := range runs {
		for i := range l.me.layout.Regions {
			bytes += uint64(run.N) * l.me.layout.Regions[i].BlockLen
		}
	}
	return bytes
}

// clean fills this rank's memory with what no content is compared to.
func (l *ranksLab) clean() {
	for i := range l.me.kv {
		l.me.kv[i] = 0xee
	}
}

func someRuns(rng *rand.Rand, blocks int) []record.Run {
	remotes := rng.Perm(blocks)
	runs := []record.Run{{Local: 1, Remote: 3, N: 5}} // contiguous on both sides
	for i := 8; i < blocks-2; i += 1 + rng.IntN(3) {
		runs = append(runs, record.Run{Local: uint32(i), Remote: uint32(remotes[i]), N: 1})
	}
	return runs
}

func TestEveryByteComesFromTheRankThatHasItsHead(t *testing.T) {
	const seed = 17
	t.Logf("seed %d", seed)
	s := func(tp, pp uint32) topology.Shape { return topology.Shape{TP: tp, PP: pp} }
	all := func(int) bool { return true }
	for _, tc := range []ranksCase{
		{name: "1 from 1", reader: s(1, 1), owner: s(1, 1), cache: cache{heads: 8, parts: 1}},
		{name: "1 from 2", reader: s(1, 1), owner: s(2, 1), cache: cache{heads: 8, parts: 1}, kvHeads: 8, told: true},
		{name: "1 from 2, heads not told", reader: s(1, 1), owner: s(2, 1), cache: cache{heads: 8, parts: 1}},
		{name: "2 from 1", reader: s(2, 1), owner: s(1, 1), cache: cache{heads: 8, parts: 1}, kvHeads: 8, told: true},
		{name: "2 from 1, heads not told", reader: s(2, 1), owner: s(1, 1), cache: cache{heads: 8, parts: 1}},
		{name: "2 from 4, keys and values in one block", reader: s(2, 1), owner: s(4, 1), cache: cache{heads: 8, parts: 2}, kvHeads: 8, told: true},
		{name: "4 from 2, keys and values in one block", reader: s(4, 1), owner: s(2, 1), cache: cache{heads: 8, parts: 2}, kvHeads: 8, told: true},
		{name: "1 from 8", reader: s(1, 1), owner: s(8, 1), cache: cache{heads: 8, parts: 2}, kvHeads: 8, told: true},
		{name: "8 from 1", reader: s(8, 1), owner: s(1, 1), cache: cache{heads: 8, parts: 2}, kvHeads: 8, told: true},
		{name: "other strides here", reader: s(1, 1), owner: s(2, 1), cache: cache{heads: 4, parts: 2}, kvHeads: 4, told: true, here: 40},
		{name: "other strides there", reader: s(2, 1), owner: s(1, 1), cache: cache{heads: 4, parts: 2}, kvHeads: 4, told: true, there: 24},
		{name: "other strides on both sides, equal sizes", reader: s(2, 1), owner: s(2, 1), cache: cache{heads: 4, parts: 2}, kvHeads: 4, told: true, here: 8, there: 24},
		{name: "fewer heads than ranks", reader: s(1, 1), owner: s(8, 1), cache: cache{heads: 2, parts: 1}, kvHeads: 2, told: true},
		{name: "fewer heads than ranks on both sides", reader: s(8, 1), owner: s(4, 1), cache: cache{heads: 2, parts: 2}, kvHeads: 2, told: true},
		{name: "fewer heads than ranks, readers with more", reader: s(4, 1), owner: s(8, 1), cache: cache{heads: 4, parts: 2}, kvHeads: 4, told: true},
		{name: "MLA, told by flag", reader: s(1, 1), owner: s(4, 1), cache: cache{heads: 16, parts: 1, mla: all}, kvHeads: 16, told: true},
		{name: "MLA, seen by equal lengths", reader: s(2, 1), owner: s(8, 1), cache: cache{heads: 16, parts: 1, mla: all}},
		{name: "MLA on a larger reader", reader: s(4, 1), owner: s(1, 1), cache: cache{heads: 16, parts: 1, mla: all}},
		{name: "MLA beside heads", reader: s(1, 1), owner: s(4, 1), cache: cache{heads: 8, parts: 2, mla: func(l int) bool { return l%2 == 1 }}, kvHeads: 8, told: true},
		{name: "MLA beside heads, nothing told but parts", reader: s(2, 1), owner: s(4, 1), cache: cache{heads: 8, parts: 1, mla: func(l int) bool { return l%2 == 0 }}},
		{name: "one stage from two, by order", reader: s(1, 1), owner: s(1, 2), cache: cache{heads: 2, parts: 1}},
		{name: "one stage from two, by name", reader: s(1, 1), owner: s(1, 2), cache: cache{heads: 2, parts: 1}, named: true},
		{name: "two stages from one, by name", reader: s(1, 2), owner: s(1, 1), cache: cache{heads: 2, parts: 1}, named: true},
		{name: "three stages from two, by name", reader: s(1, 3), owner: s(1, 2), cache: cache{heads: 2, parts: 2, layers: 7}, named: true},
		{name: "two stages from two", reader: s(1, 2), owner: s(1, 2), cache: cache{heads: 2, parts: 1}},
		{name: "two ranks of one stage from four of two", reader: s(2, 1), owner: s(4, 2), cache: cache{heads: 8, parts: 2}, kvHeads: 8, told: true, there: 16},
		{name: "four ranks of two stages from two of one", reader: s(4, 2), owner: s(2, 1), cache: cache{heads: 8, parts: 2}, kvHeads: 8, told: true, named: true},
		{name: "one rank from sixteen of two stages", reader: s(1, 1), owner: s(8, 2), cache: cache{heads: 8, parts: 2}, kvHeads: 8, told: true},
		{name: "in parts of few descriptors", reader: s(1, 1), owner: s(4, 1), cache: cache{heads: 4, parts: 2}, kvHeads: 4, told: true, config: Config{DescsStepMax: 7, PartsMax: 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(len(tc.name))))
			for r := range tc.reader.Ranks() {
				l := newRanksLab(t, &tc, r)
				l.clean()
				runs := someRuns(rng, tc.blocks)
				l.begin(1, runs)
				o := l.end()
				if o.Status != record.ReadOK || !o.Proven || o.BlocksHeld {
					t.Fatalf("rank %d: outcome %+v", r, o)
				}
				l.check(runs)
				if bytes := l.bytesOf(runs); o.Bytes != bytes {
					t.Errorf("rank %d: %d bytes landed, the blocks have %d: a byte was read twice or never", r, o.Bytes, bytes)
				}
				l.wantIdle()
			}
		})
	}
}

// Of ranks that hold the same, one is read from; the others have nothing for us, and their fences are not asked.
func TestOnlyRanksThatGiveSomethingAreSources(t *testing.T) {
	tc := ranksCase{reader: topology.Shape{TP: 1, PP: 1}, owner: topology.Shape{TP: 4, PP: 1}, cache: cache{heads: 1, parts: 1, mla: func(int) bool { return true }}, told: true}
	l := newRanksLab(t, &tc, 0)
	sources := 0
	for i, how := range l.maps {
		if how != nil {
			sources++
			if how.Rank != l.owners[i].no {
				t.Errorf("the map of rank %d says %d", l.owners[i].no, how.Rank)
			}
		} else {
			record.Raise(&l.owners[i].row.Fence, rankWant+1) // ended there already: nothing was read from it
		}
	}
	if sources != 1 {
		t.Fatalf("%d sources, want 1", sources)
	}
	l.clean()
	runs := []record.Run{{Local: 2, Remote: 5, N: 3}}
	l.begin(1, runs)
	if o := l.end(); o.Status != record.ReadOK || !o.Proven {
		t.Errorf("outcome %+v", o)
	}
	l.check(runs)
}

func TestOneBadFenceOfSeveralMakesTheReadStale(t *testing.T) {
	for bad := range 8 {
		tc := ranksCase{reader: topology.Shape{TP: 1, PP: 1}, owner: topology.Shape{TP: 4, PP: 2}, cache: cache{heads: 8, parts: 2}, kvHeads: 8, told: true}
		l := newRanksLab(t, &tc, 0)
		record.Raise(&l.owners[bad].row.Fence, rankWant+1)
		l.begin(1, []record.Run{{N: 4}})
		if o := l.end(); o.Status != record.ReadStale || o.Proven || o.Peer != l.peers[bad] {
			t.Errorf("rank %d has ended its lease: outcome %+v, want stale by peer %d", bad, o, l.peers[bad])
		}
	}
}

// A connection breaks under a read from four ranks, and another one never ends. The engine is told at once, no block comes back before
// the last transfer has landed, and the peers can be loaded again meanwhile.
func TestAPeerResetUnderAReadOfSeveralSourcesIsHealedWithoutTheBlocks(t *testing.T) {
	tc := ranksCase{reader: topology.Shape{TP: 1, PP: 1}, owner: topology.Shape{TP: 4, PP: 1}, cache: cache{heads: 8, parts: 2}, kvHeads: 8, told: true}
	l := newRanksLab(t, &tc, 0)
	l.clean()
	l.me.agent.HoldReads(true)
	runs := []record.Run{{Local: 4, N: 6}}
	l.begin(1, runs)
	l.step(1)
	if l.m.Gauges().Pending != 4 {
		t.Fatalf("gauges %+v", l.m.Gauges())
	}
	l.hub.Cut("e1-0", "e2-2")
	l.hub.Stop("e2-3")
	l.me.agent.HoldReads(false)
	l.step(1)
	l.wantNone() // ranks 0 and 1 have landed, 2 has failed, 3 is silent: the outcome waits for it or for healing
	if pending, aside := l.m.InFlight(l.peers[2]); pending != 0 || aside != 1 {
		t.Fatalf("of the cut peer %d are pending, %d aside", pending, aside)
	}
	for _, i := range []int{2, 3} {
		l.m.Abandon(l.peers[i], l.now)
		if err := l.me.agent.Abandon(l.peers[i]); err != nil {
			t.Fatal(err)
		}
		blob, err := l.owners[i].agent.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		if l.peers[i], err = l.me.agent.Load(blob); err != nil {
			t.Fatal(err)
		}
	}
	o := l.outcome()
	if o == nil || o.Status != record.ReadFailed || !o.BlocksHeld {
		t.Fatalf("outcome %+v", o)
	}
	l.step(errorWait + 1) // the quarantine of the failed one is over
	l.wantNone()
	// The engine keeps those blocks aside and reads others, over the new connections.
	l.hub.Resume("e2-3")
	l.step(1)
	l.wantBack(1)
	l.clean()
	l.begin(2, runs)
	if o := l.end(); o.Status != record.ReadOK || !o.Proven {
		t.Fatalf("outcome of the read after healing %+v", o)
	}
	l.check(runs)
	l.wantIdle()
}
