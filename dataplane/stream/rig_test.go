package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/internal/await"
)

var kinds = []string{KindProcess, KindShm, KindDelta}

// rig is a host and its ranks in this process, over one kind of carrier, each with a wake descriptor.
type rig struct {
	t       testing.TB
	kind    string
	cfg     Config
	host    *Host
	ranks   []Carrier
	h, r    Carrier // of rank 0
	hostFd  int
	rankFds []int
	rankFd  int
	carried [MessageBytesMax]byte
	held    map[Carrier][]byte // delta: a message that its receiver had no room for, by the sender
}

func newRig(t testing.TB, kind string, change ...func(*Config)) *rig {
	t.Helper()
	g := &rig{t: t, kind: kind, hostFd: eventFd(t), held: map[Carrier][]byte{}}
	g.cfg = Config{EngineID: "engine " + t.Name(), TP: 1, PP: 1, WakeFd: g.hostFd, RingBytes: 64 << 10}
	if kind == KindShm {
		g.cfg.Path = filepath.Join(t.TempDir(), "s")
	}
	for _, c := range change {
		c(&g.cfg)
	}
	var err error
	if g.host, err = OpenHost(kind, g.cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.host.Close() })
	for rank := range g.cfg.TP * g.cfg.PP {
		g.rankFds = append(g.rankFds, eventFd(t))
		g.ranks = append(g.ranks, g.openRank(rank, g.rankFds[rank]))
	}
	g.h, g.r, g.rankFd = g.host.End(0), g.ranks[0], g.rankFds[0]
	return g
}

// attached is a rig whose rank 0 has its first full state, of nothing, behind it.
func attached(t testing.TB, kind string, change ...func(*Config)) *rig {
	t.Helper()
	g := newRig(t, kind, change...)
	g.meet()
	g.full()
	return g
}

func (g *rig) openRank(rank uint32, fd int) Carrier {
	g.t.Helper()
	cfg := g.cfg
	cfg.Rank, cfg.WakeFd = rank, fd
	r, err := OpenRank(g.kind, cfg)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { r.Close() })
	return r
}

// meet waits until every end is attached.
func (g *rig) meet() {
	g.t.Helper()
	await.True(g.t, "all attach", func() bool {
		g.carry()
		for i, r := range g.ranks {
			if r.State() != Attached || g.host.End(uint32(i)).State() != Attached {
				return false
			}
		}
		return true
	})
}

// full passes an empty full state to rank 0.
func (g *rig) full() {
	g.t.Helper()
	number, ok := g.h.Begin()
	if !ok {
		g.t.Fatal("no room to begin")
	}
	record.PutFull(g.h.Reserve(record.TagFull, record.FullLen), record.Full{Incarnation: number, Mark: record.FullEnd})
	g.h.Publish()
	g.carry()
	for _, mark := range []uint32{record.FullStart, record.FullEnd} {
		tag, rec, _ := g.r.Next()
		if f, ok := record.AsFull(rec); tag != record.TagFull || !ok || f.Mark != mark || f.Incarnation != number {
			g.t.Fatalf("record %d, %+v, want mark %d of %d", tag, f, mark, number)
		}
	}
	g.r.Release()
}

// carry is the engine's step message: for delta it takes both ways until there is nothing more to say.
func (g *rig) carry() {
	g.t.Helper()
	if g.kind != KindDelta {
		return
	}
	for range 10_000 {
		moved := false
		for i, r := range g.ranks {
			h := g.host.End(uint32(i))
			down, up := g.pass(h, r), g.pass(r, h)
			moved = moved || down || up
		}
		if !moved {
			return
		}
	}
	g.t.Fatal("the ends never stop talking")
}

// pass carries one message; false: there is none, or it has to wait.
func (g *rig) pass(from, to Carrier) bool {
	g.t.Helper()
	msg := g.held[from]
	if len(msg) == 0 {
		n, err := from.(Delta).Take(g.carried[:])
		if err != nil {
			g.t.Fatal(err)
		}
		if msg = g.carried[:n]; n == 0 {
			return false
		}
	}
	switch err := to.(Delta).Put(msg); {
	case errors.Is(err, ErrSpace):
		g.held[from] = append(g.held[from][:0], msg...)
		return false
	case err != nil:
		g.t.Fatal(err)
	}
	g.held[from] = g.held[from][:0]
	return true
}

func eventFd(t testing.TB) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// woken waits on a descriptor and reads it.
func woken(fd int, wait time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	ts := unix.NsecToTimespec(int64(wait))
	for {
		n, err := unix.Ppoll(fds, &ts, nil)
		if err == unix.EINTR {
			continue
		}
		if n == 1 {
			var b [8]byte
			unix.Read(fd, b[:])
		}
		return n == 1
	}
}

// forAll runs a test over kinds of carriers.
func forAll(t *testing.T, some []string, f func(t *testing.T, kind string)) {
	for _, kind := range some {
		t.Run(kind, func(t *testing.T) { f(t, kind) })
	}
}

func rng(t testing.TB, seed uint64) *rand.Rand {
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// putNumbered fills a record that says its own number and length.
func putNumbered(rec []byte, i uint64) {
	for j := range rec {
		rec[j] = byte(i + uint64(j))
	}
	if len(rec) >= 8 {
		binary.LittleEndian.PutUint64(rec, i)
	}
}

func checkNumbered(rec []byte, i uint64) error {
	if len(rec) >= 8 {
		if got := binary.LittleEndian.Uint64(rec); got != i {
			return fmt.Errorf("record %d, want %d", got, i)
		}
	}
	for j := 8; j < len(rec); j++ {
		if rec[j] != byte(i+uint64(j)) {
			return fmt.Errorf("record %d: byte %d of another", i, j)
		}
	}
	return nil
}
