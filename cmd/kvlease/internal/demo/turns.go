package demo

import (
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
)

// twoTurns: D keeps a conversation's blocks for a fixed time, P reads them for the next turn, once in time and once too late.
func twoTurns(s *stage) error {
	const n, block = 16, 400
	size := n * s.blockBytes()
	if _, err := s.grant([]string{"turn1"}, [][]uint32{sequence(300, n)}); err != nil {
		return err
	}
	markD := s.d.mark()
	if _, err := s.d.ask(s.ctx, jsonl.Command{Cmd: "read", ID: "turn1"}); err != nil {
		return err
	}
	first, err := s.d.await(s.ctx, "the end of the read of turn1", answerMax, markD, isOutcome("turn1"))
	if err != nil {
		return err
	}
	s.tell("turn 1: D read %s from P: %s; it decodes and keeps the blocks for the next turn", amount(first.Bytes), first.Status)

	ttl := s.cfg.Lease * 2
	kept, err := s.keep("turn2", sequence(block, n), ttl)
	if err != nil {
		return err
	}
	s.tell("D keeps %d blocks for %v, not renewed by heartbeats; the client takes half of it to answer", n, ttl)
	if err := sleep(s.ctx, ttl/2, s.p, s.d); err != nil {
		return err
	}
	asked := bootNow()
	markP := s.p.mark()
	if _, err := s.p.ask(s.ctx, jsonl.Command{Cmd: "read", ID: "turn2"}); err != nil {
		return err
	}
	second, err := s.p.await(s.ctx, "the end of the read of turn2", answerMax, markP, isOutcome("turn2"))
	if err != nil {
		return err
	}
	freed, err := s.d.await(s.ctx, "the end of D's lease of turn2", answerMax, 0, isEvent("freed", "turn2"))
	if err != nil {
		return err
	}
	s.tell("turn 2: P read %s from D: %s, %s wrong bytes; D freed it (%s)", amount(second.Bytes), second.Status, quantity(badBytes(&second), ""), freed.Reason)

	ttl = s.cfg.Lease
	kept3, err := s.keep("turn3", sequence(block+n, n), ttl)
	if err != nil {
		return err
	}
	s.tell("D keeps %d blocks for %v; this client takes too long", n, ttl)
	gone, err := s.p.await(s.ctx, `"lease_gone" of turn3`, ttl+answerMax, markP, isEvent("lease_gone", "turn3"))
	if err != nil {
		return err
	}
	freed3, err := s.d.await(s.ctx, "the end of D's lease of turn3", answerMax, 0, isEvent("freed", "turn3"))
	if err != nil {
		return err
	}
	if _, err := s.d.ask(s.ctx, jsonl.Command{Cmd: "overwrite", ID: "other", Blocks: sequence(block+n, n)}); err != nil {
		return err
	}
	asked3 := bootNow()
	if _, err := s.p.ask(s.ctx, jsonl.Command{Cmd: "read", ID: "turn3"}); err != nil {
		return err
	}
	third, err := s.p.await(s.ctx, "the end of the read of turn3", answerMax, markP, isOutcome("turn3"))
	if err != nil {
		return err
	}
	early := float64(int64(freed3.TimeNS-gone.TimeNS)) / 1e6
	s.tell("P was told to recompute turn3 %.0f ms before D gave the blocks away; a late read was refused as %s", early, third.Status)

	s.promise("turn 2 in time: bytes read and checked", exactly, float64(size), float64(second.Bytes), "B")
	s.never("wrong bytes handed out", badBytes(&second)+badBytes(&third))
	s.promise("turn 2 in time: freed as completed", exactly, 1, is(freed.Reason == "completed"), "")
	s.promise("turn 3 too late: P told before the blocks are gone", atLeast, 0, early, "ms")
	s.promise("turn 3 too late: told before its time by at most (a quarter)", atMost, ms(ttl)/4, ms(ttl)-float64(int64(gone.TimeNS-kept3))/1e6, "ms")
	s.promise("turn 3 too late: held for its time, and no longer than", atMost, ms(ttl+settle+tick+2*s.cfg.Pass+allowance), float64(int64(freed3.TimeNS-kept3))/1e6, "ms")
	s.promise("turn 3 too late: read refused", exactly, 1, is(third.Ev == "read_failed"), "")

	s.mark(laneD, timeline.Lease, kept, freed.TimeNS, "D keeps turn 2")
	s.mark(laneD, timeline.Completed, freed.TimeNS, 0, "freed: "+freed.Reason)
	s.mark(laneP, timeline.Waiting, kept, asked, "the client thinks")
	s.mark(laneP, timeline.Read, asked, second.TimeNS, "P reads turn 2")
	s.mark(laneD, timeline.Lease, kept3, freed3.TimeNS, "D keeps turn 3")
	s.mark(laneD, timeline.Reclaimed, freed3.TimeNS, 0, "time is over")
	s.mark(laneD, timeline.Reuse, freed3.TimeNS, asked3+uint64(s.cfg.Lease/4), "another request")
	s.mark(laneP, timeline.Waiting, kept3, gone.TimeNS, "the client thinks")
	s.mark(laneP, timeline.Refused, third.TimeNS, 0, "refused: "+third.Status)
	s.moment(gone.TimeNS, "P is told: recompute")
	return nil
}

// keep lets D hold blocks for a fixed time and P know of it. It answers when that time began.
func (s *stage) keep(id string, blocks []uint32, ttl time.Duration) (uint64, error) {
	granted, err := s.d.ask(s.ctx, jsonl.Command{Cmd: "grant", ID: id, Blocks: blocks, Tokens: uint32(len(blocks)) * 16, FixedS: ttl.Seconds()})
	if err != nil {
		return 0, err
	}
	params, err := routed(granted[0].Params, "127.0.0.1", true)
	if err != nil {
		return 0, err
	}
	_, err = s.p.ask(s.ctx, jsonl.Command{Cmd: "track", ID: id, Params: params})
	return granted[0].TimeNS, err
}
