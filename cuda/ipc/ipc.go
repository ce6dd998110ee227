// Package ipc is a transport in front of another one that reads device memory of other processes of the same machine: it opens the owner's
// allocations by IPC handles and has the driver copy, as UCX's cuda_ipc does. Everything else (notifications, metadata, reads of host memory,
// as those of rows and fences) is the other transport's, which never sees device memory.
//
// It is for tests and the demo, where NIXL has no way to device memory. It is not for production: an owner cannot know that a reader is still
// copying when it frees memory, peers have to be of this machine and user, and a reader that is not built with it cannot load its metadata.
package ipc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"

	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Config bounds a Transport. ReadsMax: reads of device memory at once, at most 2^20; DescsMax: pieces of one, past which PostRead allocates.
type Config struct {
	Driver             *cuda.Driver
	ReadsMax, DescsMax int
}

// Transport has two halves: the inner transport, and the reads of device memory.
//
// Threads: as package transport says. A read of device memory waits for a Register, Drop or Load of such memory on another thread.
// Memory: the hot calls make no allocation once each read's event was made.
type Transport struct {
	inner transport.Transport
	cfg   Config
	self  machine

	mu      sync.Mutex
	regions []shared // device memory that is registered
	ctx     *cuda.Context
	stream  cuda.Stream
	peers   map[transport.Peer]*peer
	slots   []slot
	free    []uint32
	copies  []cuda.Copy
	asked   []transport.Xfer // the inner transport's part of a PollReads
	told    []transport.Status
	closed  bool
}

// peer is a loaded agent that has device memory.
type peer struct {
	own     bool     // of this very process
	regions []shared // at is where they are here; 0: not mapped yet
	opened  []uint64 // mappings that have to be closed
	open    int      // reads that are not released
	broken  bool     // the inner transport could not reach it: Drop and Load
	gone    bool     // dropped or abandoned: the last read closes its mappings
}

var _ transport.Transport = (*Transport)(nil)

// New puts an IPC half in front of a transport.
func New(inner transport.Transport, cfg Config) (*Transport, error) {
	if cfg.Driver == nil || cfg.ReadsMax < 1 || cfg.ReadsMax > slotsMax || cfg.DescsMax < 1 {
		return nil, fmt.Errorf("%d reads of %d pieces at once, without a driver: %v: %w", cfg.ReadsMax, cfg.DescsMax, cfg.Driver == nil, transport.ErrInvalid)
	}
	self, err := here()
	if err != nil {
		return nil, err
	}
	t := &Transport{
		inner: inner, cfg: cfg, self: self, peers: map[transport.Peer]*peer{}, slots: make([]slot, cfg.ReadsMax), copies: make([]cuda.Copy, 0, cfg.DescsMax),
		asked: make([]transport.Xfer, 0, cfg.ReadsMax), told: make([]transport.Status, cfg.ReadsMax),
	}
	for i := range t.slots {
		t.free = append(t.free, uint32(len(t.slots)-1-i))
	}
	return t, nil
}

// chance is this process's, for all of its transports: the memory of one is where it is for another.
var chance = rand.Uint32()

// here is this machine since its boot, and this process.
func here() (m machine, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil && len(boot) < len(m.boot) {
		err = errors.New("it is too short")
	}
	if err != nil {
		return m, fmt.Errorf("the name of this boot: %w: %w", transport.ErrUnavailable, err)
	}
	copy(m.boot[:], boot)
	m.process, m.chance = uint32(os.Getpid()), chance
	return m, nil
}

func (t *Transport) Name() string    { return t.inner.Name() + "+ipc" }
func (t *Transport) Agent() string   { return t.inner.Agent() }
func (t *Transport) FastFence() bool { return t.inner.FastFence() }
func (t *Transport) Backlog() int    { return t.inner.Backlog() }

func (t *Transport) Poll(in *transport.Inbox) int { return t.inner.Poll(in) }

// Send is the inner transport's. Who it cannot reach is not read from any more.
func (t *Transport) Send(p transport.Peer, msg []byte) error {
	err := t.inner.Send(p, msg)
	if err != nil && errors.Is(err, transport.ErrPeer) {
		t.mu.Lock()
		if peer := t.peers[p]; peer != nil {
			peer.broken = true
		}
		t.mu.Unlock()
	}
	return err
}

// split tells the inner transport's regions from ours.
func split(regions []transport.Region) (host, device []transport.Region) {
	for _, r := range regions {
		if r.Mem == transport.VRAM {
			device = append(device, r)
		} else {
			host = append(host, r)
		}
	}
	return host, device
}

// Register has the inner transport register host memory, and makes handles for device memory, of which the first device's primary context is
// taken until Close. After a refusal nothing is held that was not held before.
func (t *Transport) Register(regions []transport.Region) error {
	host, device := split(regions)
	if len(device) == 0 {
		return t.inner.Register(regions)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return transport.ErrClosed
	}
	first := t.ctx == nil
	if first {
		if err := t.begin(int(device[0].Device)); err != nil {
			return err
		}
	}
	add, err := t.share(device)
	if err == nil && len(host) > 0 {
		err = t.inner.Register(host)
	}
	if err != nil {
		if first { // nothing is open over it: peers that were loaded before have no mapping here
			t.end()
		}
		return err
	}
	t.regions = append(t.regions, add...)
	for _, p := range t.peers {
		t.mapLate(p)
	}
	return nil
}

// begin takes the context of a device, and a stream of it. Under the lock.
func (t *Transport) begin(device int) error {
	ctx, err := t.cfg.Driver.Retain(device)
	if err != nil {
		return err
	}
	stream, err := ctx.NewStream()
	if err != nil {
		return errors.Join(err, ctx.Release())
	}
	t.ctx, t.stream = ctx, stream
	return nil
}

// end gives back what begin has taken. A device that is lost refuses, and there is nothing to keep. Under the lock.
func (t *Transport) end() {
	if t.ctx == nil {
		return
	}
	_ = t.ctx.EndStream(t.stream)
	_ = t.ctx.Release()
	t.ctx, t.stream = nil, 0
}

func (t *Transport) share(regions []transport.Region) (list []shared, err error) {
	for _, r := range regions {
		at, err := t.cfg.Driver.Pointer(r.Addr)
		if err != nil {
			return nil, err
		}
		s := shared{addr: r.Addr, bytes: r.Bytes, device: r.Device, base: at.Base, whole: at.Bytes, at: r.Addr}
		if at.Device != int(r.Device) || !s.fits() {
			return nil, fmt.Errorf("%d bytes at %#x are no memory of device %d: %w", r.Bytes, r.Addr, r.Device, transport.ErrInvalid)
		}
		if s.handle, err = t.ctx.Share(r.Addr); err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// Unregister removes regions, all or none.
func (t *Transport) Unregister(regions []transport.Region) error {
	host, device := split(regions)
	t.mu.Lock()
	defer t.mu.Unlock()
	left := slices.Clone(t.regions)
	for _, r := range device {
		i := slices.IndexFunc(left, func(s shared) bool { return s.addr == r.Addr && s.bytes == r.Bytes && s.device == r.Device })
		if i < 0 {
			return fmt.Errorf("%d bytes at %#x of device %d are not registered: %w", r.Bytes, r.Addr, r.Device, transport.ErrInvalid)
		}
		left = slices.Delete(left, i, i+1)
	}
	if len(host) > 0 || len(device) == 0 {
		if err := t.inner.Unregister(host); err != nil {
			return err
		}
	}
	t.regions = left
	return nil
}

// Metadata is the inner transport's, behind what peers need to open our device memory; without such memory it is the inner one's alone.
func (t *Transport) Metadata() ([]byte, error) {
	blob, err := t.inner.Metadata()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil || len(t.regions) == 0 {
		return blob, err
	}
	return appendMetadata(nil, t.self, t.regions, blob), nil
}

// Load opens a peer's device memory and has the inner transport load the rest. A peer without such memory is the inner transport's alone.
func (t *Transport) Load(blob []byte) (transport.Peer, error) {
	if !isOurs(blob) {
		return t.inner.Load(blob)
	}
	m, err := parseMetadata(blob)
	if err != nil {
		return 0, err
	}
	if m.of.boot != t.self.boot {
		return 0, fmt.Errorf("the agent is of another machine, or of this one before it was booted: %w", transport.ErrInvalid)
	}
	p, err := t.open(&m)
	if err != nil {
		return 0, err
	}
	id, err := t.inner.Load(m.rest)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.forget(p)
		return 0, err
	}
	t.peers[id] = p
	t.mapLate(p) // device memory may have been registered meanwhile
	return id, nil
}

// open makes a peer of what it has told of, and maps its memory.
func (t *Transport) open(m *metadata) (*peer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, transport.ErrClosed
	}
	p := &peer{own: m.of == t.self, regions: m.regions}
	if err := t.mapIn(p); err != nil {
		t.forget(p)
		return nil, fmt.Errorf("process %d: %w", m.of.process, err)
	}
	return p, nil
}

// mapIn maps what of a peer's memory is not yet. Memory of this very process is where it is. Without a context nothing of ours could be read
// into, and what is loaded before device memory is registered waits for it. Under the lock.
func (t *Transport) mapIn(p *peer) error {
	for i := range p.regions {
		r := &p.regions[i]
		switch {
		case r.at != 0:
		case p.own:
			r.at = r.addr
		case t.ctx != nil:
			base, err := t.ctx.OpenShared(r.handle)
			if err != nil {
				return fmt.Errorf("%d bytes: %w", r.bytes, err)
			}
			p.opened = append(p.opened, base)
			r.at = base + (r.addr - r.base)
		}
	}
	return nil
}

// mapLate is mapIn for a peer that is loaded already: what cannot be mapped has it loaded again, which says why. Under the lock.
func (t *Transport) mapLate(p *peer) {
	if t.mapIn(p) != nil {
		p.broken = true
	}
}

// forget closes what was opened of a peer that is not read from. A device that is lost refuses, and there is nothing to keep. Under the lock.
func (t *Transport) forget(p *peer) {
	for _, base := range p.opened {
		_ = t.ctx.CloseShared(base)
	}
	p.opened = nil
}

// Drop is the inner transport's, unless a read of ours is open.
func (t *Transport) Drop(id transport.Peer) error { return t.leave(id, t.inner.Drop, false) }

// Abandon is the inner transport's; reads go on over the mappings of the peer, which close with the last of them.
func (t *Transport) Abandon(id transport.Peer) error { return t.leave(id, t.inner.Abandon, true) }

func (t *Transport) leave(id transport.Peer, inner func(transport.Peer) error, open bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[id]
	if p != nil && p.open > 0 && !open && !t.closed {
		return fmt.Errorf("%d reads from peer %d are open: %w", p.open, id, transport.ErrInvalid)
	}
	if err := inner(id); err != nil || p == nil {
		return err
	}
	delete(t.peers, id)
	if p.gone = true; p.open == 0 {
		t.forget(p)
	}
	return nil
}

// Close closes the inner transport, then gives back what is the driver's.
func (t *Transport) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	for i := range t.slots {
		if s := &t.slots[i]; s.used && s.status == transport.Pending {
			return fmt.Errorf("close with a read in flight: %w", transport.ErrInvalid)
		}
	}
	if err := t.inner.Close(); err != nil {
		return err
	}
	t.closed = true
	for _, p := range t.peers {
		t.forget(p)
	}
	for i := range t.slots {
		s := &t.slots[i]
		if s.used && s.peer.gone {
			t.forget(s.peer)
		}
		if s.made {
			_ = t.ctx.EndEvent(s.event)
		}
	}
	t.end()
	return nil
}
