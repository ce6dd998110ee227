package stream

import (
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// hub is where the contexts of one process meet, by engine id.
var hub = struct {
	mu    sync.Mutex
	rooms map[string]*room
}{rooms: map[string]*room{}}

// room is one engine: a host, and the ranks that have met none yet.
type room struct {
	host    *processHost
	waiting []*processEnd
}

type processHost struct {
	cfg  Config
	ends []*processEnd
}

// processEnd is an end whose other end is in the same process. Everything but the step's part stands under hub.mu.
type processEnd struct {
	end
	cfg    Config
	owner  *processHost // of a host's end
	other  *processEnd
	met    bool // a host's end: its rank has been here
	closed bool
}

func enter(id string) *room {
	r := hub.rooms[id]
	if r == nil {
		r = &room{}
		hub.rooms[id] = r
	}
	return r
}

// leave forgets an empty room. Locked.
func leave(id string) {
	if r := hub.rooms[id]; r != nil && r.host == nil && len(r.waiting) == 0 {
		delete(hub.rooms, id)
	}
}

func openProcessHost(cfg Config) (*Host, error) {
	hub.mu.Lock()
	defer hub.mu.Unlock()
	room := enter(cfg.EngineID)
	defer leave(cfg.EngineID)
	if room.host != nil {
		return nil, fmt.Errorf("%w: engine_id %q has a host context in this process", ErrTaken, cfg.EngineID)
	}
	h := &processHost{cfg: cfg}
	host := &Host{close: h.close}
	for range cfg.TP * cfg.PP {
		own, err := dupWake(cfg.WakeFd)
		if err != nil {
			h.shut()
			return nil, err
		}
		e := &processEnd{end: end{host: true, own: own}, cfg: cfg, owner: h}
		e.broke = e.leaveOther
		h.ends, host.ends = append(h.ends, e), append(host.ends, e)
	}
	room.host = h
	room.waiting = slices.DeleteFunc(room.waiting, h.meet)
	return host, nil
}

func openProcessRank(cfg Config) (Carrier, error) {
	own, err := dupWake(cfg.WakeFd)
	if err != nil {
		return nil, err
	}
	e := &processEnd{end: end{own: own}, cfg: cfg}
	e.broke = e.leaveOther
	hub.mu.Lock()
	defer hub.mu.Unlock()
	room := enter(cfg.EngineID)
	if room.host == nil || !room.host.meet(e) {
		room.waiting = append(room.waiting, e)
	}
	return e, nil
}

// meet joins a rank with its end at the host. It reports false, and the rank knows why, if that cannot be. Locked.
func (h *processHost) meet(r *processEnd) bool {
	if err := checkShape(&h.cfg, r.cfg.Rank, r.cfg.TP, r.cfg.PP); err != nil {
		r.waits(err)
		return false
	}
	e := h.ends[r.cfg.Rank]
	if e.met || e.closed {
		r.waits(takenError(&h.cfg, r.cfg.Rank))
		return false
	}
	down, up, err := newPair(h.cfg.RingBytes, e.own, r.own)
	if err != nil {
		r.waits(err)
		return false
	}
	e.met, e.other, r.other = true, r, e
	e.attach(down)
	r.attach(up)
	return true
}

// newPair makes the memory between two ends of this process, and each one's view.
func newPair(ringBytes uint32, host, rank wake) (down, up *link, err error) {
	mem, err := mapPages(linkBytes(ringBytes))
	if err != nil {
		return nil, nil, err
	}
	fail := func(err error) (*link, *link, error) {
		down.drop()
		unix.Munmap(mem)
		return nil, nil, err
	}
	if err = formatLink(mem, ringBytes); err != nil {
		return fail(err)
	}
	if down, err = openLink(mem, true); err != nil {
		return fail(err)
	}
	if down.peer, err = dupWake(int(rank)); err != nil {
		return fail(err)
	}
	if up, err = openLink(mem, false); err != nil {
		return fail(err)
	}
	if up.peer, err = dupWake(int(host)); err != nil {
		return fail(err)
	}
	users := 2
	free := func() { // under hub.mu, as every Close is
		if users--; users == 0 {
			unix.Munmap(mem)
		}
	}
	down.free, up.free = free, free
	return down, up, nil
}

// leaveOther says to the other end that this one is gone.
func (e *processEnd) leaveOther() {
	hub.mu.Lock()
	defer hub.mu.Unlock()
	e.loseOther()
}

func (e *processEnd) loseOther() {
	if e.other != nil {
		e.other.lose(errGone)
		e.other.other, e.other = nil, nil
	}
}

var (
	errGone  = error(ErrGone)
	errEnded = error(ErrEnded)
)

// Close is part of Carrier.
func (e *processEnd) Close() error {
	hub.mu.Lock()
	defer hub.mu.Unlock()
	e.closeLocked()
	return nil
}

func (e *processEnd) closeLocked() {
	if e.closed {
		return
	}
	e.closed = true
	e.loseOther()
	if e.owner == nil {
		if room := hub.rooms[e.cfg.EngineID]; room != nil {
			room.waiting = slices.DeleteFunc(room.waiting, func(w *processEnd) bool { return w == e })
			leave(e.cfg.EngineID)
		}
	}
	e.shut()
}

func (h *processHost) close() error {
	hub.mu.Lock()
	defer hub.mu.Unlock()
	h.shut()
	return nil
}

func (h *processHost) shut() {
	for _, e := range h.ends {
		e.closeLocked()
	}
	if room := hub.rooms[h.cfg.EngineID]; room != nil && room.host == h {
		room.host = nil
		leave(h.cfg.EngineID)
	}
}
