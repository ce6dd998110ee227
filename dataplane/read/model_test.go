package read

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// The model: two source ranks that lease blocks, end the leases, and write over the blocks at once; a transport that
// copies word by word at random times, goes on after time-outs and cancels, fails while it still writes, and hangs; a
// driver that reads into local blocks and gives them out again when the machine says so. A checker knows for each local
// block which read owns it and sees every write.

const (
	modelRanks  = 2
	modelSlots  = 6
	modelBlocks = 24 // of a rank, and here
	blockWords  = 2
)

type modelWord struct{ local, remote uint64 }

type modelXfer struct {
	peer     transport.Peer
	owner    uint64 // token of the read that owned the local blocks at the post; 0: a landing row
	left     []modelWord
	status   transport.Status
	hang     bool          // no end for long, or ever
	failing  bool          // will end by an error
	until    clock.Instant // writes nothing any more from then on
	released bool
	notEarly clock.Instant
}

type modelLease struct {
	stamp  uint64
	slot   int
	use    uint64 // g
	blocks []uint32
	ended  [modelRanks]bool
}

type modelRead struct {
	token uint64
	job   Job
	lease *modelLease
	pos   []int // positions of the lease that are read
	local []uint32
}

type modelRow struct {
	rank, slot int
	least      uint64 // the word at the post
}

// model is the world and the transport in it.
type model struct {
	fake
	rng     *rand.Rand
	now     clock.Instant
	m       *Machine
	kv      [modelRanks][]uint64
	words   [modelRanks][modelSlots]uint64
	base    [modelRanks]uint64
	uses    [modelSlots]uint64
	owner   [modelRanks][]*modelLease // of a rank's block
	live    [modelSlots]*modelLease
	leases  []*modelLease
	local   []uint64
	layout  *Layout
	landing []byte
	holder  []uint64 // of a local block: the token of its read; 0: free
	xfers   []*modelXfer
	reads   map[uint64]*modelRead
	rows    map[uint64]modelRow
	token   uint64

	native    bool // false is a positive control: no fence
	careless  bool // a positive control: the driver does not wait for NextBack
	wrong     int  // data accepted that is not the lease's
	violation string
	accepted  int
	ends      map[uint8]int
	backs     int
	abandoned int
}

func (w *model) violate(format string, args ...any) {
	if w.violation == "" {
		w.violation = fmt.Sprintf(format, args...)
	}
}

func content(stamp uint64, rank, pos, word int) uint64 {
	return stamp<<16 | uint64(rank)<<12 | uint64(pos)<<4 | uint64(word)
}

func (w *model) remoteWord(peer transport.Peer, addr uint64) uint64 {
	r := int(peer) - 1
	if addr >= boardBase {
		slot := int(addr-rowAddr(peer, 0)) / record.RowLen
		if addr&31 != 0 {
			return 0
		}
		return w.words[r][slot]
	}
	return w.kv[r][(addr-kvBase*uint64(peer))/8]
}

// blockOf gives the local block that an address is in, or -1 for landing memory.
func (w *model) blockOf(addr uint64) int {
	at := int64(addr-w.layout.Regions[0].Addr) / 8
	if at < 0 || at >= int64(len(w.local)) {
		return -1
	}
	return int(at) / blockWords % modelBlocks
}

func (w *model) PostRead(s *transport.ReadSpec) (transport.Xfer, error) {
	switch w.rng.IntN(40) {
	case 0:
		return 0, transport.ErrFull
	case 1:
		return 0, transport.ErrPeer
	}
	x := &modelXfer{peer: s.Peer, notEarly: w.now}
	for _, d := range s.Descs {
		for at := uint64(0); at < d.Len; at += 8 {
			x.left = append(x.left, modelWord{d.Local + at, d.Remote + at})
		}
		if b := w.blockOf(d.Local); b >= 0 {
			x.owner = w.holder[b]
			if x.owner == 0 {
				w.violate("a read was posted into block %d that nobody owns", b)
			}
			continue
		}
		for _, o := range w.xfers { // a landing row has one writer
			if o.until <= w.now || o.owner != 0 {
				continue
			}
			for _, l := range o.left {
				if l.local-d.Local < record.RowLen {
					w.violate("a landing row was used again while its read may write it")
				}
			}
		}
	}
	w.rng.Shuffle(len(x.left), func(i, j int) { x.left[i], x.left[j] = x.left[j], x.left[i] })
	x.until = clock.Never
	switch w.rng.IntN(12) {
	case 0:
		x.failing = true
	case 1:
		x.hang = true
		x.notEarly = w.now.Add(time.Duration(w.rng.IntN(200)) * time.Second)
	}
	w.xfers = append(w.xfers, x)
	if w.rng.IntN(8) == 0 {
		w.move(x, 1<<30) // ends inside its post
	}
	return transport.Xfer(len(w.xfers)), nil
}

// move lets a transfer copy up to n words and come to its end.
func (w *model) move(x *modelXfer, n int) {
	if x.status == transport.Done || w.now >= x.until {
		return
	}
	for ; n > 0 && len(x.left) > 0; n-- {
		l := x.left[len(x.left)-1]
		x.left = x.left[:len(x.left)-1]
		if b := w.blockOf(l.local); b >= 0 && w.holder[b] != x.owner {
			w.violate("block %d of read %d is written by a transfer of read %d", b, w.holder[b], x.owner)
		}
		*wordAt(l.local) = w.remoteWord(x.peer, l.remote)
	}
	switch {
	case x.status != transport.Pending || w.now < x.notEarly:
	case x.failing && w.rng.IntN(3) == 0:
		x.status = transport.Failed
		x.until = w.now.Add(errorWait * 9 / 10)
	case !x.failing && len(x.left) == 0 && (!x.hang || w.rng.IntN(4) == 0):
		x.status = transport.Done
	}
}

func (w *model) PollReads(xs []transport.Xfer, out []transport.Status, spin int64) {
	for i, h := range xs {
		x := w.xfers[h-1]
		if x.released {
			w.violate("a released handle was polled")
		}
		if spin > 0 && w.rng.IntN(2) == 0 {
			w.move(x, 4)
		}
		out[i] = x.status
	}
}

func (w *model) Release(h transport.Xfer) error {
	x := w.xfers[h-1]
	if x.status == transport.Pending || x.released || x.status == transport.Failed && w.now < x.until {
		w.violate("handle of a transfer that may still write was released: %+v", *x)
	}
	x.released = true
	return nil
}

func TestNoStaleDataIsAcceptedAndNoBlockIsWrittenAfterItsReturn(t *testing.T) {
	accepted, backs, abandoned := 0, 0, 0
	ends := map[uint8]int{}
	seeds := uint64(150)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		w := newModel(t, seed, errorWait)
		w.run(600)
		if w.violation == "" {
			w.settle()
		}
		if w.violation != "" {
			t.Fatalf("seed %d: %s", seed, w.violation)
		}
		if w.wrong > 0 {
			t.Fatalf("seed %d: wrong data accepted", seed)
		}
		g := w.m.Gauges()
		if g.Reads+g.Pending+g.Aside+g.Held+g.BlocksHeld+len(w.reads)+len(w.rows) != 0 || w.m.peers.n != 0 {
			t.Fatalf("seed %d: left over: %+v, %d reads, %d rows", seed, g, len(w.reads), len(w.rows))
		}
		accepted += w.accepted
		backs += w.backs
		abandoned += w.abandoned
		for s, n := range w.ends {
			ends[s] += n
		}
	}
	t.Logf("%d seeds: %d accepted, %d holds ended, %d transfers abandoned, outcomes %v", seeds, accepted, backs, abandoned, ends)
	for _, s := range []uint8{record.ReadOK, record.ReadStale, record.ReadUnproven, record.ReadFailed, record.ReadTimeout, record.ReadCancelled} {
		if ends[s] == 0 {
			t.Errorf("no read ended with status %d: the model does not reach it", s)
		}
	}
	if backs == 0 || abandoned == 0 {
		t.Error("no hold ended, or nothing was abandoned")
	}
}

// Without these the model could be blind.
func TestTheModelSeesWhatItIsToSee(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(w *model)
		wait  time.Duration
		seen  func(w *model) bool
	}{
		{"without the fence wrong data is accepted", func(w *model) { w.native = false }, errorWait, func(w *model) bool { return w.wrong > 0 }},
		{"without the error wait blocks are written after their return", func(*model) {}, 1, func(w *model) bool { return w.violation != "" }},
		{"blocks freed at the outcome are written afterwards", func(w *model) { w.careless = true }, errorWait, func(w *model) bool { return w.violation != "" }},
	} {
		seen := 0
		for seed := range uint64(60) {
			w := newModel(t, seed, tc.wait)
			tc.spoil(w)
			w.run(600)
			if tc.seen(w) {
				seen++
			}
		}
		t.Logf("%s: %d of 60 seeds", tc.name, seen)
		if seen == 0 {
			t.Errorf("%s: not seen in any seed", tc.name)
		}
	}
}
