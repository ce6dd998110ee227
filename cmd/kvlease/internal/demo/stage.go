package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/scratch"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
)

// allowance is what a promise about time gives to a machine that does something else meanwhile.
const allowance = 250 * time.Millisecond

// Parts of the bounds of rules L4 and L8 (ARCHITECTURE.md).
const (
	settle = 50 * time.Millisecond // between the two looks at a passed deadline
	tick   = 10 * time.Millisecond // of the timing wheel
)

// stage is one run of a scene while it is played.
type stage struct {
	cfg     *Config
	scene   sceneDef
	variant variant
	ctx     context.Context
	say     *narrator

	p, d     *engine // what takes the requests of each side
	pRanks   []*engine
	dRanks   []*engine
	all      []*engine       // every process, in the order of their start
	folder   *scratch.Folder // of sockets
	stopped  time.Duration   // how long the scene itself kept an engine from running
	start    uint64          // CLOCK_BOOTTIME in ns, zero of the picture
	promises []Promise
	refused  []string // by CUDA drivers
	picture  timeline.Run
	lanes    [2][]timeline.Lane // of P and D: the process that takes requests, then its ranks
}

func bootNow() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // every Linux that runs this has the clock
	}
	return uint64(ts.Nano())
}

// name is how messages call this run.
func (s *stage) name() string { return fmt.Sprintf("scene %s, %v", s.scene.key, s.variant) }

// stalled is the longest time that the machine has let an engine wait for its next pass, or its pump for the next step. The
// stop of an engine in its scene is ours, not the machine's.
func (s *stage) stalled() time.Duration {
	var longest time.Duration
	for _, e := range s.all {
		for _, r := range e.reports(0) {
			if r.Ev != "late" {
				continue
			}
			late := time.Duration(r.LateMS * 1e6)
			if s.stopped > 0 && late > s.stopped/2 { // the pass in which it was stopped
				late -= s.stopped
			}
			longest = max(longest, late)
		}
	}
	return longest
}

// excused tells whether the run should be repeated: something about time was broken, and the machine stood still meanwhile,
// for longer than a heartbeat interval or than each of the two passes in a bound can take of the allowance.
func (s *stage) excused() bool {
	broken := false
	for i := range s.promises {
		if p := &s.promises[i]; !p.Kept {
			if p.always {
				return false
			}
			broken = true
		}
	}
	return broken && s.stalled() > min(s.cfg.Lease/6, allowance/2)
}

// perform starts the engines, plays, and leaves no process behind.
func (s *stage) perform() (err error) {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	defer func() {
		s.finishPicture()
		var skip skipped
		switch {
		case errors.As(err, &skip):
			s.tell("%s", s.say.paint.warn("skipped: "+err.Error()))
		case err != nil:
			s.tell("%s", s.say.paint.bad("failed: "+err.Error()))
		}
	}()
	if err := s.open(); err != nil {
		return err
	}
	defer s.close()
	err = s.scene.play(s)
	s.tellRefusals()
	if broken := s.broken(); broken != nil {
		s.promises = nil // an engine whose core is broken keeps none, and the reason is the thing to tell
		return broken
	}
	if err != nil {
		return err
	}
	leave := slices.Clone(s.all)
	slices.Reverse(leave) // readers before owners, ranks before their host
	for _, e := range leave {
		select {
		case <-e.dead: // its scene
		default:
			if err := e.quit(s.ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// broken names an engine that has said that its core is.
func (s *stage) broken() error {
	for _, e := range s.all {
		for _, r := range e.reports(0) {
			if r.Ev == "poisoned" {
				why, _, _ := strings.Cut(r.Error, "\n") // a stack follows
				return fmt.Errorf("%s: the core of %s is broken: %s", s.name(), e, why)
			}
		}
	}
	return nil
}

func (s *stage) tell(format string, args ...any) {
	s.say.event(s.variant.String(), format, args...)
}

func isEvent(ev, id string) func(*jsonl.Report) bool {
	return func(r *jsonl.Report) bool { return r.Ev == ev && (id == "" || r.ID == id) }
}

// isOutcome is the end of a read, good or bad.
func isOutcome(id string) func(*jsonl.Report) bool {
	return func(r *jsonl.Report) bool { return (r.Ev == "read_done" || r.Ev == "read_failed") && r.ID == id }
}

// grant lets P hold blocks under leases and D track them, the first ones of a scene. It answers when the leases began.
func (s *stage) grant(ids []string, blocks [][]uint32) (uint64, error) {
	at, err := s.grantTo(ids, blocks)
	if err == nil {
		s.start = at - leadIn
	}
	return at, err
}

func (s *stage) grantTo(ids []string, blocks [][]uint32) (uint64, error) {
	var expects, grants []jsonl.Command
	for i, id := range ids {
		expects = append(expects, jsonl.Command{Cmd: "expect", ID: id})
		grants = append(grants, jsonl.Command{Cmd: "grant", ID: id, Blocks: blocks[i], Tokens: uint32(len(blocks[i])) * 16})
	}
	if _, err := s.p.ask(s.ctx, expects...); err != nil {
		return 0, err
	}
	for i, id := range ids {
		if _, _, err := s.ofHeads(s.pRanks, jsonl.Command{Cmd: "fill", ID: id, Blocks: blocks[i]}); err != nil {
			return 0, err
		}
	}
	granted, err := s.p.ask(s.ctx, grants...)
	if err != nil {
		return 0, err
	}
	return granted[0].TimeNS, s.route(s.d, ids, granted, false)
}

// route carries transfer parameters from the answers of an owner to a reader. toP: the router sends the next turn to P.
func (s *stage) route(reader *engine, ids []string, granted []jsonl.Report, toP bool) error {
	var tracks []jsonl.Command
	for i, id := range ids {
		params, err := routed(granted[i].Params, "127.0.0.1", toP)
		if err != nil {
			return err
		}
		tracks = append(tracks, jsonl.Command{Cmd: "track", ID: id, Params: params})
	}
	_, err := reader.ask(s.ctx, tracks...)
	return err
}

// read lets an engine read a request and waits for the outcome. asked is when it was told to.
func (s *stage) read(e *engine, id string) (asked uint64, outcome jsonl.Report, err error) {
	mark := e.mark()
	asked = bootNow()
	if _, err := e.ask(s.ctx, jsonl.Command{Cmd: "read", ID: id}); err != nil {
		return 0, jsonl.Report{}, err
	}
	outcome, err = s.outcome(e, id, mark)
	return asked, outcome, err
}

// outcome waits for the end of a read. What it brought may be where nobody can look any more: in a device that is lost.
func (s *stage) outcome(e *engine, id string, mark int) (jsonl.Report, error) {
	r, err := e.await(s.ctx, "the end of the read of "+id, answerMax, mark, isOutcome(id))
	if err == nil && r.Error != "" {
		err = fmt.Errorf("%s: %s read %s (%s), and cannot look at it: %s", s.name(), e, id, r.Status, r.Error)
	}
	return r, err
}

// freed waits for the end of a lease.
func (s *stage) freed(owner *engine, id string) (jsonl.Report, error) {
	return owner.await(s.ctx, "the end of the lease of "+id, s.cfg.Lease*3+answerMax, 0, isEvent("freed", id))
}

// allFreed waits until P has freed all of these and answers the last of the reports.
func (s *stage) allFreed(ids []string) (jsonl.Report, error) {
	var last jsonl.Report
	for _, id := range ids {
		r, err := s.freed(s.p, id)
		if err != nil {
			return last, err
		}
		if r.TimeNS >= last.TimeNS {
			last = r
		}
	}
	return last, nil
}

// freedBefore counts leases that ended without having been asked to.
func (s *stage) freedBefore() int {
	n := 0
	for _, r := range s.p.reports(0) {
		if r.Ev == "freed" {
			n++
		}
	}
	return n
}

// batches counts the heartbeat batches that P has reported since a point in time.
func (s *stage) batches() uint64 {
	var last uint64
	for _, r := range s.p.reports(0) {
		if r.Ev == "beats" {
			last = r.Batches
		}
	}
	return last
}

// never promises that something did not happen, whatever the machine did meanwhile: wrong data is never handed out.
func (s *stage) never(what string, measured float64) {
	s.promise(what, exactly, 0, measured, "")
	s.promises[len(s.promises)-1].always = true
}

func (s *stage) promise(what, rule string, promised, measured float64, unit string) {
	p := Promise{Scene: s.scene.key, Run: s.variant.String(), What: what, Rule: rule, Promised: promised, Measured: measured, Unit: unit}
	p.judge()
	s.promises = append(s.promises, p)
}

// blockBytes are the bytes of one block over all layers, as P has said them.
func (s *stage) blockBytes() uint64 {
	for _, r := range s.p.reports(0) {
		if r.Ev == "ready" {
			return r.BlockBytes
		}
	}
	return 0
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// sequence is n block ids from first on.
func sequence(first, n uint32) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = first + uint32(i)
	}
	return ids
}

// requestsOf names requests and gives each some blocks.
func requestsOf(requests, each uint32) (ids []string, blocks [][]uint32) {
	for i := range requests {
		ids = append(ids, fmt.Sprintf("r%d", i+1))
		blocks = append(blocks, sequence(i*each, each))
	}
	return ids, blocks
}
