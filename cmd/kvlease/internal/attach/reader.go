package attach

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"golang.org/x/sys/unix"
)

const (
	rowsMax = 16
	// boardRowsMax is how many rows of a board are looked at: given back slots are taken first, so what is held stands at its start.
	boardRowsMax = 1 << 16
	loadTries    = 200
)

// reader is an agent of our own, into whose memory rows and blocks are read.
//
// Memory: mapped, and never unmapped while the agent lives. Threads: one.
type reader struct {
	tr    transport.Transport
	m     *read.Machine
	mem   []byte // rows land in the first part, a copy of a board in the other
	board []byte
	peers []transport.Peer // by rank; 0: not loaded
	loose transport.Xfer   // a read into board that has not ended
}

func openReader(cfg *Config, e *engine) (*reader, error) {
	mc := read.Config{
		ReadsMax: 1, SourcesMax: 1, RunsMax: 1 << 19, PeersMax: len(e.ranks), RowsMax: rowsMax, RowTimeout: cfg.Timeout, ReadTimeout: cfg.ReadTimeout,
	}
	landing := read.LandingBytes(mc)
	rows := uint32(0)
	for i := range e.ranks {
		rows = max(rows, min(e.ranks[i].Handshake.Lease.Slots, boardRowsMax))
	}
	mem, err := pages(landing + record.BoardHeadLen + int(rows)*record.RowLen)
	if err != nil {
		return nil, err
	}
	tr, err := cfg.Open("kvlease-attach-" + hex.EncodeToString(random(8)))
	if err != nil {
		return nil, fmt.Errorf("open the transport: %w", err)
	}
	r := &reader{tr: tr, mem: mem, board: mem[landing:], peers: make([]transport.Peer, len(e.ranks))}
	if err := tr.Register([]transport.Region{{Addr: record.Addr(mem), Bytes: uint64(len(mem))}}); err != nil {
		return nil, errors.Join(fmt.Errorf("register memory: %w", err), tr.Close())
	}
	if r.m, err = read.New(mc, tr, mem[:landing], nil); err != nil {
		return nil, errors.Join(err, tr.Close())
	}
	return r, nil
}

func pages(n int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return mem, nil
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

func randomWord() uint64 { return binary.LittleEndian.Uint64(random(8)) | 1 }

// close ends the agent. A read that has not ended goes with the process.
func (r *reader) close() error {
	if r.m.Open() > 0 || r.loose != 0 {
		return nil
	}
	if err := r.tr.Close(); err != nil && !errors.Is(err, transport.ErrUntaken) {
		return fmt.Errorf("close the agent: %w", err)
	}
	return nil
}

// load makes a rank's agent known.
func (r *reader) load(ctx context.Context, e *engine, i int) (took time.Duration, err error) {
	began := monotonic()
	for range loadTries {
		r.peers[i], err = r.tr.Load(e.ranks[i].Handshake.AgentMetadata)
		if !errors.Is(err, transport.ErrFull) {
			break
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return 0, err
		}
	}
	if err != nil {
		return 0, fmt.Errorf("load the agent of %s, of which it says in %d bytes where it is: %w", e.ranks[i].Rank, len(e.ranks[i].Handshake.AgentMetadata), err)
	}
	return monotonic().Sub(began), nil
}

// spot is a place in a peer's memory.
type spot struct {
	addr   uint64
	device uint32
	mem    transport.Mem
}

// row reads up to a row's bytes and says how long that took. It waits as the machine's RowTimeout says.
func (r *reader) row(ctx context.Context, i int, at spot, length uint32) (row record.Row, posted, ended time.Duration, err error) {
	now := monotonic()
	if st := r.m.ReadRow(0, r.peers[i], at.addr, at.device, at.mem, length, now); st != read.OK {
		return row, 0, 0, fmt.Errorf("a read of %d bytes at %#x was not begun: %s %s", length, at.addr, st, r.m.Why())
	}
	for {
		at := monotonic()
		r.m.Step(at)
		if res, ok := r.m.NextRow(); ok {
			if !res.OK {
				return row, 0, 0, errors.New("a one-sided read did not end, or failed: its process is gone or stands still, or there is no way to its memory from here")
			}
			return res.Row, time.Duration(res.Posted), time.Duration(monotonic()), nil
		}
		if err := r.rest(ctx, at.Sub(now)); err != nil {
			return row, 0, 0, err
		}
	}
}

// rest waits a little between two looks at a transfer, not at all while it is young: what is measured is short.
func (r *reader) rest(ctx context.Context, age time.Duration) error {
	const young = 2 * time.Millisecond
	if age < young {
		return ctx.Err()
	}
	return pause(ctx, 200*time.Microsecond)
}

// pause sleeps, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// probe is where 8 bytes can be read: the board's header, or the first region.
func (k *rank) probe() spot {
	if l := &k.Handshake.Lease; k.Handshake.Native {
		return spot{l.Board, l.BoardDevice, l.BoardMem}
	}
	g := &k.layout.Regions[0]
	return spot{g.Addr, g.Device, g.Mem}
}

// measureRank loads a rank, times small reads from it and looks at its board.
func (s *session) measureRank(ctx context.Context, i int) error {
	k, out := &s.eng.ranks[i], &s.report.Ranks[i]
	took, err := s.reader.load(ctx, s.eng, i)
	if err != nil {
		return err
	}
	out.LoadMs = ms(took)
	var times []time.Duration
	for n := range max(s.cfg.Samples, 1) + 1 {
		_, posted, ended, err := s.reader.row(ctx, i, k.probe(), read.ProbeBytes)
		if err != nil {
			return fmt.Errorf("%s of %q: %w", k.Rank, s.eng.id(), err)
		}
		if n == 0 { // connects
			out.First = ms(ended - posted)
			continue
		}
		times = append(times, ended-posted)
	}
	sp := spread(times)
	out.Read = &sp
	if k.Handshake.Native {
		return s.lookAtBoard(ctx, i)
	}
	return nil
}
