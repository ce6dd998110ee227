package simnet_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/transport"
)

func TestNotificationsKeepTheirOrderUnlessTheLinkTakesIt(t *testing.T) {
	for _, tc := range []struct {
		name    string
		link    simnet.Link
		ordered bool
	}{
		{"delays keep it", simnet.Link{Delay: ms, Jitter: 50 * ms}, true},
		{"some are overtaken", simnet.Link{Delay: ms, Reorder: 0.3, Spread: 50 * ms}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, 4, tc.link)
			var sent []string
			for i := range 100 {
				sent = append(sent, fmt.Sprintf("%03d", i))
				w.must(w.send(sent[i]))
				w.after(ms)
			}
			w.after(time.Second)
			got := w.got(w.p)
			if slices.Equal(got, sent) != tc.ordered {
				t.Errorf("in order: %v, want %v", !tc.ordered, tc.ordered)
			}
			slices.Sort(got)
			if !slices.Equal(got, sent) {
				t.Errorf("%d different ones arrived, want each of 100 once", len(got))
			}
		})
	}
}

func TestAKilledPeerIsNoticedLate(t *testing.T) {
	w := newWorld(t, 1, slow)
	fill(w.memP, 1)
	x := w.post(w.desc(0, 4096), w.desc(8192, 4096))
	w.after(70 * ms)
	landed := count(w.memD, 1)
	w.net.Kill("P")
	fill(w.memP, 2) // the pages are somebody else's now
	w.after(time.Millisecond)
	if w.status(x) != transport.Pending {
		t.Error("the open read failed at once")
	}
	w.must(w.send("the first one is lost without a word"))
	w.must(w.send("so is one right behind it"))
	w.after(2 * ms)
	w.want("a send later", w.send("x"), transport.ErrPeer)
	_, err := w.d.PostRead(&transport.ReadSpec{Peer: w.toP, Descs: []transport.Desc{w.desc(0, 8)}})
	w.want("a read", err, transport.ErrPeer)
	if st := w.end(x); st != transport.Failed || count(w.memD, 1) != landed || count(w.memD, 2) != 0 {
		t.Errorf("the open read has status %d, %d bytes of before and %d of after the kill", st, count(w.memD, 1), count(w.memD, 2))
	}
	w.after(time.Minute)
	w.want("a send a minute later", w.send("x"), transport.ErrPeer)

	// Dead metadata loads, and again the first send succeeds.
	w.must(w.d.Drop(w.toP))
	w.toP = w.load(w.d, w.blob)
	w.must(w.send("x"))
	w.after(ms)
	w.want("a send to dead metadata", w.send("x"), transport.ErrPeer)
	w.must(w.d.Drop(w.toP))
	w.toP = w.load(w.d, w.blob)
	_, err = w.d.PostRead(&transport.ReadSpec{Peer: w.toP, Descs: []transport.Desc{w.desc(0, 8)}})
	w.want("a read by dead metadata", err, transport.ErrPeer)

	// Its successor is another one.
	next := w.agent("P", simnet.AgentConfig{}, w.memP)
	w.must(w.d.Drop(w.toP))
	w.toP = w.load(w.d, w.blob)
	w.must(w.send("to the old one"))
	w.after(ms)
	w.want("a send by the old metadata", w.send("x"), transport.ErrPeer)
	w.must(w.d.Drop(w.toP))
	w.toP = w.load(w.d, w.metadata(next))
	w.must(w.send("to the new one"))
	w.after(time.Second)
	if got := w.got(next); len(got) != 1 || got[0] != "to the new one" {
		t.Errorf("the new one got %q", got)
	}
}

func TestSendsAreErrorsSoonAlsoIfManyAreSent(t *testing.T) {
	w := newWorld(t, 1, simnet.Link{Delay: ms})
	w.net.Kill("P")
	start := w.net.Now()
	for w.send("beat") == nil {
		if w.after(50 * time.Microsecond); w.net.Now().Sub(start) > ms {
			t.Fatal("no error within 1 ms")
		}
	}
}

func TestMetadataUnderAnotherAgentsEpochReachesNobody(t *testing.T) {
	w := newWorld(t, 1, simnet.Link{})
	blob := slices.Clone(w.blob)
	blob[24] = 'Q' // the name, of one byte
	toQ := w.load(w.d, blob)
	w.must(w.d.Send(toQ, []byte("x")))
	w.after(ms)
	w.want("a send", w.d.Send(toQ, []byte("x")), transport.ErrPeer)
	if w.p.Queued() != 0 {
		t.Error("it arrived at P")
	}
}

// A dropped connection is closed: what a partition holds back dies with it. An abandoned one is kept.
func TestWhatAPartitionHoldsBackDiesWithADroppedConnection(t *testing.T) {
	for _, drop := range []bool{true, false} {
		t.Run(fmt.Sprintf("dropped %v", drop), func(t *testing.T) {
			w := newWorld(t, 1, simnet.Link{Delay: ms, DescTime: 500 * ms}) // 32 pieces within 8 s
			fill(w.memP, 1)
			var descs []transport.Desc
			for i := range 16 {
				descs = append(descs, w.desc(i*256, 256))
			}
			x := w.post(descs...)
			w.after(4 * time.Second)
			w.must(w.send("held back"))
			w.net.Partition("P", "D", true)
			w.after(10 * ms)
			w.must(w.send("on its way at the drop"))
			before := count(w.memD, 1)
			w.net.FailReads("D", "P")
			w.must(w.d.Release(x))
			want := 2
			if drop {
				want = 0
				w.must(w.d.Drop(w.toP))
			} else {
				w.must(w.d.Abandon(w.toP))
			}
			if w.after(2 * time.Second); count(w.memD, 1) != before {
				t.Error("bytes landed through the partition")
			}
			w.net.Partition("P", "D", false)
			w.after(time.Minute)
			if got := w.got(w.p); len(got) != want || (count(w.memD, 1) > before) == drop {
				t.Errorf("%d notifications, want %d; %d bytes before and %d after", len(got), want, before, count(w.memD, 1))
			}
			if notifs, reads, conns := w.net.Open(); notifs != 0 || reads != 0 || conns != 0 {
				t.Errorf("%d notifications, %d reads, %d connections are left", notifs, reads, conns)
			}
		})
	}
}

// A transport gives up: what is held up for longer than it tries does not land years later.
func TestAFailedReadOfAStoppedPeerEndsInTime(t *testing.T) {
	for _, stop := range []time.Duration{100 * ms, time.Minute} {
		t.Run(stop.String(), func(t *testing.T) {
			link := slow
			link.Late = 10 * time.Second
			w := newWorld(t, 2, link)
			fill(w.memP, 1)
			x := w.post(w.desc(0, 4096), w.desc(8192, 4096))
			w.after(70 * ms)
			w.net.FailReads("D", "P")
			w.must(w.d.Release(x))
			before := count(w.memD, 1)
			w.net.Stop("P")
			w.after(stop)
			if may := w.d.MayWrite(addr(w.memD), memBytes); may != (stop < time.Second) {
				t.Errorf("after %v it may be written: %v", stop, may)
			}
			w.net.Resume("P")
			w.after(time.Minute)
			if n := count(w.memD, 1); (n == 8192) != (stop < time.Second) || n < before {
				t.Errorf("%d bytes at the error, %d in the end", before, n)
			}
			if _, reads, _ := w.net.Open(); reads != 0 {
				t.Errorf("%d reads are open", reads)
			}
		})
	}
}

func TestWhatAKilledAgentHasSentArrivesAndNothingLandsInIt(t *testing.T) {
	w := newWorld(t, 1, slow)
	fill(w.memP, 1)
	w.post(w.desc(0, 4096))
	w.must(w.send("last words"))
	w.net.Kill("D")
	w.after(time.Minute)
	if got := w.got(w.p); len(got) != 1 {
		t.Errorf("got %q", got)
	}
	if count(w.memD, 1) != 0 {
		t.Error("a killed reader's memory was written")
	}
	w.want("a send of the dead", w.send("x"), transport.ErrClosed)
	if notifs, reads, conns := w.net.Open(); notifs != 0 || reads != 0 || conns != 0 {
		t.Errorf("%d notifications, %d reads, %d connections are left of it", notifs, reads, conns)
	}
}

func TestAStoppedPeerIsSilent(t *testing.T) {
	for _, rdma := range []bool{false, true} {
		t.Run(fmt.Sprintf("RDMA %v", rdma), func(t *testing.T) {
			w := newWorld(t, 1, simnet.Link{Delay: ms, RDMA: rdma})
			woken := 0
			w.p.OnArrival(func() { woken++ })
			fill(w.memP, 1)
			w.net.Stop("P")
			x := w.post(w.desc(0, 4096))
			for range 100 {
				w.must(w.send("beat"))
				w.after(time.Second)
			}
			if w.p.Queued() != 100 || w.p.Poll(w.in) != 0 || woken != 0 {
				t.Errorf("%d queued, woken %d times, want 100 and never", w.p.Queued(), woken)
			}
			if st := w.status(x); (st == transport.Done) != rdma {
				t.Errorf("status %d after 100 s", st)
			}
			fill(w.memP, 2)
			w.net.Resume("P")
			want := byte(2)
			if rdma {
				want = 1
			}
			if w.end(x) != transport.Done || count(w.memD, want) != 4096 {
				t.Errorf("%d bytes of %d", count(w.memD, want), want)
			}
			if got := w.got(w.p); len(got) != 100 || woken == 0 {
				t.Errorf("%d notifications after it goes on, woken %d times", len(got), woken)
			}
		})
	}
}

func TestAReadFromAStoppedPeerFailsWhenThatIsKilled(t *testing.T) {
	w := newWorld(t, 1, simnet.Link{Delay: ms})
	w.net.Stop("P")
	x := w.post(w.desc(0, 4096))
	w.after(10 * time.Second)
	w.net.Kill("P")
	start := w.net.Now()
	if st := w.end(x); st != transport.Failed || w.net.Now().Sub(start) > 6*ms {
		t.Errorf("status %d after %v, want Failed within 6 ms", st, w.net.Now().Sub(start))
	}
}

func TestAHostWithoutPowerIsMissedOnlyByTheTransportsOwnTimeout(t *testing.T) {
	w := newWorld(t, 1, simnet.Link{Delay: ms, Break: 10 * time.Second})
	x := w.post(w.desc(0, 4096))
	w.net.PowerOff("P")
	y := w.post(w.desc(0, 4096)) // nobody knows
	for range 9 {
		w.must(w.send("beat"))
		w.after(time.Second)
	}
	if w.status(x) != transport.Pending || w.status(y) != transport.Pending {
		t.Error("a read has ended")
	}
	w.after(2 * time.Second)
	w.want("a send after the time-out", w.send("x"), transport.ErrPeer)
	if w.end(x) != transport.Failed || w.end(y) != transport.Failed {
		t.Error("a read did not fail")
	}
}

func TestAShortPartitionDelays(t *testing.T) {
	w := newWorld(t, 1, slow)
	fill(w.memP, 1)
	x := w.post(w.desc(0, 4096), w.desc(8192, 4096))
	w.must(w.send("0"))
	w.net.Partition("P", "D", true)
	for i := range 10 {
		w.after(time.Second)
		w.must(w.send(fmt.Sprint(i + 1)))
	}
	if w.status(x) != transport.Pending || count(w.memD, 1) != 0 || w.p.Queued() != 0 {
		t.Error("something came through")
	}
	fill(w.memP, 2)
	w.net.Partition("D", "P", false)
	w.must(w.send("11"))
	if w.end(x) != transport.Done || count(w.memD, 2) != 8192 {
		t.Errorf("%d bytes after the partition", count(w.memD, 2))
	}
	if got := w.got(w.p); !slices.Equal(got, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"}) {
		t.Errorf("got %q", got)
	}
	w.after(time.Minute)
	w.must(w.send("well"))
}

func TestALongPartitionBreaks(t *testing.T) {
	w := newWorld(t, 1, slow)
	fill(w.memP, 1)
	x := w.post(w.desc(0, 4096))
	w.net.Partition("P", "D", true)
	for range 15 {
		w.must(w.send("into nothing"))
		w.after(time.Second)
	}
	w.after(10 * time.Second)
	w.want("a send after 25 s", w.send("x"), transport.ErrPeer)
	if w.end(x) != transport.Failed {
		t.Error("the read did not fail")
	}
	w.must(w.d.Drop(w.toP))
	w.toP = w.load(w.d, w.blob)
	w.must(w.send("into nothing again"))
	w.after(time.Minute)
	w.want("a send on the new connection", w.send("x"), transport.ErrPeer)
	w.net.Partition("P", "D", false)
	w.want("a send after the partition", w.send("x"), transport.ErrPeer)
	w.must(w.d.Drop(w.toP))
	w.toP = w.load(w.d, w.blob)
	w.must(w.send("well"))
	w.after(time.Minute)
	if got := w.got(w.p); !slices.Equal(got, []string{"well"}) || count(w.memD, 1) != 0 {
		t.Errorf("got %q and %d bytes, want what was sent after it and none", got, count(w.memD, 1))
	}
}

func TestAPartitionIsOfTwoAgents(t *testing.T) {
	w := newWorld(t, 1, simnet.Link{Delay: ms})
	other := w.agent("D2", simnet.AgentConfig{}, make([]byte, 64))
	toP := w.load(other, w.blob)
	w.net.Partition("P", "D", true)
	w.must(w.send("cut"))
	w.must(other.Send(toP, []byte("not cut")))
	w.after(time.Second)
	if got := w.got(w.p); len(got) != 1 || got[0] != "not cut" {
		t.Errorf("got %q", got)
	}
}

func TestAPeerKilledBehindAPartitionIsNoticedAfterIt(t *testing.T) {
	w := newWorld(t, 1, simnet.Link{Delay: ms})
	x := w.post(w.desc(0, 4096))
	w.net.Partition("P", "D", true)
	w.net.Kill("P")
	w.must(w.send("x"))
	w.after(5 * time.Second)
	w.must(w.send("x"))
	if w.status(x) != transport.Pending {
		t.Error("the read knows")
	}
	w.net.Partition("P", "D", false)
	if w.end(x) != transport.Failed {
		t.Error("the read did not fail")
	}
	w.want("a send", w.send("x"), transport.ErrPeer)
}

func TestAResetConnectionStaysSoUntilDropAndLoad(t *testing.T) {
	arrived, landed := 0, 0
	seeds(100, func(seed uint64) {
		w := newWorld(t, seed, slow)
		back := w.load(w.p, w.metadata(w.d))
		fill(w.memP, 1)
		x := w.post(w.desc(0, 4096))
		w.after(50 * ms)
		w.must(w.send("on its way"))
		w.net.Reset("D", "P")
		w.want("a send", w.send("x"), transport.ErrPeer)
		_, err := w.d.PostRead(&transport.ReadSpec{Peer: w.toP, Descs: []transport.Desc{w.desc(0, 8)}})
		w.want("a read", err, transport.ErrPeer)
		w.must(w.p.Send(back, []byte("the other way is another connection")))
		if w.status(x) != transport.Failed {
			t.Fatal("the open read did not fail")
		}
		before := count(w.memD, 1)
		w.must(w.d.Release(x))
		w.must(w.d.Drop(w.toP))
		w.toP = w.load(w.d, w.blob)
		w.must(w.send("healed"))
		w.after(time.Minute)
		if count(w.memD, 1) > before {
			landed++
		}
		got := w.got(w.p)
		if !slices.Contains(got, "healed") || len(w.got(w.d)) != 1 {
			t.Fatalf("seed %d: got %q", seed, got)
		}
		arrived += len(got) - 1
	})
	t.Logf("of 100: %d notifications on their way arrived, %d reads went on landing", arrived, landed)
	if arrived < 30 || arrived > 70 || landed < 20 || landed > 70 {
		t.Errorf("of 100: %d notifications on their way arrived, %d reads went on landing; want about half", arrived, landed)
	}
}

func TestAnAgentThatIsReadFromClosesLater(t *testing.T) {
	for _, rdma := range []bool{false, true} {
		t.Run(fmt.Sprintf("RDMA %v", rdma), func(t *testing.T) {
			link := slow
			link.RDMA = rdma
			w := newWorld(t, 1, link)
			fill(w.memP, 1)
			x := w.post(w.desc(0, 4096))
			w.after(20 * ms)
			err := w.p.Close()
			if rdma {
				w.must(err)
				if w.end(x) != transport.Failed {
					t.Error("the read did not fail")
				}
				return
			}
			w.want("close", err, transport.ErrUntaken)
			if w.end(x) != transport.Done || count(w.memD, 1) != 4096 {
				t.Error("the read was not served on")
			}
			w.must(w.p.Close())
			w.must(w.send("x"))
			w.after(ms)
			w.want("a send to a closed agent", w.send("x"), transport.ErrPeer)
		})
	}
}

func TestAQueueWithABoundRefuses(t *testing.T) {
	cfg := simnet.Config{Start: clock.Instant(time.Hour), Link: simnet.Link{Delay: ms, Loss: 0}}
	w := newWorldOf(t, cfg, simnet.AgentConfig{NotifsMax: 3}, simnet.AgentConfig{})
	for range 2 {
		for range 3 {
			w.must(w.send("x"))
		}
		w.want("a fourth", w.send("x"), transport.ErrFull)
		w.after(time.Second)
		w.want("a fourth, after the others arrived", w.send("x"), transport.ErrFull)
		if n := len(w.got(w.p)); n != 3 {
			t.Errorf("%d arrived", n)
		}
	}
}

func TestTheFirstUseConnects(t *testing.T) {
	w := newWorld(t, 1, simnet.Link{Delay: ms, Connect: 50 * ms})
	for _, want := range []time.Duration{51 * ms, ms, ms} {
		w.must(w.send("x"))
		start := w.net.Now()
		w.net.Advance(w.net.NextEvent())
		if took := w.net.Now().Sub(start); took != want {
			t.Errorf("it took %v, want %v", took, want)
		}
		w.got(w.p)
	}
}

func TestACallerDecidesAboutSingleOnes(t *testing.T) {
	w := newWorld(t, 1, slow)
	w.net.Intercept(func(s *simnet.Sent) simnet.Fate {
		if s.From != "D" || s.To != "P" {
			t.Errorf("%s to %s", s.From, s.To)
		}
		switch string(s.Body) {
		case "lost":
			return simnet.Fate{Lose: true}
		case "late":
			return simnet.Fate{Delay: time.Second}
		case "thrice":
			return simnet.Fate{Copies: 2}
		}
		return simnet.Fate{}
	})
	for _, s := range []string{"lost", "thrice", "plain"} {
		w.must(w.send(s))
	}
	w.after(10 * ms)
	got := w.got(w.p)
	slices.Sort(got)
	if !slices.Equal(got, []string{"plain", "thrice", "thrice", "thrice"}) {
		t.Errorf("got %q", got)
	}
	w.must(w.send("late"))
	if w.after(time.Second); len(w.got(w.p)) != 0 {
		t.Error("it came too early")
	}
	if w.after(ms); len(w.got(w.p)) != 1 {
		t.Error("it did not come")
	}
	w.net.InterceptReads(func(p *simnet.Posted) simnet.ReadFate {
		return simnet.ReadFate{Fail: true, After: 0.5, Delay: time.Second}
	})
	fill(w.memP, 1)
	x := w.post(w.desc(0, 4096), w.desc(8192, 4096))
	if w.after(time.Second); count(w.memD, 1) != 0 {
		t.Error("the read was not delayed")
	}
	for w.status(x) == transport.Pending {
		w.net.Advance(w.net.NextEvent())
	}
	n := count(w.memD, 1)
	if w.after(time.Second); w.status(x) != transport.Failed || n == 0 || n == 8192 || count(w.memD, 1) != 8192 {
		t.Errorf("status %d, %d bytes at the error and %d in the end", w.status(x), n, count(w.memD, 1))
	}
}

func TestNamesOfAgents(t *testing.T) {
	n := simnet.New(simnet.Config{})
	for _, bad := range []string{"", string(make([]byte, 257))} {
		if _, err := n.Agent(bad, simnet.AgentConfig{}); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("a name of %d bytes: %v", len(bad), err)
		}
	}
	if _, err := n.Agent("P", simnet.AgentConfig{}); err != nil {
		t.Error(err)
	}
	if _, err := n.Agent("P", simnet.AgentConfig{}); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("a second agent of a name: %v, want ErrInvalid", err)
	}
	// Faults of agents that are not there do nothing.
	n.Kill("x")
	n.Stop("x")
	n.Resume("x")
	n.PowerOff("x")
	n.HoldReads("x", true)
	n.Reset("x", "P")
	n.FailReads("P", "x")
}

func TestADefaultIsForConnectionsToComeThatNobodyHasNamed(t *testing.T) {
	n := simnet.New(simnet.Config{Link: simnet.Link{Delay: time.Millisecond}})
	for _, name := range []string{"a", "b", "c"} {
		if _, err := n.Agent(name, simnet.AgentConfig{}); err != nil {
			t.Fatal(err)
		}
	}
	n.SetLink("a", "b", simnet.Link{Delay: 2 * time.Millisecond})
	n.SetDefault(simnet.Link{Delay: 3 * time.Millisecond})
	if got := n.Link("a", "b").Delay; got != 2*time.Millisecond {
		t.Errorf("a link that was named: %v", got)
	}
	if got := n.Link("a", "c").Delay; got != 3*time.Millisecond {
		t.Errorf("any other: %v", got)
	}
}
