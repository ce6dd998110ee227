package read

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

const budget = time.Millisecond

// posting is what a post takes on some transport.
type posting struct{ desc, kib time.Duration }

var (
	overShm  = posting{desc: time.Microsecond, kib: 300 * time.Nanosecond}
	overTCP  = posting{desc: 4 * time.Microsecond}
	overRDMA = posting{desc: 100 * time.Nanosecond}
	slowWire = posting{kib: 3 * time.Microsecond}
)

func (p posting) of(s *transport.ReadSpec) (took time.Duration) {
	for i := range s.Descs {
		took += p.desc + p.kib*time.Duration(s.Descs[i].Len)/1024
	}
	return took
}

// newPaced is a machine whose posts take time, over regions of blocks blocks.
func newPaced(t *testing.T, how posting, regions int, blocks uint32, blockLen uint64) *bench {
	t.Helper()
	f := &fake{t: t, remote: map[uint64]uint64{}, takes: how.of}
	return newBenchOver(t, Config{PostBudget: budget}, f, f, layoutAt(0x4000_0000, regions, blocks, blockLen))
}

// far is a source with the blocks of the machine, gap bytes apart.
func (b *bench) far(peer transport.Peer, gap uint64) from {
	s := b.source(peer, 0, len(b.m.local.Regions))
	l := &b.m.local.Regions[0]
	s.Remote = layoutAt(kvBase*uint64(peer), len(b.m.local.Regions), l.Blocks, l.BlockLen)
	for i := range s.Remote.Regions {
		s.Remote.Regions[i].BlockStride += gap
	}
	return s
}

// dataSince are the data parts posted from the n-th post on.
func (b *bench) dataSince(n int) (parts []*fakeXfer) {
	for _, x := range b.f.posted[n:] {
		if !isFence(x) {
			parts = append(parts, x)
		}
	}
	return parts
}

// pass steps once, and gives the data parts that it has posted.
func (b *bench) pass() []*fakeXfer {
	at := b.posts()
	b.step(time.Millisecond)
	return b.dataSince(at)
}

func (p posting) sum(parts []*fakeXfer) (took time.Duration) {
	for _, x := range parts {
		took += p.of(&x.spec)
	}
	return took
}

// A long list is posted over several steps, none of which takes longer than the budget, and its parts make up the list.
func TestNoStepPostsForLongerThanTheBudget(t *testing.T) {
	for _, tc := range []struct {
		name     string
		how      posting
		blocks   uint32
		blockLen uint64
		gap      uint64
		passes   int // at least
	}{
		{"small blocks, shared memory", overShm, 8192, 4 << 10, 64, 15},
		{"blocks of 64 KiB, shared memory", overShm, 1024, 64 << 10, 64, 18},
		{"blocks longer than a step, shared memory", overShm, 8, 16 << 20, 64, 30},
		{"one descriptor for all, shared memory", overShm, 1024, 64 << 10, 0, 18},
		{"small blocks, TCP", overTCP, 4096, 4 << 10, 64, 16},
		{"large blocks, TCP", overTCP, 1024, 1 << 20, 64, 4},
		{"a slow wire, whose steps end with less than a piece", slowWire, 4, 1 << 20, 64, 10},
		{"no work", posting{}, 8192, 64 << 10, 64, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newPaced(t, tc.how, 1, tc.blocks, tc.blockLen)
			b.f.onPost = b.f.land
			for token := range uint64(3) { // of a peer that is not known, then of one that is
				at, passes := b.posts(), 0
				b.commit(token, tc.blocks, b.far(1, tc.gap))
				for ended := false; !ended; passes++ {
					parts := b.pass()
					if took := tc.how.sum(parts); took > budget+budget/10 && (tc.how != slowWire || token+uint64(passes) > 0) { // of which nothing is known
						t.Fatalf("read %d: pass %d posts for %v, the budget is %v", token, passes, took, budget)
					}
					for k := range parts {
						if took := tc.how.sum(parts[:k]); took > budget-budget/leftLeast {
							t.Fatalf("read %d: pass %d begins part %d when it has posted for %v", token, passes, k, took)
						}
					}
					if len(parts) > 24 {
						t.Fatalf("read %d: pass %d makes %d posts", token, passes, len(parts))
					}
					if o := b.outcome(); o != nil {
						ended = true
						if o.Status != record.ReadOK || !o.Proven || o.BlocksHeld || o.Bytes != uint64(tc.blocks)*tc.blockLen {
							t.Fatalf("outcome %+v", *o)
						}
					}
					if passes > 2000 {
						t.Fatal("the read does not end")
					}
				}
				if passes < tc.passes || token > 0 && passes > 3*tc.passes {
					t.Errorf("read %d took %d passes, want about %d", token, passes, tc.passes)
				}
				b.wantWhole(b.dataSince(at), tc.blocks, tc.blockLen, tc.gap)
			}
			b.wantIdle()
		})
	}
}

// wantWhole checks that parts read each block of the first region from its place, each byte once.
func (b *bench) wantWhole(parts []*fakeXfer, blocks uint32, blockLen, gap uint64) {
	b.t.Helper()
	var descs []transport.Desc
	for _, x := range parts {
		descs = append(descs, x.spec.Descs...)
	}
	slices.SortFunc(descs, func(a, b transport.Desc) int { return cmp.Compare(a.Local, b.Local) })
	at := b.m.local.Regions[0].Addr
	for _, d := range descs {
		off := d.Local - b.m.local.Regions[0].Addr
		if d.Local != at || d.Remote != kvBase+off+off/blockLen*gap || gap > 0 && off%blockLen+d.Len > blockLen {
			b.t.Fatalf("descriptor %+v, want the one at %#x from its block", d, at)
		}
		if gap > 0 && d.Len < cutLeast && (off+d.Len)%blockLen != 0 {
			b.t.Fatalf("descriptor %+v is a crumb of a block", d)
		}
		at += d.Len
	}
	if end := b.m.local.Regions[0].Addr + uint64(blocks)*blockLen; at != end {
		b.t.Fatalf("the parts end at %#x, the blocks at %#x", at, end)
	}
}

// What fits into a step is one post, as without a budget: for a peer that is not known if it is short, else once it is.
func TestAListThatFitsIsOnePost(t *testing.T) {
	b := newPaced(t, overShm, 1, 1024, 64<<10)
	b.f.onPost = b.f.land
	read := func(token uint64, n uint32) int {
		b.commit(token, n, b.far(1, 64))
		parts := b.pass()
		b.wantOutcome(token, record.ReadOK, false)
		return len(parts)
	}
	if n := read(1, 12); n != 1 {
		t.Errorf("12 blocks of a new peer are %d posts", n)
	}
	for token := range uint64(10) {
		read(token, 24)
	}
	if n := read(2, 44); n != 1 { // 0.9 ms
		t.Errorf("44 blocks are %d posts", n)
	}
	b.wantIdle()
}

func TestWithoutABudgetALongListIsOnePost(t *testing.T) {
	f := &fake{t: t, remote: map[uint64]uint64{}, takes: overShm.of}
	b := newBenchOver(t, Config{}, f, f, layoutAt(0x4000_0000, 1, 1024, 1<<20))
	f.onPost = f.land
	b.commit(1, 1024, b.far(1, 64))
	if parts := b.pass(); len(parts) != 1 || parts[0].spec.Timed {
		t.Errorf("%d parts, or one that is timed", len(parts))
	}
	b.wantOutcome(1, record.ReadOK, false)
}

// The budget is the step's and not a read's. A long read leaves most of it to the others, so that a short one is posted in its first step.
func TestShortReadsAreNotHeldUpByALongOne(t *testing.T) {
	b := newPaced(t, overShm, 1, 1024, 64<<10)
	b.f.onPost = b.f.land
	b.commit(1, 1024, b.far(1, 64))
	for range 4 {
		b.pass()
	}
	const shorts = 6
	for token := range uint64(shorts) {
		b.commit(2+token, 2, b.far(transport.Peer(2+token), 64))
	}
	for passes := 1; ; passes++ {
		parts := b.pass()
		if took := overShm.sum(parts); took > budget+budget/10 {
			t.Fatalf("a pass of several reads posts for %v", took)
		}
		if passes == 1 {
			for range shorts {
				o := b.outcome()
				if o == nil || o.Token == 1 || o.Status != record.ReadOK {
					t.Fatalf("outcome %+v, want the short reads in the pass after them", o)
				}
			}
		}
		if len(parts) == 0 {
			t.Fatal("the long read stands still")
		}
		if o := b.outcome(); o != nil {
			if o.Token != 1 || o.Status != record.ReadOK {
				t.Fatalf("outcome %+v", *o)
			}
			break
		}
	}
	b.wantIdle()
}

// Who finds too little left of a step has the next one's first part: it would wait for as long as others have more to post.
func TestAReadThatFindsTooLittleLeftComesFirstNext(t *testing.T) {
	b := newPaced(t, overShm, 1, 1024, 64<<10)
	b.f.onPost = b.f.land
	b.f.takes = func(s *transport.ReadSpec) time.Duration {
		if s.Peer == 2 {
			return time.Millisecond // a piece of its blocks is a whole step
		}
		return overShm.of(s)
	}
	for token := range uint64(3) {
		b.commit(token, 1024, b.far(1, 64))
	}
	b.m.paces.of(2).byteNs = 20
	b.commit(9, 4, b.far(2, 64))
	waits := 0
	for passes := range 16 {
		at := slices.IndexFunc(b.pass(), func(x *fakeXfer) bool { return x.spec.Peer == 2 })
		if waits++; at >= 0 {
			waits = 0
		}
		if o := b.outcome(); o != nil && o.Token == 9 {
			return
		}
		if waits > 1 {
			t.Fatalf("pass %d: the read finds no place in two passes", passes)
		}
	}
	t.Error("the read of four blocks has not ended")
}

// Many reads at once share the step, however short each is.
func TestManyReadsSideBySideShareTheBudget(t *testing.T) {
	const reads = 200
	f := &fake{t: t, remote: map[uint64]uint64{}, takes: overShm.of}
	b := newBenchOver(t, Config{PostBudget: budget, ReadsMax: reads, RunsMax: reads * runsPiece}, f, f, layoutAt(0x4000_0000, 1, 64, 4096))
	f.onPost = f.land
	for token := range uint64(reads) {
		b.commit(token, 1, b.far(transport.Peer(1+token%7), 64))
	}
	done := 0
	for passes := 0; done < reads; passes++ {
		if parts := b.pass(); len(parts) == 0 || len(parts) > int(float64(budget)/partNs)+1 {
			t.Fatalf("pass %d: %d posts", passes, len(parts))
		}
		for o := b.outcome(); o != nil; o = b.outcome() {
			if o.Status != record.ReadOK {
				t.Fatalf("outcome %+v", *o)
			}
			done++
		}
	}
	b.wantIdle()
}

// A list that is refused was made all the same, and each of these reads has one.
func TestReadsThatAreRefusedShareTheBudget(t *testing.T) {
	const reads = 200
	for _, refused := range []error{transport.ErrInvalid, transport.ErrRange} {
		f := &fake{t: t, remote: map[uint64]uint64{}, postErr: refused}
		b := newBenchOver(t, Config{PostBudget: budget, ReadsMax: reads, RunsMax: reads * runsPiece}, f, f, layoutAt(0x4000_0000, 1, 64, 4096))
		for token := range uint64(reads) {
			b.commit(token, 1, b.far(transport.Peer(1+token%7), 64))
		}
		for done := 0; done < reads; {
			before := b.m.Counters.PostErrors
			b.step(time.Millisecond)
			if n := b.m.Counters.PostErrors - before; n == 0 || n > uint64(float64(budget)/partNs)+1 {
				t.Fatalf("%v: a step makes %d lists", refused, n)
			}
			for o := b.outcome(); o != nil; o = b.outcome() {
				done++
			}
		}
		b.wantIdle()
	}
}

// Whatever a post says it took, the pace stays within its bounds and a step posts something.
func TestAPaceThatIsToldNonsenseStillPosts(t *testing.T) {
	b := newPaced(t, overShm, 1, 1024, 64<<10)
	b.f.onPost = b.f.land
	for n, took := range []time.Duration{time.Hour, -time.Hour, 0, 1, 1 << 62, -1 << 62, time.Hour, time.Hour, time.Hour, time.Hour, time.Hour} {
		b.f.takes = func(*transport.ReadSpec) time.Duration { return took }
		b.commit(uint64(n), 1024, b.far(1, 64))
		for o := b.outcome(); o == nil; o = b.outcome() {
			if parts := b.pass(); len(parts) == 0 {
				t.Fatalf("told %v, a step posts nothing", took)
			}
		}
		if p := *b.m.paces.of(1); !(p.descNs >= descNsLeast && p.descNs <= descNsMost && p.byteNs >= byteNsLeast && p.byteNs <= byteNsMost) {
			t.Fatalf("told %v, the pace is %+v", took, p)
		}
	}
	b.f.takes = overShm.of // and comes back from it
	b.commit(99, 1024, b.far(1, 64))
	passes := 0
	for ; b.outcome() == nil; passes++ {
		b.pass()
	}
	if passes > 100 {
		t.Errorf("%d passes for a read of 20 ms", passes)
	}
	b.wantIdle()
}

// Peers are many and the table is not: one that is new in a place begins anew.
func TestPacesArePeersOwn(t *testing.T) {
	table := newPaces(64)
	for range 20 {
		table.of(3).learn(100, 100<<10, 100*overTCP.desc)
		table.of(4).learn(100, 100<<10, 100*overRDMA.desc)
	}
	tcp, rdma := table.of(3).costNs(100, 100<<10), table.of(4).costNs(100, 100<<10)
	if tcp < 390e3 || tcp > 410e3 || rdma < 9e3 || rdma > 20e3 {
		t.Errorf("100 blocks take %.0f ns over TCP and %.0f over RDMA", tcp, rdma)
	}
	if p := table.of(3 + 64); p.descNs != descNsFirst || p.byteNs != byteNsFirst {
		t.Errorf("a new peer begins at %+v", *p)
	}
	if p := table.of(3); p.descNs != descNsFirst {
		t.Errorf("the peer that it took the place of begins at %+v", *p)
	}
}

// Other lists than those that a peer is known by are not posted as if they cost nothing.
func TestAPaceOfOneKindOfListIsNoSurpriseForAnother(t *testing.T) {
	const blockLen = 1 << 20
	for _, how := range []posting{overShm, overTCP, overRDMA} {
		b := newPaced(t, how, 1, 256, blockLen)
		b.f.onPost = b.f.land
		for token := range uint64(5) { // few long ones: the bytes are learned
			b.commit(token, 256, b.far(1, 64))
			for b.outcome() == nil {
				b.pass()
			}
		}
		p := *b.m.paces.of(1)
		small := transport.ReadSpec{Descs: slices.Repeat([]transport.Desc{{Len: 4096}}, 256)}
		if guess, is := p.costNs(256, 256*4096), float64(how.of(&small)); guess < is/3 {
			t.Errorf("%+v: 256 blocks of 4 KiB take %.0f ns, %.0f are expected", how, is, guess)
		}
	}
}
