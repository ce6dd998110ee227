package handshake

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/dataplane/zmtp"
)

// longest bounds every wait of a test for real sockets and processes.
const longest = 60 * time.Second

var hashA, hashB = strings.Repeat("ab", 32), strings.Repeat("cd", 32)

// allRanks lists all ranks of an engine in the order in which vLLM asks for them.
func allRanks(ppSize, transferSize uint32) []Rank {
	out := make([]Rank, 0, ppSize*transferSize)
	for pp := range ppSize {
		for rank := range transferSize {
			out = append(out, Rank{pp, rank})
		}
	}
	return out
}

// stockMap is a stock engine's map; blob tells one from another.
func stockMap(id, blob string) []byte {
	return wire.AppendHandshake(nil, &wire.Handshake{
		EngineID: id, AgentMetadata: []byte(blob), BaseAddrs: []uint64{0x7f0000000000}, NumBlocks: 8,
		BlockLens: []uint64{4096}, BlockStrides: []uint64{4096}, Layout: "LBHNC", BlockSize: 16, AttnBackend: "FLASH_ATTN",
		PhysicalPerLogical: 1, DCPSize: 1, PCPSize: 1,
	})
}

func payload(id, blob string) []byte { return wire.AppendPayload(nil, hashA, stockMap(id, blob)) }

func stamp(at clock.RemoteInstant) []byte { return wire.AppendStamp(nil, at) }

// Real clocks of this host.
func boottime() clock.Instant        { return clock.Instant(readClock(unix.CLOCK_BOOTTIME)) }
func monotonic() clock.RemoteInstant { return clock.RemoteInstant(readClock(unix.CLOCK_MONOTONIC)) }
func readClock(id int32) (nanos int64) {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// lab is a client in a bubble of its own time, and the peers that it can reach.
type lab struct {
	*Client
	t     *testing.T
	start time.Time

	mu       sync.Mutex
	peers    map[string]peer
	dials    map[string][]time.Duration // since start
	open     int
	openMost int
	asked    []Rank
}

// peer answers for one address: what a connect or a request gives. A rank of nil is a connect.
type peer func(ctx context.Context, r *Rank) ([][]byte, error)

// inLab runs do in a bubble.
func inLab(t *testing.T, cfg Config, do func(l *lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &lab{t: t, start: time.Now(), peers: map[string]peer{}, dials: map[string][]time.Duration{}}
		cfg.Now = l.now
		c, err := NewClient(cfg)
		if err != nil {
			t.Fatal(err)
		}
		c.dial, l.Client = l.dialFake, c
		do(l)
		c.Close()
	})
}

// now is our clock, an hour after boot; the peers' shows two hours more.
func (l *lab) now() clock.Instant { return clock.Instant(time.Hour + time.Since(l.start)) }

const ahead = 2 * time.Hour

func (l *lab) stamp() []byte { return stamp(clock.RemoteInstant(l.now().Add(ahead))) }

type fakeConn struct {
	l *lab
	p peer
}

func (l *lab) dialFake(ctx context.Context, addr string) (conn, error) {
	l.mu.Lock()
	p := l.peers[addr]
	l.dials[addr] = append(l.dials[addr], time.Since(l.start))
	l.open++
	l.openMost = max(l.openMost, l.open)
	l.mu.Unlock()
	c := fakeConn{l, p}
	if p == nil {
		p = refuses
	}
	if _, err := p(ctx, nil); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c fakeConn) Request(ctx context.Context, frames ...[]byte) ([][]byte, zmtp.Timing, error) {
	pp, rank, err := wire.ParseRequest(frames[0])
	if err != nil {
		c.l.t.Error(err)
	}
	r := Rank{pp, rank}
	c.l.mu.Lock()
	c.l.asked = append(c.l.asked, r)
	c.l.mu.Unlock()
	sent := c.l.now()
	reply, err := c.p(ctx, &r)
	return reply, zmtp.Timing{Sent: sent, Received: c.l.now()}, err
}

func (c fakeConn) Close() error {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.open--
	return nil
}

func refuses(context.Context, *Rank) ([][]byte, error) {
	return nil, fmt.Errorf("fake: %w", zmtp.ErrUnreachable)
}

// hangs never answers a connect.
func hangs(ctx context.Context, _ *Rank) ([][]byte, error) { return nil, pause(ctx, 1<<62) }

// pause waits, or ends as zmtp does when ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("fake: %w: %w", zmtp.ErrSilent, ctx.Err())
		}
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// engine answers as id, each rank after a while.
func (l *lab) engine(id string, after time.Duration) peer {
	return func(ctx context.Context, r *Rank) ([][]byte, error) {
		if r == nil {
			return nil, nil
		}
		if err := pause(ctx, after/2); err != nil {
			return nil, err
		}
		s := l.stamp()
		if err := pause(ctx, after-after/2); err != nil {
			return nil, err
		}
		return [][]byte{payload(id, r.String()), s}, nil
	}
}

func (l *lab) put(addr string, p peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peers[addr] = p
}

// dialed is when an address was asked, since start.
func (l *lab) dialed(addr string) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]time.Duration(nil), l.dials[addr]...)
}

func (l *lab) want(handle uint64, id string, ranks uint32) {
	l.t.Helper()
	if err := l.Want(handle, Desc{ID: id, Addr: id, Ranks: allRanks(1, ranks)}); err != nil {
		l.t.Fatal(err)
	}
}

// sleep lets time pass, and everything that it makes due.
func (l *lab) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (l *lab) status(handle uint64) EngineStatus {
	l.t.Helper()
	for _, s := range l.Engines(nil) {
		if s.Engine == handle {
			return s
		}
	}
	l.t.Fatalf("engine %d is not wanted", handle)
	return EngineStatus{}
}

// take gives all results.
func (l *lab) take() (out []Result) {
	for r, ok := l.Next(); ok; r, ok = l.Next() {
		out = append(out, r)
	}
	return out
}

// takeOne gives the only result.
func (l *lab) takeOne() Result {
	l.t.Helper()
	all := l.take()
	if len(all) != 1 {
		l.t.Fatalf("%d results, want 1: %v", len(all), all)
	}
	return all[0]
}
