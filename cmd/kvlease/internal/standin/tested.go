package standin

import (
	"errors"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/node"
	"github.com/kvlease/kvlease/dataplane/core"
)

// Tested is an engine that ends with its test, and fails it with whatever fails.
type Tested struct {
	*Engine
	T testing.TB
}

// RunTested is Run for a test.
func RunTested(t testing.TB, cfg node.Config, open core.OpenTransport) *Tested {
	t.Helper()
	e, err := Run(cfg, open)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Quit(); err != nil {
			t.Error(err)
		}
	})
	return &Tested{e, t}
}

// Wait takes the first report that fits.
func (e *Tested) Wait(what string, fits func(*jsonl.Report) bool) jsonl.Report {
	e.T.Helper()
	r, err := e.Engine.Wait(what, fits)
	if err != nil {
		e.T.Fatal(err)
	}
	return r
}

// Do says a command and takes its answer.
func (e *Tested) Do(c jsonl.Command) jsonl.Report {
	e.T.Helper()
	r, err := e.Engine.Do(c)
	if err != nil {
		e.T.Fatal(err)
	}
	return r
}

// TestedPair are P and D over loopback, D holding these requests of P, two blocks each.
func TestedPair(t testing.TB, pages string, ids ...string) (p, d *Engine) {
	t.Helper()
	p, d, err := NewHub(pages, 3*time.Second).Pair("P", "D")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Quit(), p.Quit()); err != nil {
			t.Error(err)
		}
	})
	for i, id := range ids {
		if err := d.Hold(p, id, uint32(2*i), uint32(2*i+1)); err != nil {
			t.Fatal(err)
		}
	}
	return p, d
}
