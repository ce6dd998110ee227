package deathwire

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlease/kvlease/internal/await"
)

func TestAFallenWireIsADeathAfterTheGrace(t *testing.T) {
	for _, tc := range []struct {
		name string
		fall func(w *world)
	}{
		{"when its nonce was heard before", func(w *world) {
			w.Heard(readerD.engine, readerD.epoch, nonce(1))
			w.mustHang(readerD, nonce(1)).Close()
		}},
		{"when its nonce is heard while it is up", func(w *world) {
			c := w.mustHang(readerD, nonce(1))
			w.Heard(readerD.engine, readerD.epoch, nonce(1))
			w.pass(0)
			c.Close()
		}},
		{"when its nonce is heard by the step after its fall", func(w *world) {
			w.mustHang(readerD, nonce(1)).Close()
			w.pass(time.Hour)
			w.Heard(readerD.engine, readerD.epoch, nonce(1))
		}},
		{"when the last of two falls", func(w *world) {
			w.Heard(readerD.engine, readerD.epoch, nonce(1))
			a, b := w.mustHang(readerD, nonce(1)), w.mustHang(readerD, nonce(1))
			a.Close()
			w.pass(time.Hour)
			w.wantDead()
			b.Close()
		}},
		{"after hours of silence", func(w *world) {
			w.Heard(readerD.engine, readerD.epoch, nonce(1))
			c := w.mustHang(readerD, nonce(1))
			w.pass(100 * time.Hour)
			w.wantDead()
			c.Close()
		}},
		{"also when it was another reader's before", func(w *world) {
			w.Heard(readerE.engine, readerE.epoch, nonce(2))
			e := w.mustHang(readerE, nonce(2))
			w.Heard(readerD.engine, readerD.epoch, nonce(1))
			w.mustHang(readerD, nonce(1)).Close()
			w.pass(0)
			w.say(e, Leaving, readerE, nonce(2))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inWorld(t, ServerConfig{}, func(w *world) {
				tc.fall(w)
				w.pass(grace - 1)
				w.wantDead()
				w.pass(1)
				w.wantDead(readerD)
				w.pass(time.Hour)
				w.wantDead(readerD) // once
				if st := w.Stats(); st.Dead != 1 {
					t.Errorf("stats %+v", st)
				}
			})
		})
	}
}

func TestWhatEndsNothing(t *testing.T) {
	heard := func(w *world) { w.Heard(readerD.engine, readerD.epoch, nonce(1)) }
	for _, tc := range []struct {
		name string
		do   func(w *world)
	}{
		{"a wire whose nonce nobody has heard", func(w *world) { w.mustHang(readerD, nonce(1)).Close() }},
		{"a wire with a wrong nonce", func(w *world) {
			heard(w)
			w.mustHang(readerD, nonce(2)).Close()
		}},
		{"a wire with a nonce of another engine", func(w *world) {
			heard(w)
			w.mustHang(readerE, nonce(1)).Close()
		}},
		{"a wire with a nonce of another life", func(w *world) {
			heard(w)
			w.mustHang(who{readerD.engine, readerD.epoch + 1}, nonce(1)).Close()
		}},
		{"a spoofed wire beside the reader's own", func(w *world) {
			heard(w)
			w.mustHang(readerD, nonce(1))
			for b := byte(2); b < 50; b++ {
				w.mustHang(readerD, nonce(b)).Close()
			}
		}},
		{"a nonce of whom two were heard", func(w *world) {
			heard(w)
			w.Heard(readerD.engine, readerD.epoch, nonce(2))
			w.mustHang(readerD, nonce(1)).Close()
			w.mustHang(readerD, nonce(2)).Close()
		}},
		{"a second nonce within the grace", func(w *world) {
			heard(w)
			w.mustHang(readerD, nonce(1)).Close()
			w.pass(grace / 2)
			w.Heard(readerD.engine, readerD.epoch, nonce(2))
		}},
		{"a nonce of zeros", func(w *world) {
			w.Heard(readerD.engine, readerD.epoch, [16]byte{})
			c := w.dial()
			w.say(c, Hello, readerD, [16]byte{})
			c.Close()
		}},
		{"a nonce beside the word of a reader that has no wire", func(w *world) {
			w.Heard(readerD.engine, readerD.epoch, [16]byte{})
			w.Heard(readerD.engine, readerD.epoch, nonce(2))
			w.mustHang(readerD, nonce(2)).Close()
		}},
		{"the word of a reader that has no wire after another's nonce", func(w *world) {
			w.Heard(readerD.engine, readerD.epoch, nonce(2))
			w.Heard(readerD.engine, readerD.epoch, [16]byte{})
			w.mustHang(readerD, nonce(2)).Close()
		}},
		{"a wire that is back within the grace", func(w *world) {
			heard(w)
			w.mustHang(readerD, nonce(1)).Close()
			w.pass(grace - 1)
			w.mustHang(readerD, nonce(1))
		}},
		{"a new wire before the old one falls", func(w *world) {
			heard(w)
			old := w.mustHang(readerD, nonce(1))
			w.mustHang(readerD, nonce(1))
			old.Close()
		}},
		{"a wire closed after a leaving by the transport", func(w *world) {
			heard(w)
			c := w.mustHang(readerD, nonce(1))
			w.Left(readerD.engine, readerD.epoch)
			w.pass(0)
			c.Close()
		}},
		{"a leaving by the transport within the grace", func(w *world) {
			heard(w)
			w.mustHang(readerD, nonce(1)).Close()
			w.pass(grace / 2)
			w.Left(readerD.engine, readerD.epoch)
		}},
		{"a wire closed after a leaving on it", func(w *world) {
			heard(w)
			c := w.mustHang(readerD, nonce(1))
			w.say(c, Leaving, readerD, nonce(1))
			c.Close()
		}},
		{"a leaving for another one, which is no frame of this wire", func(w *world) {
			heard(w)
			c := w.mustHang(readerD, nonce(1))
			w.say(c, Leaving, readerE, nonce(1))
		}},
		{"something else than a frame", func(w *world) {
			heard(w)
			c := w.mustHang(readerD, nonce(1))
			c.Write(make([]byte, FrameLen))
		}},
		{"a keep-alive that ran out", func(w *world) {
			heard(w)
			theirs, ours := net.Pipe()
			w.conn.Go(func() { w.Serve(context.Background(), failing{ours, errKeepAlive}) })
			if w.hello(theirs, readerD, nonce(1)) == nil {
				w.t.Fatal("not taken")
			}
			theirs.Close()
		}},
		{"half a hello", func(w *world) {
			heard(w)
			c := w.dial()
			c.Write((&Frame{Kind: Hello, Engine: readerD.engine, Epoch: readerD.epoch, Nonce: nonce(1)}).Append(nil)[:FrameLen-1])
			c.Close()
		}},
		{"the end of the era", func(w *world) {
			heard(w)
			w.mustHang(readerD, nonce(1))
			w.EndEra()
		}},
		{"the end of the era within the grace", func(w *world) {
			heard(w)
			w.mustHang(readerD, nonce(1)).Close()
			w.pass(grace / 2)
			w.EndEra()
		}},
		{"the end of the server", func(w *world) {
			heard(w)
			w.mustHang(readerD, nonce(1)).Close()
			w.pass(grace / 2)
			w.Close()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inWorld(t, ServerConfig{}, func(w *world) {
				tc.do(w)
				w.pass(time.Hour)
				w.wantDead()
				if st := w.Stats(); st.Dead != 0 || st.Places != st.Wires {
					t.Errorf("stats %+v", st)
				}
			})
		})
	}
}

func TestAWireThatComesBackLaterCountsAgain(t *testing.T) {
	inWorld(t, ServerConfig{}, func(w *world) {
		w.Heard(readerD.engine, readerD.epoch, nonce(1))
		w.mustHang(readerD, nonce(1)).Close()
		w.pass(time.Minute)
		w.wantDead(readerD)
		w.mustHang(readerD, nonce(1)).Close()
		w.pass(time.Minute)
		w.wantDead(readerD, readerD)
		c := w.mustHang(readerD, nonce(1))
		w.say(c, Leaving, readerD, nonce(1))
		c.Close()
		w.pass(time.Minute)
		w.mustHang(readerD, nonce(1)).Close() // a new wire speaks for itself
		w.pass(time.Minute)
		w.wantDead(readerD, readerD, readerD)
	})
}

func TestAFullServerRefusesAndKeepsThePlaceOfWhoMayReturn(t *testing.T) {
	inWorld(t, ServerConfig{Max: 2}, func(w *world) {
		w.Heard(readerD.engine, readerD.epoch, nonce(1))
		w.Heard(readerE.engine, readerE.epoch, nonce(2))
		synctest.Wait()
		d, e := w.mustHang(readerD, nonce(1)), w.mustHang(readerE, nonce(2))
		if _, f := w.hang(who{3, 3}, nonce(3)); f != nil {
			t.Errorf("the third one is answered %v", f)
		}
		d.Close()
		w.pass(grace / 2)
		if _, f := w.hang(who{3, 3}, nonce(3)); f != nil {
			t.Errorf("within the grace of the first one the third is answered %v", f)
		}
		d = w.mustHang(readerD, nonce(1))
		w.say(e, Leaving, readerE, nonce(2))
		e.Close()
		w.pass(time.Minute)
		w.mustHang(who{3, 3}, nonce(3))
		if st := w.Stats(); st.Full != 2 || st.Wires != 2 || st.Returned != 1 || st.Dead != 0 {
			t.Errorf("stats %+v", st)
		}
		d.Close()
		w.pass(time.Minute)
		w.wantDead(readerD)
	})
}

func TestWhereNothingIsHeldNoWireIsKept(t *testing.T) {
	epoch := uint64(0)
	inWorld(t, ServerConfig{Self: func() (uint64, uint64) { return owner.engine, epoch }}, func(w *world) {
		if _, f := w.hang(readerD, nonce(1)); f != nil {
			t.Errorf("answered %v", f)
		}
		w.pass(0)
		if st := w.Stats(); st.Unwanted != 1 || st.Wires != 0 {
			t.Errorf("stats %+v", st)
		}
		epoch = owner.epoch
		w.mustHang(readerD, nonce(1))
	})
}

func TestSilentConnectionsTakeNoPlaceOfReaders(t *testing.T) {
	inWorld(t, ServerConfig{Max: 4}, func(w *world) {
		for range 1000 {
			c := w.dial()
			go c.Write([]byte{'K'})
		}
		w.pass(0)
		if st := w.Stats(); st.Crowded != 1000-pendingMax || st.Wires != 0 {
			t.Errorf("stats %+v", st)
		}
		w.Heard(readerD.engine, readerD.epoch, nonce(1))
		d := w.mustHang(readerD, nonce(1))
		w.pass(5 * time.Second)
		if st := w.Stats(); st.Silent != 1000 || st.Wires != 1 {
			t.Errorf("after the time for a hello: %+v", st)
		}
		d.Close()
		w.pass(grace)
		w.wantDead(readerD)
	})
}

func TestASlowHelloHasOneTimeForAllItsBytes(t *testing.T) {
	inWorld(t, ServerConfig{}, func(w *world) {
		c := w.dial()
		hello := (&Frame{Kind: Hello, Engine: 1, Epoch: 2, Nonce: nonce(1)}).Append(nil)
		began := time.Now()
		sent := 0
		for _, b := range hello {
			if _, err := c.Write([]byte{b}); err != nil {
				break
			}
			sent++
			w.pass(time.Second)
		}
		if took := time.Since(began); took > 6*time.Second || sent == FrameLen {
			t.Errorf("%d bytes were taken over %v", sent, took)
		}
	})
}

func TestOwnersSayThatTheyLeave(t *testing.T) {
	inWorld(t, ServerConfig{}, func(w *world) {
		c := w.mustHang(readerD, nonce(1))
		go w.Leave()
		want := Frame{Kind: Leaving, Engine: owner.engine, Epoch: owner.epoch, Nonce: nonce(1)}
		if f := readFrame(c); f == nil || *f != want {
			t.Errorf("it says %v, want %v", f, want)
		}
		later := w.mustHang(readerE, nonce(2))
		if f := readFrame(later); f == nil || f.Kind != Leaving || f.Nonce != nonce(2) {
			t.Errorf("to a new wire it says %v", f)
		}
	})
}

func TestWhatStrangersSayIsBounded(t *testing.T) {
	inWorld(t, ServerConfig{Max: 8}, func(w *world) {
		d := w.mustHang(readerD, nonce(1))
		w.Heard(readerD.engine, readerD.epoch, nonce(1))
		for i := range uint64(20_000) {
			w.Heard(100+i, 1, nonce(9))
			if i%512 == 0 {
				synctest.Wait()
			}
		}
		for i := range uint64(3000) {
			w.mustHang(who{50_000 + i, 1}, nonce(7)).Close()
			synctest.Wait()
		}
		w.Server.mu.Lock()
		peers, quiet, fallen := len(w.table.peers), w.table.quiet.Len(), w.table.fallen.Len()
		w.Server.mu.Unlock()
		if quiet != fallenMax || fallen != fallenMax || peers != quiet+fallen+1 {
			t.Errorf("%d peers, %d of them quiet, %d fallen", peers, quiet, fallen)
		}
		d.Close()
		w.pass(grace)
		w.wantDead(readerD) // through all of it
	})
}

func TestWhatDoesNotFitBetweenStepAndServerIsCounted(t *testing.T) {
	var b inbox
	b.init()
	for range inboxLen + 5 {
		b.put(said{})
	}
	n := 0
	for _, ok := b.take(); ok; _, ok = b.take() {
		n++
	}
	if n != inboxLen || b.dropped.Load() != 5 {
		t.Errorf("%d taken, %d dropped", n, b.dropped.Load())
	}
}

func TestWhatAStepSaysAllocatesNothing(t *testing.T) {
	s := NewServer(ServerConfig{Self: func() (uint64, uint64) { return 1, 1 }})
	defer s.Close()
	s.Heard(1, 2, nonce(3))
	await.True(t, "the first one is taken", func() bool { return s.Stats().Known == 1 })
	if n := testing.AllocsPerRun(1000, func() { s.Heard(1, 2, nonce(3)); s.Left(1, 2) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestWiresOfStrangersKeepNoReaderOut(t *testing.T) {
	inWorld(t, ServerConfig{Max: 4}, func(w *world) {
		w.Heard(readerD.engine, readerD.epoch, nonce(1))
		d := w.mustHang(readerD, nonce(1))
		synctest.Wait()
		for i := range uint64(50) {
			w.mustHang(who{100 + i%9, 1}, nonce(byte(i))) // some under one name
		}
		e := w.mustHang(readerE, nonce(2))
		w.Heard(readerE.engine, readerE.epoch, nonce(2))
		synctest.Wait()
		for i := range uint64(50) {
			w.mustHang(who{200 + i, 1}, nonce(9))
		}
		w.pass(time.Minute)
		if st := w.Stats(); st.Wires != 4 || st.Places != 4 || st.Full != 0 || st.Evicted != 99-1 || st.Dead != 0 {
			t.Errorf("stats %+v", st)
		}
		e.Close()
		w.pass(time.Minute)
		d.Close()
		w.pass(time.Minute)
		w.wantDead(readerE, readerD)
	})
}

// The memory that Dead writes to may go once Close has returned.
func TestCloseWaitsForTheDeathThatIsBeingTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		telling, told, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
		w := &world{t: t}
		w.Server = NewServer(ServerConfig{
			Self: func() (uint64, uint64) { return owner.engine, owner.epoch }, Grace: grace,
			Dead: func(uint64, uint64) { close(telling); <-told },
		})
		w.Heard(readerD.engine, readerD.epoch, nonce(1))
		synctest.Wait()
		w.mustHang(readerD, nonce(1)).Close()
		<-telling
		go func() { w.Close(); close(closed) }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close has returned, and Dead runs")
		default:
		}
		close(told)
		<-closed
		w.conn.Wait()
	})
}

// A host drains again and again; its readers need not take anything from their wires.
func TestLeavingIsSaidOnceAWire(t *testing.T) {
	inWorld(t, ServerConfig{}, func(w *world) {
		d := w.mustHang(readerD, nonce(1))
		said := make(chan int)
		go func() {
			n := 0
			for f := readFrame(d); f != nil; f = readFrame(d) {
				n++
			}
			said <- n
		}()
		for range 5 {
			w.Leave()
		}
		w.pass(time.Second)
		d.Close()
		if n := <-said; n != 1 {
			t.Errorf("said %d times", n)
		}
	})
}
