package core

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errWriter writes lines to stderr. Nothing waits for it: if nobody reads there it stands, and records are lost, and counted.
type errWriter struct {
	logs *logs
	fd   int
	stop chan struct{}
	done chan struct{}
	over atomic.Bool
}

const (
	errEvery = 250 * time.Millisecond // between two looks for lines: no step wakes anybody for them
	errRoom  = 16 << 10               // bytes of lines written at once
	errWait  = 200 * time.Millisecond // how long close waits for the last ones
)

// stderrFd is where they go. Tests put a pipe there.
var stderrFd = 2

func startErrWriter(l *logs) *errWriter {
	w := &errWriter{logs: l, fd: stderrFd, stop: make(chan struct{}), done: make(chan struct{})}
	go w.run()
	return w
}

func (w *errWriter) run() {
	defer close(w.done)
	tick := time.NewTicker(errEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			w.write()
			return
		case <-tick.C:
			if w.logs.taken.Load() {
				return
			}
			w.write()
		}
	}
}

// write writes what waits.
func (w *errWriter) write() {
	l := w.logs
	l.beside.look(l)
	for !l.taken.Load() && !l.log.Empty() {
		text, need := l.log.TakeText(errRoom)
		if need > 0 { // no line is that long
			return
		}
		if !w.put(text) {
			return
		}
	}
}

// put writes all of it. A pipe that nobody reads any more must not end the host, as SIGPIPE would, and as the os package makes sure
// for stderr; so the signal is held back on this thread and taken away.
func (w *errWriter) put(text []byte) bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var pipe, before unix.Sigset_t
	pipe.Val[0] = 1 << (unix.SIGPIPE - 1)
	if unix.PthreadSigmask(unix.SIG_BLOCK, &pipe, &before) != nil {
		return false
	}
	defer unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
	for len(text) > 0 {
		n, err := unix.Write(w.fd, text)
		switch err {
		case nil:
			text = text[n:]
		case unix.EINTR:
		case unix.EAGAIN:
			if w.over.Load() { // the context closes
				return false
			}
			unix.Poll([]unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLOUT}}, 100)
		case unix.EPIPE:
			var none unix.Timespec
			unix.Syscall6(unix.SYS_RT_SIGTIMEDWAIT, uintptr(unsafe.Pointer(&pipe)), 0, uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(pipe.Val[0]), 0, 0)
			return false
		default:
			return false
		}
	}
	return true
}

// close has the last lines written, if that is possible soon.
func (w *errWriter) close() {
	if w.over.Swap(true) { // a second call of Close
		return
	}
	close(w.stop)
	select {
	case <-w.done:
	case <-time.After(errWait):
	}
}
