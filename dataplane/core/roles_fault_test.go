package core

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// die ends a rank as the end of its process would: nobody steps it, its agent answers nobody, its end of the stream is gone.
func (m *team) die(rank int) {
	r := m.ranks[rank]
	r.stopped = true
	m.f.hub.Stop(r.core.tr.Agent())
	r.core.falls()
}

// falls ends a rank's end of the stream without its context's knowledge. Of a process that has ended nobody writes the page.
func (c *Core) falls() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closePage()
	c.ranked.carrier.Close()
}

func TestADeadRankEndsWhatItHeldAndTheOthersGoOn(t *testing.T) {
	for _, carrier := range []string{stream.KindProcess, stream.KindShm} {
		t.Run(carrier, func(t *testing.T) {
			f := newFleet(t, carrier)
			p, d := f.team("P", 2, 1), f.team("D", 2, 1)
			e := f.connect(d, p)
			there, here := blocks(3, 4), blocks(20, 4)
			lease, remote := p.grant("held", 7, there)
			track := d.track(e, remote, 1)
			f.until("both hold it", func() bool { return p.ranks[0].core.Held()+p.ranks[1].core.Held() == 2 })
			f.turns(50)
			p.die(1)
			f.until("the host is told", func() bool { return kinds(p.evs, record.EvRankDown) == 1 })
			for _, ev := range p.evs {
				if ev.Kind == record.EvRankDown && (ev.Rank != 1 || ev.Status != 1) {
					t.Errorf("down: %+v", ev)
				}
			}
			if p.of(record.EvFreed, lease) != 0 {
				t.Fatal("freed while a rank that lives serves it")
			}
			d.read(track, here, there)
			if err := p.host.Revoke(lease); err != nil {
				t.Fatal(err)
			}
			f.pass = 100 * time.Millisecond
			freed := p.event(record.EvFreed, lease)
			if freed.Reasons>>4&15 != record.FreedLost || freed.Reasons&15 == 0 || freed.Status != record.FreedLost {
				t.Errorf("freed: %+v", freed)
			}
			if failed := d.event(record.EvReadFailed, track); failed.Status == record.ReadOK {
				t.Errorf("failed: %+v", failed)
			}

			lease, remote = p.grant("after", 8, there) // half an engine: it is granted, and ends
			track = d.track(e, remote, 2)
			d.read(track, here, there)
			if err := p.host.Cancel(lease); err != nil {
				t.Fatal(err)
			}
			if freed := p.event(record.EvFreed, lease); freed.Reasons>>4&15 != record.FreedLost {
				t.Errorf("freed: %+v", freed)
			}
			d.event(record.EvReadFailed, track)
			if n := kinds(d.evs, record.EvReadDone); n != 0 {
				t.Errorf("%d reads from half an engine are done", n)
			}

			// As a reader it is lost, too.
			back := f.connect(p, d)
			lease, remote = d.grant("back", 9, there)
			track = p.track(back, remote, 3)
			p.read(track, here, there)
			if failed := p.event(record.EvReadFailed, track); failed.Status != record.ReadLost {
				t.Errorf("failed: %+v", failed)
			}
			if err := d.host.Cancel(lease); err != nil {
				t.Fatal(err)
			}
			d.event(record.EvFreed, lease)

			c, _ := f.context("rank", "P", 2, 1, 1)
			defer c.Close(0)
			if err := c.Register(p.ranks[1].regions); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(teamWait); ; time.Sleep(time.Millisecond) {
				f.stepOne(c)
				_, err := c.OwnHandshake(1)
				if err == nil {
					t.Fatal("a rank came back")
				}
				if strings.Contains(err.Error(), "rank 1") && strings.Contains(err.Error(), "attached") {
					if !errors.Is(err, ErrState) {
						t.Errorf("%v", err)
					}
					break
				}
				if time.Now().After(end) {
					t.Fatalf("a rank that comes back is not told why it is left out: %v", err)
				}
			}
		})
	}
}

const childEnv = "KVLEASE_TEST_RANK"

// TestRankOfAnotherProcess is a rank context in a process of its own: see the next test.
func TestRankOfAnotherProcess(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		t.Skip("needs " + childEnv + ": a helper of TestARankThatIsKilledIsLostAtOnce")
	}
	f := newFleet(t, stream.KindShm).realTime()
	f.dir = dir
	m := &team{f: f, id: "P", tp: 2, pp: 1}
	c, h := f.context("rank", "P", 2, 1, 1)
	r := m.newRank(1, c, h)
	if err := c.Register(r.regions); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) { // it is killed before that
		f.stepOne(c)
	}
}

func TestARankThatIsKilledIsLostAtOnce(t *testing.T) {
	f := newFleet(t, stream.KindShm).realTime()
	p := &team{f: f, id: "P", tp: 2, pp: 1}
	p.core, p.host = f.context("host", "P", 2, 1, 0)
	c, h := f.context("rank", "P", 2, 1, 0)
	p.ranks = append(p.ranks, p.newRank(0, c, h))
	f.teams = append(f.teams, p)
	t.Cleanup(func() { p.close(time.Second) })
	p.register(0)
	child := exec.Command(os.Args[0], "-test.run", "^TestRankOfAnotherProcess$", "-test.timeout", "90s")
	child.Env = append(os.Environ(), childEnv+"="+f.dir)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	reaped := false
	defer func() {
		child.Process.Kill()
		if !reaped {
			child.Wait()
		}
	}()
	f.until("both ranks are up", func() bool { return kinds(p.evs, record.EvRankUp) == 2 })
	lease, err := p.host.Grant(hostGrant("r"), f.now())
	if err != nil {
		t.Fatal(err)
	}
	f.until("both hold it", func() bool { return p.core.stat("rank_1_received") > 0 && p.ranks[0].core.Held() == 1 })
	killed := time.Now()
	child.Process.Kill()
	f.until("it is lost", func() bool { return kinds(p.evs, record.EvRankDown) == 1 })
	t.Logf("told after %v", time.Since(killed))
	child.Wait()
	reaped = true
	if err := p.host.Cancel(lease); err != nil {
		t.Fatal(err)
	}
	if freed := p.event(record.EvFreed, lease); freed.Reasons>>4 != record.FreedLost {
		t.Errorf("freed: %+v", freed)
	}
}

func TestRanksOutliveTheirHost(t *testing.T) {
	for _, carrier := range []string{stream.KindProcess, stream.KindShm} {
		for _, drive := range []string{"inline", "pump"} {
			t.Run(carrier+" "+drive, func(t *testing.T) {
				f := newFleet(t, carrier)
				f.drive = drive
				p, d := f.team("P", 2, 1), f.team("D", 2, 1)
				e := f.connect(d, p)
				lease, remote := p.grant("r", 7, blocks(3, 4))
				d.track(e, remote, 1)
				f.until("both hold it", func() bool { return p.ranks[0].core.Held()+p.ranks[1].core.Held() == 2 })
				f.turns(50)
				for n, r := range d.ranks {
					if r.core.stat("host_lost") != 0 {
						t.Errorf("rank %d has lost its host, which lives", n)
					}
				}
				d.stopped = true // D's host dies; its ranks tell the owners
				if d.core.pump != nil {
					d.core.pump.halt()
				}
				d.core.hosted.streams.Close()
				for n, r := range d.ranks {
					f.until("a rank is told", func() bool { return kinds(r.evs, record.EvHostDown) == 1 })
					wantLine(t, r.core, log.HostLost, "")
					if r.core.stat("host_lost") != 1 {
						t.Errorf("rank %d does not say that its host is lost", n)
					}
					f.until(fmt.Sprint("rank ", n, " has let go"), func() bool { return r.core.stat("tracker_tracked") == 0 })
				}
				if freed := p.event(record.EvFreed, lease); freed.Status != record.FreedReleased {
					t.Errorf("freed: %+v", freed)
				}

				f.pass = 100 * time.Millisecond
				p.grant("other", 8, blocks(3, 4)) // P's host dies with a lease
				f.until("both hold it", func() bool { return p.ranks[0].core.Held()+p.ranks[1].core.Held() == 2 })
				p.stopped = true
				if p.core.pump != nil {
					p.core.pump.halt()
				}
				p.core.hosted.streams.Close()
				for _, r := range p.ranks {
					f.until("a rank is told", func() bool { return kinds(r.evs, record.EvHostDown) == 1 })
					f.until("its lease ends at its deadline", func() bool { return r.core.Held() == 0 })
					if err := r.core.Close(0); err != nil {
						t.Errorf("close: %v", err)
					}
				}
			})
		}
	}
}

// fenced reports that every row of a context is closed.
func (c *Core) fenced() bool {
	_, rows := record.Board(c.mem.Board)
	for i := range c.mem.Slots {
		if atomic.LoadUint64(&rows[i].Fence) != record.FenceClosed {
			return false
		}
	}
	return true
}

func TestABrokenHostHasItsRanksCloseTheirRows(t *testing.T) {
	for _, drive := range []string{"inline", "pump"} {
		for _, how := range []string{"kvl_fence_all", "a panic in a step", "kvl_fence_all, and closed at once"} {
			t.Run(drive+" "+how, func(t *testing.T) {
				f := newFleet(t, stream.KindShm)
				f.drive = drive
				p, d := f.team("P", 2, 1), f.team("D", 1, 1)
				e := f.connect(d, p)
				there, here := blocks(3, 4), blocks(20, 4)
				lease, remote := p.grant("r", 7, there)
				track := d.track(e, remote, 1)
				f.until("both hold it", func() bool { return p.ranks[0].core.Held()+p.ranks[1].core.Held() == 2 })
				f.turns(50)
				ctl := p.core.mem.Control
				if how == "a panic in a step" {
					p.core.mu.Lock()
					p.core.apply = nil // a bug of ours
					p.core.mu.Unlock()
					p.core.deaths.put(death{engine: 1})
					p.core.Wake()
				} else {
					ctl.PoisonNs = uint64(f.now())
					atomic.StoreUint32(&ctl.Poisoned, 1)
					p.core.Wake()
				}
				if strings.Contains(how, "closed") {
					p.core.Close(0)
					p.stopped = true
				}
				f.until("the ranks have closed their rows", func() bool { return p.ranks[0].core.fenced() && p.ranks[1].core.fenced() })
				if n := p.of(record.EvFreed, lease); n != 0 {
					t.Error("the end was told before the readers had the time that they were promised")
				}
				if !p.stopped {
					f.pass = time.Second
					if freed := p.event(record.EvFreed, lease); freed.Status != record.FreedPoisoned {
						t.Errorf("freed: %+v", freed)
					}
				}
				p.fill(99, there) // the blocks are somebody else's
				d.read(track, here, there)
				if failed := d.event(record.EvReadFailed, track); failed.Status == record.ReadOK {
					t.Errorf("failed: %+v", failed)
				}
				for n, r := range p.ranks {
					if err := r.core.Close(0); err != nil {
						t.Errorf("rank %d: close: %v", n, err)
					}
				}
				if err := p.core.Close(0); err != nil {
					t.Errorf("host: close: %v", err)
				}
			})
		}
	}
}

func TestABrokenRankBreaksNoOther(t *testing.T) {
	f := newFleet(t, stream.KindShm)
	p, d := f.team("P", 2, 1), f.team("D", 1, 1)
	e := f.connect(d, p)
	there, here := blocks(3, 4), blocks(20, 4)
	lease, remote := p.grant("r", 7, there)
	track := d.track(e, remote, 1)
	f.until("both hold it", func() bool { return p.ranks[0].core.Held()+p.ranks[1].core.Held() == 2 })
	f.turns(50)
	broken := p.ranks[1].core
	broken.plane.WrapTransport(&faulty{Transport: broken.tr, broken: true})
	f.until("it is broken and fenced", broken.fenced)
	if err := p.host.Cancel(lease); err != nil {
		t.Fatal(err)
	}
	f.turns(50)
	if p.of(record.EvFreed, lease) != 0 {
		t.Error("the end was told before the readers had the time that they were promised")
	}
	d.read(track, here, there)
	if failed := d.event(record.EvReadFailed, track); failed.Status == record.ReadOK {
		t.Errorf("failed: %+v", failed)
	}
	f.pass = time.Second
	if freed := p.event(record.EvFreed, lease); freed.Reasons>>4 != record.FreedPoisoned || freed.Status != record.FreedPoisoned {
		t.Errorf("freed: %+v", freed)
	}
	lease, _ = p.grant("after", 8, there)
	if err := p.host.Cancel(lease); err != nil {
		t.Fatal(err)
	}
	p.event(record.EvFreed, lease)
	if err := broken.Close(0); err != nil {
		t.Errorf("close: %v", err)
	}
}

// The message that a broken host's ranks must hear is lost on its way, like any other.
func TestABrokenHostTellsItsRanksAgainWhatAStreamHasLost(t *testing.T) {
	f := newFleet(t, stream.KindDelta)
	p := f.team("P", 2, 1)
	p.grant("r", 7, blocks(3, 4))
	f.until("both hold it", func() bool { return p.ranks[0].core.Held()+p.ranks[1].core.Held() == 2 })
	f.turns(50)
	carry := f.carry
	lost := 0
	f.carry = func(from, _ *Core, rank uint32) {
		var buf [stream.MessageBytesMin]byte
		if n, _ := from.DeltaTake(rank, buf[:]); n > 0 && from == p.core {
			lost++
		}
	}
	ctl := p.core.mem.Control
	ctl.PoisonNs = uint64(f.now())
	atomic.StoreUint32(&ctl.Poisoned, 1)
	f.until("it was lost", func() bool { return lost >= 2 })
	f.carry = carry
	f.until("the ranks have closed their rows", func() bool { return p.ranks[0].core.fenced() && p.ranks[1].core.fenced() })
}

// Told is not closed: a rank that stands still has its rows open, and blocks are not free.
func TestABrokenHostIsBusyUntilItsRanksHaveClosedTheirRows(t *testing.T) {
	for _, carrier := range []string{stream.KindProcess, stream.KindShm, stream.KindDelta} {
		t.Run(carrier, func(t *testing.T) {
			f := newFleet(t, carrier)
			p := f.team("P", 2, 1)
			p.grant("r", 7, blocks(3, 4))
			f.until("both hold it", func() bool { return p.ranks[0].core.Held()+p.ranks[1].core.Held() == 2 })
			f.turns(20)
			p.ranks[1].stopped = true
			ctl := p.core.mem.Control
			ctl.PoisonNs = uint64(f.now())
			atomic.StoreUint32(&ctl.Poisoned, 1)
			for range 3 {
				if err := p.core.Close(5 * time.Millisecond); !errors.Is(err, ErrBusy) {
					t.Fatalf("close: %v", err)
				}
				f.turns(20)
			}
			if !p.ranks[0].core.fenced() || p.ranks[1].core.fenced() {
				t.Fatal("the rank that steps has not closed its rows, or the other one has")
			}
			p.ranks[1].stopped = false
			f.until("closed", func() bool { return p.core.Close(0) == nil })
			if !p.ranks[1].core.fenced() {
				t.Error("the host is closed while rows are open")
			}
		})
	}
}

// A rank that is lost and may live has one duration in which it sees that it is.
func TestABrokenHostIsClosedWhenALostRankHasHadItsTime(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	p := f.team("P", 2, 1)
	p.grant("r", 7, blocks(3, 4))
	f.until("both hold it", func() bool { return p.ranks[0].core.Held()+p.ranks[1].core.Held() == 2 })
	ctl := p.core.mem.Control
	ctl.PoisonNs = uint64(f.now())
	atomic.StoreUint32(&ctl.Poisoned, 1)
	p.die(1)
	f.turns(20)
	if err := p.core.Close(5 * time.Millisecond); !errors.Is(err, ErrBusy) {
		t.Fatalf("close: %v", err)
	}
	f.pass = time.Second
	f.until("closed", func() bool { return p.core.Close(0) == nil })
}
