package capacity

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
)

// line is one request of a trace.
func line(at time.Duration, input, output int) string {
	return fmt.Sprintf(`{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": [1, 2]}`+"\n", at.Milliseconds(), input, output)
}

// small is one P and one D with one slot, all of whose times are known: a token of prefill takes 1 ms, one of decoding 10 ms, and
// no first term is spread.
func small() Config {
	c := Defaults()
	c.P, c.D, c.Slots, c.QueueMax = 1, 1, 1, 8
	c.Prefill, c.Decode, c.CacheBlocks = 1000, 100, 1000
	c.Jitter = -1
	return c
}

func leased(d time.Duration) Setting   { return Setting{Term: d} }
func fixedFor(d time.Duration) Setting { return Setting{Term: d, Fixed: true} }

// play begins a run.
func play(t testing.TB, c Config, s Setting, lines ...string) *world {
	t.Helper()
	w, err := newWorld(c, s, strings.NewReader(strings.Join(lines, "")))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// until goes on to a time since the start.
func (w *world) until(t testing.TB, at time.Duration) {
	t.Helper()
	for w.turnsBefore(start.Add(at)) {
		if err := w.turn(); err != nil {
			t.Fatal(err)
		}
	}
	w.net.Advance(start.Add(at))
	w.now = start.Add(at)
}

func (w *world) turnsBefore(at clock.Instant) bool {
	if w.net.NextEvent() <= at {
		return true
	}
	if w.events.Len() > 0 && w.events.Top().At <= at {
		return true
	}
	_, step := w.wakes.First()
	return step <= at
}

// rest plays to the end.
func (w *world) rest(t testing.TB) *Result {
	t.Helper()
	if err := w.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w.result(0)
}

// within fails unless lo <= got <= hi.
func within[T Span | time.Duration | float64](t testing.TB, what string, got, lo, hi T) {
	t.Helper()
	if got < lo || got > hi {
		t.Errorf("%s: %v, want %v to %v", what, show(got), show(lo), show(hi))
	}
}

func show[T Span | time.Duration | float64](v T) any {
	switch v := any(v).(type) {
	case Span:
		return time.Duration(v)
	default:
		return v
	}
}
