package node

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// reporter writes lines while the forward loop goes on: whoever reads our reports slowly must not stop our heartbeats.
//
// Threads: add and err belong to the loop; one goroutine writes.
type reporter struct {
	mu      sync.Mutex
	grown   *sync.Cond
	waiting []byte
	closed  bool
	failed  error
	done    chan struct{} // the goroutine has ended
}

// unreadMax is what may wait for a reader that does not read. Past it the engine leaves.
const unreadMax = 8 << 20

var errUnread = errors.New("nobody reads our reports")

func newReporter(out io.Writer) *reporter {
	r := &reporter{done: make(chan struct{})}
	r.grown = sync.NewCond(&r.mu)
	go r.write(out)
	return r
}

func (r *reporter) write(out io.Writer) {
	defer close(r.done)
	var lines []byte
	for {
		r.mu.Lock()
		for len(r.waiting) == 0 && !r.closed {
			r.grown.Wait()
		}
		if len(r.waiting) == 0 {
			r.mu.Unlock()
			return
		}
		lines, r.waiting = r.waiting, lines[:0]
		r.mu.Unlock()
		if _, err := out.Write(lines); err != nil {
			r.mu.Lock()
			r.failed = fmt.Errorf("%w: %w", errUnread, err)
			r.mu.Unlock()
			return
		}
	}
}

func (r *reporter) add(line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		return
	}
	if len(r.waiting)+len(line) > unreadMax {
		r.failed = fmt.Errorf("%w: %d bytes wait", errUnread, len(r.waiting))
		return
	}
	r.waiting = append(r.waiting, line...)
	r.grown.Signal()
}

func (r *reporter) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// close lets everything out that is taken within limit.
func (r *reporter) close(limit time.Duration) {
	r.mu.Lock()
	r.closed = true
	r.grown.Signal()
	r.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-r.done:
	case <-timer.C:
	}
}
