package loopback

import (
	"fmt"

	"github.com/kvlease/kvlease/dataplane/internal/regions"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Agent is one end of the loopback.
//
// Memory: all pools come from New. Send, Poll, PostRead, PollReads and Release touch no heap.
type Agent struct {
	hub       *Hub
	name      string
	nameBytes []byte
	epoch     uint64
	cfg       Config

	alive, stopped, closed bool

	regions []transport.Region
	peers   map[transport.Peer]*peer
	next    transport.Peer
	queue   queue
	reads   reads
	backlog int

	// What a test has asked for.
	fail      [opsMax][]error
	holdReads bool
	letReads  int
	loseNext  int
}

// peer is a loaded agent as its blob describes it.
type peer struct {
	name    string
	epoch   uint64
	regions []transport.Region
	open    int  // reads not released
	cut     bool // until Drop and Load
}

var (
	_ transport.Transport = (*Agent)(nil)
	_ transport.Twins     = (*Agent)(nil)
)

// Name is "loopback".
func (a *Agent) Name() string { return "loopback" }

// Agent is the name given to New.
func (a *Agent) Agent() string { return a.name }

// FastFence is true: a read ends in the first PollReads after it.
func (a *Agent) FastFence() bool { return true }

// Twin is another agent of the hub.
func (a *Agent) Twin(agent string) (transport.Twin, error) {
	tr, err := a.hub.New(agent, Config{NotifsMax: 1, NotifBytesMax: 1024, ReadsMax: transport.TwinReads, DescsMax: transport.TwinReads, RegionsMax: 1, PeersMax: 1})
	return transport.Twin{Transport: tr, Way: "the memory of this process"}, err
}

// Register adds regions, all or none.
func (a *Agent) Register(add []transport.Region) error {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	if a.closed {
		return transport.ErrClosed
	}
	if err := a.failing(OpRegister); err != nil {
		return err
	}
	if len(a.regions)+len(add) > a.cfg.RegionsMax {
		return fmt.Errorf("register %d regions beside %d, at most %d: %w", len(add), len(a.regions), a.cfg.RegionsMax, transport.ErrFull)
	}
	if err := regions.Check(add); err != nil {
		return err
	}
	a.regions = append(a.regions, add...)
	return nil
}

// Unregister removes regions that Register has added, all or none.
func (a *Agent) Unregister(gone []transport.Region) error {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	if a.closed {
		return transport.ErrClosed
	}
	left, err := regions.Without(a.regions, gone)
	if err != nil {
		return err
	}
	a.regions = left
	return nil
}

// Metadata is the blob for Load: name, epoch and the regions of now.
func (a *Agent) Metadata() ([]byte, error) {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	if a.closed {
		return nil, transport.ErrClosed
	}
	return regions.Append(nil, magic, a.name, a.epoch, a.regions), nil
}

// Load makes a remote agent reachable. Like NIXL it does not ask whether the agent lives.
func (a *Agent) Load(blob []byte) (transport.Peer, error) {
	m, err := regions.Parse(blob, magic)
	if err != nil {
		return 0, err
	}
	name := string(m.Name)
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	if a.closed {
		return 0, transport.ErrClosed
	}
	if err := a.failing(OpLoad); err != nil {
		return 0, err
	}
	for _, p := range a.peers {
		if p.name == name {
			return 0, fmt.Errorf("agent %q is loaded, drop it first: %w", name, transport.ErrInvalid)
		}
	}
	if len(a.peers) == a.cfg.PeersMax {
		return 0, fmt.Errorf("%d peers loaded: %w", len(a.peers), transport.ErrFull)
	}
	a.next++
	a.peers[a.next] = &peer{name: name, epoch: m.Epoch, regions: m.Regions()}
	return a.next, nil
}

// Drop forgets a peer.
func (a *Agent) Drop(id transport.Peer) error {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	if a.closed {
		return transport.ErrClosed
	}
	if err := a.failing(OpDrop); err != nil {
		return err
	}
	p := a.peers[id]
	if p == nil || p.open > 0 {
		return transport.ErrInvalid
	}
	delete(a.peers, id)
	return nil
}

// Abandon forgets a peer under its reads, which keep what they know of it.
func (a *Agent) Abandon(id transport.Peer) error {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	if a.closed {
		return transport.ErrClosed
	}
	if err := a.failing(OpAbandon); err != nil {
		return err
	}
	if a.peers[id] == nil {
		return transport.ErrInvalid
	}
	delete(a.peers, id)
	return nil
}

// reach gives the agent behind p, or nil if it is gone.
func (a *Agent) reach(p *peer) *Agent {
	to := a.hub.agents[p.name]
	if p.cut || to == nil || to.epoch != p.epoch {
		return nil
	}
	return to
}

// Send queues one notification at the peer. ErrFull if its queue is full.
func (a *Agent) Send(id transport.Peer, msg []byte) error {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	if a.closed {
		return transport.ErrClosed
	}
	if err := a.failing(OpSend); err != nil {
		return err
	}
	p := a.peers[id]
	if p == nil {
		return transport.ErrInvalid
	}
	to := a.reach(p)
	if to == nil {
		return transport.ErrPeer
	}
	if !a.deliver(to, msg) {
		return transport.ErrFull
	}
	return nil
}

func (a *Agent) deliver(to *Agent, msg []byte) bool {
	if to.loseNext > 0 {
		to.loseNext--
		return true
	}
	return to.queue.push(a.nameBytes, msg)
}

// Poll moves what has arrived into in.
func (a *Agent) Poll(in *transport.Inbox) int {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	if a.closed || a.stopped || !a.alive {
		a.backlog = 0
		return 0
	}
	n := a.queue.take(in)
	a.backlog = a.queue.visible
	return n
}

// Backlog is what the last Poll left behind.
func (a *Agent) Backlog() int {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	return a.backlog
}

// PostRead starts a read. Ranges that are not registered here, or not in the peer's blob, are ErrInvalid.
func (a *Agent) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	if a.closed {
		return 0, transport.ErrClosed
	}
	if err := a.failing(OpPostRead); err != nil {
		return 0, err
	}
	p := a.peers[spec.Peer]
	if p == nil || len(spec.Descs) == 0 || len(spec.Notif) > attachedMax {
		return 0, transport.ErrInvalid
	}
	for i := range spec.Descs {
		d := &spec.Descs[i]
		if d.Len == 0 || !regions.Covered(a.regions, spec.LocalMem, d.LocalDevice, d.Local, d.Len) {
			return 0, transport.ErrInvalid
		}
		if !regions.Covered(p.regions, spec.RemoteMem, d.RemoteDevice, d.Remote, d.Len) {
			return 0, transport.ErrRange
		}
	}
	if a.reach(p) == nil {
		return 0, transport.ErrPeer
	}
	x, ok := a.reads.add(p, spec)
	if !ok {
		return 0, transport.ErrFull
	}
	p.open++
	return x, nil
}

// PollReads ends every read that nothing holds back. It does not spin: nothing changes while it looks.
func (a *Agent) PollReads(xfers []transport.Xfer, out []transport.Status, _ int64) {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	for i, x := range xfers {
		s := a.reads.get(x)
		if s == nil {
			out[i] = transport.Failed
			continue
		}
		if s.status == transport.Pending {
			a.advance(s)
		}
		out[i] = s.status
	}
}

// advance ends a pending read if nothing holds it back. Data first, then the attached notification.
func (a *Agent) advance(s *readSlot) {
	if a.holdReads {
		if a.letReads == 0 {
			return
		}
		a.letReads--
	}
	to := a.reach(s.peer)
	if to == nil {
		s.status = transport.Failed
		return
	}
	if to.stopped {
		return
	}
	if a.failing(OpRead) != nil || !a.land(s) {
		s.status = transport.Failed
		return
	}
	if len(s.notif) > 0 && !a.deliver(to, s.notif) {
		return // the peer's queue is full: look again, the data may land twice
	}
	s.status = transport.Done
}

// land copies the bytes of a read if both ends still register them.
func (a *Agent) land(s *readSlot) bool {
	to := a.hub.agents[s.peer.name]
	if to == nil || to.epoch != s.peer.epoch {
		return false
	}
	device := s.localMem == transport.VRAM || s.remoteMem == transport.VRAM
	ok := a.reads.each(s, func(d *transport.Desc) bool {
		return regions.Covered(a.regions, s.localMem, d.LocalDevice, d.Local, d.Len) &&
			regions.Covered(to.regions, s.remoteMem, d.RemoteDevice, d.Remote, d.Len) &&
			(!device || touchable(d.Local, d.Len) && touchable(d.Remote, d.Len))
	})
	return ok && a.reads.each(s, func(d *transport.Desc) bool {
		move(d)
		return true
	})
}

// Release gives back the handle of an ended read.
func (a *Agent) Release(x transport.Xfer) error {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	s := a.reads.get(x)
	if s == nil || s.status == transport.Pending {
		return transport.ErrInvalid
	}
	s.peer.open--
	a.reads.release(x)
	return nil
}

// Close takes the agent off the hub; peers see it as dead. ErrInvalid while a read is in flight; a second call does nothing.
func (a *Agent) Close() error {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	if a.closed {
		return nil
	}
	for i := range a.reads.slots {
		if r := &a.reads.slots[i]; r.used && r.status == transport.Pending {
			return fmt.Errorf("close with a read in flight: %w", transport.ErrInvalid)
		}
	}
	if err := a.failing(OpClose); err != nil {
		return err
	}
	a.closed, a.alive = true, false
	if a.hub.agents[a.name] == a {
		delete(a.hub.agents, a.name)
	}
	return nil
}
