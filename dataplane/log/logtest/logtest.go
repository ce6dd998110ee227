// Package logtest is for tests of what a context says.
package logtest

import (
	"encoding/json"
	"strings"

	"github.com/kvlease/kvlease/dataplane/log"
)

// T is what of testing.TB is needed here; rapid's has it, too.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Book keeps what has been said.
type Book struct {
	Log   *log.Log
	Lines []log.Line
}

// New takes everything.
func New() *Book { return &Book{Log: log.New(log.Config{Least: log.Info})} }

// Take adds lines of JSON.
func (b *Book) Take(t T, text []byte) {
	t.Helper()
	for one := range strings.Lines(string(text)) {
		var n log.Line
		if err := json.Unmarshal([]byte(one), &n); err != nil {
			t.Fatalf("line %q: %v", one, err)
		}
		b.Lines = append(b.Lines, n)
	}
}

func (b *Book) read(t T) {
	t.Helper()
	if b.Log != nil {
		text, _ := b.Log.Take(1 << 24)
		b.Take(t, text)
	}
}

// Of gives what was said of a kind.
func (b *Book) Of(t T, kind log.Kind) (of []log.Line) {
	t.Helper()
	b.read(t)
	for _, n := range b.Lines {
		if n.Kind == log.Defs[kind].Name {
			of = append(of, n)
		}
	}
	return of
}

// Want checks that something of a kind was said about an engine and a request ("": about none).
func (b *Book) Want(t T, kind log.Kind, engine, request string) {
	t.Helper()
	of := b.Of(t, kind)
	for _, n := range of {
		if n.Engine == engine && n.Request == request {
			return
		}
	}
	t.Errorf("nothing of kind %s about engine %q, request %q; of this kind %+v", log.Defs[kind].Name, engine, request, of)
}
