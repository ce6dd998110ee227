package attach

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// lookAtBoard reads the header and the first rows of a rank's board.
func (s *session) lookAtBoard(ctx context.Context, i int) error {
	l, out := &s.eng.ranks[i].Handshake.Lease, s.report.Ranks[i].Board
	rows := min(l.Slots, boardRowsMax)
	n := record.BoardHeadLen + int(rows)*record.RowLen
	if err := s.reader.copyOf(ctx, i, spot{l.Board, l.BoardDevice, l.BoardMem}, n, s.cfg.Timeout); err != nil {
		return fmt.Errorf("the board of %s of %q: %w", s.eng.ranks[i].Rank, s.eng.id(), err)
	}
	head, all := record.Board(s.reader.board[:n])
	if head.Version != record.BoardVersion || head.Epoch != l.Epoch || head.Base != l.Base {
		return fmt.Errorf("the board of %s of %q is of version %d, epoch %016x and base %016x; its key says version %d, %016x and %016x: it has begun another life since the handshake",
			s.eng.ranks[i].Rank, s.eng.id(), head.Version, head.Epoch, head.Base, record.BoardVersion, l.Epoch, l.Base)
	}
	*out = Board{
		Addr: out.Addr, Base: out.Base, Mem: out.Mem, Seen: true, Looked: rows, Held: held(l, all),
		Draining: head.Flags&record.BoardDraining != 0, Closed: head.Flags&record.BoardClosed != 0,
	}
	return nil
}

// held counts rows whose use may be read. A row that was never granted has no deadline; the words of a row are not of one moment.
func held(l *wire.HandshakeLease, rows []record.Row) (n uint32) {
	for i := range rows {
		r := &rows[i]
		if r.DeadlineUs != 0 && r.Fence == record.FenceWord(l.Base, uint32(r.GenBeats)) {
			n++
		}
	}
	return n
}

// copyOf reads n bytes into board.
func (r *reader) copyOf(ctx context.Context, i int, at spot, n int, timeout time.Duration) error {
	x, err := r.tr.PostRead(&transport.ReadSpec{
		Peer: r.peers[i], RemoteMem: at.mem,
		Descs: []transport.Desc{{Local: record.Addr(r.board), Remote: at.addr, Len: uint64(n), RemoteDevice: at.device}},
	})
	if err != nil {
		return fmt.Errorf("a read of %d bytes at %#x was not begun: %w", n, at.addr, err)
	}
	r.loose = x
	began := monotonic()
	for {
		xs, out := [1]transport.Xfer{x}, [1]transport.Status{}
		r.tr.PollReads(xs[:], out[:], 0)
		age := monotonic().Sub(began)
		switch {
		case out[0] == transport.Done:
			r.loose = 0
			return r.tr.Release(x)
		case out[0] != transport.Pending:
			return fmt.Errorf("a read of %d bytes at %#x failed", n, at.addr)
		case age > timeout:
			return fmt.Errorf("a read of %d bytes at %#x has not ended within %v", n, at.addr, age)
		}
		if err := r.rest(ctx, age); err != nil {
			return err
		}
	}
}
