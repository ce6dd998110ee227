package demo

import (
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
)

// twoTurns: D keeps a conversation's blocks for a fixed time, P reads them for the next turn, once in time and once too late.
func twoTurns(s *stage) error {
	const n, block = 16, 400
	size := float64(n * s.blockBytes())
	granted, err := s.grant([]string{"turn1"}, [][]uint32{sequence(300, n)})
	if err != nil {
		return err
	}
	asked1, first, err := s.read(s.d, "turn1")
	if err != nil {
		return err
	}
	freed1, err := s.freed(s.p, "turn1")
	if err != nil {
		return err
	}
	s.tell("turn 1: D read %s from P: %s; it decodes and keeps the blocks for the next turn", amount(first.Bytes), first.Status)

	ttl := s.cfg.Lease * 2
	kept2, err := s.keep("turn2", sequence(block, n), ttl)
	if err != nil {
		return err
	}
	s.tell("D keeps %d blocks for %v, not renewed by heartbeats; the client takes half of it to answer", n, ttl)
	if err := sleep(s.ctx, ttl/2, s.p, s.d); err != nil {
		return err
	}
	asked2, second, err := s.read(s.p, "turn2")
	if err != nil {
		return err
	}
	freed2, err := s.freed(s.d, "turn2")
	if err != nil {
		return err
	}
	s.tell("turn 2: P read %s from D: %s, %s wrong bytes; D freed it (%s)", amount(second.Bytes), second.Status, quantity(badBytes(&second), ""), freed2.Reason)

	ttl = s.cfg.Lease
	kept3, err := s.keep("turn3", sequence(block+n, n), ttl)
	if err != nil {
		return err
	}
	s.tell("D keeps %d blocks for %v; this client takes too long", n, ttl)
	gone, err := s.p.await(s.ctx, `"lease_gone" of turn3`, ttl+answerMax, 0, isEvent("lease_gone", "turn3"))
	if err != nil {
		return err
	}
	freed3, err := s.freed(s.d, "turn3")
	if err != nil {
		return err
	}
	if _, err := s.d.ask(s.ctx, jsonl.Command{Cmd: "overwrite", ID: "other", Blocks: sequence(block+n, n)}); err != nil {
		return err
	}
	_, third, err := s.read(s.p, "turn3")
	if err != nil {
		return err
	}
	early := float64(int64(freed3.TimeNS-gone.TimeNS)) / 1e6
	s.tell("P was told to recompute turn3 %.0f ms before D gave the blocks away; a late read was refused as %s", early, third.Status)

	held, told := float64(int64(freed3.TimeNS-kept3))/1e6, float64(int64(gone.TimeNS-kept3))/1e6
	s.promise("turns 1 and 2: bytes read and checked", exactly, 2*size, float64(first.Bytes+second.Bytes), "B")
	s.never("wrong bytes handed out", badBytes(&first)+badBytes(&second)+badBytes(&third))
	s.promise("turns 1 and 2: freed as completed", exactly, 2, is(freed1.Reason == "completed")+is(freed2.Reason == "completed"), "")
	s.promise("turn 3 too late: held for at least its time", atLeast, ms(ttl), held, "ms")
	s.promise("turn 3 too late: held for at most (settle + two steps)", atMost, ms(ttl+settle+tick+2*s.cfg.Pass+allowance), held, "ms")
	s.promise("turn 3 too late: P told before the blocks are gone", atLeast, 0, early, "ms")
	s.promise("turn 3 too late: told ahead of time (half an interval)", atMost, ms(s.cfg.Lease/12+allowance), ms(ttl)-told, "ms")
	s.promise("turn 3 too late: read refused", exactly, 1, is(third.Ev == "read_failed"), "")

	s.mark(laneP, timeline.Lease, granted, freed1.TimeNS, "turn 1")
	s.mark(laneP, timeline.Completed, freed1.TimeNS, 0, "freed: "+freed1.Reason)
	s.drawRead(asked1, &first)
	s.mark(laneP, timeline.Waiting, kept2, asked2, "turn 2: the client thinks")
	s.mark(laneD, timeline.Lease, kept2, freed2.TimeNS, "D keeps turn 2")
	s.mark(laneD, timeline.Completed, freed2.TimeNS, 0, "freed: "+freed2.Reason)
	s.mark(laneP, timeline.Read, asked2, second.TimeNS, "P reads turn 2")
	s.mark(laneP, timeline.Waiting, kept3, gone.TimeNS, "turn 3: the client thinks")
	s.mark(laneD, timeline.Lease, kept3, freed3.TimeNS, "D keeps turn 3")
	s.mark(laneD, timeline.Reclaimed, freed3.TimeNS, 0, "its time is over")
	s.mark(laneD, timeline.Reuse, freed3.TimeNS, third.TimeNS+uint64(s.cfg.Lease/6), "another request")
	s.mark(laneP, timeline.Told, gone.TimeNS, 0, "lease_gone")
	s.mark(laneP, timeline.Refused, third.TimeNS, 0, "refused: "+third.Status)
	s.moment(asked2, "in time: P reads")
	s.moment(gone.TimeNS, "too late: P is told to recompute")
	return nil
}

// keep lets D hold blocks for a fixed time and P know of it. It answers when that time began.
func (s *stage) keep(id string, blocks []uint32, ttl time.Duration) (uint64, error) {
	granted, err := s.d.ask(s.ctx, jsonl.Command{Cmd: "grant", ID: id, Blocks: blocks, Tokens: uint32(len(blocks)) * 16, FixedS: ttl.Seconds()})
	if err != nil {
		return 0, err
	}
	return granted[0].TimeNS, s.route(s.p, []string{id}, granted, true)
}
