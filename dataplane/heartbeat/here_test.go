package heartbeat

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// stale is a transport whose first peers are of no use for something, for a reason of this side, until they are dropped and loaded again.
type stale struct {
	transport.Transport
	kind  hereKind
	good  int // the first load that is of use
	with  error
	loads int
	bad   map[transport.Peer]bool
}

func (s *stale) Load(blob []byte) (transport.Peer, error) {
	p, err := s.Transport.Load(blob)
	s.loads++
	s.bad[p] = s.loads < s.good
	return p, err
}

func (s *stale) Send(p transport.Peer, msg []byte) error {
	if s.kind == hereSends && s.bad[p] {
		return s.with
	}
	return s.Transport.Send(p, msg)
}

func (s *stale) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	if data := spec.Descs[0].Len == blockLen; s.bad[spec.Peer] && (s.kind == hereReads && data || s.kind == hereRows && !data) {
		return 0, s.with
	}
	return s.Transport.PostRead(spec)
}

// newStale is a rig whose loads before the one that is good are stale, and an engine with a lease that is tracked there all the time.
func newStale(t *testing.T, kind hereKind, good int) (r *rig, s *stale, o *owner, e uint64, kept record.Handle) {
	t.Helper()
	return newStaleOver(t, kind, good, nil)
}

func newStaleOver(t *testing.T, kind hereKind, good int, machine func(*read.Config)) (r *rig, s *stale, o *owner, e uint64, kept record.Handle) {
	t.Helper()
	r = newRigOf(t, nil, machine, 1, func(tr transport.Transport) transport.Transport {
		s = &stale{Transport: tr, kind: kind, good: good, with: transport.ErrInvalid, bad: map[transport.Peer]bool{}}
		return s
	})
	o = r.owner("P", false)
	for n := range o.rows {
		o.rows[n].Fence = o.base + 0
	}
	e = r.connect(o)
	return r, s, o, e, r.track(e, o, 0, 0)
}

// readOne reads a block of a lease and gives what is said of it.
func (r *rig) readOne(e uint64, o *owner, n uint32) string {
	h := r.track(e, o, n, 0)
	r.run(r.now.Add(500*time.Millisecond), 100*time.Millisecond)
	r.read(h, record.Run{N: 1})
	r.run(r.now.Add(500*time.Millisecond), 100*time.Millisecond)
	return r.said(h)
}

// What this side has of an engine may have gone stale. Nothing that fails for that reason speaks against the engine, and it is mended all the same.
func TestWhatGoesOnFailingForAReasonOfThisSideHasTheConnectionMadeAnew(t *testing.T) {
	for kind, name := range []string{"reads", "rows", "sends"} {
		t.Run(name, func(t *testing.T) {
			r, s, o, e, kept := newStale(t, hereKind(kind), 2)
			for n := uint32(1); s.loads < 2 && n < 40; n++ {
				if got := r.readOne(e, o, n); kind == int(hereReads) && got != "failed(3)" {
					t.Fatalf("read %d: %q", n, got)
				}
				r.wantFailing(0, 0, 0)
			}
			if got := r.readOne(e, o, 41); got != "done" {
				t.Errorf("a read over the next connection: %q", got)
			}
			renewed := o.count("renew")
			r.run(r.now.Add(12*time.Second), 500*time.Millisecond)
			if n := o.count("renew") - renewed; n < 2 {
				t.Errorf("%d heartbeats for what is tracked in two intervals", n)
			}
			if c := r.k.Counters(); c.MadeAnew != 1 || c.Disconnects != 0 || s.loads != 2 {
				t.Errorf("made anew %d times, %d connections broken, %d loads", c.MadeAnew, c.Disconnects, s.loads)
			}
			r.wantSaid(kept, "")
			r.wantEngine(e, "up")
			r.wantFailing(0, 0, 0)
		})
	}
}

// What is loaded of an engine may lack what its map names: that speaks against the engine, until it is loaded again.
func TestAnEngineWhoseMemoryIsNotInWhatIsLoadedOfItIsLoadedAgain(t *testing.T) {
	r, s, o, e, kept := newStale(t, hereReads, 2)
	s.with = transport.ErrRange
	for n := uint32(1); s.loads < 2 && n < 40; n++ {
		if got := r.readOne(e, o, n); got != "failed(3)" {
			t.Fatalf("read %d: %q", n, got)
		}
	}
	if g := r.k.Gauges(); g.Failing != 1 {
		t.Errorf("%d engines count as failing, want it", g.Failing)
	}
	if got := r.readOne(e, o, 41); got != "done" {
		t.Errorf("a read over the next connection: %q", got)
	}
	r.wantSaid(kept, "")
	r.wantFailing(0, 0, 0)
}

// A device of ours that does no copy is not mended by loading its owners again, which costs reads of others their connection.
func TestWhatNoNewConnectionMendsIsTriedAtGrowingDistances(t *testing.T) {
	r, s, o, e, kept := newStale(t, hereReads, 1<<30)
	var at []clock.Instant
	for n := uint32(1); n <= 400; n++ {
		before := s.loads
		if got := r.readOne(e, o, n); got != "failed(3)" {
			t.Fatalf("read %d: %q", n, got)
		}
		if s.loads > before {
			at = append(at, r.now)
		}
	}
	if len(at) < 6 || len(at) > 8 {
		t.Fatalf("made anew %d times in 400 s", len(at))
	}
	for n := 2; n < len(at); n++ {
		if before, d := at[n-1].Sub(at[n-2]), at[n].Sub(at[n-1]); d < before*3/2 {
			t.Errorf("%v, and %v before", d, before)
		}
	}
	r.wantSaid(kept, "")
	r.wantEngine(e, "up")
	r.wantFailing(0, 0, 0)
}

// A connection over which reads go on is not made anew under them.
func TestReadsOfOthersAreWaitedForBeforeAConnectionIsMadeAnew(t *testing.T) {
	r, s, o, e, _ := newStale(t, hereSends, 2)
	going := r.track(e, o, 1, 0)
	r.step(r.now.Add(100 * time.Millisecond))
	r.d.HoldReads(true)
	r.read(going, record.Run{N: 1})
	r.run(r.now.Add(60*time.Second), 500*time.Millisecond)
	if s.loads != 1 {
		t.Fatalf("%d loads under a read", s.loads)
	}
	r.d.HoldReads(false)
	r.run(r.now.Add(20*time.Second), 500*time.Millisecond)
	r.wantSaid(going, "done")
	if c := r.k.Counters(); s.loads != 2 || c.MadeAnew != 1 || c.Abandons != 0 {
		t.Errorf("%d loads, made anew %d times, %d abandoned", s.loads, c.MadeAnew, c.Abandons)
	}
}

// A read in parts has none in flight between two steps, and is a read that goes on all the same.
func TestAReadBetweenItsPartsIsWaitedForBeforeAConnectionIsMadeAnew(t *testing.T) {
	r, s, o, e, _ := newStaleOver(t, hereSends, 2, func(c *read.Config) { c.DescsStepMax = 1 })
	going := r.track(e, o, 1, 0)
	r.step(r.now.Add(100 * time.Millisecond))
	var runs []record.Run
	for n := range uint32(blockCount) {
		runs = append(runs, record.Run{Local: n, Remote: 7 * n % blockCount, N: 1}) // no two are neighbours at both ends
	}
	r.read(going, runs...)
	for n := 0; r.said(going) == "" && n < 100; n++ {
		r.step(r.now.Add(2 * time.Second))
		if s.loads != 1 && r.said(going) == "" {
			t.Fatalf("%d loads under a read, after %d steps", s.loads, n)
		}
	}
	r.wantSaid(going, "done")
	r.run(r.now.Add(20*time.Second), 500*time.Millisecond)
	if c := r.k.Counters(); s.loads != 2 || c.MadeAnew != 1 {
		t.Errorf("%d loads, made anew %d times", s.loads, c.MadeAnew)
	}
}
