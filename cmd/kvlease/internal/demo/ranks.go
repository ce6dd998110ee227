package demo

import (
	"fmt"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/kvcache"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
)

// severalRanks: engines of different tensor parallel sizes; each rank holds some of the heads.
func severalRanks(s *stage) error {
	const requests, each = 2, 8
	ids, blocks := requestsOf(requests, each)
	granted, err := s.grant(ids, blocks)
	if err != nil {
		return err
	}
	s.tell("P granted %d requests of %d blocks, of which every rank holds its heads", requests, each)
	if err := sleep(s.ctx, s.cfg.Lease*2, s.p, s.d); err != nil {
		return err
	}
	early := s.freedBefore()
	var bad, bytes float64
	var began uint64 // of the first read
	var after time.Duration
	var last jsonl.Report
	completed, ofRanks := 0, 0
	for _, id := range ids {
		asked, r, err := s.read(s.d, id)
		if err != nil {
			return err
		}
		if began == 0 {
			began = asked
		}
		wrong, checked, err := s.handedOut(id, &r)
		if err != nil {
			return err
		}
		bad, bytes = bad+wrong, bytes+checked
		if last, err = s.freed(s.p, id); err != nil {
			return err
		}
		after = max(after, time.Duration(int64(last.TimeNS-r.TimeNS)))
		completed += int(is(last.Reason == "completed"))
		for _, why := range last.Reasons {
			ofRanks += int(is(why == "completed"))
		}
		for rank := range s.dRanks {
			s.markRank(laneD, rank, timeline.Read, asked, r.TimeNS, fmt.Sprintf("its heads of %s", id))
		}
		s.mark(laneD, timeline.Read, asked, r.TimeNS, "read "+id)
	}
	s.tell("D put the heads of %d blocks together: %s, %s wrong bytes; P freed both (%s, on its ranks: %v)", requests*each, amount(uint64(bytes)), quantity(bad, ""), last.Reason, last.Reasons)

	s.promise("leases lost while waiting", exactly, 0, float64(early), "")
	s.promise("bytes read and checked, over all heads", exactly, float64(requests*each*s.blockBytes()), bytes, "B")
	s.never("wrong bytes handed out", bad)
	s.promise("freed as completed, once each", exactly, requests, float64(completed), "")
	if len(s.pRanks) > 0 {
		s.promise("completed on each rank of P", exactly, float64(requests*len(s.pRanks)), float64(ofRanks), "")
	}
	s.promise("free after the read (a pass of P's host more)", atMost, ms(s.readBound()+s.cfg.Pass), ms(after), "ms")

	s.mark(laneP, timeline.Lease, granted, last.TimeNS, fmt.Sprintf("leases on %d blocks", requests*each))
	s.mark(laneP, timeline.FirstTerm, granted+uint64(s.cfg.Lease), 0, "")
	s.mark(laneP, timeline.Completed, last.TimeNS, 0, "freed: "+last.Reason)
	for rank := range s.pRanks {
		s.markRank(laneP, rank, timeline.Lease, granted, last.TimeNS, fmt.Sprintf("%d of %d heads of the same blocks", kvcache.Heads/len(s.pRanks), kvcache.Heads))
	}
	s.mark(laneD, timeline.Waiting, granted, began, fmt.Sprintf("%d requests wait", requests))
	for rank := range s.dRanks {
		s.markRank(laneD, rank, timeline.Waiting, granted, began, "sends heartbeats")
	}
	s.moment(began, "D reads")
	return nil
}

// handedOut checks what a read brought, where it is: in D, or in each of its ranks.
func (s *stage) handedOut(id string, r *jsonl.Report) (bad, bytes float64, err error) {
	if r.Ev != "read_done" {
		s.tell("%s the read of %s ended as %s", s.say.paint.bad("wrong:"), id, r.Status)
		return 0, 0, nil
	}
	if len(s.dRanks) == 0 {
		return badBytes(r), float64(r.Bytes), nil
	}
	wrong, checked, err := s.ofHeads(s.dRanks, jsonl.Command{Cmd: "check", ID: id, Blocks: r.Local})
	return float64(wrong), float64(checked), err
}
