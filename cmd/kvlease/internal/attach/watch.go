package attach

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/internal/plural"
)

// Look is one more look at an engine: a line of --watch.
type Look struct {
	At          string  `json:"at"`     // this machine's wall clock
	Engine      string  `json:"engine"` // "same"; "restarted": another agent or epoch; "silent": it stands still; "gone": not there, or another one
	Error       string  `json:"error,omitempty"`
	RoundTripMs float64 `json:"round_trip_ms,omitempty"`
	AheadMs     float64 `json:"clock_ahead_ms,omitempty"`
	AheadMostMs float64 `json:"clock_error_max_ms,omitempty"`
	ReadMs      float64 `json:"read_ms,omitempty"`
	Board       *Board  `json:"board,omitempty"` // of the first rank
	Row         *RowAt  `json:"row,omitempty"`   // of the request at the first rank

	class handshake.Class // of a handshake that failed
}

// watch looks again and again, until ctx ends. An engine that is gone is looked for, and one that comes back is met anew.
func (s *session) watch(ctx context.Context) error {
	for {
		if err := pause(ctx, s.cfg.Watch); err != nil {
			return nil // to be stopped is how it ends
		}
		l := Look{At: time.Now().Format("15:04:05.000"), Engine: "same"}
		if err := s.look(ctx, &l); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			l.Error = err.Error()
		}
		if err := s.tellLook(&l); err != nil {
			return err
		}
	}
}

func (s *session) look(ctx context.Context, l *Look) error {
	blob, epoch := s.eng.ranks[0].Handshake.AgentMetadata, s.eng.lease().Epoch
	m, err := s.eng.sample(ctx)
	if err != nil { // the connection is of no more use
		fresh, err := ask(ctx, s.cfg)
		if err != nil {
			if l.Engine, l.class = "gone", handshake.ClassOf(err); l.class == handshake.Silent {
				l.Engine = "silent"
			}
			return err
		}
		s.eng.close()
		s.eng, m = fresh, fresh.ranks[0].Map
	}
	if s.anew = s.anew || !bytes.Equal(m.Handshake.AgentMetadata, blob) || m.Handshake.Lease.Epoch != epoch; s.anew {
		l.Engine = "restarted"
		if err := s.again(ctx); err != nil {
			return err
		}
		s.anew = false
	}
	l.RoundTripMs = ms(s.eng.trips[len(s.eng.trips)-1])
	if ahead, bound, ok := s.eng.clock(); ok {
		l.AheadMs, l.AheadMostMs = ms(ahead), ms(bound)
	}
	if s.reader == nil {
		return nil
	}
	_, posted, ended, err := s.reader.row(ctx, 0, s.eng.ranks[0].probe(), 8)
	if err != nil {
		return err
	}
	l.ReadMs = ms(ended - posted)
	if !s.eng.native() {
		return nil
	}
	if err := s.lookAtBoard(ctx, 0); err != nil {
		return err
	}
	l.Board = s.report.Ranks[0].Board
	return s.lookAtRow(ctx, l)
}

// lookAtRow shows the request's row at the first rank, without beating for it.
func (s *session) lookAtRow(ctx context.Context, l *Look) error {
	if s.cfg.Request == nil {
		return nil
	}
	q := s.subject()
	if !q.native {
		return nil
	}
	if err := q.check(); err != nil {
		return err
	}
	q.out.Rows = make([]RowAt, 1)
	row, err := q.row(ctx, 0)
	if err == nil || errors.Is(err, errOver) { // that is what the row says
		l.Row, err = &row, nil
	}
	return err
}

// again meets an engine that has begun another life.
func (s *session) again(ctx context.Context) error {
	fresh, err := ask(ctx, s.cfg)
	if err != nil {
		return err
	}
	s.eng.close()
	s.eng = fresh
	s.report = fresh.report()
	if s.reader == nil {
		return nil
	}
	if err := s.reader.close(); err != nil {
		return err
	}
	s.reader = nil
	return s.measure(ctx)
}

func (s *session) tellLook(l *Look) error {
	if s.cfg.JSON {
		return json.NewEncoder(s.out).Encode(l)
	}
	line := l.At + "  "
	switch {
	case l.class == handshake.Silent:
		line += l.Engine
	case l.class != handshake.None:
		line += l.Engine + ": " + l.class.String() // what it means was said at the start, or is in JSON
	default:
		if l.Engine != "same" {
			line += l.Engine + "  "
		}
		line += fmt.Sprintf("handshake %.2f ms  clock %+.3f ±%.3f ms", l.RoundTripMs, l.AheadMs, l.AheadMostMs)
		if l.ReadMs > 0 {
			line += fmt.Sprintf("  read %.3f ms", l.ReadMs)
		}
		if l.Board != nil {
			line += "  " + l.Board.state()
		}
		if r := l.Row; r != nil && r.Held {
			line += "  request held, " + plural.Counted(r.Beats, "heartbeat", "heartbeats")
		} else if r != nil {
			line += "  request ended"
		}
		if l.Error != "" {
			line += "  " + l.Error
		}
	}
	_, err := fmt.Fprintln(s.out, line)
	return err
}
