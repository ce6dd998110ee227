package simnet_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/transport"
)

const ms = time.Millisecond

// A slow read: its pieces land between 1 and 101 ms.
var slow = simnet.Link{Delay: ms, DescTime: 99 * ms}

func TestAReadSeesWhatIsWrittenWhileItRuns(t *testing.T) {
	mixed, firstOld, firstNew := 0, 0, 0
	seeds(60, func(seed uint64) {
		w := newWorld(t, seed, simnet.Link{Delay: ms, DescTime: 10 * ms})
		fill(w.memP, 1)
		x := w.post(w.desc(0, 256), w.desc(512, 256), w.desc(1024, 256), w.desc(2048, 256))
		w.after(20 * ms)
		fill(w.memP, 2)
		if w.end(x) != transport.Done {
			t.Fatal("the read failed")
		}
		old, fresh := count(w.memD, 1), count(w.memD, 2)
		if old+fresh != 4*256 {
			t.Fatalf("%d bytes of before and %d of after, want 1024 in all", old, fresh)
		}
		if old > 0 && fresh > 0 {
			mixed++
		}
		if w.memD[0] == 1 && w.memD[2048] == 2 {
			firstOld++
		}
		if w.memD[0] == 2 && w.memD[2048] == 1 {
			firstNew++
		}
	})
	if mixed < 50 || firstOld == 0 || firstNew == 0 {
		t.Errorf("%d of 60 reads are mixed; the first block before the last %d times, after it %d times", mixed, firstOld, firstNew)
	}
}

// What the fence relies on, and what it may not rely on.
func TestOnlyAReadPostedAfterAnotherHasEndedIsOrderedBehindIt(t *testing.T) {
	older := 0
	seeds(200, func(seed uint64) {
		w := newWorld(t, seed, simnet.Link{Delay: ms, Jitter: 5 * ms, Torn: 0.5})
		data, row := w.desc(0, 4096), w.desc(8192, 8)
		x, y := w.post(data), w.post(row)
		for version := byte(1); w.status(x) == transport.Pending || w.status(y) == transport.Pending; version++ {
			fill(w.memP, version)
			w.after(100 * time.Microsecond)
		}
		newest := byte(0)
		for _, b := range w.memD[:4096] {
			newest = max(newest, b)
		}
		if w.memD[8192] < newest {
			older++
		}
		w.end(x)
		w.end(y)
		w.end(w.post(row))
		if bytes.ContainsFunc(w.memD[8192:8200], func(r rune) bool { return byte(r) < newest }) {
			t.Errorf("seed %d: a read posted after one that saw version %d has ended sees version %d", seed, newest, w.memD[8192])
		}
	})
	if older == 0 {
		t.Error("of two reads posted together the second is never the older one")
	}
}

func TestARowComesWordByWordAndTornByteByByte(t *testing.T) {
	for _, tc := range []struct {
		name           string
		link           simnet.Link
		words, inWords bool // words differ from each other; bytes differ within a word
	}{
		{"an ordinary link", simnet.Link{Delay: ms}, true, false},
		{"a link that tears", simnet.Link{Delay: ms, Torn: 1}, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			words, inWords := false, false
			seeds(50, func(seed uint64) {
				w := newWorld(t, seed, tc.link)
				x := w.post(w.desc(0, 32))
				for version := byte(1); w.status(x) == transport.Pending; version++ {
					fill(w.memP, version)
					w.after(50 * time.Microsecond)
				}
				for k := range 4 {
					words = words || w.memD[8*k] != w.memD[0]
					inWords = inWords || count(w.memD[8*k:8*k+8], w.memD[8*k]) != 8
				}
			})
			if words != tc.words || inWords != tc.inWords {
				t.Errorf("words differ: %v, bytes of a word differ: %v, want %v and %v", words, inWords, tc.words, tc.inWords)
			}
		})
	}
}

// Late landing: pieces go on after an error, whatever is done to the handle, the peer and the agent.
func TestAFailedReadGoesOnLanding(t *testing.T) {
	for name, then := range map[string]func(*world, transport.Xfer){
		"while its handle is kept": func(*world, transport.Xfer) {},
		"after release":            func(w *world, x transport.Xfer) { w.must(w.d.Release(x)) },
		"after abandon": func(w *world, x transport.Xfer) {
			w.must(w.d.Abandon(w.toP))
			w.must(w.d.Release(x))
			w.toP = w.load(w.d, w.blob)
		},
		"after release and drop": func(w *world, x transport.Xfer) {
			w.must(w.d.Release(x))
			w.must(w.d.Drop(w.toP))
		},
		"after the reader's agent is closed": func(w *world, x transport.Xfer) { w.must(w.d.Close()) },
		"after the memory is deregistered": func(w *world, x transport.Xfer) {
			w.must(w.d.Release(x))
			w.must(w.d.Unregister([]transport.Region{{Addr: addr(w.memD), Bytes: memBytes}}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 5, slow)
			fill(w.memP, 1)
			x := w.post(w.desc(0, 4096), w.desc(8192, 4096))
			w.after(70 * ms)
			w.net.FailReads("D", "P")
			if st := w.status(x); st != transport.Failed {
				t.Fatalf("status %d after the error, want Failed", st)
			}
			before := count(w.memD, 1)
			then(w, x)
			if !w.d.MayWrite(addr(w.memD), memBytes) {
				t.Error("nothing may be written any more, it says")
			}
			fill(w.memP, 2)
			w.after(time.Second)
			if late := count(w.memD, 2); before == 0 || late == 0 || before+late != 8192 {
				t.Errorf("%d bytes before the error and %d after it, want some of each, 8,192 in all", before, late)
			}
			if w.d.MayWrite(addr(w.memD), memBytes) {
				t.Error("it may still be written, it says")
			}
			if w.net.Counters().LatePieces == 0 {
				t.Error("no late piece was counted")
			}
			if _, reads, _ := w.net.Open(); reads > 1 || reads == 1 && name != "while its handle is kept" {
				t.Errorf("%d reads are open at the end", reads)
			}
		})
	}
}

func TestAReadGoesOnAfterAbandonAndIsDone(t *testing.T) {
	w := newWorld(t, 1, slow)
	fill(w.memP, 1)
	x := w.post(w.desc(0, 4096))
	w.after(10 * ms)
	w.must(w.d.Abandon(w.toP))
	w.toP = w.load(w.d, w.blob)
	if w.end(x) != transport.Done || count(w.memD, 1) != 4096 {
		t.Errorf("%d bytes landed, want 4,096 and Done", count(w.memD, 1))
	}
}

func TestALinkThatFailsReadsLandsTheRestLater(t *testing.T) {
	within, late := 0, 0
	seeds(50, func(seed uint64) {
		link := slow
		link.ReadFail, link.Late = 1, 5*time.Second
		w := newWorld(t, seed, link)
		fill(w.memP, 1)
		x := w.post(w.desc(0, 4096), w.desc(8192, 4096))
		if st := w.end(x); st != transport.Failed {
			t.Fatalf("seed %d: status %d, want Failed", seed, st)
		}
		before := count(w.memD, 1)
		w.after(100 * ms)
		if n := count(w.memD, 1); n > before {
			within++
		}
		before = count(w.memD, 1)
		w.after(6 * time.Second)
		if n := count(w.memD, 1); n > before {
			late++
		}
		if n := count(w.memD, 1); n != 8192 {
			t.Errorf("seed %d: %d bytes in the end, want 8,192", seed, n)
		}
	})
	t.Logf("bytes within 100 ms in %d, later in %d of 50", within, late)
	if late < 25 || within > 10 {
		t.Errorf("bytes within 100 ms after the error in %d of 50 seeds, later in %d; want them spread over 5 s", within, late)
	}
}

func TestNothingLandsBetweenAnErrorAndTheLatePieces(t *testing.T) {
	early, late := 0, 0
	seeds(50, func(seed uint64) {
		link := slow
		link.Late = 5 * time.Second
		w := newWorld(t, seed, link)
		fill(w.memP, 1)
		x := w.post(w.desc(0, 4096), w.desc(8192, 4096))
		w.after(30 * ms)
		w.net.FailReads("D", "P")
		before := count(w.memD, 1)
		if w.after(100 * ms); count(w.memD, 1) > before {
			early++
		}
		if w.after(6 * time.Second); count(w.memD, 1) > before {
			late++
		}
		w.end(x)
	})
	if early > 10 || late < 40 {
		t.Errorf("bytes within 100 ms in %d of 50 seeds, bytes at all in %d", early, late)
	}
}

// A reader's quarantine counts from the error, 30 s at least.
func TestALongReadThatFailsEarlyLandsNothingOnceTheTransportHasGivenUp(t *testing.T) {
	w := newWorld(t, 4, simnet.Link{Delay: ms, DescTime: 15 * time.Second})
	fill(w.memP, 1)
	var descs []transport.Desc
	for i := range 4 { // a minute of it
		descs = append(descs, w.desc(i*4096, 4096))
	}
	x := w.post(descs...)
	w.after(time.Second)
	w.net.FailReads("D", "P")
	w.after(21 * time.Second)
	before := count(w.memD, 1)
	if before == 0 {
		t.Error("nothing landed within 21 s of the error")
	}
	w.after(2 * time.Minute)
	if n := count(w.memD, 1); n != before {
		t.Errorf("%d bytes landed later than 21 s after the error", n-before)
	}
	w.end(x)
}

func TestAReadThatFailsWhileItIsSpunForGoesOnLanding(t *testing.T) {
	w := newWorld(t, 3, simnet.Link{Delay: 100 * time.Microsecond, Torn: 1})
	w.net.InterceptReads(func(*simnet.Posted) simnet.ReadFate { return simnet.ReadFate{Fail: true, After: 0.5} })
	fill(w.memP, 1)
	x, out := w.post(w.desc(0, 32)), make([]transport.Status, 1)
	w.d.PollReads([]transport.Xfer{x}, out, int64(ms))
	before := count(w.memD, 1)
	w.after(ms)
	if out[0] != transport.Failed || before != 16 || count(w.memD, 1) != 32 || w.d.MayWrite(addr(w.memD), 32) {
		t.Errorf("status %d, %d bytes at the error, %d in the end; want Failed, 16 and 32", out[0], before, count(w.memD, 1))
	}
}

func TestMayWriteKnowsEveryPiece(t *testing.T) {
	seeds(20, func(seed uint64) {
		w := newWorld(t, seed, slow)
		x := w.post(w.desc(100, 1000), w.desc(5000, 1))
		fill(w.memP, 1)
		if w.d.MayWrite(addr(w.memD), 100) || w.d.MayWrite(addr(w.memD)+1100, 3900) || w.d.MayWrite(addr(w.memD)+5001, 100) {
			t.Error("it may write where it was not told to")
		}
		for w.net.NextEvent() != clock.Never {
			for i := range memBytes {
				inside := i >= 100 && i < 1100 || i == 5000
				if may := w.d.MayWrite(addr(w.memD)+uint64(i), 1); may != (inside && w.memD[i] == 0) {
					t.Fatalf("seed %d: byte %d is %d and may be written: %v", seed, i, w.memD[i], may)
				}
			}
			w.net.Advance(w.net.NextEvent())
		}
		w.end(x)
	})
}

func TestAnAttachedNotificationLeavesOnlyWhenTheReaderPolls(t *testing.T) {
	w := newWorld(t, 1, simnet.Link{Delay: ms})
	fill(w.memP, 1)
	x, err := w.d.PostRead(&transport.ReadSpec{Peer: w.toP, Descs: []transport.Desc{w.desc(0, 4096)}, Notif: []byte("a:1")})
	w.must(err)
	w.after(time.Minute)
	if n := count(w.memD, 1); n != 4096 || w.p.Queued() != 0 {
		t.Fatalf("%d bytes and %d notifications before a poll, want 4,096 and none", n, w.p.Queued())
	}
	for range 2 {
		if w.status(x) != transport.Done {
			t.Fatal("the read is not Done")
		}
	}
	w.after(time.Minute)
	if got := w.got(w.p); len(got) != 1 || got[0] != "a:1" {
		t.Errorf("got %q, want it once", got)
	}
}

func TestAnAttachedNotificationOverALostConnectionFailsTheRead(t *testing.T) {
	w := newWorld(t, 1, simnet.Link{Delay: ms})
	x, err := w.d.PostRead(&transport.ReadSpec{Peer: w.toP, Descs: []transport.Desc{w.desc(0, 4096)}, Notif: []byte("a:1")})
	w.must(err)
	w.after(time.Minute)
	w.net.Reset("D", "P")
	if st := w.end(x); st != transport.Failed {
		t.Errorf("status %d, want Failed", st)
	}
	if w.after(time.Minute); w.p.Queued() != 0 {
		t.Error("it arrived")
	}
}

func TestAReadWaitsForNotificationsThatThePeerHasNotPolled(t *testing.T) {
	w := newWorld(t, 1, simnet.Link{Delay: ms, Flush: true})
	free := w.post(w.desc(0, 8))
	w.must(w.send("beat"))
	behind := w.post(w.desc(0, 8))
	w.after(time.Minute)
	if w.status(free) != transport.Done || w.status(behind) != transport.Pending {
		t.Fatalf("status %d and %d, want Done and Pending", w.status(free), w.status(behind))
	}
	w.must(w.send("beat")) // sent after it: of no matter
	w.after(ms)
	w.in.Reset()
	w.p.Poll(w.in)
	w.after(5 * ms)
	if w.status(behind) != transport.Done {
		t.Error("the poll did not let it go on")
	}
}

func TestHeldReadsGoOnWhereTheyStood(t *testing.T) {
	w := newWorld(t, 1, slow)
	fill(w.memP, 1)
	x := w.post(w.desc(0, 4096), w.desc(8192, 4096))
	w.after(70 * ms)
	w.net.HoldReads("D", true)
	w.after(time.Hour)
	n := count(w.memD, 1)
	if n == 0 || n == 8192 || w.status(x) != transport.Pending {
		t.Fatalf("%d bytes of a held read have landed, status %d", n, w.status(x))
	}
	fill(w.memP, 2)
	w.net.HoldReads("D", false)
	if w.end(x) != transport.Done || count(w.memD, 1) != n || count(w.memD, 2) != 8192-n {
		t.Errorf("%d and %d bytes of before and after, want %d before", count(w.memD, 1), count(w.memD, 2), n)
	}
}

func TestSpinningEndsTheReadsThatEndNext(t *testing.T) {
	w := newWorld(t, 1, simnet.Link{Delay: 100 * time.Microsecond})
	fill(w.memP, 1)
	x, y := w.post(w.desc(0, 8)), transport.Xfer(0)
	w.net.SetLink("D", "P", simnet.Link{Delay: 110 * time.Microsecond})
	y = w.post(w.desc(8, 8))
	xs, out := []transport.Xfer{x, y}, make([]transport.Status, 2)
	now := w.net.Now()
	for _, tc := range []struct {
		spin time.Duration
		want [2]transport.Status
	}{
		{0, [2]transport.Status{transport.Pending, transport.Pending}},
		{199 * time.Microsecond, [2]transport.Status{transport.Pending, transport.Pending}},
		{300 * time.Microsecond, [2]transport.Status{transport.Done, transport.Pending}},
		{300 * time.Microsecond, [2]transport.Status{transport.Done, transport.Pending}}, // one has ended: no spinning
	} {
		if w.d.PollReads(xs, out, int64(tc.spin)); [2]transport.Status(out) != tc.want {
			t.Errorf("a spin of %v gives %v, want %v", tc.spin, out, tc.want)
		}
	}
	if w.d.PollReads(xs[1:], out[1:], int64(300*time.Microsecond)); out[1] != transport.Done || w.net.Now() != now {
		t.Errorf("status %d after a spin for it, %v later", out[1], w.net.Now().Sub(now))
	}
	if count(w.memD, 1) != 16 {
		t.Error("they are Done and the bytes are not there")
	}
	w.after(time.Second)
	if w.net.Counters().Pieces != 2 {
		t.Errorf("%d pieces were copied, want 2", w.net.Counters().Pieces)
	}
}

func TestALineCarriesOneReadAfterTheOther(t *testing.T) {
	cfg := simnet.Config{Start: clock.Instant(time.Hour)}
	w := newWorldOf(t, cfg, simnet.AgentConfig{Rate: 1 << 20}, simnet.AgentConfig{Rate: 1 << 30})
	other := w.agent("D2", simnet.AgentConfig{}, w.memD)
	toP := w.load(other, w.blob)
	start := w.net.Now()
	x := w.post(w.desc(0, 1<<13))
	y, err := other.PostRead(&transport.ReadSpec{Peer: toP, Descs: []transport.Desc{w.desc(0, 1<<13)}})
	w.must(err)
	row := w.post(w.desc(0, 32))
	if w.end(row); w.net.Now() != start {
		t.Errorf("a row waited %v behind them", w.net.Now().Sub(start))
	}
	w.end(x)
	first := w.net.Now().Sub(start)
	out := make([]transport.Status, 1)
	for out[0] == transport.Pending {
		w.net.Advance(w.net.NextEvent())
		other.PollReads([]transport.Xfer{y}, out, 0)
	}
	second := w.net.Now().Sub(start)
	if want := time.Second / 128; first != want || second != 2*want {
		t.Errorf("8 KiB at 1 MiB/s twice took %v and %v, want %v and %v", first, second, want, 2*want)
	}
	w.must(other.Release(y))
	w.net.SetLink("D", "P", simnet.Link{Rate: 1 << 18})
	start = w.net.Now()
	w.end(w.post(w.desc(0, 1<<13)))
	if took := w.net.Now().Sub(start); took != time.Second/32 {
		t.Errorf("8 KiB over a link of 256 KiB/s took %v, want %v", took, time.Second/32)
	}
}

func TestMemoryThatIsOnlySizesMovesNoByte(t *testing.T) {
	cfg := simnet.Config{Start: clock.Instant(time.Hour), Link: simnet.Link{Delay: ms}}
	w := newWorldOf(t, cfg, simnet.AgentConfig{Sized: true, Rate: 1 << 30}, simnet.AgentConfig{Sized: true})
	far := transport.Region{Addr: 1 << 50, Bytes: 1 << 40, Mem: transport.VRAM}
	for _, a := range []*simnet.Agent{w.p, w.d} {
		w.must(a.Register([]transport.Region{far}))
	}
	w.must(w.d.Drop(w.toP))
	w.toP = w.load(w.d, w.metadata(w.p))
	start := w.net.Now()
	x, err := w.d.PostRead(&transport.ReadSpec{
		Peer: w.toP, LocalMem: transport.VRAM, RemoteMem: transport.VRAM,
		Descs: []transport.Desc{{Local: 1 << 50, Remote: 1<<50 + 1<<20, Len: 1 << 32}},
	})
	w.must(err)
	if st := w.end(x); st != transport.Done || w.net.Now().Sub(start) != 4*time.Second+2*ms {
		t.Errorf("4 GiB at 1 GiB/s ended with %d after %v", st, w.net.Now().Sub(start))
	}
	fill(w.memP, 3)
	if w.end(w.post(w.desc(0, 32))) != transport.Done || count(w.memD, 3) != 32 {
		t.Error("a row did not land")
	}
}

func TestMemoryThatTheOwnerHasTakenAway(t *testing.T) {
	for _, rdma := range []bool{false, true} {
		t.Run(fmt.Sprintf("RDMA %v", rdma), func(t *testing.T) {
			w := newWorld(t, 1, simnet.Link{Delay: ms, RDMA: rdma})
			fill(w.memP, 1)
			x := w.post(w.desc(0, 4096))
			w.must(w.p.Unregister([]transport.Region{{Addr: addr(w.memP), Bytes: memBytes}}))
			st := w.end(x)
			if !rdma && (st != transport.Done || count(w.memD, 1) != 4096) {
				t.Error("software, which does not look at registrations, did not answer")
			}
			if rdma {
				if st != transport.Failed || count(w.memD, 1) != 0 {
					t.Errorf("status %d and %d bytes, want Failed and none", st, count(w.memD, 1))
				}
				w.want("a send after it", w.send("x"), transport.ErrPeer)
			}
		})
	}
}
