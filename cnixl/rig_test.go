package cnixl

import (
	"fmt"
	"testing"

	"github.com/kvlease/kvlease/cnixl/fake"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/internal/fakelib"
)

var built = fakelib.Once{Build: func(dir string) (string, error) { return fake.Build(dir, "libfakenixl.so") }}

// script gives the fake commands; a test ends with a clean script.
type script struct {
	t    *testing.T
	path string
}

func newScript(t *testing.T) *script {
	t.Helper()
	path, err := built.Path()
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t, path}
	s.do("reset")
	t.Cleanup(func() { s.do("reset") })
	return s
}

func (s *script) do(format string, args ...any) int {
	s.t.Helper()
	r, err := fake.Control(s.path, fmt.Sprintf(format, args...))
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *script) open(cfg Config) *Agent {
	s.t.Helper()
	cfg.Path = s.path
	a, err := Open(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		s.do("reset")
		if err := a.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return a
}

// linked is two agents of the fake with memory, a loaded at b and b at a.
type linked struct {
	*script
	a, b       *Agent
	memA, memB []byte
	toB        transport.Peer
}

func newLinked(t *testing.T) *linked {
	t.Helper()
	s := newScript(t)
	l := &linked{script: s, a: s.open(Config{Agent: "D"}), b: s.open(Config{Agent: "P"}), memA: memory(1 << 16), memB: memory(1 << 16)}
	for at, mem := range map[*Agent][]byte{l.a: l.memA, l.b: l.memB} {
		if err := at.Register([]transport.Region{{Addr: address(mem), Bytes: uint64(len(mem))}}); err != nil {
			t.Fatal(err)
		}
	}
	blob, err := l.b.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	if l.toB, err = l.a.Load(blob); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *linked) spec(n int) *transport.ReadSpec {
	s := &transport.ReadSpec{Peer: l.toB}
	for i := range uint64(n) {
		s.Descs = append(s.Descs, transport.Desc{Local: address(l.memA) + 64*i, Remote: address(l.memB) + 64*i, Len: 64})
	}
	return s
}
