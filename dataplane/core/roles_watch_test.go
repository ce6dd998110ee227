package core

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/watch"
)

func TestStepsOfHostsAndRanksAllocateNothing(t *testing.T) {
	for _, carrier := range []string{stream.KindProcess, stream.KindShm, stream.KindDelta} {
		t.Run(carrier, func(t *testing.T) {
			f := newFleet(t, carrier)
			p, d := f.team("P", 2, 1), f.team("D", 2, 1)
			e := f.connect(d, p)
			f.exchange(p, d, e, 1)
			f.turns(50)
			var events [16]record.Event
			var message [stream.MessageBytesMin]byte
			step := func() {
				f.ns.Add(int64(f.pass))
				for _, m := range f.teams {
					if m.core.Step() != nil {
						panic("step")
					}
					m.host.Poll(events[:], f.now())
					for n, r := range m.ranks {
						if carrier == stream.KindDelta {
							for _, way := range [2][2]*Core{{m.core, r.core}, {r.core, m.core}} {
								if k, _ := way[0].DeltaTake(uint32(n), message[:]); k > 0 {
									way[1].DeltaPut(uint32(n), message[:k])
								}
							}
						}
						if r.core.Step() != nil {
							panic("step")
						}
					}
				}
			}
			if n := testing.AllocsPerRun(200, step); n != 0 {
				t.Errorf("idle: %v allocations", n)
			}
			g, there := hostGrant("busy"), blocks(3, 1)
			runs := []record.Run{{Local: 20, Remote: 3, N: 1}}
			remote := p.remote("busy", 0)
			key := func(l record.Handle) {
				remote.Epoch, remote.Key, _ = p.host.Era(l)
				remote.Slot, remote.Generation = l.Slot(), l.Use()
			}
			p.fill(1, there)
			failed := 0
			request := func() {
				l, err := p.host.Grant(g, f.now())
				if err != nil {
					failed++
					return
				}
				key(l)
				h, err := d.host.Track(e, remote, nil, 1, f.now())
				if err != nil || d.host.Read(h, runs) != nil {
					failed++
				}
				for range 8 {
					step()
				}
			}
			before := p.core.counters()["freed"].([9]uint64)
			if n := testing.AllocsPerRun(50, request); n != 0 {
				t.Errorf("busy: %v allocations a request of 8 steps", n)
			}
			after := p.core.counters()["freed"].([9]uint64)
			if done := after[record.FreedCompleted] - before[record.FreedCompleted]; done < 45 || failed > 0 {
				t.Errorf("%d of 51 were read, %d could not be said", done, failed)
			}
		})
	}
}

// What the documents tell an operator to look at is there.
func TestStatsHaveTheKeysThatTheDocumentsName(t *testing.T) {
	f := newFleet(t, stream.KindShm).realTime()
	f.drive = "pump"
	p, one := f.team("P", 2, 1), f.team("O", 1, 1)
	f.name(one, p)
	all := map[string]bool{}
	for _, c := range []*Core{p.core, p.ranks[0].core, one.core} {
		var stats map[string]any
		if err := json.Unmarshal(c.Stats(), &stats); err != nil {
			t.Fatal(err)
		}
		for k := range stats {
			all[k] = true
		}
	}
	// Each name of the lines of "Seen", without the number of an entry.
	text, err := os.ReadFile("../../docs/failure-modes.md")
	if err != nil {
		t.Fatal(err)
	}
	names := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "- Seen:") {
			continue
		}
		for _, m := range regexp.MustCompile("`([a-z0-9_]+)(\\[[0-9]+\\])?`").FindAllStringSubmatch(line, -1) {
			if names++; !all[m[1]] {
				t.Errorf("failure-modes.md names %s, which no context has", m[1])
			}
		}
	}
	if names < 60 {
		t.Errorf("%d names found", names)
	}
}

// kvl_wait_fd of a context that nobody steps: the stream wakes it.
func TestALoopThatSleepsIsWokenByItsStream(t *testing.T) {
	for _, carrier := range []string{stream.KindProcess, stream.KindShm, stream.KindDelta} {
		t.Run(carrier, func(t *testing.T) {
			f := newFleet(t, carrier)
			wake := func() int { // as the C library makes it
				fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
				if err != nil {
					t.Fatal(err)
				}
				return fd
			}
			f.wake = wake
			p := f.team("P", 2, 1)
			f.turns(50)
			readable := func(c *Core) bool { return empty(int(c.mem.Control.WakeFd)) }
			quiet := func(c *Core) {
				for range 10 {
					readable(c)
					f.stepOne(c)
				}
				if readable(c) {
					t.Error("a context with nothing to do is woken")
				}
			}
			rank := p.ranks[1].core
			quiet(rank)
			lease, err := p.host.Grant(hostGrant("r"), f.now())
			if err != nil {
				t.Fatal(err)
			}
			f.stepOne(p.core)
			if carrier == stream.KindDelta {
				f.deliver(p.core, rank, 1)
			}
			eventually(t, "the rank is woken", func() bool { return readable(rank) })
			quietHost := func() {
				f.turns(20)
				quiet(p.core)
			}
			quietHost()
			if err := p.host.Cancel(lease); err != nil {
				t.Fatal(err)
			}
			f.stepOne(p.core)
			readable(p.core)
			if carrier == stream.KindDelta {
				f.deliver(p.core, rank, 1)
			}
			f.stepOne(rank)
			if carrier == stream.KindDelta {
				f.deliver(rank, p.core, 1)
			}
			eventually(t, "the host is woken", func() bool { return readable(p.core) })
		})
	}
}

// Messages of both directions are dropped, doubled and held back; what is said comes to its end all the same.
func TestDeltasThatAreLostDoubledAndLateChangeNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	f := newFleet(t, stream.KindDelta)
	var late []func()
	f.carry = func(from, to *Core, rank uint32) {
		var buf [stream.MessageBytesMin]byte
		n, err := from.DeltaTake(rank, buf[:])
		if err != nil || n == 0 {
			return
		}
		msg := append([]byte(nil), buf[:n]...)
		put := func() { to.DeltaPut(rank, msg) }
		switch rnd.IntN(6) {
		case 0:
		case 1:
			put()
			put()
		case 2:
			late = append(late, put)
		default:
			put()
		}
		if len(late) > 4 || rnd.IntN(5) == 0 {
			for _, put := range late {
				put()
			}
			late = nil
		}
	}
	p, d := f.team("P", 2, 1), f.team("D", 2, 1)
	e := f.connect(d, p)
	for n := range uint64(30) {
		f.exchange(p, d, e, 10+n)
	}
	there := blocks(3, 4)
	var leases []record.Handle
	for n := range 20 {
		lease, remote := p.grant(fmt.Sprint("cut-", n), 100, there)
		track := d.track(e, remote, 1)
		f.turns(rnd.IntN(6))
		if n%2 == 0 {
			if err := d.host.Untrack(track); err != nil {
				t.Fatal(err)
			}
		} else if err := p.host.Cancel(lease); err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
	}
	for _, l := range leases {
		if n := p.of(record.EvFreed, l); n == 0 {
			f.pass = 20 * time.Millisecond
			p.event(record.EvFreed, l)
		}
	}
	if p.core.stat("full_states")+d.core.stat("full_states") <= 4 {
		t.Error("nothing was lost")
	}
	f.until("closed", func() bool { return p.core.Close(0) == nil })
}

// A rank that is driven inline rests between requests. If it hangs then, nothing but the stream tells that it has been told something.
// What the engine carries (delta) it carries to a rank that steps, as a rule in the same pass.
func TestThePageOfARankSaysWhatItHasNotTakenOfItsHost(t *testing.T) {
	for _, carrier := range []string{stream.KindProcess, stream.KindShm} {
		t.Run(carrier, func(t *testing.T) {
			f := newFleet(t, carrier)
			p := f.team("P", 2, 1)
			f.turns(20)
			page, err := p.ranks[1].core.Page()
			if err != nil {
				t.Fatal(err)
			}
			defer page.Close()
			var s watch.Snapshot
			waits := func() uint64 {
				t.Helper()
				if err := page.Read(&s); err != nil {
					t.Fatal(err)
				}
				n, ok := s.Value("untaken_bytes", "")
				if !ok {
					t.Fatal("no untaken_bytes")
				}
				return n
			}
			eventually(t, "it has taken all", func() bool { return waits() == 0 })
			p.ranks[1].stopped = true
			at := p.ranks[1].core.plane.Counters.Steps
			p.grant("r", 1, blocks(0, 4))
			f.turns(20)
			eventually(t, "it says what waits", func() bool { return waits() > 0 })
			if p.ranks[1].core.plane.Counters.Steps != at {
				t.Error("it has made a step")
			}
			p.ranks[1].stopped = false
			f.turns(20)
			eventually(t, "nothing waits", func() bool { return waits() == 0 })
		})
	}
}
