package stream

import (
	"errors"
	"testing"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/ringbuf"
)

func TestRecordsComeOnceAndInOrderBothWays(t *testing.T) {
	forAll(t, kinds, func(t *testing.T, kind string) {
		g := attached(t, kind)
		rng := rng(t, 1)
		const records = 30_000
		type way struct {
			from, to  Carrier
			put, got  uint64
			sizes     []int
			untilSent uint64
		}
		for ways := []*way{{from: g.h, to: g.r, untilSent: records}, {from: g.r, to: g.h, untilSent: records}}; ways[0].got+ways[1].got < 2*records; {
			for _, w := range ways {
				for n := rng.IntN(20); n > 0 && w.put < w.untilSent; n-- {
					size := rng.IntN(100)
					if rng.IntN(20) == 0 {
						size = rng.IntN(ringbuf.PayloadBytesMax + 1)
					}
					if !w.from.Fits(size) {
						break
					}
					rec := w.from.Reserve(uint32(w.put), size)
					if rec == nil || len(rec) != size {
						t.Fatalf("record of %d bytes: %d, although it fits", size, len(rec))
					}
					putNumbered(rec, w.put)
					w.put++
					w.sizes = append(w.sizes, size)
				}
				w.from.Publish()
				g.carry()
				for n := rng.IntN(25); n > 0; n-- {
					tag, rec, ok := w.to.Next()
					if !ok {
						break
					}
					if tag != uint32(w.got) || len(rec) != w.sizes[w.got] {
						t.Fatalf("record %d of %d bytes, want %d of %d", tag, len(rec), w.got, w.sizes[w.got])
					}
					if err := checkNumbered(rec, w.got); err != nil {
						t.Fatal(err)
					}
					w.got++
				}
				w.to.Release()
			}
		}
		if g.h.Gap() || g.r.Gap() || g.h.Counters().Gaps != 0 {
			t.Errorf("gap %v, %v, counted %d: nothing was lost", g.h.Gap(), g.r.Gap(), g.h.Counters().Gaps)
		}
	})
}

func TestNothingReachesARankBeforeTheFirstFullState(t *testing.T) {
	forAll(t, kinds, func(t *testing.T, kind string) {
		g := newRig(t, kind)
		if rec := g.h.Reserve(record.TagCancel, 8); rec != nil && g.h.State() == Waiting {
			t.Fatal("room for a record although nobody is attached")
		}
		g.meet()
		for range 3 {
			if !g.h.Gap() {
				t.Fatal("no gap after the attach, before Begin")
			}
		}
		if g.h.Fits(8) || g.h.Reserve(record.TagCancel, 8) != nil {
			t.Error("room for a record before the full state")
		}
		if g.r.Gap() {
			t.Error("a rank's end tells a gap")
		}
		if _, ok := g.r.Begin(); ok {
			t.Error("a rank began a full state")
		}
		g.full()
		if g.h.Gap() {
			t.Error("a gap after Begin")
		}
	})
}

func TestAnOverflowIsAGapAndARankSeesNoHole(t *testing.T) {
	forAll(t, kinds, func(t *testing.T, kind string) {
		g := attached(t, kind)
		var put uint64
		for ; ; put++ {
			rec := g.h.Reserve(7, 1000)
			if rec == nil {
				break
			}
			putNumbered(rec, put)
			g.h.Publish() // not carried: the engine stands still
		}
		if put < 50 {
			t.Fatalf("room for %d records in %d bytes", put, g.cfg.RingBytes)
		}
		if !g.h.Gap() {
			t.Fatal("no gap after an overflow")
		}
		if _, ok := g.h.Begin(); ok {
			t.Fatal("a full state began without room")
		}
		g.carry()
		for got := uint64(0); ; got++ {
			_, rec, ok := g.r.Next()
			if !ok {
				if got != put {
					t.Errorf("%d records came of %d", got, put)
				}
				break
			}
			if err := checkNumbered(rec, got); err != nil {
				t.Fatal(err)
			}
			if g.r.Release(); g.h.Fits(8) || g.h.Reserve(7, 8) != nil {
				t.Fatal("a record went into the hole")
			}
		}
		if !g.h.Gap() {
			t.Fatal("the gap is over without a full state")
		}
		if c := g.h.Counters(); c.Gaps != 1 || c.Refused == 0 {
			t.Errorf("%d gaps, %d refused, want 1 and some", c.Gaps, c.Refused)
		}
		g.full()
	})
}

func TestARankKeepsWhatFindsNoRoom(t *testing.T) {
	forAll(t, kinds, func(t *testing.T, kind string) {
		g := attached(t, kind)
		const records = 2000
		var put, got uint64
		for refused := 0; got < records; {
			for put < records {
				rec := g.r.Reserve(record.TagRetired, 400)
				if rec == nil {
					refused++
					break
				}
				putNumbered(rec, put)
				put++
			}
			g.r.Publish()
			g.carry()
			for {
				_, rec, ok := g.h.Next()
				if !ok {
					break
				}
				if err := checkNumbered(rec, got); err != nil {
					t.Fatal(err)
				}
				got++
			}
			g.h.Release()
			if put == records && refused == 0 {
				t.Fatal("it never was without room: the run shows nothing")
			}
		}
		if g.h.Gap() {
			t.Error("a gap, although the rank kept all")
		}
	})
}

func TestWhatFitsHasRoomAndAFullRingFitsNothing(t *testing.T) {
	forAll(t, kinds, func(t *testing.T, kind string) {
		g := attached(t, kind)
		if !g.h.Fits(ringbuf.PayloadBytesMax) || g.h.Fits(1<<30) || g.h.Fits(-1) {
			t.Errorf("of an empty ring: greatest record %v, 1 GiB %v, -1 %v", g.h.Fits(ringbuf.PayloadBytesMax), g.h.Fits(1<<30), g.h.Fits(-1))
		}
		rng := rng(t, 2)
		for range 20_000 {
			n := rng.IntN(ringbuf.PayloadBytesMax + 1)
			if g.h.Fits(n) {
				if g.h.Reserve(7, n) == nil {
					t.Fatalf("no room for %d bytes that fit", n)
				}
				g.h.Publish()
				g.carry()
			}
			if rng.IntN(3) > 0 {
				g.r.Next()
				g.r.Release()
			}
			for kind == KindDelta && rng.IntN(10) == 0 {
				if _, _, ok := g.r.Next(); !ok {
					break
				}
				g.r.Release()
			}
		}
		if g.h.Gap() || g.h.Counters().Sent < 2000 {
			t.Errorf("gap %v, %d sent", g.h.Gap(), g.h.Counters().Sent)
		}
	})
}

func TestARecordStaysWhatItWasWhenItsWriterChangesIt(t *testing.T) {
	forAll(t, kinds, func(t *testing.T, kind string) {
		g := attached(t, kind)
		rec := g.r.Reserve(record.TagRetired, 64)
		putNumbered(rec, 5)
		g.r.Publish()
		g.carry()
		_, got, ok := g.h.Next()
		clear(rec)
		g.h.Release()
		if err := checkNumbered(got, 5); !ok || len(got) != 64 || err != nil {
			t.Errorf("%d bytes, %v, %v", len(got), ok, err)
		}
	})
}

func TestCallsDoNotAllocate(t *testing.T) {
	forAll(t, kinds, func(t *testing.T, kind string) {
		g := attached(t, kind)
		ways := [][2]Carrier{{g.h, g.r}, {g.r, g.h}}
		got := testing.AllocsPerRun(2000, func() {
			for i := range ways {
				from, to := ways[i][0], ways[i][1]
				to.Sleeping(true)
				to.Pending()
				for range 8 {
					if from.Fits(100) {
						putNumbered(from.Reserve(7, 100), 1)
					}
				}
				from.Publish()
				g.carry()
				to.Sleeping(false)
				for {
					if _, _, ok := to.Next(); !ok {
						break
					}
				}
				to.Release()
				to.State()
				to.Gap()
				to.Counters()
				to.Err()
			}
			if _, ok := g.h.Begin(); !ok {
				t.Fatal("no room")
			}
			g.h.Publish()
			g.carry()
			for {
				if _, _, ok := g.r.Next(); !ok {
					break
				}
			}
			g.r.Release()
		})
		if got != 0 {
			t.Errorf("%v allocations a run, want 0", got)
		}
		if c := g.h.Counters(); c.Received < 8*2000 || c.Fulls < 2000 || kind != KindDelta && c.Wakes == 0 {
			t.Errorf("the run shows nothing: %+v", c)
		}
	})
}

func TestEachRankHasItsOwnStream(t *testing.T) {
	forAll(t, kinds, func(t *testing.T, kind string) {
		g := newRig(t, kind, func(c *Config) { c.TP, c.PP, c.RingBytes = 16, 4, RingBytesMin })
		if g.host.Ranks() != 64 {
			t.Fatalf("%d ranks", g.host.Ranks())
		}
		g.meet()
		for i := range uint32(64) {
			h := g.host.End(i)
			if _, ok := h.Begin(); !ok {
				t.Fatalf("rank %d: no room", i)
			}
			putNumbered(h.Reserve(7, 16), uint64(i))
			h.Publish()
			putNumbered(g.ranks[i].Reserve(8, 16), uint64(i)+1000)
			g.ranks[i].Publish()
		}
		g.carry()
		for i := range uint32(64) {
			g.ranks[i].Next() // the mark
			tag, rec, _ := g.ranks[i].Next()
			if err := checkNumbered(rec, uint64(i)); tag != 7 || len(rec) != 16 || err != nil {
				t.Errorf("rank %d got tag %d: %v", i, tag, err)
			}
			tag, rec, _ = g.host.End(i).Next()
			if err := checkNumbered(rec, uint64(i)+1000); tag != 8 || len(rec) != 16 || err != nil {
				t.Errorf("host got tag %d from rank %d: %v", tag, i, err)
			}
		}
	})
}

func TestAConfigurationThatCannotBeIsRefused(t *testing.T) {
	good := Config{EngineID: "e", TP: 2, PP: 1, WakeFd: -1, RingBytes: RingBytesMin, Path: t.TempDir() + "/s"}
	for _, tc := range []struct {
		name   string
		change func(*Config)
	}{
		{"no engine", func(c *Config) { c.EngineID = "" }},
		{"no ranks", func(c *Config) { c.TP = 0 }},
		{"65 ranks", func(c *Config) { c.TP, c.PP = 13, 5 }},
		{"sizes whose product wraps to 1", func(c *Config) { c.TP, c.PP = 1<<31|1, 1<<31|1 }},
		{"a small ring", func(c *Config) { c.RingBytes = RingBytesMin / 2 }},
		{"a ring of no power of two", func(c *Config) { c.RingBytes = RingBytesMin + 8 }},
		{"a descriptor that is none", func(c *Config) { c.WakeFd = 1 << 20 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, kind := range kinds {
				cfg := good
				tc.change(&cfg)
				if h, err := OpenHost(kind, cfg); !errors.Is(err, ErrInvalid) {
					t.Errorf("%s host: %v, %v", kind, h, err)
				}
				if r, err := OpenRank(kind, cfg); !errors.Is(err, ErrInvalid) {
					t.Errorf("%s rank: %v, %v", kind, r, err)
				}
			}
		})
	}
	cfg := good
	cfg.Rank = 2
	if _, err := OpenRank(KindProcess, cfg); !errors.Is(err, ErrInvalid) {
		t.Errorf("rank 2 of 2: %v", err)
	}
	if _, err := OpenHost("pigeon", good); !errors.Is(err, ErrInvalid) {
		t.Errorf("a carrier of another kind: %v", err)
	}
}

// Whoever shows what waits is not the step.
func TestWhatHasComeAndWasNotTakenIsCountedBesideTheStep(t *testing.T) {
	forAll(t, kinds, func(t *testing.T, kind string) {
		g := attached(t, kind)
		if n, m := g.r.Untaken(), g.h.Untaken(); n != 0 || m != 0 {
			t.Errorf("%d and %d bytes of nothing", n, m)
		}
		putNumbered(g.h.Reserve(7, 100), 1)
		g.h.Publish()
		g.carry()
		beside := make(chan uint64)
		go func() { beside <- g.r.Untaken() }()
		if n := <-beside; n < 100 || n > 256 {
			t.Errorf("%d bytes of a record of 100", n)
		}
		if _, _, ok := g.r.Next(); !ok {
			t.Fatal("no record")
		}
		g.r.Release()
		if n := g.r.Untaken(); n != 0 {
			t.Errorf("%d bytes of what was taken", n)
		}
	})
}
