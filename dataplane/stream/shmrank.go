package stream

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// How long a rank waits before it looks for its host again: a socket that is not there costs a system call.
const (
	retryFirst = 10 * time.Millisecond
	retryMax   = 500 * time.Millisecond
)

// shmRank is a rank's end.
//
// Threads: one goroutine looks for the host, attaches, and waits for its end; it is not the step.
type shmRank struct {
	end
	cfg  Config
	hash uint64
	path string
	hang chan struct{}
	stop context.CancelFunc
	work sync.WaitGroup
}

func openShmRank(cfg Config) (Carrier, error) {
	path, err := cfg.socketPath()
	if err != nil {
		return nil, err
	}
	own, err := dupWake(cfg.WakeFd)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &shmRank{end: end{own: own}, cfg: cfg, hash: engineHash(cfg.EngineID), path: path, hang: make(chan struct{}, 1), stop: stop}
	r.broke = func() { signal(r.hang) }
	r.work.Go(func() { r.seek(ctx) })
	return r, nil
}

// seek tries until it has been attached once: a lost host does not come back, its successor is another context's.
func (r *shmRank) seek(ctx context.Context) {
	for wait := retryFirst; ; wait = min(2*wait, retryMax) {
		err := r.try(ctx)
		if err == nil {
			return
		}
		r.waits(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// try attaches and waits for the end; an error is why it was not attached.
func (r *shmRank) try(ctx context.Context) error {
	dialed, err := (&net.Dialer{Timeout: helloWait}).DialContext(ctx, "unixpacket", r.path)
	if err != nil {
		return fmt.Errorf("%w: no host of engine_id %q at %s: %w", ErrPath, r.cfg.EngineID, r.path, err)
	}
	conn := dialed.(*net.UnixConn)
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	conn.SetDeadline(time.Now().Add(helloWait))
	pid, err := peerIsOurs(conn)
	if err != nil {
		return err
	}
	l, err := r.meet(conn)
	if err != nil {
		return err
	}
	conn.SetDeadline(time.Time{}) // see the protocol: only the host may give up now
	if err := waitMark(conn, shmAttached, r.hash); err != nil {
		l.drop()
		return err
	}
	r.attach(l)
	r.lose(untilGone(conn, pid, r.hang))
	return nil
}

// meet asks for the memory and takes it.
func (r *shmRank) meet(conn *net.UnixConn) (*link, error) {
	var msg [shmMsgBytes + shmTextMax]byte
	putHello(msg[:], hello{r.hash, r.cfg.Rank, r.cfg.TP, r.cfg.PP})
	var wakes []int
	if r.own >= 0 {
		wakes = []int{int(r.own)}
	}
	if err := sendMsg(conn, msg[:shmMsgBytes], wakes...); err != nil {
		return nil, err
	}
	n, fds, err := recvMsg(conn, msg[:], 2)
	if err != nil {
		closeAll(fds)
		return nil, err
	}
	l, err := r.take(msg[:n], fds)
	if err != nil {
		closeAll(fds)
		return nil, err
	}
	unix.Close(fds[0])
	if err := sendMark(conn, shmDone, r.hash); err != nil {
		l.drop()
		return nil, err
	}
	return l, nil
}

// take maps the memory that the host has sent. The descriptors stay the caller's if it fails.
func (r *shmRank) take(answer []byte, fds []int) (*link, error) {
	bytes, err := parseAnswer(answer, r.hash)
	if err != nil {
		return nil, err
	}
	if len(fds) == 0 {
		return nil, fmt.Errorf("%w: no memory came with the answer", ErrInvalid)
	}
	peer := wake(-1)
	if len(fds) > 1 {
		if peer, err = takeWake(fds[1]); err != nil {
			return nil, err
		}
	}
	mem, err := mapShared(fds[0], bytes)
	if err != nil {
		return nil, err
	}
	l, err := openLink(mem, false)
	if err != nil {
		unix.Munmap(mem)
		return nil, err
	}
	l.peer, l.free = peer, func() { unix.Munmap(mem) }
	return l, nil
}

// Close is part of Carrier.
func (r *shmRank) Close() error {
	r.stop()
	r.work.Wait()
	r.shut()
	return nil
}
