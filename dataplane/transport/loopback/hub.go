// Package loopback is a transport inside one process. Tests, simulators of one engine and the quick start use it.
//
// Addresses are real: a read copies between memory that both agents have registered, so whoever registers Go memory
// keeps it alive. Reads end in PollReads, notifications arrive in Poll, both in an order that the test decides: each
// agent can hold reads and notifications back, fail the next call of its choice, be stopped, cut off or killed.
package loopback

import (
	"fmt"
	"sync"

	"github.com/kvlease/kvlease/dataplane/internal/regions"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Config is the size of an agent's pools; what is 0 gets its default.
type Config struct {
	NotifsMax     int // notifications that wait for this agent, default 4,096; a Send past it is ErrFull
	NotifBytesMax int // their bytes with names, default 1 MiB
	ReadsMax      int // reads posted and not released, default 256; a PostRead past it is ErrFull
	AttachedMax   int // of these, reads with a notification, default ReadsMax; likewise
	DescsMax      int // descriptors of all posted reads, default 65,536; a PostRead past it is ErrFull
	RegionsMax    int // registered regions, default 4,096
	PeersMax      int // loaded peers, default 4,096
}

// attachedMax is the size of a notification that can ride on a read, in bytes.
const attachedMax = 4096

// magic begins the metadata of these agents.
const magic = "kvlL"

func (c *Config) setDefaults() {
	for _, f := range []struct {
		at *int
		to int
	}{
		{&c.NotifsMax, 4096}, {&c.NotifBytesMax, 1 << 20}, {&c.ReadsMax, 256},
		{&c.DescsMax, 1 << 16}, {&c.RegionsMax, 4096}, {&c.PeersMax, 4096},
	} {
		if *f.at <= 0 {
			*f.at = f.to
		}
	}
	if c.AttachedMax <= 0 || c.AttachedMax > c.ReadsMax {
		c.AttachedMax = c.ReadsMax
	}
}

// Hub joins the agents of one process. One lock guards them all, so agents may step on different threads.
type Hub struct {
	mu     sync.Mutex
	agents map[string]*Agent // alive, by name
	epoch  uint64
}

// NewHub makes a hub without agents.
func NewHub() *Hub { return &Hub{agents: make(map[string]*Agent)} }

// New adds an agent. ErrInvalid: a name that is empty, too long or in use.
func (h *Hub) New(name string, cfg Config) (*Agent, error) {
	if name == "" || len(name) > regions.NameMax {
		return nil, fmt.Errorf("agent name of %d bytes, want 1 to %d: %w", len(name), regions.NameMax, transport.ErrInvalid)
	}
	cfg.setDefaults()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.agents[name] != nil {
		return nil, fmt.Errorf("agent %q exists: %w", name, transport.ErrInvalid)
	}
	h.epoch++
	a := &Agent{
		hub: h, name: name, nameBytes: []byte(name), epoch: h.epoch, cfg: cfg, alive: true,
		queue: newQueue(cfg.NotifsMax, cfg.NotifBytesMax),
		reads: newReads(cfg.ReadsMax, cfg.AttachedMax, cfg.DescsMax),
		peers: make(map[transport.Peer]*peer),
	}
	h.agents[name] = a
	return a, nil
}

// Op names a call that FailNext can fail.
type Op uint8

const (
	OpRegister Op = iota
	OpLoad
	OpDrop
	OpAbandon
	OpSend
	OpPostRead
	OpRead // the read itself: PollReads reports Failed
	OpClose
	opsMax
)

// errFailed stands for a FailNext without an error: nobody is reached.
var errFailed = fmt.Errorf("loopback: told to fail: %w", transport.ErrPeer)

// FailNext makes the next call of op on this agent return err and do nothing. Calls queue up behind each other, one per failure.
// For OpRead the next read that would end is Failed, before a byte of it has moved; LandLate moves them all the same.
func (a *Agent) FailNext(op Op, err error) {
	if err == nil {
		err = errFailed
	}
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	a.fail[op] = append(a.fail[op], err)
}

// FailNone forgets the failures that are still to come.
func (a *Agent) FailNone() {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	a.fail = [opsMax][]error{}
}

// failing takes the next planned failure of op.
func (a *Agent) failing(op Op) error {
	if len(a.fail[op]) == 0 {
		return nil
	}
	err := a.fail[op][0]
	a.fail[op] = a.fail[op][1:]
	return err
}

// HoldReads keeps the reads of this agent pending from now on, or lets them go again.
func (a *Agent) HoldReads(hold bool) {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	a.holdReads, a.letReads = hold, 0
}

// LetReads allows the next n looks at a held, pending read to end it.
func (a *Agent) LetReads(n int) {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	a.letReads += n
}

// LandLate copies every failed read that has not been released, as hardware may do after an error. It returns how many it copied.
func (a *Agent) LandLate() int {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	n := 0
	for i := range a.reads.slots {
		r := &a.reads.slots[i]
		if r.used && r.status == transport.Failed && a.land(r) {
			n++
		}
	}
	return n
}

// HoldNotifs keeps what is sent to this agent on the wire until Deliver, or lets everything go again.
func (a *Agent) HoldNotifs(hold bool) {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	a.queue.hold(hold)
}

// Deliver lets the n oldest held notifications arrive and reports how many there were.
func (a *Agent) Deliver(n int) int {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	return a.queue.deliver(n)
}

// LoseNext makes the next n notifications to this agent vanish while their Send succeeds.
func (a *Agent) LoseNext(n int) {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	a.loseNext += n
}

// InFlight is the number of notifications that wait for this agent, held ones included.
func (a *Agent) InFlight() int {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	return a.queue.n
}

// Stop makes the agent a stopped process: sends to it succeed and queue, reads from it stay pending. Resume is the opposite.
func (h *Hub) Stop(name string) { h.set(name, func(a *Agent) { a.stopped = true }) }

// Resume lets a stopped agent answer again.
func (h *Hub) Resume(name string) { h.set(name, func(a *Agent) { a.stopped = false }) }

// Kill ends an agent as SIGKILL does: reads from it fail, sends to it are ErrPeer. A new agent may take its name; metadata
// of the killed one still loads, as with NIXL, and everything sent to it is ErrPeer.
func (h *Hub) Kill(name string) {
	h.set(name, func(a *Agent) {
		a.alive = false
		delete(h.agents, name)
	})
}

// Cut resets the connection from one agent to another while both live: sends and reads of from fail until Drop and Load.
func (h *Hub) Cut(from, to string) {
	h.set(from, func(a *Agent) {
		for _, p := range a.peers {
			if p.name == to {
				p.cut = true
			}
		}
	})
}

func (h *Hub) set(name string, change func(*Agent)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a := h.agents[name]; a != nil {
		change(a)
	}
}
