package demo

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// paint colours words on a terminal and leaves them alone elsewhere.
type paint bool

func (p paint) wrap(code, s string) string {
	if !p {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p paint) bold(s string) string { return p.wrap("1", s) }
func (p paint) dim(s string) string  { return p.wrap("2", s) }
func (p paint) good(s string) string { return p.wrap("32", s) }
func (p paint) bad(s string) string  { return p.wrap("1;31", s) }
func (p paint) warn(s string) string { return p.wrap("33", s) }

// narrator prints what happens as it happens, from runs that go on at the same time.
type narrator struct {
	mu    sync.Mutex
	out   io.Writer
	paint paint
	start time.Time
}

func (n *narrator) line(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintf(n.out, format+"\n", args...)
}

// event prints one line of a run with the time since the start of the demo.
func (n *narrator) event(run, format string, args ...any) {
	at := time.Since(n.start).Seconds()
	n.line("%s  %s  %s", n.paint.dim(fmt.Sprintf("%6.2f s", at)), n.paint.dim(fmt.Sprintf("%-19s", run)), fmt.Sprintf(format, args...))
}

// amount names an amount of memory.
func amount(n uint64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
