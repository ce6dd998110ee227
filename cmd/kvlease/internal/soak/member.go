package soak

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/kvcache"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
)

// member is one context of a process with the loop of an engine around it.
//
// Threads: run's own; Figures are under mu.
type member struct {
	spec  *Spec
	index int
	core  *core.Core
	host  *host.Host
	cache *kvcache.Cache
	rng   *rand.Rand

	mu  sync.Mutex
	fig Figures

	ended time.Time // of the step before, inline
	inWin Stall     // inline: the longest since most was asked
	evs   [64]record.Event

	// P
	offers func(*Offer)
	going  *atomic.Bool
	alive  map[record.Handle]*held
	free   [][]uint32
	serial int

	// D
	in      chan Offer
	tracked map[record.Handle]*queued
	engine  uint64
	churn   uint64
	churnAt time.Time
	up      atomic.Bool
	met     uint64
}

type held struct {
	id     string
	blocks []uint32
}

type queued struct {
	offer   Offer
	local   []uint32
	readAt  time.Time
	reading bool
}

func openMember(spec *Spec, side string, i int, transports map[string]core.OpenTransport) (*member, error) {
	cfg, err := core.ParseConfig(spec.config(side, i))
	if err != nil {
		return nil, err
	}
	mem, err := core.NewMemory(cfg.Sizes())
	if err != nil {
		return nil, err
	}
	c, err := core.Open(cfg, mem, transports, nil)
	if err != nil {
		return nil, err
	}
	m := &member{spec: spec, index: i, core: c, rng: rand.New(rand.NewPCG(uint64(i), 4)),
		alive: map[record.Handle]*held{}, tracked: map[record.Handle]*queued{}, in: make(chan Offer, 4*requestsEach)}
	if m.cache, err = kvcache.New(2, 2*requestsEach*blocksEach); err != nil {
		return nil, err
	}
	var regions []core.Region
	for l := range m.cache.Layers {
		regions = append(regions, core.Region{
			Addr: m.cache.Addr(l), Bytes: uint64(len(m.cache.Layer(l))), BlockLen: uint64(m.cache.BlockLen),
			BlockStride: uint64(m.cache.BlockLen), Blocks: m.cache.Blocks, Group: -1, Name: fmt.Sprintf("layer.%d", l),
		})
	}
	if err := c.Register(regions); err != nil {
		return nil, err
	}
	for at := uint32(0); at+blocksEach <= m.cache.Blocks; at += blocksEach {
		set := make([]uint32, blocksEach)
		for b := range set {
			set[b] = at + uint32(b)
		}
		m.free = append(m.free, set)
	}
	m.fig.LeaseMs = float64(cfg.Duration) / 1e6
	m.fig.Failed = map[string]uint64{}
	if m.host, err = host.New(mem, c.Wake); err != nil {
		return nil, err
	}
	m.host.Trace(c.Sites())
	return m, nil
}

// run is the engine's loop until stop.
func (m *member) run(stop *atomic.Bool, work func()) error {
	for !stop.Load() {
		if err := m.pass(); err != nil {
			return err
		}
		for {
			n := m.host.Poll(m.evs[:], core.Now())
			for i := range n {
				m.event(&m.evs[i])
			}
			if n < len(m.evs) {
				break
			}
		}
		work()
	}
	return nil
}

// pass is a forward pass: inline a stretch of work and a step, with the pump a wait for events.
func (m *member) pass() error {
	if m.spec.Mode == "pump" {
		atomic.StoreUint64(&m.core.Memory().Control.PassNs, uint64(core.Now()))
		if why := m.core.Broken(); why != "" {
			return fmt.Errorf("%w: %s", core.ErrPoisoned, why)
		}
		fds := []unix.PollFd{{Fd: m.core.Memory().Control.EventFd, Events: unix.POLLIN}}
		if n, _ := unix.Poll(fds, 10); n > 0 {
			var count [8]byte
			unix.Read(int(fds[0].Fd), count[:])
		}
		return nil
	}
	time.Sleep(m.spec.Pass) // the device's part of a pass
	began := time.Now()
	err := m.core.Step()
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stood("step", ms(now.Sub(began)))
	if !m.ended.IsZero() {
		over := began.Sub(m.ended) - m.spec.Pass
		m.stood("pause", ms(over))
		if over > 20*time.Millisecond {
			m.fig.Overslept++
		}
	}
	m.ended = now
	m.fig.Steps++
	return err
}

// stood takes a step, or a pause between two. Under mu.
func (m *member) stood(what string, ms float64) {
	if what == "step" {
		m.fig.StepMaxMs = max(m.fig.StepMaxMs, ms)
	} else {
		m.fig.PauseMax = max(m.fig.PauseMax, ms)
	}
	if ms > m.inWin.Ms {
		m.inWin.What, m.inWin.Ms = what, ms
	}
}

// most gives the longest stall since it was asked before, and takes it over into the figures.
func (m *member) most() Stall {
	var load struct {
		Ns uint64 `json:"load_max_ns"`
	}
	json.Unmarshal(m.core.Stats(), &load)
	pump := m.core.Pump()
	m.core.ResetPump() // a step that ends in between is missed; the longest ones hold the lock all the while
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stood("step", float64(pump.StepMaxNs)/1e6)
	m.stood("pause", float64(pump.PauseMaxNs)/1e6)
	s := m.inWin
	s.LeaseMs, s.LoadMs = m.fig.LeaseMs, float64(load.Ns)/1e6
	m.fig.LoadMaxMs = max(m.fig.LoadMaxMs, s.LoadMs)
	m.inWin = Stall{}
	return s
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

func (m *member) event(ev *record.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch ev.Kind {
	case record.EvFreed:
		if h := m.alive[record.Handle(ev.Handle)]; h != nil {
			m.free = append(m.free, h.blocks)
			delete(m.alive, record.Handle(ev.Handle))
		}
		switch ev.Status {
		case record.FreedCompleted:
			m.fig.Completed++
		case record.FreedExpired:
			m.fig.Expired++
		default:
			m.fig.OtherEnds++
		}
	case record.EvReadDone:
		if q := m.tracked[record.Handle(ev.Handle)]; q != nil {
			m.fig.Read++
			if m.cache.BadBytes(q.offer.ID, q.local) != 0 {
				m.fig.WrongData++
			}
			m.over(record.Handle(ev.Handle), q, true)
		}
	case record.EvReadFailed:
		if q := m.tracked[record.Handle(ev.Handle)]; q != nil {
			m.fig.Failed[outcome(ev.Status)]++
			m.over(record.Handle(ev.Handle), q, ev.Flags&record.FlagBlocksHeld == 0)
		}
	case record.EvLeaseGone:
		if q := m.tracked[record.Handle(ev.Handle)]; q != nil {
			m.fig.Failed["lease gone"]++
			m.host.Untrack(record.Handle(ev.Handle))
			m.over(record.Handle(ev.Handle), q, true)
		}
	case record.EvAtRisk:
		m.fig.Failed["at risk"]++
	case record.EvEngineUp:
		if ev.Handle == m.engine {
			m.up.Store(true)
		} else {
			m.met++
		}
	}
}

func outcome(status int32) string {
	names := map[int32]string{record.ReadStale: "stale", record.ReadUnproven: "unproven", record.ReadFailed: "failed",
		record.ReadTimeout: "timeout", record.ReadCancelled: "cancelled", record.ReadLost: "lost"}
	if name := names[status]; name != "" {
		return name
	}
	return fmt.Sprint("status ", status)
}

// over takes a request off D's queue. Blocks that a transfer may still write stay aside for good.
func (m *member) over(h record.Handle, q *queued, blocksFree bool) {
	if q.local != nil && blocksFree {
		m.free = append(m.free, q.local)
	}
	delete(m.tracked, h)
}

// prefill keeps requestsEach leases alive.
func (m *member) prefill() {
	for m.going.Load() && len(m.alive) < requestsEach && len(m.free) > 0 {
		set := m.free[len(m.free)-1]
		m.serial++
		id := fmt.Sprintf("soak-%d-%d", m.index, m.serial)
		m.cache.Fill(id, set)
		lease := time.Duration(m.fig.LeaseMs * 1e6)
		h, err := m.host.Grant(host.Grant{ID: []byte(id), Blocks: blocksEach, TTL: lease + handOver}, core.Now())
		if err != nil {
			return // no room now
		}
		m.free = m.free[:len(m.free)-1]
		m.alive[h] = &held{id, set}
		m.mu.Lock()
		m.fig.Requests++
		m.mu.Unlock()
		epoch, key, ok := m.host.Era(h)
		if !ok {
			continue
		}
		m.offers(&Offer{Context: m.index, ID: id, Blocks: set, Epoch: epoch, Key: key, Slot: h.Slot(), Use: h.Use()})
	}
}

// decode tracks what is offered, lets it wait and reads it; meanwhile it meets one engine again and again.
func (m *member) decode() {
	for more := true; more; {
		select {
		case o := <-m.in:
			r := &host.Remote{ID: []byte(o.ID), Native: true, Epoch: o.Epoch, Key: o.Key, Slot: o.Slot, Generation: o.Use}
			h, err := m.host.Track(m.engine, r, []byte(o.ID), 0, core.Now())
			m.mu.Lock()
			m.fig.Requests++
			if err != nil {
				m.fig.Failed["not tracked"]++
			} else {
				wait := waitLeast + time.Duration(m.rng.Int64N(int64(waitSpan)))
				m.tracked[h] = &queued{offer: o, readAt: time.Now().Add(wait)}
			}
			m.mu.Unlock()
		default:
			more = false
		}
	}
	now := time.Now()
	for h, q := range m.tracked {
		if q.reading || now.Before(q.readAt) || len(m.free) == 0 {
			continue
		}
		q.local = m.free[len(m.free)-1]
		if err := m.host.Read(h, []record.Run{{Local: q.local[0], Remote: q.offer.Blocks[0], N: blocksEach}}); err != nil {
			q.local = nil
			q.readAt = now.Add(10 * time.Millisecond)
			continue
		}
		q.reading = true
		m.free = m.free[:len(m.free)-1]
	}
	if m.up.Load() && now.After(m.churnAt) {
		m.churnAt = now.Add(churnEvery)
		m.meet()
	}
}

// meet leaves the engine that is there for it, and asks its side channel again.
func (m *member) meet() {
	if m.churn != 0 {
		m.core.RemoveEngine(m.churn)
	}
	last := len(m.spec.Leases)
	m.churn, _ = m.core.AddPeer(heartbeat.EngineDesc{ID: engineID("P", last)}, "127.0.0.1", m.spec.Port+last)
}

// figures gives a copy, with what the core has counted.
func (m *member) figures() Figures {
	stats := m.core.Pump()
	mode := m.spec.Mode
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.fig
	if mode == "pump" {
		f.Steps, f.Overslept = stats.Turns, stats.Overslept
	}
	f.Failed = map[string]uint64{}
	for k, v := range m.fig.Failed {
		f.Failed[k] = v
	}
	return f
}
