package simnet_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/transport"
)

var soakSeeds = flag.Uint64("simnet.seeds", 60, "seeds of the soak test")

const (
	soakEnds  = 3   // owners, and as many readers
	soakPlace = 512 // bytes of a place that one read fills
	soakOps   = 600
)

// soak is agents to which everything is done in random order. Each owner's memory holds its version in every byte.
type soak struct {
	t       *testing.T
	r       *rand.Rand
	net     *simnet.Net
	owners  [soakEnds]*soakOwner
	readers [soakEnds]*soakReader
	in      *transport.Inbox
	lives   int
	ordered bool
	log     []string
}

type soakOwner struct {
	*simnet.Agent
	mem     []byte
	version byte
	stopped bool
	cut     [soakEnds]bool
	seen    map[uint64]uint32 // of each connection the last number
}

type soakReader struct {
	*simnet.Agent
	mem   []byte
	peers [soakEnds]transport.Peer
	of    [soakEnds]*soakOwner // whose blob it is
	conn  [soakEnds]uint64     // a number for each connection
	sent  [soakEnds]uint32
	reads []soakRead
	held  bool
}

type soakRead struct {
	x     transport.Xfer
	of    *soakOwner
	place int
	from  byte   // the owner's version when it was posted
	after []byte // its place when it was Done
}

func (s *soak) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *soak) owner(i int) {
	s.lives++
	o := &soakOwner{mem: make([]byte, 2*soakPlace), version: 1, seen: map[uint64]uint32{}}
	fill(o.mem, 1)
	a, err := s.net.Agent(fmt.Sprintf("P%d", i), simnet.AgentConfig{})
	s.must(err)
	s.must(a.Register([]transport.Region{{Addr: addr(o.mem), Bytes: uint64(len(o.mem))}}))
	if old := s.owners[i]; old != nil {
		o.cut = old.cut
	}
	o.Agent = a
	s.owners[i] = o
}

func (s *soak) reader(i int) {
	d := &soakReader{mem: make([]byte, 16*soakPlace)}
	a, err := s.net.Agent(fmt.Sprintf("D%d", i), simnet.AgentConfig{ReadsMax: 12})
	s.must(err)
	s.must(a.Register([]transport.Region{{Addr: addr(d.mem), Bytes: uint64(len(d.mem))}}))
	d.Agent = a
	s.readers[i] = d
}

func newSoak(t *testing.T, seed uint64) *soak {
	r := rand.New(rand.NewPCG(seed, 77))
	link := simnet.Link{
		Delay: time.Duration(r.IntN(int(2 * ms))), Jitter: time.Duration(r.IntN(int(20 * ms))), DescTime: time.Duration(r.IntN(int(20 * ms))),
		Break: 2 * time.Second, Late: 500 * ms, Connect: time.Duration(r.IntN(int(8 * ms))), RDMA: r.IntN(3) == 0, Flush: r.IntN(4) == 0,
	}
	for _, p := range []*float64{&link.Loss, &link.Dup, &link.Reorder, &link.ReadFail, &link.Torn} {
		if r.IntN(2) == 0 {
			*p = 0.2
		}
	}
	s := &soak{
		t: t, r: r, in: transport.NewInbox(8, 256), ordered: link.Reorder == 0 && link.Dup == 0,
		net: simnet.New(simnet.Config{Seed: seed, Start: clock.Instant(time.Hour), Link: link}),
	}
	s.net.Watch(func(e *simnet.Event) { s.log = append(s.log, fmt.Sprint(e.At, e.Kind, e.From, e.To, e.Bytes)) })
	for i := range soakEnds {
		s.owner(i)
		s.reader(i)
	}
	return s
}

// op does one random thing.
func (s *soak) op() {
	i, j := s.r.IntN(soakEnds), s.r.IntN(soakEnds)
	d, p := s.readers[i], s.owners[j]
	dName, pName := d.Agent.Agent(), p.Agent.Agent()
	switch k := s.r.IntN(60); {
	case k < 12:
		s.net.Advance(s.net.Now().Add(time.Duration(s.r.IntN(int(30 * ms)))))
	case k < 20:
		s.send(d, j)
	case k < 30:
		s.post(d, j)
	case k < 38:
		s.look(d)
	case k < 44:
		s.poll(p)
	case k < 47:
		p.version++
		fill(p.mem, p.version)
	case k < 49:
		s.reload(d, j)
	case k == 49:
		s.net.Reset(dName, pName)
	case k == 50:
		s.net.FailReads(dName, pName)
	case k == 51:
		p.cut[i] = !p.cut[i]
		s.net.Partition(dName, pName, p.cut[i])
	case k == 52:
		d.held = !d.held
		s.net.HoldReads(dName, d.held)
	case k < 55:
		if p.stopped = !p.stopped; p.stopped {
			s.net.Stop(pName)
		} else {
			s.net.Resume(pName)
		}
	case k == 55 && s.r.IntN(3) == 0:
		if s.net.Kill(pName); s.r.IntN(2) == 0 {
			fill(p.mem, 0xff) // somebody else's pages
		}
		s.owner(j)
	case k == 56 && s.r.IntN(3) == 0:
		s.net.PowerOff(pName)
		s.owner(j)
	case k == 57 && s.r.IntN(3) == 0:
		s.net.Kill(dName)
		s.reader(i)
	case k == 58 && s.r.IntN(3) == 0:
		if err := p.Close(); err == nil {
			s.owner(j)
		} else if !errors.Is(err, transport.ErrUntaken) {
			s.t.Fatal(err)
		}
	case k == 59:
		s.net.Advance(s.net.Now().Add(time.Duration(s.r.IntN(int(3 * time.Second)))))
	}
}

func (s *soak) reload(d *soakReader, j int) {
	if d.peers[j] != 0 {
		switch err := d.Drop(d.peers[j]); {
		case err == nil:
		case s.r.IntN(2) == 0:
			s.must(d.Abandon(d.peers[j]))
		default:
			return
		}
	}
	blob, err := s.owners[j].Metadata()
	s.must(err)
	d.peers[j], err = d.Load(blob)
	s.must(err)
	s.lives++
	d.of[j], d.conn[j], d.sent[j] = s.owners[j], uint64(s.lives), 0
}

func (s *soak) send(d *soakReader, j int) {
	if d.peers[j] == 0 {
		return
	}
	d.sent[j]++
	body := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, d.conn[j]), d.sent[j])
	if err := d.Send(d.peers[j], body); err != nil && !errors.Is(err, transport.ErrPeer) {
		s.t.Fatal(err)
	}
}

// poll takes what has arrived: of one connection in order, unless the link may change it.
func (s *soak) poll(p *soakOwner) {
	s.in.Reset()
	p.Poll(s.in)
	for {
		_, body, ok := s.in.Next()
		if !ok {
			return
		}
		if len(body) != 12 {
			if string(body) != "done" {
				s.t.Fatalf("got %q", body)
			}
			continue
		}
		conn, n := binary.LittleEndian.Uint64(body), binary.LittleEndian.Uint32(body[8:])
		if s.ordered && n <= p.seen[conn] {
			s.t.Fatalf("number %d of a connection arrived after %d", n, p.seen[conn])
		}
		p.seen[conn] = n
	}
}

// post starts a read into a place into which nothing may be written any more.
func (s *soak) post(d *soakReader, j int) {
	place := s.r.IntN(16)
	for _, r := range d.reads {
		if r.place == place {
			return
		}
	}
	if d.peers[j] == 0 || d.MayWrite(addr(d.mem)+uint64(place*soakPlace), soakPlace) {
		return
	}
	o := d.of[j]
	local := d.mem[place*soakPlace : (place+1)*soakPlace]
	clear(local)
	spec := transport.ReadSpec{Peer: d.peers[j]}
	if s.r.IntN(4) == 0 {
		spec.Notif = []byte("done")
	}
	n := soakPlace / 4
	for k := range 4 {
		spec.Descs = append(spec.Descs, transport.Desc{Local: addr(local[k*n:]), Remote: addr(o.mem[k*n:]), Len: uint64(n)})
	}
	if s.r.IntN(3) == 0 {
		spec.Descs = []transport.Desc{{Local: addr(local), Remote: addr(o.mem), Len: 32}}
	}
	x, err := d.PostRead(&spec)
	switch {
	case err == nil:
		d.reads = append(d.reads, soakRead{x: x, of: o, place: place, from: o.version})
	case !errors.Is(err, transport.ErrPeer) && !errors.Is(err, transport.ErrFull):
		s.t.Fatal(err)
	}
}

// look polls the reads of d. What is Done holds only bytes that its owner had meanwhile, and does not change any more.
func (s *soak) look(d *soakReader) {
	spin := int64(s.r.IntN(2)) * int64(time.Millisecond)
	for i := len(d.reads) - 1; i >= 0; i-- {
		if s.lookAt(d, &d.reads[i], spin) {
			d.reads = slices.Delete(d.reads, i, i+1)
		}
	}
}

func (s *soak) lookAt(d *soakReader, r *soakRead, spin int64) (over bool) {
	out := []transport.Status{0}
	d.PollReads([]transport.Xfer{r.x}, out, spin)
	place := d.mem[r.place*soakPlace : (r.place+1)*soakPlace]
	if out[0] == transport.Pending {
		return false
	}
	if out[0] == transport.Done && r.after != nil && !slices.Equal(r.after, place) {
		s.t.Fatalf("place %d has changed after Done", r.place)
	}
	if out[0] == transport.Done && r.after == nil {
		r.after = slices.Clone(place)
		n := 0
		for _, b := range place {
			if b != 0 {
				n++
				if b < r.from || b > r.of.version {
					s.t.Fatalf("byte %d in a read of versions %d to %d", b, r.from, r.of.version)
				}
			}
		}
		if n != soakPlace && n != 32 {
			s.t.Fatalf("%d bytes landed", n)
		}
		if d.MayWrite(addr(place), soakPlace) {
			s.t.Fatal("it is Done, and may be written")
		}
	}
	if s.r.IntN(2) == 0 {
		s.must(d.Release(r.x))
		return true
	}
	return false
}

// end joins everything again, lets it come to rest, closes all, and looks for what is left.
func (s *soak) end() {
	for i, d := range s.readers {
		s.net.HoldReads(d.Agent.Agent(), false)
		for _, p := range s.owners {
			s.net.Partition(d.Agent.Agent(), p.Agent.Agent(), false)
			p.cut[i] = false
		}
	}
	for _, p := range s.owners {
		s.net.Resume(p.Agent.Agent())
	}
	for round := 0; ; round++ {
		if round == 1000 {
			s.t.Fatal("it does not come to rest")
		}
		for s.net.NextEvent() != clock.Never {
			s.net.Advance(s.net.NextEvent())
		}
		left := 0
		for _, p := range s.owners {
			s.poll(p)
			left += p.Queued()
		}
		for _, d := range s.readers {
			s.look(d)
			left += len(d.reads)
		}
		if left == 0 && s.net.NextEvent() == clock.Never {
			break
		}
	}
	if notifs, reads, _ := s.net.Open(); notifs != 0 || reads != 0 {
		s.t.Errorf("%d notifications and %d reads are left at rest", notifs, reads)
	}
	for i := range soakEnds {
		s.must(s.readers[i].Close())
		s.must(s.owners[i].Close())
	}
	if _, _, conns := s.net.Open(); conns != 0 {
		s.t.Errorf("%d connections are left at the end", conns)
	}
}

func runSoak(t *testing.T, seed uint64) *soak {
	s := newSoak(t, seed)
	for range soakOps {
		s.op()
	}
	s.end()
	return s
}

func TestWhateverIsDoneToIt(t *testing.T) {
	var sum simnet.Counters
	for seed := range *soakSeeds {
		s := runSoak(t, seed)
		if seed%10 == 0 {
			if again := runSoak(t, seed); !slices.Equal(s.log, again.log) {
				t.Fatalf("seed %d: two runs differ", seed)
			}
		}
		c := s.net.Counters()
		sum.Arrived += c.Arrived
		sum.Lost += c.Lost
		sum.ReadsDone += c.ReadsDone
		sum.ReadsFailed += c.ReadsFailed
		sum.LatePieces += c.LatePieces
		sum.Broken += c.Broken
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%+v", sum)
	if sum.Arrived == 0 || sum.Lost == 0 || sum.ReadsDone == 0 || sum.ReadsFailed == 0 || sum.LatePieces == 0 || sum.Broken == 0 {
		t.Errorf("something never happened: %+v", sum)
	}
}
