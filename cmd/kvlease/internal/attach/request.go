package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/internal/jsons"
)

// Request is one that the engine holds blocks for.
type Request struct {
	ID     string
	Groups [][]uint32   // block ids, by transfer group
	Params *wire.Params // what the owner has answered; nil: only the id is known, and blocks if they were said
}

// BlocksMax is the most blocks of a request that are read, over all groups.
const BlocksMax = 1 << 19

// ParseRequest reads transfer parameters: the kv_transfer_params object, or a response that has it.
func ParseRequest(text []byte) (*Request, error) {
	var response struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(text, &response); err == nil && response.Params != nil {
		text = response.Params
	}
	p := new(wire.Params)
	if err := wire.ParseParams(text, p); err != nil {
		return nil, err
	}
	return &Request{ID: p.RequestID, Groups: p.Groups, Params: p}, nil
}

// ParseBlocks reads block ids: "0-3,7;9" are two groups.
func ParseBlocks(text string) (groups [][]uint32, err error) {
	total := uint64(0)
	for part := range strings.SplitSeq(text, ";") {
		group := []uint32{}
		for one := range strings.SplitSeq(part, ",") {
			if one = strings.TrimSpace(one); one == "" {
				continue
			}
			first, last, isRange := strings.Cut(one, "-")
			if !isRange {
				last = first
			}
			a, errA := strconv.ParseUint(first, 10, 32)
			b, errB := strconv.ParseUint(last, 10, 32)
			if errA != nil || errB != nil || b < a {
				return nil, fmt.Errorf("block %q, wanted: numbers and ranges like 0-3,7 and ; between groups", one)
			}
			if total += b - a + 1; total > BlocksMax {
				return nil, fmt.Errorf("more than %d blocks", BlocksMax)
			}
			for id := a; id <= b; id++ {
				group = append(group, uint32(id))
			}
		}
		groups = append(groups, group)
	}
	if total == 0 {
		return nil, errors.New("no block is named")
	}
	return groups, nil
}

// RequestReport is what was found out about a request.
type RequestReport struct {
	ID     string            `json:"id"`
	Native bool              `json:"native"` // spoken of by slot and key, its row can be seen
	Rows   jsons.List[RowAt] `json:"rows"`
	// FixedLeftMs is what is left of a life that no heartbeat renews; the error is that of the clocks.
	FixedLeftMs *float64 `json:"fixed_left_ms,omitempty"`
	Beats       int      `json:"beats"`               // sent to each rank
	Send        Spread   `json:"send"`                // until the transport took one: nothing of its arrival
	Applied     *Spread  `json:"applied,omitempty"`   // from the send until a row that showed it was here
	Unapplied   int      `json:"unapplied,omitempty"` // beats that no row showed in time
	Read        *Dump    `json:"read,omitempty"`
	Completed   bool     `json:"completed"`          // the completion was sent
	EndedMs     *float64 `json:"ended_ms,omitempty"` // from the completion until the last row showed the end
	Left        string   `json:"left"`               // what becomes of the lease now
}

// RowAt is what the row of a rank showed last.
type RowAt struct {
	PP         uint32 `json:"pp_rank"`
	Rank       uint32 `json:"rank"`
	Held       bool   `json:"held"`
	Ended      uint64 `json:"uses_ended_since,omitempty"` // how far its word is beyond the request's
	Beats      uint32 `json:"beats"`
	DeadlineUs uint64 `json:"deadline_us"` // of the owner's CLOCK_BOOTTIME
}

// errOver is a lease that has ended.
var errOver = errors.New("the lease has ended: its blocks may be anybody's by now")

// subject is a request while it is looked at.
type subject struct {
	*session
	req     *Request
	out     *RequestReport
	native  bool
	engine  uint64 // hash of what we call ourselves
	epoch   uint64
	every   time.Duration
	due     clock.Instant // of the next heartbeat; Never: none
	sends   []time.Duration
	applied []time.Duration
}

// request looks at a request, beats for it, reads it and completes it, as far as that was asked for.
func (s *session) request(ctx context.Context) error {
	q := s.subject()
	s.report.Request = q.out
	if err := q.check(); err != nil {
		return err
	}
	err := q.run(ctx)
	q.out.Send = spread(q.sends)
	if len(q.applied) > 0 {
		sp := spread(q.applied)
		q.out.Applied = &sp
	}
	q.out.Left = q.left(err)
	s.say(q.out.write)
	return err
}

// stockDuration is what a stock engine, which does not say, holds a lease for if nothing else was configured.
const stockDuration = 30 * time.Second

func (s *session) subject() *subject {
	req := s.cfg.Request
	name := "kvlease-attach-" + hex64(randomWord())
	q := &subject{
		session: s, req: req, out: &RequestReport{ID: req.ID}, engine: wire.EngineHash([]byte(name)), epoch: randomWord(), due: clock.Never,
		every: stockDuration / 6,
	}
	q.native = s.eng.native() && req.Params != nil && req.Params.Native
	q.out.Native = q.native
	if s.eng.native() {
		q.every = s.eng.lease().Duration / 6
	}
	if s.cfg.Interval > 0 {
		q.every = s.cfg.Interval
	}
	return q
}

// check holds the parameters against the engine that answers.
func (q *subject) check() error {
	p := q.req.Params
	if p == nil {
		return nil
	}
	switch {
	case p.EngineID != q.eng.id():
		return fmt.Errorf("the parameters are of engine %q, here is %q", p.EngineID, q.eng.id())
	case p.TPSize != q.eng.tp || p.PPSize != q.eng.pp:
		return fmt.Errorf("the parameters say TP %d and PP %d, here it is TP %d and PP %d", p.TPSize, p.PPSize, q.eng.tp, q.eng.pp)
	}
	if p.ExpiryTime != nil {
		here, _, ok := q.eng.offset.Local(clock.RemoteInstant(*p.ExpiryTime * 1e9))
		if ok {
			left := ms(here.Sub(monotonic()))
			q.out.FixedLeftMs = &left
		}
	}
	if !q.native {
		return nil
	}
	if l := p.Lease; l.Epoch != q.eng.lease().Epoch {
		return fmt.Errorf("the parameters are of boot epoch %016x, the engine's is %016x: it was restarted, or has registered its memory anew, and the blocks are gone", l.Epoch, q.eng.lease().Epoch)
	}
	for i := range q.eng.ranks {
		if l := &q.eng.ranks[i].Handshake.Lease; p.Lease.Slot >= l.Slots {
			return fmt.Errorf("the parameters name slot %d, %s has %d", p.Lease.Slot, q.eng.ranks[i].Rank, l.Slots)
		}
	}
	return nil
}

func (q *subject) run(ctx context.Context) error {
	if q.native {
		if err := q.rows(ctx); err != nil {
			return err
		}
	}
	if q.cfg.Beat > 0 {
		q.due = monotonic()
		for end := q.due.Add(q.cfg.Beat); monotonic().Before(end); {
			if err := q.tick(ctx); err != nil {
				return err
			}
			if err := pause(ctx, min(end.Sub(monotonic()), max(q.due.Sub(monotonic()), 0), time.Second)); err != nil {
				return err
			}
		}
	}
	if q.cfg.Out != "" {
		if err := q.dump(ctx); err != nil {
			return err
		}
	}
	if q.cfg.Complete {
		return q.complete(ctx)
	}
	return nil
}

// tick beats if it is time.
func (q *subject) tick(ctx context.Context) error {
	if now := monotonic(); now.Before(q.due) {
		return nil
	}
	q.due = q.due.Add(q.every)
	if q.native {
		return q.beatNative(ctx)
	}
	msg, st := wire.AppendHeartbeatID(nil, wire.ParseMax, []byte(q.req.ID))
	if st != wire.OK {
		return fmt.Errorf("no stock heartbeat can name %q: %s", q.req.ID, st)
	}
	return q.send(msg)
}

// send sends to every rank.
func (q *subject) send(msg []byte) error {
	for i, p := range q.reader.peers {
		began := monotonic()
		if err := q.reader.tr.Send(p, msg); err != nil {
			return fmt.Errorf("send to %s: %w", q.eng.ranks[i].Rank, err)
		}
		q.sends = append(q.sends, monotonic().Sub(began))
	}
	q.out.Beats++
	return nil
}

// message is a native message of kind about the request.
func (q *subject) message(kind wire.Kind) []byte {
	h := wire.Header{Kind: kind, Engine: q.engine, Epoch: q.epoch, Count: 1}
	if kind == wire.Complete {
		h.Readers = 1 // whatever its size, one rank of ours reports
	}
	l := &q.req.Params.Lease
	return wire.AppendEntry(wire.AppendHeader(nil, &h), l.Slot, l.Generation, l.Key)
}

// beatNative sends a heartbeat to one rank after the other, and waits for each one's row to show it.
func (q *subject) beatNative(ctx context.Context) error {
	msg := q.message(wire.Renew)
	for i, p := range q.reader.peers {
		before, err := q.row(ctx, i)
		if err != nil {
			return err
		}
		began := monotonic()
		if err := q.reader.tr.Send(p, msg); err != nil {
			return fmt.Errorf("send to %s: %w", q.eng.ranks[i].Rank, err)
		}
		q.sends = append(q.sends, monotonic().Sub(began))
		took, ok, err := q.until(ctx, i, began, func(r RowAt) bool { return r.Beats != before.Beats })
		if err != nil {
			return err
		}
		if !ok {
			q.out.Unapplied++
			continue
		}
		q.applied = append(q.applied, took)
		q.say(func(w io.Writer) {
			now := q.out.Rows[i]
			fmt.Fprintf(w, "  beat %d to %s: its row showed it after %.2f ms, the deadline moved by %.2f s\n",
				q.out.Beats+1, q.eng.ranks[i].Rank, ms(took), float64(now.DeadlineUs-before.DeadlineUs)/1e6)
		})
	}
	q.out.Beats++
	return nil
}

// until reads a rank's row until it is as wanted; false: it was not in time. A lease that ends is an error.
func (q *subject) until(ctx context.Context, i int, began clock.Instant, wanted func(RowAt) bool) (took time.Duration, ok bool, err error) {
	for {
		r, err := q.row(ctx, i)
		took := monotonic().Sub(began)
		switch {
		case (err == nil || errors.Is(err, errOver)) && wanted(r):
			return took, true, nil
		case err != nil:
			return 0, false, err
		case took > q.cfg.Timeout:
			return 0, false, nil
		}
		if err := q.reader.rest(ctx, took); err != nil {
			return 0, false, err
		}
	}
}

// rows reads the row of every rank.
func (q *subject) rows(ctx context.Context) error {
	for i := range q.eng.ranks {
		q.out.Rows = append(q.out.Rows, RowAt{})
		if _, err := q.row(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// row reads the request's row at a rank. errOver comes with what it shows.
func (q *subject) row(ctx context.Context, i int) (RowAt, error) {
	k := &q.eng.ranks[i]
	row, _, _, err := q.reader.row(ctx, i, k.row(q.req), record.RowLen)
	if err != nil {
		return RowAt{}, fmt.Errorf("the row of slot %d at %s: %w", q.req.Params.Lease.Slot, k.Rank, err)
	}
	want := record.FenceWord(k.Handshake.Lease.Base, q.req.Params.Lease.Generation)
	out := RowAt{PP: k.Rank.PP, Rank: k.Rank.Transfer, Held: row.Fence == want, Ended: row.Fence - want}
	if uint32(row.GenBeats) == q.req.Params.Lease.Generation {
		out.Beats, out.DeadlineUs = uint32(row.GenBeats>>32), row.DeadlineUs
	}
	q.out.Rows[i] = out
	if !out.Held {
		return out, fmt.Errorf("%s: %w", k.Rank, errOver)
	}
	return out, nil
}

// row is where the request's row lies.
func (k *rank) row(req *Request) spot {
	l := &k.Handshake.Lease
	return spot{record.RowAddr(l.Board, req.Params.Lease.Slot), l.BoardDevice, l.BoardMem}
}

// complete tells every rank that the request has been read.
func (q *subject) complete(ctx context.Context) error {
	if !q.native {
		msg, st := wire.AppendCompletion(nil, []byte(q.req.ID), 1)
		if st != wire.OK {
			return fmt.Errorf("no stock completion can name %q: %s", q.req.ID, st)
		}
		for i, p := range q.reader.peers {
			if err := q.reader.tr.Send(p, msg); err != nil {
				return fmt.Errorf("complete at %s: %w", q.eng.ranks[i].Rank, err)
			}
		}
		q.out.Completed = true
		// Nothing answers. What was sent leaves with the agent's progress, and a small read behind it shows that there was some.
		for i := range q.eng.ranks {
			if _, _, _, err := q.reader.row(ctx, i, q.eng.ranks[i].probe(), 8); err != nil {
				return err
			}
		}
		return nil
	}
	msg := q.message(wire.Complete)
	began := monotonic()
	for i, p := range q.reader.peers {
		if err := q.reader.tr.Send(p, msg); err != nil {
			return fmt.Errorf("complete at %s: %w", q.eng.ranks[i].Rank, err)
		}
	}
	q.out.Completed = true
	for i := range q.eng.ranks {
		took, ok, err := q.until(ctx, i, began, func(r RowAt) bool { return !r.Held })
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%s did not end the lease within %v of its completion", q.eng.ranks[i].Rank, q.cfg.Timeout)
		}
		last := ms(took)
		q.out.EndedMs = &last
	}
	return nil
}

// left says what becomes of the lease now.
func (q *subject) left(err error) string {
	switch {
	case errors.Is(err, errOver):
		return "over, before we came or meanwhile"
	case q.out.Completed && q.native:
		return "over: it was completed"
	case q.out.Completed:
		return "completed, if the engine has heard it: a stock engine does not answer"
	case q.out.Beats > 0:
		return "left as it is: it runs out after what the last heartbeat has bought, unless its reader beats or completes"
	}
	return "left as it is: nothing was sent about it"
}
