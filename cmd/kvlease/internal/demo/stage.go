package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
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
	all      []*engine     // every process, in the order of their start
	folder   string        // of sockets
	stopped  time.Duration // how long the scene itself kept D from running
	start    uint64        // CLOCK_BOOTTIME in ns, zero of the picture
	promises []Promise
	picture  timeline.Run
	lanes    [2]timeline.Lane // P, D
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

// stalled is the longest time that the machine has let an engine wait for its next pass. The stop of D in its scene is
// ours, not the machine's.
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
	if err := s.scene.play(s); err != nil {
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
	var tracks []jsonl.Command
	for i, id := range ids {
		params, err := routed(granted[i].Params, "127.0.0.1", false)
		if err != nil {
			return 0, err
		}
		tracks = append(tracks, jsonl.Command{Cmd: "track", ID: id, Params: params})
	}
	if _, err := s.d.ask(s.ctx, tracks...); err != nil {
		return 0, err
	}
	return granted[0].TimeNS, nil
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

// at is a point in time of the picture.
func (s *stage) at(ns uint64) float64 {
	return max(0, float64(int64(ns-s.start))/1e9)
}

// leadIn is what the picture shows before the first grant.
const leadIn = uint64(30 * time.Millisecond)

const (
	laneP = 0
	laneD = 1
)

func (s *stage) mark(lane int, kind timeline.Kind, from, to uint64, text string) {
	m := timeline.Mark{Kind: kind, From: s.at(from), Text: text}
	if to != 0 {
		m.To = s.at(to)
	}
	s.lanes[lane].Marks = append(s.lanes[lane].Marks, m)
}

func (s *stage) moment(at uint64, text string) {
	s.picture.Moments = append(s.picture.Moments, timeline.Moment{At: s.at(at), Text: text})
}

// finishPicture adds what the engines reported by themselves: every heartbeat batch that P has heard.
func (s *stage) finishPicture() {
	s.picture.Label = s.variant.String()
	if s.p != nil && s.start != 0 {
		for _, r := range s.p.reports(0) {
			if r.Ev == "beats" {
				s.mark(laneP, timeline.Beat, r.TimeNS, 0, "heartbeat")
			}
		}
	}
	programs := map[string]string{"c": "C program", "node": "kvlease node"}
	s.lanes[laneP].Label = "P, " + programs[s.variant.p]
	s.lanes[laneD].Label = "D, " + programs[s.variant.d]
	s.picture.Lanes = s.lanes[:]
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
