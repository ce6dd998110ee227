package demo

import (
	"fmt"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
)

// severalRanks: engines of different tensor parallel sizes; each rank holds some of the heads.
func severalRanks(s *stage) error {
	const n = 8
	lease := s.cfg.Lease
	ids := []string{"r1", "r2"}
	granted, err := s.grant(ids, [][]uint32{sequence(8, n), sequence(40, n)})
	if err != nil {
		return err
	}
	s.tell("P granted r1 and r2: %d blocks each, of which every rank holds its heads", n)
	if err := sleep(s.ctx, lease*2, s.p, s.d); err != nil {
		return err
	}
	early := s.freedBefore()
	markD := s.d.mark()
	asked := bootNow()
	var bad, bytes float64
	var last jsonl.Report
	completed, ranks := 0, 0
	for i, id := range ids {
		local := sequence(uint32(i)*n, n) // the host says which ones it took
		answer, err := s.d.ask(s.ctx, jsonl.Command{Cmd: "read", ID: id})
		if err != nil {
			return err
		}
		if len(answer[0].Local) > 0 {
			local = answer[0].Local
		}
		r, err := s.d.await(s.ctx, "the end of the read of "+id, answerMax, markD, isOutcome(id))
		if err != nil {
			return err
		}
		if r.Ev != "read_done" {
			s.tell("%s the read of %s ended as %s", s.say.paint.bad("wrong:"), id, r.Status)
			continue
		}
		if len(s.dRanks) == 0 {
			bad += badBytes(&r)
			bytes += float64(r.Bytes)
		} else {
			wrong, checked, err := s.ofHeads(s.dRanks, jsonl.Command{Cmd: "check", ID: id, Blocks: local})
			if err != nil {
				return err
			}
			bad += float64(wrong)
			bytes += float64(checked)
		}
		freed, err := s.p.await(s.ctx, "the end of the lease of "+id, answerMax, 0, isEvent("freed", id))
		if err != nil {
			return err
		}
		last = freed
		completed += int(is(freed.Reason == "completed"))
		for _, why := range freed.Reasons {
			ranks += int(is(why == "completed"))
		}
	}
	after := time.Duration(int64(last.TimeNS - asked))
	s.tell("D put the heads of %d blocks together: %s, %s wrong bytes; P freed both (%s, ranks: %v)", 2*n, amount(uint64(bytes)), quantity(bad, ""), last.Reason, last.Reasons)

	size := float64(2 * n * s.blockBytes())
	s.promise("leases lost while waiting", exactly, 0, float64(early), "")
	s.promise("bytes read and checked, over all heads", exactly, size, bytes, "B")
	s.never("wrong bytes handed out", bad)
	s.promise("freed as completed, once each", exactly, 2, float64(completed), "")
	if len(s.pRanks) > 0 {
		s.promise("completed on each rank of P", exactly, float64(2*len(s.pRanks)), float64(ranks), "")
	}
	s.promise("both free after the first read was asked for", atMost, ms(2*s.readBound()), ms(after), "ms")

	s.mark(laneP, timeline.Lease, granted, last.TimeNS, fmt.Sprintf("leases on %d blocks", 2*n))
	s.mark(laneP, timeline.FirstTerm, granted+uint64(lease), 0, "")
	s.mark(laneP, timeline.Completed, last.TimeNS, 0, "freed: "+last.Reason)
	s.mark(laneD, timeline.Waiting, granted, asked, "r1 and r2 wait")
	s.mark(laneD, timeline.Read, asked, last.TimeNS, "every rank reads its heads")
	s.moment(asked, "D reads")
	return nil
}
