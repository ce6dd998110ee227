package simnet

import (
	"fmt"

	"github.com/kvlease/kvlease/dataplane/internal/regions"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Agent is one end of the network, as a transport.
type Agent struct {
	net       *Net
	index     int32
	name      int32
	nameBytes []byte
	cfg       AgentConfig

	alive, closed bool
	silent        bool // dead without a word, as after a loss of power
	stopped       bool
	hold          bool // reads of this agent go no further
	unregistered  bool // Unregister has taken something away

	regions []transport.Region // replaced, never changed: those who loaded them share them
	peers   []int32            // connections by peer, none: dropped. A peer is never used again, so it only grows
	loaded  map[int32]int32    // connection by the peer's name

	first, last int32 // what has arrived
	queued      int
	coming      int // notifications on their way here
	backlog     int
	open        int   // reads not released
	parked      int32 // reads of others that wait for this stopped agent
	held        int32 // own reads that are held
	txFree      instant
	rxFree      instant

	onArrival func()
}

var _ transport.Transport = (*Agent)(nil)

// conn is one loaded peer: what is sent and read one way. It outlives Drop and Abandon until nothing of it is under way.
type conn struct {
	live     bool
	from, to int32 // agents; to is none for an agent that never was
	toName   int32
	peer     transport.Peer
	hash     uint64
	link     *Link
	regions  []transport.Region // of the peer's metadata
	tally    tally

	up            bool    // used before
	gone, dropped bool    // dropped or abandoned; dropped
	lost, cut     bool    // until Drop and Load; partitioned
	notice        instant // from then on the death of its peer is known, 0: not
	event         uint64  // when it is lost if nothing gets through, 0: nothing waits
	floor         instant // arrival of the latest notification that keeps the order
	free          instant // when its rate allows the next read

	open         int32 // reads not released
	refs         int32 // notifications and reads that know of it
	parked       int32 // reads that wait for the partition to end or for notifications to be polled
	stalled      int32 // notifications that wait for the partition to end
	stalledLast  int32
	sent, polled uint64 // notifications, for Link.Flush
}

// Name is "sim".
func (a *Agent) Name() string { return "sim" }

// Agent is the name given to Net.Agent.
func (a *Agent) Agent() string { return a.net.named[a.name].text }

// FastFence is what the configuration says.
func (a *Agent) FastFence() bool { return a.cfg.FastFence }

// OnArrival sets a function that is called when there is something new to poll: a notification, or a read that has ended. It may
// only take a note: it calls nothing of the network.
func (a *Agent) OnArrival(f func()) { a.onArrival = f }

// Register adds regions, all or none.
func (a *Agent) Register(add []transport.Region) error {
	if !a.alive {
		return transport.ErrClosed
	}
	if err := regions.Check(add); err != nil {
		return err
	}
	a.regions = append(a.regions[:len(a.regions):len(a.regions)], add...)
	return nil
}

// Unregister removes regions that Register has added, all or none.
func (a *Agent) Unregister(gone []transport.Region) error {
	if !a.alive {
		return transport.ErrClosed
	}
	left, err := regions.Without(a.regions, gone)
	if err != nil {
		return err
	}
	a.regions, a.unregistered = left, true
	return nil
}

// Metadata is the blob for Load: name, epoch and the regions of now.
func (a *Agent) Metadata() ([]byte, error) {
	if !a.alive {
		return nil, transport.ErrClosed
	}
	return regions.Append(nil, magic, string(a.nameBytes), uint64(a.index)+1, a.regions), nil
}

// Load makes a remote agent reachable. Like NIXL it does not ask whether the agent lives.
func (a *Agent) Load(metadata []byte) (transport.Peer, error) {
	m, err := regions.Parse(metadata, magic)
	if err != nil {
		return 0, err
	}
	if !a.alive {
		return 0, transport.ErrClosed
	}
	n := a.net
	id := n.nameOf(string(m.Name))
	if _, ok := a.loaded[id]; ok {
		return 0, fmt.Errorf("agent %q is loaded, drop it first: %w", m.Name, transport.ErrInvalid)
	}
	i, c := n.conns.take()
	*c = conn{
		live: true, from: a.index, to: none, toName: id, peer: transport.Peer(len(a.peers)),
		hash: mix(n.seed ^ n.named[a.name].hash ^ mix(n.named[id].hash)), link: n.linkOf(a.name, id),
		cut: n.cuts[[2]int32{a.name, id}], parked: none, stalled: none, stalledLast: none,
	}
	if m.Epoch-1 < uint64(len(n.agents)) && n.agents[m.Epoch-1].name == id {
		c.to = int32(m.Epoch - 1)
	}
	if c.to != none && m.Are(n.agents[c.to].regions) {
		c.regions = n.agents[c.to].regions
	} else {
		c.regions = m.Regions()
	}
	a.peers = append(a.peers, i)
	a.loaded[id] = i
	return c.peer, nil
}

// Drop forgets a peer. What is under way goes on, except notifications that a partition holds back.
func (a *Agent) Drop(p transport.Peer) error {
	if !a.alive {
		return transport.ErrClosed
	}
	i, c := a.conn(p)
	if c == nil || c.open > 0 {
		return transport.ErrInvalid
	}
	c.dropped = true
	a.net.dropStalled(c)
	a.forget(i, c)
	return nil
}

// Abandon forgets a peer under its reads, which go on.
func (a *Agent) Abandon(p transport.Peer) error {
	if !a.alive {
		return transport.ErrClosed
	}
	i, c := a.conn(p)
	if c == nil {
		return transport.ErrInvalid
	}
	a.forget(i, c)
	return nil
}

func (a *Agent) conn(p transport.Peer) (int32, *conn) {
	if uint64(p) >= uint64(len(a.peers)) || a.peers[p] == none {
		return none, nil
	}
	return a.peers[p], a.net.conns.at(a.peers[p])
}

func (a *Agent) forget(i int32, c *conn) {
	a.peers[c.peer] = none
	delete(a.loaded, c.toName)
	c.gone = true
	a.net.settle(i, c)
}

// settle gives a connection back that nobody knows any more.
func (n *Net) settle(i int32, c *conn) {
	if c.gone && c.refs == 0 && c.live {
		c.live, c.regions, c.event = false, nil, 0
		n.conns.give(i)
	}
}

// Close takes the agent off the network; peers see it as dead. ErrInvalid: a read of ours is in flight; ErrUntaken: one of a
// peer is being answered by our software. What failed reads have still under way lands all the same.
func (a *Agent) Close() error {
	if a.closed {
		return nil
	}
	n := a.net
	if a.alive {
		for i := range n.reads.items {
			r := &n.reads.items[i]
			if !r.live {
				continue
			}
			if r.reader == a.index && r.status == transport.Pending {
				return fmt.Errorf("close with a read in flight: %w", transport.ErrInvalid)
			}
			if c := n.conns.at(r.conn); c.to == a.index && r.moving(n.now) && !c.link.RDMA && r.total > SmallRead {
				return fmt.Errorf("close while peer %q reads: %w", n.agents[r.reader].nameBytes, transport.ErrUntaken)
			}
		}
		n.end(a, false)
	}
	a.closed = true
	return nil
}
