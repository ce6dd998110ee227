package demo

import (
	"fmt"
	"syscall"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
)

// wireBound is how long after the death of a process its peers know of it at most: the connection falls at once, then they
// wait for it to come back (wire_grace).
const wireBound = time.Second

// wiredCrash: D is killed, and the connection that dies with it tells P at once.
func wiredCrash(s *stage) error {
	const requests, each = 4, 8
	ids, blocks := requestsOf(requests, each)
	granted, err := s.grant(ids, blocks)
	if err != nil {
		return err
	}
	s.tell("P granted %d requests; D keeps a connection to P's side channel open", requests)
	if err := sleep(s.ctx, s.cfg.Lease/2, s.p, s.d); err != nil {
		return err
	}
	early := s.freedBefore()
	killed := bootNow()
	if err := s.d.signal(syscall.SIGKILL); err != nil {
		return err
	}
	s.tell("%s D (SIGKILL)", s.say.paint.warn("killed"))
	last, err := s.allFreed(ids)
	if err != nil {
		return err
	}
	after := time.Duration(last.TimeNS - killed)
	s.tell("P has all blocks back %.2f s after the kill (%s); the leases had up to %v left", after.Seconds(), last.Reason, s.cfg.Lease)

	s.promise("leases lost before the crash", exactly, 0, float64(early), "")
	s.promise("reclaimed after the kill, by the death wire", atMost, ms(wireBound), ms(after), "ms")

	s.mark(laneP, timeline.Lease, granted, last.TimeNS, fmt.Sprintf("leases on %d blocks", requests*each))
	s.mark(laneP, timeline.Reclaimed, last.TimeNS, 0, "reclaimed")
	s.mark(laneD, timeline.Waiting, granted, killed, fmt.Sprintf("%d requests wait", requests))
	s.mark(laneD, timeline.Crash, killed, 0, "SIGKILL")
	s.moment(killed, "D is killed")
	return nil
}

// restartedP: P is killed and comes back under the same name at the same address.
func restartedP(s *stage) error {
	const n = 8
	granted, err := s.grant([]string{"r1"}, [][]uint32{sequence(8, n)})
	if err != nil {
		return err
	}
	if err := sleep(s.ctx, s.cfg.Lease/2, s.p, s.d); err != nil {
		return err
	}
	markD := s.d.mark()
	killed := bootNow()
	if err := s.p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	s.tell("%s P (SIGKILL) while r1 waits in D's queue", s.say.paint.warn("killed"))
	gone, err := s.d.await(s.ctx, `"lease_gone" of r1`, answerMax, markD, isEvent("lease_gone", "r1"))
	if err != nil {
		return err
	}
	told := time.Duration(gone.TimeNS - killed)
	s.tell("D knows %.2f s later that r1 has to be recomputed", told.Seconds())

	again, err := start(s.cfg.launch, s.p.spec, s.name())
	if err != nil {
		return err
	}
	s.all = append(s.all, again)
	old := s.p
	s.p = again
	if _, err := again.await(s.ctx, `"ready"`, readyMax, 0, isEvent("ready", "")); err != nil {
		return err
	}
	restarted := bootNow()
	s.tell("P is back at the same address (pid %d): for D a new engine", again.proc.PID())
	up, err := s.d.await(s.ctx, `"engine_up" of the new P`, 20*time.Second, markD, isEvent("engine_up", ""))
	if err != nil {
		return err
	}
	if _, err := s.grantTo([]string{"r2"}, [][]uint32{sequence(8, n)}); err != nil {
		return err
	}
	asked := bootNow()
	if _, err := s.d.ask(s.ctx, jsonl.Command{Cmd: "read", ID: "r2"}); err != nil {
		return err
	}
	second, err := s.d.await(s.ctx, "the end of the read of r2", answerMax, markD, isOutcome("r2"))
	if err != nil {
		return err
	}
	if _, err := s.d.ask(s.ctx, jsonl.Command{Cmd: "read", ID: "r1"}); err != nil {
		return err
	}
	first, err := s.d.await(s.ctx, "the end of the read of r1", answerMax, markD, isOutcome("r1"))
	if err != nil {
		return err
	}
	freed, err := again.await(s.ctx, "the end of the lease of r2", answerMax, 0, isEvent("freed", "r2"))
	if err != nil {
		return err
	}
	s.tell("D read r2 from the new P: %s, %s wrong bytes; r1 of the old one was refused as %s", second.Status, quantity(badBytes(&second), ""), first.Status)

	s.promise("D told after the kill", atMost, ms(wireBound), ms(told), "ms")
	s.promise("D knows the new P after it is ready", atMost, 5000, float64(int64(up.TimeNS-restarted))/1e6, "ms")
	s.promise("bytes read from the new P and checked", exactly, float64(n*s.blockBytes()), float64(second.Bytes), "B")
	s.never("wrong bytes handed out", badBytes(&second)+badBytes(&first))
	s.promise("request of the old P refused", exactly, 1, is(first.Ev == "read_failed"), "")

	_ = old
	s.mark(laneP, timeline.Lease, granted, killed, "lease of r1")
	s.mark(laneP, timeline.Crash, killed, 0, "SIGKILL")
	s.mark(laneP, timeline.Lease, asked-uint64(20*time.Millisecond), freed.TimeNS, "r2")
	s.mark(laneD, timeline.Waiting, granted, gone.TimeNS, "r1 waits")
	s.drawRead(asked, &second)
	s.moment(killed, "P is killed")
	s.moment(gone.TimeNS, "D: recompute r1")
	s.moment(restarted, "P is back")
	return nil
}

// resetLink: the connection between D and P is cut under heartbeats; D makes it anew.
func resetLink(s *stage) error {
	const requests, each = 4, 8
	ids, blocks := requestsOf(requests, each)
	granted, err := s.grant(ids, blocks)
	if err != nil {
		return err
	}
	if err := sleep(s.ctx, s.cfg.Lease/2, s.p, s.d); err != nil {
		return err
	}
	before := s.batches()
	cut := bootNow()
	n, err := cutConnections(s.d.proc.PID(), s.p.proc.PID(), s.p.spec.port, s.d.spec.port)
	if err != nil {
		return skipped{err}
	}
	s.tell("%s the %d TCP connections between D and P (reset)", s.say.paint.warn("cut"), n)
	if err := sleep(s.ctx, s.cfg.Lease*2, s.p, s.d); err != nil {
		return err
	}
	lost := s.freedBefore()
	heard := s.batches() - before
	s.tell("two leases later P has heard %d further batches and lost %d leases", heard, lost)
	markD := s.d.mark()
	asked := bootNow()
	var bad, bytes float64
	for _, id := range ids {
		if _, err := s.d.ask(s.ctx, jsonl.Command{Cmd: "read", ID: id}); err != nil {
			return err
		}
		r, err := s.d.await(s.ctx, "the end of the read of "+id, answerMax, markD, isOutcome(id))
		if err != nil {
			return err
		}
		bad += badBytes(&r)
		if r.Ev == "read_done" {
			bytes += float64(r.Bytes)
		}
	}
	last, err := s.allFreed(ids)
	if err != nil {
		return err
	}
	s.tell("D read all %d over the new connection, %s wrong bytes", requests, quantity(bad, ""))

	s.promise("connections cut", atLeast, 1, float64(n), "")
	s.promise("leases lost", exactly, 0, float64(lost), "")
	s.promise("batches heard after the cut", atLeast, 6, float64(heard), "")
	s.promise("bytes read after it and checked", exactly, float64(requests*each*s.blockBytes()), bytes, "B")
	s.never("wrong bytes handed out", bad)

	s.mark(laneP, timeline.Lease, granted, last.TimeNS, fmt.Sprintf("leases on %d blocks", requests*each))
	s.mark(laneP, timeline.FirstTerm, granted+uint64(s.cfg.Lease), 0, "")
	s.mark(laneP, timeline.Completed, last.TimeNS, 0, "freed: "+last.Reason)
	s.mark(laneD, timeline.Waiting, granted, asked, fmt.Sprintf("%d requests wait", requests))
	s.mark(laneD, timeline.Read, asked, last.TimeNS, "reads")
	s.moment(cut, "connection reset")
	return nil
}

// endlessRead: P stops in the middle of D's read. D gives up, and keeps the blocks until the bytes have landed.
func endlessRead(s *stage) error {
	const n = 64
	granted, err := s.grant([]string{"r1"}, [][]uint32{sequence(8, n)})
	if err != nil {
		return err
	}
	if err := sleep(s.ctx, s.cfg.Lease/3, s.p, s.d); err != nil {
		return err
	}
	stopped := bootNow()
	if err := s.p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	s.tell("%s P (SIGSTOP); D reads from it", s.say.paint.warn("stopped"))
	markD := s.d.mark()
	asked := bootNow()
	if _, err := s.d.ask(s.ctx, jsonl.Command{Cmd: "read", ID: "r1"}); err != nil {
		return err
	}
	given, err := s.d.await(s.ctx, "the end of the read of r1", answerMax, markD, isOutcome("r1"))
	if err != nil {
		return err
	}
	held := given.BlocksHeld != nil && *given.BlocksHeld
	s.tell("D gave up after %.2f s: %s, blocks held: %v; the engine recomputes", float64(given.TimeNS-asked)/1e9, given.Status, held)
	if err := sleep(s.ctx, s.cfg.Lease/2, s.d); err != nil {
		return err
	}
	soon := 0
	for _, r := range s.d.reports(markD) {
		soon += int(is(r.Ev == "blocks_back"))
	}
	continued := bootNow()
	if err := s.p.signal(syscall.SIGCONT); err != nil {
		return err
	}
	s.stopped = time.Duration(continued - stopped)
	back, err := s.d.await(s.ctx, `"blocks_back" of r1`, answerMax, markD, isEvent("blocks_back", "r1"))
	if err != nil {
		return err
	}
	freed, err := s.p.await(s.ctx, "the end of the lease of r1", s.cfg.Lease*3+answerMax, 0, isEvent("freed", "r1"))
	if err != nil {
		return err
	}
	after := time.Duration(int64(back.TimeNS - continued))
	s.tell("P goes on: the late bytes land, and %.0f ms later D has its blocks back; P freed r1 (%s)", ms(after), freed.Reason)

	s.promise("read given up as timed out", exactly, 1, is(given.Status == "timeout"), "")
	s.promise("its blocks held, since bytes may still land", exactly, 1, is(held), "")
	s.never("blocks given back before they had landed", float64(soon))
	s.promise("blocks back after P goes on", atMost, 2000, ms(after), "ms")

	s.mark(laneP, timeline.Lease, granted, freed.TimeNS, fmt.Sprintf("lease on %d blocks", n))
	s.mark(laneP, timeline.Stopped, stopped, continued, "stopped")
	s.mark(laneD, timeline.Waiting, asked, given.TimeNS, "the read does not end")
	s.mark(laneD, timeline.Refused, given.TimeNS, 0, "given up: "+given.Status)
	s.mark(laneD, timeline.Reuse, given.TimeNS, back.TimeNS, "blocks set aside")
	s.moment(stopped, "P is stopped")
	s.moment(back.TimeNS, "bytes have landed, blocks back")
	return nil
}

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
	markD, markP := s.d.mark(), s.p.mark()
	pressed := bootNow()
	if _, err := s.p.ask(s.ctx, jsonl.Command{Cmd: "pressure", Wanted: wanted}); err != nil {
		return err
	}
	freedBlocks := uint32(0)
	taken := map[string]bool{}
	var last jsonl.Report
	for freedBlocks < wanted {
		last, err = s.p.await(s.ctx, "leases taken back", answerMax, markP, func(r *jsonl.Report) bool { return r.Ev == "freed" && !taken[r.ID] })
		if err != nil {
			return err
		}
		taken[last.ID] = last.Reason == "revoked"
		freedBlocks += last.Blocks
	}
	after := time.Duration(last.TimeNS - pressed)
	for i, id := range ids {
		if taken[id] {
			if _, err := s.p.ask(s.ctx, jsonl.Command{Cmd: "overwrite", ID: "urgent", Blocks: blocks[i]}); err != nil {
				return err
			}
		}
	}
	s.tell("P needs %d blocks: %d leases taken back in %.0f ms, their blocks overwritten", wanted, len(taken), ms(after))
	told := time.Duration(0)
	for id := range taken {
		gone, err := s.d.await(s.ctx, `"lease_gone" of `+id, answerMax, markD, isEvent("lease_gone", id))
		if err != nil {
			return err
		}
		told = max(told, time.Duration(int64(gone.TimeNS-pressed)))
	}
	var bad float64
	kept, refused := 0, 0
	asked := bootNow()
	for _, id := range ids {
		if _, err := s.d.ask(s.ctx, jsonl.Command{Cmd: "read", ID: id}); err != nil {
			return err
		}
		r, err := s.d.await(s.ctx, "the end of the read of "+id, answerMax, markD, isOutcome(id))
		if err != nil {
			return err
		}
		bad += badBytes(&r)
		if r.Ev == "read_done" {
			kept++
		} else if taken[id] {
			refused++
		}
	}
	end, err := s.allFreed(ids)
	if err != nil {
		return err
	}
	s.tell("D was told within %.0f ms, recomputes %d and read the other %d, %s wrong bytes", ms(told), refused, kept, quantity(bad, ""))

	s.promise("blocks taken back", atLeast, wanted, float64(freedBlocks), "")
	s.promise("free after P asked", atMost, ms(2*s.cfg.Pass+allowance), ms(after), "ms")
	s.promise("D told after P asked (an interval)", atMost, ms(s.cfg.Lease/6+2*s.cfg.Pass+allowance), ms(told), "ms")
	s.promise("reads of what was taken back refused", exactly, float64(len(taken)), float64(refused), "")
	s.promise("the others read and proven", exactly, float64(requests-len(taken)), float64(kept), "")
	s.never("wrong bytes handed out", bad)

	s.mark(laneP, timeline.Lease, granted, end.TimeNS, fmt.Sprintf("%d leases, then %d", requests, requests-len(taken)))
	s.mark(laneP, timeline.Reclaimed, last.TimeNS, 0, "taken back")
	s.mark(laneD, timeline.Waiting, granted, asked, fmt.Sprintf("%d requests wait", requests))
	s.mark(laneD, timeline.Read, asked, end.TimeNS, fmt.Sprintf("%d read, %d recomputed", kept, refused))
	s.moment(pressed, "P needs blocks")
	return nil
}

// requestsOf names requests and gives each some blocks.
func requestsOf(requests, each uint32) (ids []string, blocks [][]uint32) {
	for i := range requests {
		ids = append(ids, fmt.Sprintf("r%d", i+1))
		blocks = append(blocks, sequence(i*each, each))
	}
	return ids, blocks
}

// allFreed waits until P has freed all of these and answers the last of the reports.
func (s *stage) allFreed(ids []string) (jsonl.Report, error) {
	var last jsonl.Report
	for _, id := range ids {
		r, err := s.p.await(s.ctx, "the end of the lease of "+id, s.cfg.Lease*3+answerMax, 0, isEvent("freed", id))
		if err != nil {
			return last, err
		}
		if r.TimeNS >= last.TimeNS {
			last = r
		}
	}
	return last, nil
}
