package sim

import (
	"reflect"
	"testing"
	"time"
)

// Whatever the bounds let pass runs to its end, and no number in it breaks the simulation itself: each run has some values at or beyond
// an edge, and is run if they are allowed.
func TestWhatTheBoundsAllowRuns(t *testing.T) {
	spans := []time.Duration{-1 << 63, -timeMax, -time.Hour, -1, 0, 1, time.Millisecond, time.Hour, timeMax, 1<<63 - 1}
	numbers := []int64{-1 << 31, -1, 0, 1, 2, 3, 16, 17, 1 << 10, 1<<31 - 1}
	shares := []float64{-1, 0, 1e-300, 0.5, 1, 2, 1e300}
	ran := 0
	for seed := range uint64(300) {
		s := Random(seed, nil)
		s.Span, s.Settle = 2*time.Second, -1
		d := &drawer{seed: mix64(seed ^ 0x6c696d)}
		odd := func(v reflect.Value) {
			f := v.Field(d.int(v.NumField()))
			switch {
			case f.Type() == durationType:
				f.SetInt(int64(pick(d, spans...)))
			case f.Kind() == reflect.Int:
				f.SetInt(pick(d, numbers...))
			case f.Kind() == reflect.Uint32:
				f.SetUint(uint64(uint32(pick(d, numbers...))))
			case f.Kind() == reflect.Float64:
				f.SetFloat(pick(d, shares...))
			case f.Kind() == reflect.Bool:
				f.SetBool(!f.Bool())
			}
		}
		for range 2 {
			odd(reflect.ValueOf(&s.Engines[d.int(len(s.Engines))]).Elem())
			odd(reflect.ValueOf(&s.Link).Elem())
		}
		for i := range s.Actions {
			a := &s.Actions[i]
			a.At %= s.Span
			odd(reflect.ValueOf(a).Elem())
			if a.check() != nil || a.At < 0 || a.At > s.Span {
				s.Actions[i] = Action{Engine: a.Engine, Do: Pressure}
			}
		}
		if s.check() != nil {
			continue
		}
		if _, err := runOrBreak(s, Options{}); err != nil {
			t.Errorf("seed %d: %v\n%s", seed, err, s.Print())
		}
		ran++
	}
	if ran < 40 {
		t.Errorf("%d of 300 schedules ran: the bounds refuse what is ordinary", ran)
	}
}
