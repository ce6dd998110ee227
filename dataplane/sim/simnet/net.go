// Package simnet is a simulated network as a transport: many agents on one virtual clock, with faults that a seed decides.
//
// It does with notifications and reads what NIXL over UCX was measured to do, or what hardware may do at worst. A read is
// copied piece by piece at seeded times, and goes on whatever becomes of its handle, its peer or its agent. A peer that was
// killed is noticed late, one that is stopped never.
//
// Chance is no stream: what happens to a message or read is a hash of the seed, both names, its class, the millisecond in which
// it was posted, and how many of that class these two had in it. So one action less in a schedule changes nothing for all others.
package simnet

import (
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/internal/regions"
	"github.com/kvlease/kvlease/dataplane/sim/internal/timeheap"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Config is what a network starts with.
type Config struct {
	Seed  uint64
	Start clock.Instant // true time at the start
	Link  Link          // of every directed connection for which SetLink has said nothing
}

// Link is how one directed connection behaves: what From sends to To, and what From reads from To. Probabilities are 0 to 1.
type Link struct {
	Delay  time.Duration // of a notification, of a read's request, and of its answer
	Jitter time.Duration // each of these is later by up to this

	Loss    float64       // of a notification that vanishes although its Send succeeds
	Dup     float64       // of one that arrives twice
	Reorder float64       // of one that later ones may overtake
	Spread  time.Duration // the second copy, or what is overtaken, is later by up to this; 0: 1 ms

	ReadDelay time.Duration // what a read takes on top, as where software answers it
	DescTime  time.Duration // what each descriptor of a read takes
	Rate      float64       // bytes a second of one connection; 0: no limit. Reads to SmallRead do not wait for others
	ReadFail  float64       // of a read that reports an error while its pieces go on
	Torn      float64       // of a small read that is copied byte by byte at different times, not word by word
	Late      time.Duration // after an error pieces land later by up to this; none after this or 20 s, what is longer

	Connect time.Duration // what the first use of a connection takes on top
	Break   time.Duration // a connection that gets nothing through is lost after this; 0: 20 s
	RDMA    bool          // reads are answered without the owner's software: also when it is stopped
	Flush   bool          // a read waits until the owner has polled all notifications sent before it
}

// AgentConfig is what an agent starts with; what is 0 gets its default.
type AgentConfig struct {
	ReadsMax  int     // reads posted and not released, default 256; a PostRead past it is ErrFull
	NotifsMax int     // notifications that wait for this agent; a Send past it is ErrFull. Default: no limit, as with NIXL
	Rate      float64 // bytes a second of the agent's network card, each direction; 0: no limit
	Sized     bool    // VRAM of this agent has addresses and no memory: what touches it takes time and moves no byte
	FastFence bool    // what FastFence reports
}

// SmallRead is the size in bytes up to which a read is one of rows or words: it does not wait in line behind others.
const SmallRead = 64

// magic begins the metadata of these agents.
const magic = "kvlS"

const (
	breakDefault   = 20 * time.Second
	spreadDefault  = time.Millisecond
	readsDefault   = 256
	noticeDelay    = 300 * time.Microsecond // from the first send after a peer's death until sends fail
	failDelayLeast = 1500 * time.Microsecond
	failDelaySpan  = 1500 * time.Microsecond // open reads fail this much after a peer's death
	attachedMax    = 4096                    // bytes of a notification that rides on a read
)

// Net is the network and its clock.
//
// Threads: one, for the network and all of its agents.
// Memory: pools that grow to the most that was under way at once, shared by all agents; then nothing is allocated.
// Registered memory may be Go memory. Whoever registers it keeps it alive as long as the network, since bytes may land late.
type Net struct {
	seed  uint64
	now   clock.Instant
	link  *Link
	heap  timeheap.Heap[clock.Instant, event]
	names map[string]int32
	named []name
	links map[[2]int32]*Link // what SetLink has said
	cuts  map[[2]int32]bool  // partitions, both orders of the two names

	agents []*Agent // by epoch - 1; the dead ones stay
	conns  pool[conn]
	msgs   pool[message]
	reads  pool[read]
	bytes  chunks
	descs  descPool

	intercept     func(*Sent) Fate
	interceptRead func(*Posted) ReadFate
	onWrite       func(*Write)
	watch         func(*Event)
	counters      Counters

	rushing bool // PollReads spins: what is due until rushTo happens at once
	rushTo  clock.Instant
	scratch []byte // of a notification that rides on a read
	sent    Sent
	posted  Posted
	written Write
	event   Event
}

// name is an agent's name: agents that come after each other may have the same.
type name struct {
	text  string
	hash  uint64
	alive int32 // index of the agent, -1
}

// Counters are totals since New.
type Counters struct {
	Events                        uint64 // carried out by Advance
	Sent, Lost, Copies, Arrived   uint64 // notifications, those attached to reads included
	SentBytes                     uint64
	Reads, ReadsDone, ReadsFailed uint64
	ReadBytes                     uint64 // posted
	Pieces, LatePieces            uint64 // copied, and those of them that belonged to a read that had failed
	Broken                        uint64 // connections lost
}

// New makes a network without agents.
func New(cfg Config) *Net {
	n := &Net{
		seed: mix(cfg.Seed), now: cfg.Start, names: map[string]int32{}, links: map[[2]int32]*Link{}, cuts: map[[2]int32]bool{},
		scratch: make([]byte, attachedMax),
	}
	n.link = newLink(cfg.Link)
	return n
}

func newLink(l Link) *Link {
	if l.Break <= 0 {
		l.Break = breakDefault
	}
	if l.Spread <= 0 {
		l.Spread = spreadDefault
	}
	return &l
}

// Now is true time.
func (n *Net) Now() clock.Instant { return n.now }

// NextEvent is when something is due, or Never. It may be something that turns out to be of no consequence.
func (n *Net) NextEvent() clock.Instant {
	if n.heap.Len() == 0 {
		return clock.Never
	}
	return n.heap.Top().At
}

// Advance carries out everything that is due until to, in order of time, and of what is due at once in the order in which it came
// about. A time in the past does nothing.
func (n *Net) Advance(to clock.Instant) {
	for n.heap.Len() > 0 && n.heap.Top().At <= to {
		e := n.heap.Pop()
		if e.At > n.now {
			n.now = e.At
		}
		n.counters.Events++
		switch e.What.kind {
		case evMessage:
			n.arrive(e.What.index)
		case evRead:
			if r := n.reads.at(e.What.index); r.event == e.Seq {
				n.move(e.What.index, r)
			}
		case evConn:
			if c := n.conns.at(e.What.index); c.event == e.Seq {
				n.breakConn(e.What.index, c)
			}
		}
	}
	if to > n.now {
		n.now = to
	}
}

// Counters gives the totals of now.
func (n *Net) Counters() Counters { return n.counters }

// Agent adds an agent. ErrInvalid: a name that is empty, too long, or of an agent that lives.
func (n *Net) Agent(agent string, cfg AgentConfig) (*Agent, error) {
	if agent == "" || len(agent) > regions.NameMax {
		return nil, fmt.Errorf("agent name of %d bytes, want 1 to %d: %w", len(agent), regions.NameMax, transport.ErrInvalid)
	}
	id := n.nameOf(agent)
	if n.named[id].alive >= 0 {
		return nil, fmt.Errorf("agent %q exists: %w", agent, transport.ErrInvalid)
	}
	if cfg.ReadsMax <= 0 {
		cfg.ReadsMax = readsDefault
	}
	a := &Agent{
		net: n, index: int32(len(n.agents)), name: id, nameBytes: []byte(agent), cfg: cfg, alive: true,
		peers: []int32{none}, loaded: map[int32]int32{}, first: none, last: none, parked: none, held: none,
	}
	n.named[id].alive = a.index
	n.agents = append(n.agents, a)
	return a, nil
}

func (n *Net) nameOf(text string) int32 {
	id, ok := n.names[text]
	if !ok {
		id = int32(len(n.named))
		n.names[text] = id
		n.named = append(n.named, name{text, hashText(text), none})
	}
	return id
}

// living gives the agent of a name that lives, or nil.
func (n *Net) living(text string) *Agent {
	id, ok := n.names[text]
	if !ok || n.named[id].alive < 0 {
		return nil
	}
	return n.agents[n.named[id].alive]
}

// linkOf is what the connection between two names is like now.
func (n *Net) linkOf(from, to int32) *Link {
	if l := n.links[[2]int32{from, to}]; l != nil {
		return l
	}
	return n.link
}
