package top

import (
	"testing"
	"time"
)

func TestHeartbeatsThatComeInBurstsHaveASteadyRate(t *testing.T) {
	r := newRates()
	for at := time.Duration(0); at < time.Minute; at += 200 * time.Millisecond {
		e := engine("p", func(e *Engine) { e.Beats, e.at, e.Beaten = nil, time.Hour+at, 8*uint64(at/(5*time.Second)) })
		r.fill([]*Engine{e})
		if at < 5*time.Second && e.Beats != nil {
			t.Errorf("after %v: %.2f a second, nothing can be known yet", at, *e.Beats)
		}
		if at > 15*time.Second && (e.Beats == nil || *e.Beats < 1.5 || *e.Beats > 1.7) {
			t.Errorf("at %v: %v a second, 8 come every 5 s", at, e.Beats)
		}
	}
	e := engine("p", func(e *Engine) { e.Beats, e.at, e.Beaten = nil, time.Hour+3*time.Minute, 8*11 })
	if r.fill([]*Engine{e}); *e.Beats > 0.7 {
		t.Errorf("silent for two minutes: %.2f a second", *e.Beats)
	}
	if n := len(r.of["p"].beats) + len(r.of["p"].points); n > 3*beatsSteps {
		t.Errorf("%d points are remembered", n)
	}
}

func TestRatesAreOfThisLifeAndOfNow(t *testing.T) {
	r := newRates()
	look := func(at time.Duration, bytes uint64, change func(e *Engine)) *Engine {
		e := engine("d", func(e *Engine) {
			e.at, e.bytes, e.Peers = at, bytes, []Peer{{key: "p", bytes: bytes}}
		})
		if change != nil {
			change(e)
		}
		r.fill([]*Engine{e})
		return e
	}
	if e := look(time.Second, 1000, nil); e.Rate != 0 || !e.fresh {
		t.Errorf("seen once: %+v", e)
	}
	if e := look(2*time.Second, 3000, nil); e.Rate != 2000 || e.Peers[0].Rate != 2000 || e.fresh {
		t.Errorf("2,000 bytes in a second: %+v", e)
	}
	if e := look(3*time.Second, 10, nil); e.Rate != 0 || !e.fresh {
		t.Errorf("another life: %+v", e)
	}
	look(4*time.Second, 1010, nil)
	if e := look(4*time.Second, 1010, func(e *Engine) { e.Age = time.Minute }); e.Rate != 0 || e.fresh {
		t.Errorf("it stands still: %+v", e)
	}
	if e := look(20*time.Second, 1010, nil); e.Rate != 0 {
		t.Errorf("read nothing for 16 s: %+v", e)
	}
	r.fill(nil)
	if len(r.of) != 0 {
		t.Errorf("contexts that are gone are remembered: %d", len(r.of))
	}
}
