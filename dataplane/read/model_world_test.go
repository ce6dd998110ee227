package read

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

func newModel(t testing.TB, seed uint64, errWait time.Duration) *model {
	w := &model{rng: rand.New(rand.NewPCG(seed, 5)), native: true, now: 1, reads: map[uint64]*modelRead{}, rows: map[uint64]modelRow{}, ends: map[uint8]int{}}
	w.local = make([]uint64, modelRanks*modelBlocks*blockWords)
	w.holder = make([]uint64, modelBlocks)
	w.layout = layoutAt(addrOf(w.local), modelRanks, modelBlocks, blockWords*8)
	for r := range modelRanks {
		w.kv[r] = make([]uint64, modelBlocks*blockWords)
		w.owner[r] = make([]*modelLease, modelBlocks)
		w.base[r] = w.rng.Uint64() >> 2
		for s := range modelSlots {
			w.words[r][s] = w.base[r]
		}
	}
	if w.rng.IntN(2) == 0 { // not dense: word by word instead of merged
		w.layout.Regions[1].BlockLen -= 8
	}
	cfg := Config{
		ReadsMax: 12, RowsMax: 8, RunsMax: 2048, DescsStepMax: 1 + w.rng.IntN(10), PartsMax: 1 + w.rng.IntN(4), PostsStepMax: 1 + w.rng.IntN(6),
		EndsStepMax: 1 + w.rng.IntN(6), ReadTimeout: readTimeout, RowTimeout: 20 * time.Second, QuarantineErrorWait: errWait,
	}
	if w.rng.IntN(2) == 0 { // lists of some words are too long for a step
		cfg.PostBudget = time.Duration(10+w.rng.IntN(60)) * time.Microsecond
	}
	w.landing = make([]byte, LandingBytes(cfg))
	m, err := New(cfg, w, w.landing, w.layout)
	if err != nil {
		t.Fatal(err)
	}
	w.m = m
	return w
}

// grant leases free blocks of both ranks under a free slot, or does nothing.
func (w *model) grant() {
	slot := w.rng.IntN(modelSlots)
	if w.live[slot] != nil {
		return
	}
	l := &modelLease{stamp: uint64(len(w.leases) + 1), slot: slot, use: w.uses[slot]}
	for b := range modelBlocks {
		if w.owner[0][b] == nil && w.owner[1][b] == nil && len(l.blocks) < 1+w.rng.IntN(6) {
			l.blocks = append(l.blocks, uint32(b))
		}
	}
	if len(l.blocks) == 0 {
		return
	}
	w.uses[slot]++
	w.live[slot] = l
	w.leases = append(w.leases, l)
	for r := range modelRanks {
		for p, b := range l.blocks {
			w.owner[r][b] = l
			for k := range blockWords {
				w.kv[r][int(b)*blockWords+k] = content(l.stamp, r, p, k)
			}
		}
		w.words[r][slot] = max(w.words[r][slot], w.base[r]+l.use)
	}
}

// end lets one rank end a lease: first the word, then the blocks.
func (w *model) end() {
	l := w.live[w.rng.IntN(modelSlots)]
	r := w.rng.IntN(modelRanks)
	if l == nil || l.ended[r] {
		return
	}
	l.ended[r] = true
	w.words[r][l.slot] = max(w.words[r][l.slot], w.base[r]+l.use+1)
	for _, b := range l.blocks {
		w.owner[r][b] = nil
		if w.rng.IntN(2) == 0 { // reused at once
			for k := range blockWords {
				w.kv[r][int(b)*blockWords+k] = w.rng.Uint64()
			}
		}
	}
	if l.ended[0] && l.ended[1] {
		w.live[l.slot] = nil
	}
}

// read starts a read of a part of a recent lease.
func (w *model) read() {
	if len(w.leases) == 0 {
		return
	}
	l := w.leases[len(w.leases)-1-w.rng.IntN(min(len(w.leases), 4))]
	rd := &modelRead{lease: l}
	for b := range w.holder {
		if w.holder[b] == 0 && len(rd.local) < len(l.blocks) && w.rng.IntN(3) > 0 {
			rd.local = append(rd.local, uint32(b))
		}
	}
	if len(rd.local) == 0 {
		return
	}
	w.token++
	rd.token = w.token
	job, st := w.m.Begin(w.token, w.now)
	if st != OK {
		return
	}
	rd.job = job
	sources := make([]from, modelRanks)
	for r := range modelRanks {
		s := &sources[r]
		*s = from{Source: Source{Peer: transport.Peer(r + 1)}, First: r, Remote: layoutAt(kvBase*uint64(r+1), 1, modelBlocks, blockWords*8)}
		s.Remote.Regions[0].BlockLen = w.layout.Regions[r].BlockLen
		if w.native {
			s.Fence = Fence{Native: true, Addr: rowAddr(s.Peer, l.slot), Want: w.base[r] + l.use}
		}
	}
	if st := add(w.m, job, sources...); st != OK {
		w.violate("AddSource: %v %s", st, w.m.Why())
	}
	for k, b := range rd.local {
		rd.pos = append(rd.pos, k)
		st := w.m.AddRuns(job, []record.Run{{Local: b, Remote: l.blocks[k], N: 1}})
		if st != OK {
			w.violate("AddRuns: %v %s", st, w.m.Why())
		}
	}
	if w.rng.IntN(20) == 0 {
		w.m.Abort(job)
		return
	}
	if st := w.m.Commit(job, w.now); st != OK {
		w.violate("Commit: %v %s", st, w.m.Why())
	}
	for _, b := range rd.local {
		w.holder[b] = rd.token
	}
	w.reads[rd.token] = rd
}

func (w *model) free(rd *modelRead) {
	for _, b := range rd.local {
		if w.holder[b] == rd.token {
			w.holder[b] = 0
		}
	}
}

func (w *model) drain() {
	for o, ok := w.m.NextOutcome(); ok; o, ok = w.m.NextOutcome() {
		rd := w.reads[o.Token]
		if rd == nil {
			w.violate("second outcome of read %d", o.Token)
			continue
		}
		rd.job = 0
		w.ends[o.Status]++
		if o.Status == record.ReadOK {
			w.accepted++
			if o.BlocksHeld || o.Proven != w.native {
				w.violate("a good read with %+v", o)
			}
			w.check(rd)
		}
		if !o.BlocksHeld {
			w.free(rd)
			delete(w.reads, o.Token)
		} else if w.careless {
			w.free(rd)
		}
	}
	for token, ok := w.m.NextBack(); ok; token, ok = w.m.NextBack() {
		rd := w.reads[token]
		if rd == nil || rd.job != 0 {
			w.violate("blocks of read %d are back without an outcome that held them", token)
			continue
		}
		w.backs++
		w.free(rd)
		delete(w.reads, token)
	}
	for r, ok := w.m.NextRow(); ok; r, ok = w.m.NextRow() {
		q, known := w.rows[r.Token]
		if !known {
			w.violate("second result of row read %d", r.Token)
		}
		delete(w.rows, r.Token)
		if r.OK && (r.Row.Fence < q.least || r.Row.Fence > w.words[q.rank][q.slot]) {
			w.violate("row read %d gives %d, not a word of its row since the post", r.Token, r.Row.Fence)
		}
	}
}

func (w *model) check(rd *modelRead) {
	for r := range modelRanks {
		for k, b := range rd.local {
			for word := range int(w.layout.Regions[r].BlockLen / 8) {
				if w.local[(r*modelBlocks+int(b))*blockWords+word] != content(rd.lease.stamp, r, rd.pos[k], word) {
					w.wrong++
					return
				}
			}
		}
	}
}

// run moves the world n times.
func (w *model) run(n int) {
	for range n {
		switch w.rng.IntN(12) {
		case 0, 1:
			w.grant()
		case 2:
			w.end()
		case 3, 4, 5:
			w.read()
		case 6:
			r, s := w.rng.IntN(modelRanks), w.rng.IntN(modelSlots)
			w.token++
			if w.m.ReadRow(w.token, transport.Peer(r+1), rowAddr(transport.Peer(r+1), s), 0, transport.DRAM, record.RowLen, w.now) == OK {
				w.rows[w.token] = modelRow{r, s, w.words[r][s]}
			}
		case 7:
			for token := w.token; token > 0 && token+8 > w.token; token-- {
				if rd := w.reads[token]; rd != nil && rd.job != 0 && w.rng.IntN(3) == 0 {
					w.m.Cancel(rd.job, w.now)
					break
				}
			}
		case 8:
			w.now = w.now.Add(time.Duration(w.rng.IntN(10)) * time.Second)
			if w.rng.IntN(15) == 0 {
				w.now = w.now.Add(90 * time.Second)
			}
		case 9:
			if w.rng.IntN(10) == 0 { // healing: the connection is made anew, what is open goes on
				w.abandoned += w.m.Abandon(transport.Peer(1+w.rng.IntN(modelRanks)), w.now)
			}
		}
		for _, x := range w.xfers {
			if w.rng.IntN(2) == 0 {
				w.move(x, 1+w.rng.IntN(3))
			}
		}
		if w.rng.IntN(3) > 0 {
			w.m.Step(w.now)
			w.drain()
		} else if w.rng.IntN(3) == 0 {
			w.m.Post(w.now)
		}
		if w.violation != "" {
			return
		}
	}
}

// settle ends everything that can end and checks that nothing is left but what hangs for ever.
func (w *model) settle() {
	for range 400 {
		w.now = w.now.Add(5 * time.Second)
		for _, x := range w.xfers {
			w.move(x, 1<<30)
		}
		w.m.Step(w.now)
		w.drain()
	}
}
