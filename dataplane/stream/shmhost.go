package stream

import (
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pendingMax is how many connections may be saying hello at once; more are turned away, and ranks come back.
	pendingMax = 2 * RanksMax
	// helloWait is how long one may take.
	helloWait = 4 * time.Second
)

// shmHost serves the socket of a host context.
//
// Threads: a goroutine accepts, one for each connection attaches a rank and then waits for its end; none is the step.
type shmHost struct {
	cfg      Config
	hash     uint64
	path     string
	listener *net.UnixListener
	made     os.FileInfo
	ends     []*shmHostEnd
	work     sync.WaitGroup

	mu      sync.Mutex
	pending int
	closed  bool
	conns   map[*net.UnixConn]struct{}
}

// shmHostEnd is a host's end to one rank. What is not the step's stands under host.mu.
type shmHostEnd struct {
	end
	host   *shmHost
	hang   chan struct{}  // the step wants the connection ended
	met    bool           // a rank is attaching, or has been attached
	closed bool           //
	conn   *net.UnixConn  // of that rank
	work   sync.WaitGroup // the goroutine that serves it
}

func openShmHost(cfg Config) (*Host, error) {
	path, err := cfg.socketPath()
	if err != nil {
		return nil, err
	}
	h := &shmHost{cfg: cfg, hash: engineHash(cfg.EngineID), path: path, conns: map[*net.UnixConn]struct{}{}}
	host := &Host{close: h.close}
	for range cfg.TP * cfg.PP {
		own, err := dupWake(cfg.WakeFd)
		if err != nil {
			h.shut()
			return nil, err
		}
		e := &shmHostEnd{end: end{host: true, own: own}, host: h, hang: make(chan struct{}, 1)}
		e.broke = func() { signal(e.hang) }
		h.ends, host.ends = append(h.ends, e), append(host.ends, e)
	}
	if h.listener, err = listen(&cfg, path); err != nil {
		h.shut()
		return nil, err
	}
	h.made, _ = os.Lstat(path)
	h.work.Go(h.accept)
	return host, nil
}

func (h *shmHost) accept() {
	for {
		conn, err := h.listener.AcceptUnix()
		if err != nil {
			h.mu.Lock()
			closed := h.closed
			h.mu.Unlock()
			if closed {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors: others may be given back
			continue
		}
		if !h.admit(conn) {
			conn.Close()
		}
	}
}

// admit starts a connection's goroutine unless too many are open.
func (h *shmHost) admit(conn *net.UnixConn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.pending == pendingMax {
		return false
	}
	h.pending++
	h.conns[conn] = struct{}{}
	h.work.Go(func() {
		h.serve(conn)
		conn.Close()
		h.mu.Lock()
		delete(h.conns, conn)
		h.mu.Unlock()
	})
	return true
}

// serve attaches a rank and waits for its end.
func (h *shmHost) serve(conn *net.UnixConn) {
	conn.SetDeadline(time.Now().Add(helloWait))
	e, pid, err := h.meet(conn)
	h.mu.Lock()
	h.pending--
	h.mu.Unlock()
	if e == nil {
		return
	}
	defer e.work.Done()
	if err != nil {
		h.giveBack(e)
		sendMsg(conn, answerTo(err, h.hash, 0))
		return
	}
	gone := errGone
	if err = sendMark(conn, shmAttached, h.hash); err == nil {
		conn.SetDeadline(time.Time{})
		gone = untilGone(conn, pid, e.hang)
	}
	e.lose(gone)
}

// meet does what is said on the socket until both ends have the memory and this one is attached. With an error the place of the end,
// if it gives one, is to be given back.
func (h *shmHost) meet(conn *net.UnixConn) (*shmHostEnd, int32, error) {
	pid, err := peerIsOurs(conn)
	if err != nil {
		return nil, 0, err
	}
	var msg [shmMsgBytes]byte
	n, fds, err := recvMsg(conn, msg[:], 1)
	if err != nil {
		closeAll(fds)
		return nil, 0, err
	}
	said, err := parseHello(msg[:n], h.hash)
	if err == nil {
		err = checkShape(&h.cfg, said.rank, said.tp, said.pp)
	}
	peer := wake(-1)
	if err == nil && len(fds) > 0 {
		peer, err = takeWake(fds[0])
	}
	if err == nil {
		err = h.claim(said.rank, conn)
	}
	if err != nil {
		closeAll(fds)
		sendMsg(conn, answerTo(err, h.hash, 0))
		return nil, 0, err
	}
	e := h.ends[said.rank]
	l, err := h.share(conn, e)
	if err != nil {
		closeAll(fds)
		return e, pid, err
	}
	l.peer = peer
	e.attach(l)
	return e, pid, nil
}

// claim takes a rank's place, for good if it gets as far as to attach.
func (h *shmHost) claim(rank uint32, conn *net.UnixConn) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.ends[rank]
	if h.closed || e.closed {
		return ErrClosed
	}
	if e.met {
		return takenError(&h.cfg, rank)
	}
	e.met, e.conn = true, conn
	e.work.Add(1)
	return nil
}

func (h *shmHost) giveBack(e *shmHostEnd) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.met, e.conn = false, nil
}

// share makes the memory, sends it, and waits for the rank to say that it has it. Each try has its own: a rank that failed halfway
// may have written into it.
func (h *shmHost) share(conn *net.UnixConn, e *shmHostEnd) (*link, error) {
	fd, mem, err := newShared(h.cfg.RingBytes)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	l, err := openLink(mem, true)
	if err == nil {
		fds := []int{fd}
		if e.own >= 0 {
			fds = append(fds, int(e.own))
		}
		if err = sendMsg(conn, answerTo(nil, h.hash, len(mem)), fds...); err == nil {
			err = waitMark(conn, shmDone, h.hash)
		}
	}
	if err != nil {
		unix.Munmap(mem)
		return nil, err
	}
	l.free = func() { unix.Munmap(mem) }
	return l, nil
}

// Close ends this rank's stream; its place stays taken.
func (e *shmHostEnd) Close() error {
	e.host.mu.Lock()
	e.closed = true
	if e.conn != nil {
		e.conn.Close()
	}
	e.host.mu.Unlock()
	e.work.Wait()
	e.shut()
	return nil
}

func (h *shmHost) close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	unlinkOurs(h.path, h.made)
	h.listener.Close()
	for conn := range h.conns {
		conn.Close()
	}
	h.mu.Unlock()
	h.work.Wait()
	return h.shut()
}

func (h *shmHost) shut() error {
	for _, e := range h.ends {
		e.Close()
	}
	return nil
}
