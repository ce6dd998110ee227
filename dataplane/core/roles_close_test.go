package core

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// nothingLeft compares goroutines and descriptors with what there were, and looks for files of the fleet's.
func nothingLeft(t *testing.T, f *fleet) {
	t.Helper()
	noLeaks(t)
	before := descriptors(t)
	t.Cleanup(func() {
		if left, err := os.ReadDir(f.dir); err != nil || len(left) > 0 {
			t.Errorf("files are left: %v, %v", left, err)
		}
		for end := time.Now().Add(teamWait); len(descriptors(t)) > len(before); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("descriptors: %v, were %v", descriptors(t), before)
			}
		}
	})
}

func descriptors(t testing.TB) (all []string) {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		to, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if !strings.HasPrefix(to, "/proc") { // the folder that is being read
			all = append(all, to)
		}
	}
	return all
}

// parts are the contexts of an engine by what they are.
func (m *team) parts(what string) []*Core {
	if what == "host" {
		return []*Core{m.core}
	}
	return m.cores()
}

func TestContextsAreClosedInEveryOrder(t *testing.T) {
	orders := [][]string{
		{"P host", "P rank", "D host", "D rank"}, {"P rank", "P host", "D rank", "D host"}, {"D host", "D rank", "P host", "P rank"},
		{"D rank", "D host", "P rank", "P host"}, {"P host", "D host", "P rank", "D rank"}, {"D rank", "P rank", "D host", "P host"},
		{"D host", "P rank", "P host", "D rank"}, {"P rank", "D host", "D rank", "P host"},
	}
	for i, order := range orders {
		for j, w := range []struct{ carrier, drive string }{
			{stream.KindProcess, "inline"}, {stream.KindShm, "pump"}, {stream.KindShm, "inline"}, {stream.KindDelta, "inline"},
		} {
			if testing.Short() && (i+j)%4 != 0 {
				continue
			}
			t.Run(fmt.Sprint(w, order), func(t *testing.T) {
				f := newFleet(t, w.carrier)
				f.drive = w.drive
				runtime.GC()
				nothingLeft(t, f)
				p, d := f.team("P", 2, 1), f.team("D", 2, 1)
				e := f.connect(d, p)
				there, here := blocks(3, 4), blocks(20, 4)
				p.grant("held", 6, blocks(10, 4))
				lease, remote := p.grant("r", 7, there)
				_, tracked := p.grant("tracked", 8, blocks(14, 4))
				d.track(e, tracked, 2)
				track := d.track(e, remote, 1)
				f.until("both hold them", func() bool { return p.ranks[0].core.Held() == 3 && p.ranks[1].core.Held() == 3 })
				f.turns(20)
				hold := func(on bool) {
					for _, r := range d.ranks {
						r.core.tr.(interface{ HoldReads(bool) }).HoldReads(on)
					}
				}
				hold(true)
				d.read(track, here, there)
				f.until("the reads are open", func() bool { return d.ranks[0].core.stat("reads_open")*d.ranks[1].core.stat("reads_open") > 0 })
				var left []*Core
				for _, name := range order {
					m := p
					if name[0] == 'D' {
						m = d
					}
					left = append(left, m.parts(name[2:])...)
				}
				for end := time.Now().Add(teamWait); len(left) > 0; f.turn() {
					c := left[0]
					err := c.Close(0)
					switch {
					case err == nil:
						left = left[1:]
						if f.carrier == stream.KindDelta { // nobody else can know
							m := p
							if c.cfg.EngineID == "D" {
								m = d
							}
							if err := m.core.DeltaLost(uint32(c.cfg.Rank())); c.ranked != nil && err != nil {
								t.Fatal(err)
							}
						}
						if err := c.Close(0); err != nil {
							t.Fatalf("closed again: %v", err)
						}
						continue
					case !errors.Is(err, ErrBusy):
						t.Fatalf("close: %v", err)
					}
					if c.ranked != nil { // its reads are held
						hold(false)
					}
					if time.Now().After(end) {
						t.Fatalf("%s %s is never closed: %v", c.cfg.EngineID, c.cfg.Role, err)
					}
				}
				if order[0] == "P host" {
					f.until("the ends are told", func() bool { return p.of(record.EvFreed, lease) == 1 })
				}
				if n := d.of(record.EvReadDone, track); n != 0 && d.wrong(7, here) != 0 {
					t.Error("a read is done and is not whole")
				}
			})
		}
	}
}

// A host may be closed only when no row is open any more.
func TestAHostIsBusyUntilItsRanksHaveClosedTheirRows(t *testing.T) {
	f := newFleet(t, stream.KindShm)
	p := f.team("P", 2, 1)
	p.grant("r", 7, blocks(3, 4))
	f.until("both hold it", func() bool { return p.ranks[0].core.Held()+p.ranks[1].core.Held() == 2 })
	p.ranks[1].stopped = true
	for range 3 {
		if err := p.core.Close(20 * time.Millisecond); !errors.Is(err, ErrBusy) {
			t.Fatalf("close: %v", err)
		}
		f.turns(20)
	}
	if p.ranks[0].core.Held() != 0 {
		t.Error("the rank that steps still holds the lease")
	}
	p.ranks[1].stopped = false
	f.until("closed", func() bool { return p.core.Close(0) == nil })
	if p.ranks[1].core.Held() != 0 {
		t.Error("the host is closed while a rank holds a lease")
	}
}

func TestAHostWhoseRanksNeverCameIsClosed(t *testing.T) {
	for _, carrier := range []string{stream.KindProcess, stream.KindShm, stream.KindDelta} {
		t.Run(carrier, func(t *testing.T) {
			f := newFleet(t, carrier)
			c, h := f.context("host", "P", 2, 1, 0)
			p := &team{f: f, id: "P", tp: 2, pp: 1, core: c, host: h}
			f.teams = append(f.teams, p)
			if _, err := h.Grant(hostGrant("r"), f.now()); err != nil {
				t.Fatal(err)
			}
			if err := c.Close(time.Second); err != nil { // its grant is taken by a step of the close
				t.Errorf("close: %v", err)
			}
		})
	}
}

func TestAnEngineOfTwoRanksDrains(t *testing.T) {
	for _, side := range []bool{false, true} {
		t.Run(fmt.Sprint("side channel ", side), func(t *testing.T) {
			f := newFleet(t, stream.KindShm)
			f.drive, f.side = "pump", side
			p, d := f.team("P", 2, 1), f.team("D", 2, 1)
			e := f.connect(d, p)
			there, here := blocks(3, 4), blocks(20, 4)
			lease, remote := p.grant("read", 7, there)
			never, neverRemote := p.grant("never", 8, blocks(10, 4))
			track, untold := d.track(e, remote, 1), d.track(e, neverRemote, 2)
			f.until("both hold them", func() bool { return p.ranks[0].core.Held() == 2 && p.ranks[1].core.Held() == 2 })
			f.turns(20)
			if err := p.core.Drain(0); !errors.Is(err, ErrTimeout) {
				t.Fatalf("drain with leases held: %v", err)
			}
			if _, err := p.host.Grant(hostGrant("new"), f.now()); err == nil {
				t.Error("a grant while it drains")
			}
			d.read(track, here, there)
			d.event(record.EvReadDone, track)
			p.event(record.EvFreed, lease)
			if err := d.core.Drain(5 * time.Second); err != nil {
				t.Fatalf("D: drain: %v", err)
			}
			d.event(record.EvLeaseGone, untold)
			if freed := p.event(record.EvFreed, never); freed.Status != record.FreedReleased {
				t.Errorf("freed: %+v", freed)
			}
			if err := p.core.Drain(5 * time.Second); err != nil {
				t.Fatalf("P: drain: %v", err)
			}
			for _, m := range []*team{p, d} {
				for n, r := range m.ranks {
					if err := r.core.Close(time.Second); err != nil {
						t.Errorf("%s rank %d: %v", m.id, n, err)
					}
				}
				if err := m.core.Close(time.Second); err != nil {
					t.Errorf("%s: %v", m.id, err)
				}
			}
		})
	}
}
