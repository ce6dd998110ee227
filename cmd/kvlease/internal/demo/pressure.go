package demo

import (
	"fmt"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
	"github.com/kvlease/kvlease/internal/plural"
)

// pressedP: P needs blocks and takes some leases back.
func pressedP(s *stage) error {
	const requests, each, wanted = 4, 16, 32
	ids, blocks := requestsOf(requests, each)
	granted, err := s.grant(ids, blocks)
	if err != nil {
		return err
	}
	if err := sleep(s.ctx, s.cfg.Lease, s.p, s.d); err != nil {
		return err
	}
	early := s.freedBefore()
	markD := s.d.mark()
	pressed := bootNow()
	if _, err := s.p.ask(s.ctx, jsonl.Command{Cmd: "pressure", Wanted: wanted}); err != nil {
		return err
	}
	taken, last, err := s.takenBack(wanted)
	if err != nil {
		return err
	}
	after := time.Duration(int64(last.TimeNS - pressed))
	for i, id := range ids {
		if taken[id] {
			if _, err := s.p.ask(s.ctx, jsonl.Command{Cmd: "overwrite", ID: "urgent", Blocks: blocks[i]}); err != nil {
				return err
			}
		}
	}
	s.tell("P needs %d blocks: %s taken back in %.0f ms, their blocks overwritten", wanted, plural.Counted(len(taken), "lease", "leases"), ms(after))
	var told jsonl.Report // the last one
	for id := range taken {
		gone, err := s.d.await(s.ctx, `"lease_gone" of `+id, answerMax, markD, isEvent("lease_gone", id))
		if err != nil {
			return err
		}
		if gone.TimeNS > told.TimeNS {
			told = gone
		}
	}
	toldAfter := time.Duration(int64(told.TimeNS - pressed))
	var bad float64
	kept, refused := 0, 0
	asked := bootNow()
	for _, id := range ids {
		_, r, err := s.read(s.d, id)
		if err != nil {
			return err
		}
		bad += badBytes(&r)
		switch {
		case r.Ev == "read_done" && !taken[id]:
			kept++
		case r.Ev == "read_failed" && taken[id]:
			refused++
		}
	}
	end, err := s.allFreed(ids)
	if err != nil {
		return err
	}
	s.tell("D was told within %.0f ms, recomputes %d and read the other %d, %s wrong bytes", ms(toldAfter), refused, kept, quantity(bad, ""))

	s.promise("leases lost before", exactly, 0, float64(early), "")
	s.promise("leases taken back, as few as give the blocks", exactly, wanted/each, float64(len(taken)), "")
	s.promise("free after P asked (two passes)", atMost, ms(2*s.cfg.Pass+allowance), ms(after), "ms")
	s.promise("D told after P asked (an interval)", atMost, ms(s.cfg.Lease/6+2*s.cfg.Pass+allowance), ms(toldAfter), "ms")
	s.promise("reads of what was taken back refused", exactly, float64(len(taken)), float64(refused), "")
	s.promise("the others read and proven", exactly, float64(requests-len(taken)), float64(kept), "")
	s.never("wrong bytes handed out", bad)

	s.mark(laneP, timeline.Lease, granted, last.TimeNS, fmt.Sprintf("%d leases on %d blocks", requests, requests*each))
	s.mark(laneP, timeline.Revoked, last.TimeNS, 0, "taken back")
	s.mark(laneP, timeline.Lease, last.TimeNS, end.TimeNS, plural.Counted(requests-len(taken), "lease", "leases"))
	s.mark(laneP, timeline.Completed, end.TimeNS, 0, "freed: "+end.Reason)
	s.mark(laneD, timeline.Waiting, granted, asked, fmt.Sprintf("%d requests wait", requests))
	s.mark(laneD, timeline.Told, told.TimeNS, 0, "lease_gone")
	s.mark(laneD, timeline.Read, asked, end.TimeNS, fmt.Sprintf("%d read, %d recomputed", kept, refused))
	s.moment(pressed, "P needs blocks, overwrites them")
	return nil
}

// takenBack waits until P has at least so many blocks back by leases that it revoked, and answers which leases those were
// and the last of them.
func (s *stage) takenBack(wanted uint32) (taken map[string]bool, last jsonl.Report, err error) {
	taken = map[string]bool{}
	for blocks := uint32(0); blocks < wanted; blocks += last.Blocks {
		last, err = s.p.await(s.ctx, "leases taken back", answerMax, 0, func(r *jsonl.Report) bool {
			return r.Ev == "freed" && r.Reason == "revoked" && !taken[r.ID]
		})
		if err != nil {
			return nil, last, err
		}
		taken[last.ID] = true
	}
	return taken, last, nil
}
