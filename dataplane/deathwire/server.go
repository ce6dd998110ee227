package deathwire

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kvlease/kvlease/dataplane/internal/hosts"
)

// ServerConfig says what an owner does with wires. A field that is zero has its default.
type ServerConfig struct {
	// Self is who we are now; epoch 0: nothing can be held by us, and wires are not kept. Required. Any goroutine.
	Self func() (engine, epoch uint64)
	// Dead hears that the process of a reader has died. It runs on goroutines of the server, under no lock.
	Dead func(engine, epoch uint64)
	// Withdrawn hears in place of Dead that a life of a reader is over on purpose: it said farewell before its wire was closed.
	Withdrawn func(engine, epoch uint64)

	Max          int           // wires at once; 4,096
	Grace        time.Duration // for the same name to return; 0 is 0
	HelloTimeout time.Duration // for the whole hello; 5 s
}

// pendingMax is how many connections may owe their hello at once. Past it the oldest of the host that has the most goes: who is
// silent there is not a reader, whose hello comes with the connection.
const pendingMax = 256

// Server keeps the wires of readers.
//
// Threads: any; Heard and Left by one goroutine at a time, the step's: they take no lock and allocate nothing.
// Memory: see table; one goroutine per wire.
type Server struct {
	cfg    ServerConfig
	inbox  inbox
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	table   table
	open    map[*wire]struct{}
	pending []*wire     // oldest first
	crowd   hosts.Crowd // of pending
	leaving bool
	parting bool  // behind leaving: a farewell is said on every wire
	was     Frame // who we were when a wire was kept last; epoch 0: none was
	closed  bool
	telling sync.WaitGroup // Dead that is told just now

	n serverCounters
}

// wire is one connection.
type wire struct {
	c     net.Conn
	host  hosts.Host
	peer  *peer
	self  Frame  // what is said on it: who we were when it was kept, and its nonce
	flags uint16 // of its hello
	ours  bool   // this end closes it
}

// NewServer makes a server that has no wire yet.
func NewServer(cfg ServerConfig) *Server {
	if cfg.Max <= 0 {
		cfg.Max = 4096
	}
	if cfg.HelloTimeout <= 0 {
		cfg.HelloTimeout = 5 * time.Second
	}
	s := &Server{cfg: cfg, open: map[*wire]struct{}{}, crowd: hosts.Crowd{}, done: make(chan struct{})}
	s.inbox.init()
	s.table.init(cfg.Max)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	go s.listen()
	return s
}

// Heard takes a hello that a rank has heard over the transport; a nonce of zeros says that the reader has no wire, so one that
// somebody else names for it is a lie. A step's: no lock, no allocation. What does not fit is counted and leaves that reader
// to its leases.
func (s *Server) Heard(engine, epoch uint64, nonce [16]byte) {
	s.inbox.put(said{name: name{who{engine, epoch}, nonce}})
}

// Left takes a leaving that a rank has heard over the transport, as Heard.
func (s *Server) Left(engine, epoch uint64) {
	s.inbox.put(said{name: name{who: who{engine, epoch}}, left: true})
}

// listen applies what the step has heard.
func (s *Server) listen() {
	defer close(s.done)
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.inbox.wake:
			s.inbox.woken()
		}
		for m, ok := s.inbox.take(); ok; m, ok = s.inbox.take() {
			s.mu.Lock()
			if m.left {
				s.table.leave(m.who)
			} else if p, disputed := s.table.hear(m.name); p != nil {
				s.startGrace(p)
			} else if disputed {
				s.n.disputed.Add(1)
			}
			s.mu.Unlock()
		}
	}
}

// Serve keeps a connection until it ends: zmtp.Config.Other. The caller closes it afterwards.
func (s *Server) Serve(_ context.Context, c net.Conn) {
	w := &wire{c: c, host: hosts.Of(c)}
	if !s.enter(w) {
		return
	}
	hello, ok := s.hello(w)
	if !ok || !s.keep(w, hello) {
		s.leavePending(w)
		return
	}
	s.close(w, s.hold(w, hello))
}

// enter gives a connection a place among those that owe their hello.
func (s *Server) enter(w *wire) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if len(s.pending) >= pendingMax {
		s.n.crowded.Add(1)
		o := s.pending[0]
		for _, p := range s.pending {
			if s.crowd[p.host] > s.crowd[o.host] {
				o = p
			}
		}
		o.ours = true
		o.c.Close()
		s.unpend(o)
	}
	s.pending = append(s.pending, w)
	s.crowd.Come(w.host)
	return true
}

// leavePending takes a connection out of those that owe their hello.
func (s *Server) leavePending(w *wire) (was bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unpend(w)
}

func (s *Server) unpend(w *wire) bool {
	for i, p := range s.pending {
		if p == w {
			s.pending = slices.Delete(s.pending, i, i+1)
			s.crowd.Go(w.host)
			return true
		}
	}
	return false
}

// hello reads the first frame, which must come whole in time.
func (s *Server) hello(w *wire) (Frame, bool) {
	var b [FrameLen]byte
	w.c.SetReadDeadline(time.Now().Add(s.cfg.HelloTimeout))
	if _, err := io.ReadFull(w.c, b[:]); err != nil {
		s.n.silent.Add(1)
		return Frame{}, false
	}
	w.c.SetReadDeadline(time.Time{})
	f, err := Parse(b[:])
	if err != nil || f.Kind != Hello || f.Nonce == ([16]byte{}) {
		s.n.malformed.Add(1)
		return Frame{}, false
	}
	return f, true
}

// writeTimeout bounds a write of a frame, which the socket's buffer takes at once.
const writeTimeout = time.Second

// keep gives a wire its place and tells the reader so.
func (s *Server) keep(w *wire, hello Frame) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	engine, epoch := s.cfg.Self() // under the lock: what is kept behind EndEra is of the era after it
	switch {
	case s.closed || !s.unpend(w):
		return false
	case epoch == 0:
		s.n.unwanted.Add(1)
		if w.flags, w.self = hello.Flags, s.was; w.self.Epoch != 0 { // it may have had a wire to that life, and may not have heard
			w.self.Nonce = hello.Nonce
			w.part()
		}
		return false
	}
	s.was = Frame{Engine: engine, Epoch: epoch}
	n := name{who{hello.Engine, hello.Epoch}, hello.Nonce}
	p, back := s.table.open(n)
	if p == nil && s.evict() {
		p, back = s.table.open(n)
	}
	if p == nil {
		s.n.full.Add(1)
		return false
	}
	if back {
		s.n.returned.Add(1)
	}
	s.n.kept.Add(1)
	w.peer, w.flags, p.latest = p, hello.Flags, w
	w.self = Frame{Engine: engine, Epoch: epoch, Nonce: hello.Nonce}
	s.open[w] = struct{}{}
	steady(w.c)
	// Under the lock, so that no leaving goes out before it: 40 bytes into an empty buffer.
	w.say(Welcome, Farewells)
	if s.leaving {
		w.say(Leaving, 0)
	}
	if s.parting {
		w.part()
	}
	return true
}

// evict makes a place: the wires of the peer that nobody has heard for the longest go. A reader says its hello within moments
// of its wire, so whoever only opens wires keeps nobody out for long. Under the lock.
func (s *Server) evict() bool {
	v := s.table.oldestMute()
	if v == nil {
		return false
	}
	for w := range s.open {
		if w.peer == v {
			delete(s.open, w)
			w.c.Close()
			s.n.evicted.Add(1)
			s.table.closed(v, false)
		}
	}
	return true
}

// hold waits for the end of a wire and tells whether the peer closed it. A word that is said again is no news, and waits for nobody.
func (s *Server) hold(w *wire, hello Frame) (byPeer bool) {
	var b [FrameLen]byte
	var said [Farewell + 1]bool
	for n := 0; ; n++ {
		if _, err := io.ReadFull(w.c, b[:]); err != nil {
			return closedByPeer(err)
		}
		f, err := Parse(b[:])
		if err != nil || n == framesMax || f.Kind < Leaving || f.Engine != hello.Engine || f.Epoch != hello.Epoch || f.Nonce != hello.Nonce {
			s.n.malformed.Add(1)
			return false
		}
		if said[f.Kind] {
			continue
		}
		said[f.Kind] = true
		s.mu.Lock()
		switch latest := w.peer.latest == w; {
		case f.Kind == Leaving:
			w.peer.left = w.peer.left || latest
			s.n.left.Add(1)
		case latest:
			w.peer.parted = true
		}
		s.mu.Unlock()
	}
}

// closedByPeer reports that the other end closed the connection, itself or through its kernel. A time-out of any kind,
// or a network that is gone, says nothing about the process.
func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// close takes a wire out.
func (s *Server) close(w *wire, byPeer bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.open[w]; !ok { // the era has ended, and the table with it
		return
	}
	delete(s.open, w)
	if w.peer.latest == w {
		w.peer.latest = nil
	}
	if byPeer && !w.ours {
		s.n.fallen.Add(1)
	} else {
		s.n.ended.Add(1)
	}
	if s.table.closed(w.peer, byPeer && !w.ours) {
		s.startGrace(w.peer)
	}
}

// startGrace waits for a peer to return. Under the lock; its place is kept.
func (s *Server) startGrace(p *peer) {
	armed := time.Now()
	var t *time.Timer
	t = time.AfterFunc(s.cfg.Grace, func() {
		s.mu.Lock()
		if p.grace != t { // stopped too late
			s.mu.Unlock()
			return
		}
		if late := time.Since(armed); late > 2*s.cfg.Grace+lateLeast { // this process stood still: so did its listener
			s.startGrace(p)
			s.mu.Unlock()
			return
		}
		p.grace = nil
		over := p.counts()
		n, tell := &s.n.dead, s.cfg.Dead
		if p.parted {
			n, tell = &s.n.withdrawn, s.cfg.Withdrawn
		}
		p.fell = false
		s.table.places--
		s.table.settle(p)
		if over {
			s.telling.Add(1) // before Close can have the lock
			defer s.telling.Done()
		}
		s.mu.Unlock()
		if over {
			n.Add(1)
			if tell != nil {
				tell(p.engine, p.epoch)
			}
		}
	})
	p.grace = t
}

// lateLeast is a delay of a timer that a busy machine explains.
const lateLeast = 200 * time.Millisecond

// Close ends all wires, without a word where EndEra has not. Their goroutines end with it, and are their callers' to wait for. Neither
// Dead nor Withdrawn runs after it.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.endEra()
	for _, w := range s.pending {
		w.c.Close()
	}
	s.pending = nil
	s.mu.Unlock()
	s.cancel()
	<-s.done
	s.telling.Wait()
}

// steady sets a connection up to be silent. Keep-alive finds the places of hosts that are gone; nobody is dead for it.
func steady(c net.Conn) {
	for {
		if t, ok := c.(*net.TCPConn); ok {
			t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 8})
			return
		}
		u, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return
		}
		c = u.NetConn()
	}
}
