package stream

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvlease/kvlease/internal/await"
	"github.com/kvlease/kvlease/ringbuf"
)

// memoryOf is the memory that an end shares with the other.
func memoryOf(c Carrier) []byte {
	switch c := c.(type) {
	case *processEnd:
		return c.link.mem
	case *shmRank:
		return c.link.mem
	case *shmHostEnd:
		return c.link.mem
	}
	return nil
}

// spots are where a lie does most: words of the link and of both rings, and the first records.
func spots(mem []byte) []int {
	ring := int(*word32(mem, offLinkRing))
	at := []int{0, 4, offLinkRing, offAsleepHost, offAsleepRank}
	for _, base := range []int{linkHeadBytes, linkHeadBytes + ringSpan(uint32(ring))} {
		for _, off := range []int{0, 4, 8, 64, 72, 128} {
			at = append(at, base+off)
		}
		for off := 0; off < 512; off += 8 {
			at = append(at, base+ringbuf.HeaderBytes+off)
		}
	}
	return at
}

// scribble writes one lie.
func scribble(rng *rand.Rand, mem []byte, at []int) {
	switch rng.IntN(4) {
	case 0:
		atomic.StoreUint32(word32(mem, rng.IntN(len(mem)/4)*4), rng.Uint32())
	case 1:
		w := word32(mem, at[rng.IntN(len(at))])
		atomic.StoreUint32(w, atomic.LoadUint32(w)+uint32(rng.IntN(4096))-2048)
	case 2:
		atomic.StoreUint32(word32(mem, at[rng.IntN(len(at))]), uint32(rng.IntN(1<<16)))
	default:
		atomic.StoreUint32(word32(mem, at[rng.IntN(len(at))]), ^uint32(0))
	}
}

// use runs what a step does, and reports whether reading ended by itself.
func use(c Carrier, rng *rand.Rand, ringBytes uint32) bool {
	c.Begin()
	for range rng.IntN(5) {
		if rec := c.Reserve(7, rng.IntN(ringbuf.PayloadBytesMax+1)); rec != nil {
			clear(rec)
		}
	}
	c.Publish()
	c.Sleeping(true)
	c.Pending()
	c.Sleeping(false)
	c.Gap()
	c.State()
	for range ringBytes/8 + 2 {
		if _, _, ok := c.Next(); !ok {
			c.Release()
			return true
		}
	}
	return false
}

func TestMemoryThatLiesEndsTheStreamAndNothingElse(t *testing.T) {
	forAll(t, []string{KindProcess, KindShm}, func(t *testing.T, kind string) {
		rng := rng(t, 9)
		corrupt := 0
		for range 150 {
			g := attached(t, kind, func(c *Config) { c.RingBytes = RingBytesMin })
			mem := memoryOf(g.r)
			at := spots(mem)
			for range 40 {
				for range rng.IntN(3) {
					scribble(rng, mem, at)
				}
				for _, c := range []Carrier{g.h, g.r} {
					if !use(c, rng, RingBytesMin) {
						t.Fatal("more records than the ring has room for")
					}
				}
			}
			if errors.Is(g.h.Err(), ErrCorrupt) {
				corrupt++
				await.True(t, "the other end hears of it", func() bool { return g.r.State() == Lost })
			}
			g.host.Close()
			g.r.Close()
		}
		if t.Logf("%d of 150 were noticed", corrupt); corrupt < 30 {
			t.Errorf("the lies hit nothing: %d of 150", corrupt)
		}
	})
}

// Without it a rank whose tail lies would look like one that stands still, for ever.
func TestATailThatNoReaderCouldHaveWrittenEndsTheStream(t *testing.T) {
	forAll(t, []string{KindProcess, KindShm}, func(t *testing.T, kind string) {
		g := attached(t, kind)
		atomic.StoreUint32(word32(memoryOf(g.r), linkHeadBytes+128+4), 1) // 4 GiB ahead
		for range 3 * g.cfg.RingBytes / 1000 {
			if g.h.Reserve(7, 992) == nil {
				break
			}
			g.h.Publish()
		}
		if g.h.State() != Lost || !errors.Is(g.h.Err(), ErrCorrupt) {
			t.Errorf("%v, %v", g.h.State(), g.h.Err())
		}
	})
}

func TestAWriterThatNeverStopsHoldsUpNobody(t *testing.T) {
	forAll(t, []string{KindProcess, KindShm}, func(t *testing.T, kind string) {
		rng := rng(t, 10)
		for seed := range uint64(20) {
			g := attached(t, kind, func(c *Config) { c.RingBytes = RingBytesMin })
			mem := memoryOf(g.r)
			at := spots(mem)
			var stop atomic.Bool
			var done sync.WaitGroup
			done.Go(func() {
				own := rand.New(rand.NewPCG(seed, 3))
				for !stop.Load() {
					scribble(own, mem, at)
				}
			})
			for range 300 {
				use(g.h, rng, RingBytesMin)
			}
			stop.Store(true)
			done.Wait()
			g.host.Close()
			g.r.Close()
		}
	})
}

// What stands in the ring when a rank is lost is at most a ring full, whoever still writes.
func TestALostRankThatStillWritesIsReadToItsEnd(t *testing.T) {
	g := attached(t, KindShm, func(c *Config) { c.RingBytes = RingBytesMin })
	r := g.r.(*shmRank)
	g.h.(*shmHostEnd).broke() // the connection ends, the rank's view stays
	await.True(t, "lost", func() bool { return g.h.State() == Lost })
	got := 0
	for range 10_000 {
		if rec := r.link.tx.Reserve(7, 56); rec != nil {
			r.link.tx.Publish()
		}
		if _, _, ok := g.h.Next(); !ok {
			break
		}
		g.h.Release()
		got++
	}
	if got == 0 || got > RingBytesMin/64 || g.h.Pending() {
		t.Errorf("%d records of 64 bytes after the loss, the ring holds %d", got, RingBytesMin/64)
	}
}

func FuzzLies(f *testing.F) {
	f.Add([]byte{64, 0, 0, 0, 1, 0, 0, 0})
	f.Add([]byte{0x40, 0x10, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x00, 0x11, 0, 0, 8, 0, 0, 0})
	f.Fuzz(func(t *testing.T, lies []byte) {
		g := attached(t, KindProcess, func(c *Config) { c.RingBytes, c.WakeFd = RingBytesMin, -1 })
		rng := rand.New(rand.NewPCG(1, 1))
		mem := memoryOf(g.h)
		for ; len(lies) >= 8; lies = lies[8:] {
			off := int(binary.LittleEndian.Uint32(lies)) % (len(mem) / 4) * 4
			atomic.StoreUint32(word32(mem, off), binary.LittleEndian.Uint32(lies[4:]))
			if !use(g.h, rng, RingBytesMin) || !use(g.r, rng, RingBytesMin) {
				t.Fatal("more records than the ring has room for")
			}
		}
		g.host.Close()
		g.r.Close()
	})
}

func FuzzPut(f *testing.F) {
	seed := attached(f, KindDelta, func(c *Config) { c.EngineID = "fuzz" })
	f.Add(take(f, seed.openRank(0, -1)), true, true)
	putNumbered(seed.h.Reserve(7, 100), 1)
	seed.h.Publish()
	f.Add(take(f, seed.h), false, true)
	putNumbered(seed.r.Reserve(7, 100), 1)
	seed.r.Publish()
	f.Add(take(f, seed.r), true, false)
	f.Fuzz(func(t *testing.T, msg []byte, toHost, fix bool) {
		g := attached(t, KindDelta, func(c *Config) { c.EngineID, c.WakeFd = "fuzz", -1 })
		to := g.r
		if toHost {
			to = g.h
		}
		d, other := to.(*deltaEnd), g.h.(*deltaEnd)
		if toHost {
			other = g.r.(*deltaEnd)
		}
		if fix && len(msg) >= msgHeadBytes { // reach what stands behind the checks of who speaks
			binary.LittleEndian.PutUint32(msg[20:], uint32(len(msg)))
			binary.LittleEndian.PutUint64(msg[24:], other.self)
			binary.LittleEndian.PutUint64(msg[32:], d.self)
		}
		for range 3 {
			to.(Delta).Put(msg)
			for range deltaRingBytesMin / 8 {
				if _, _, ok := to.Next(); !ok {
					break
				}
			}
			to.Release()
			to.Gap()
			to.Begin()
			to.Publish()
			var b [MessageBytesMax]byte
			if n, err := to.(Delta).Take(b[:]); err != nil || n > 0 && n < msgHeadBytes {
				t.Fatalf("%d, %v", n, err)
			}
		}
		g.host.Close()
		g.r.Close()
	})
}

func FuzzSocketMessages(f *testing.F) {
	var b [shmMsgBytes]byte
	putHello(b[:], hello{engineHash("e"), 1, 2, 1})
	f.Add(b[:])
	f.Add(answerTo(nil, engineHash("e"), 1<<20))
	f.Add(answerTo(takenError(&Config{EngineID: "e"}, 3), engineHash("e"), 0))
	f.Fuzz(func(t *testing.T, msg []byte) {
		if h, err := parseHello(msg, engineHash("e")); err == nil {
			var b [shmMsgBytes]byte
			if putHello(b[:], h); string(b[:28]) != string(msg[:28]) {
				t.Fatalf("%x is put as %x", msg[:28], b[:28])
			}
		}
		parseAnswer(msg, engineHash("e"))
	})
}
