package demo

import (
	"fmt"
	"syscall"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
	"github.com/kvlease/kvlease/internal/plural"
)

// fixedTimeout is what P held blocks for before there were leases (VLLM_NIXL_ABORT_REQUEST_TIMEOUT).
const fixedTimeout = 480 * time.Second

// reclaimBound is L4: how long after the end of all heartbeats at most the blocks are free. term is what is left of the
// first term then; a grant may be spread by an eighth of the extension.
func (s *stage) reclaimBound(term time.Duration) time.Duration {
	extension := s.cfg.Lease * 2 / 3
	return max(term+extension/8, extension) + settle + tick + 2*s.cfg.Pass + allowance
}

// readBound is how long after the end of a read at most P has freed: D sends with its step, P hears it with its next.
func (s *stage) readBound() time.Duration { return 2*s.cfg.Pass + allowance }

// busyD: a request waits in D's queue for more than two leases, then it is read.
func busyD(s *stage) error {
	const id, n = "r1", 16
	lease := s.cfg.Lease
	granted, err := s.grant([]string{id}, [][]uint32{sequence(8, n)})
	if err != nil {
		return err
	}
	size := n * s.blockBytes()
	s.tell("P granted %s: %d blocks, %s, for %v; %s enters D's queue", id, n, amount(size), lease, id)
	s.moment(granted, "granted")
	if err := sleep(s.ctx, lease*5/2-time.Duration(bootNow()-granted), s.p, s.d); err != nil {
		return err
	}
	early := s.freedBefore()
	waited := time.Duration(bootNow() - granted)
	beats := s.batches()
	s.tell("%s has waited %.2f s, %.1f leases; %d heartbeat batches so far", id, waited.Seconds(), waited.Seconds()/lease.Seconds(), beats)

	asked, outcome, err := s.read(s.d, id)
	if err != nil {
		return err
	}
	bad := badBytes(&outcome)
	s.tell("D read %s: %s, %s, %s wrong bytes", id, outcome.Status, amount(outcome.Bytes), quantity(bad, ""))
	freed, err := s.freed(s.p, id)
	if err != nil {
		return err
	}
	after := time.Duration(int64(freed.TimeNS - outcome.TimeNS))
	s.tell("P freed %s (%s) %.0f ms after the read, held %.2f s", id, freed.Reason, ms(after), freed.HeldMS/1e3)

	s.promise("waited in D's queue under its lease", atLeast, (2 * lease).Seconds(), waited.Seconds(), "s")
	s.promise("leases lost while waiting", exactly, 0, float64(early), "")
	s.promise("bytes read and checked", exactly, float64(size), float64(outcome.Bytes), "B")
	s.never("wrong bytes handed out", bad)
	s.promise("freed as completed", exactly, 1, is(freed.Reason == "completed"), "")
	s.promise("free after the read (two passes)", atMost, ms(s.readBound()), ms(after), "ms")

	s.mark(laneP, timeline.Lease, granted, freed.TimeNS, fmt.Sprintf("lease on %d blocks, held %.2f s", n, freed.HeldMS/1e3))
	s.mark(laneP, timeline.FirstTerm, granted+uint64(lease), 0, "")
	s.mark(laneP, timeline.Completed, freed.TimeNS, 0, "freed: "+freed.Reason)
	s.mark(laneD, timeline.Waiting, granted, asked, fmt.Sprintf("%s waits %.1f leases in the queue", id, waited.Seconds()/lease.Seconds()))
	s.drawRead(asked, &outcome)
	s.moment(asked, "scheduled: D reads")
	return nil
}

// crashD: D is killed while requests wait.
func crashD(s *stage) error {
	const requests, each = 8, 8
	ids, blocks := requestsOf(requests, each)
	granted, err := s.grant(ids, blocks)
	if err != nil {
		return err
	}
	held := requests * each * s.blockBytes()
	s.tell("P granted %d requests, %s; all wait in D's queue", requests, amount(held))
	s.moment(granted, "granted")
	if err := sleep(s.ctx, s.cfg.Lease*3/2, s.p, s.d); err != nil {
		return err
	}
	early := s.freedBefore()
	killed := bootNow()
	if err := s.d.signal(syscall.SIGKILL); err != nil {
		return err
	}
	s.tell("%s D (SIGKILL) after %.2f s, %d batches heard", s.say.paint.warn("killed"), float64(killed-granted)/1e9, s.batches())
	last, expired := killed, 0
	for _, id := range ids {
		freed, err := s.freed(s.p, id)
		if err != nil {
			return err
		}
		last = max(last, freed.TimeNS)
		if freed.Reason == "expired" {
			expired++
		}
	}
	after := time.Duration(last - killed)
	heldMiBs := float64(held) / (1 << 20)
	s.tell("P has reclaimed all %d requests %.2f s after the kill", requests, after.Seconds())
	s.tell("held in vain: %.1f MiB·s; a fixed time-out of %v would have held %.0f MiB·s", heldMiBs*after.Seconds(), fixedTimeout, heldMiBs*fixedTimeout.Seconds())
	if _, err := s.p.ask(s.ctx, jsonl.Command{Cmd: "grant", ID: "next", Blocks: sequence(0, requests*each), Tokens: requests * each * 16}); err != nil {
		return err
	}
	reused := bootNow()
	s.tell("P has given the same %d blocks to another request", requests*each)

	bound := s.reclaimBound(s.cfg.Lease - time.Duration(killed-granted))
	s.promise("leases lost before the crash", exactly, 0, float64(early), "")
	s.promise("leases ended as expired", exactly, requests, float64(expired), "")
	s.promise("reclaimed after the kill (extension + settle + two steps)", atMost, ms(bound), ms(after), "ms")
	s.promise("held in vain (a time-out of "+fixedTimeout.String()+": "+quantity(heldMiBs*fixedTimeout.Seconds(), "MiB·s")+")", atMost, heldMiBs*bound.Seconds(), heldMiBs*after.Seconds(), "MiB·s")

	s.mark(laneP, timeline.Lease, granted, last, fmt.Sprintf("leases on %d blocks of %d requests", requests*each, requests))
	s.mark(laneP, timeline.FirstTerm, granted+uint64(s.cfg.Lease), 0, "")
	s.mark(laneP, timeline.Reclaimed, last, 0, "reclaimed")
	s.mark(laneP, timeline.Reuse, reused, reused+uint64(s.cfg.Lease/3), "next request")
	s.mark(laneD, timeline.Waiting, granted, killed, fmt.Sprintf("%d requests wait", requests))
	s.mark(laneD, timeline.Crash, killed, 0, "SIGKILL")
	s.moment(killed, "D is killed")
	s.moment(last, fmt.Sprintf("reclaimed after %.2f s", after.Seconds()))
	return nil
}

// stoppedD: D sleeps past its lease and comes back to blocks that are another request's.
func stoppedD(s *stage) error {
	const id, n = "r1", 16
	lease := s.cfg.Lease
	blocks := sequence(8, n)
	granted, err := s.grant([]string{id}, [][]uint32{blocks})
	if err != nil {
		return err
	}
	s.tell("P granted %s: %d blocks for %v; %s enters D's queue", id, n, lease, id)
	s.moment(granted, "granted")
	// The next request is on its way already, so it has a slot of its own: what refuses D is the end of r1's lease, not the
	// next use of r1's slot.
	if _, err := s.p.ask(s.ctx, jsonl.Command{Cmd: "expect", ID: "r2"}); err != nil {
		return err
	}
	if err := sleep(s.ctx, lease, s.p, s.d); err != nil {
		return err
	}
	early := s.freedBefore()
	stopped := bootNow()
	if err := s.d.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	s.tell("%s D (SIGSTOP)", s.say.paint.warn("stopped"))
	freed, err := s.freed(s.p, id)
	if err != nil {
		return err
	}
	after := time.Duration(int64(freed.TimeNS - stopped))
	s.tell("P reclaimed %s (%s) %.2f s after the stop", id, freed.Reason, after.Seconds())
	if _, err := s.p.ask(s.ctx, jsonl.Command{Cmd: "overwrite", ID: "other", Blocks: blocks}); err != nil {
		return err
	}
	overwritten := bootNow()
	granted2, err := s.p.ask(s.ctx, jsonl.Command{Cmd: "grant", ID: "r2", Blocks: blocks, Tokens: n * 16})
	if err != nil {
		return err
	}
	s.tell("P overwrote the blocks and granted them to r2")
	if err := sleep(s.ctx, lease/2, s.p, s.d); err != nil {
		return err
	}

	markD := s.d.mark()
	if _, err := s.d.send(jsonl.Command{Cmd: "read", ID: id}); err != nil { // waits in D's pipe
		return err
	}
	continued := bootNow()
	if err := s.d.signal(syscall.SIGCONT); err != nil {
		return err
	}
	s.stopped = time.Duration(continued - stopped)
	s.tell("D goes on (SIGCONT) after %.2f s, its scheduler says: read %s", float64(continued-stopped)/1e9, id)
	outcome, err := s.outcome(s.d, id, markD)
	if err != nil {
		return err
	}
	refusedAfter := time.Duration(int64(outcome.TimeNS - continued))
	if outcome.Status == "stale" {
		s.tell("%s: the read of %s was refused as stale, %s", s.say.paint.good("fenced"), id, refusal(&outcome))
	} else {
		s.tell("%s the read of %s ended as %s", s.say.paint.bad("wrong:"), id, outcome.Status)
	}
	handed := 0
	for _, r := range s.d.reports(0) {
		if r.Ev == "read_done" && r.ID == id {
			handed++
		}
	}

	// D is not broken, only late: the request that has the blocks now is read as any other.
	if err := s.route(s.d, []string{"r2"}, granted2, false); err != nil {
		return err
	}
	tracked2 := bootNow()
	if err := sleep(s.ctx, lease/2, s.p, s.d); err != nil {
		return err
	}
	asked2, second, err := s.read(s.d, "r2")
	if err != nil {
		return err
	}
	size := n * s.blockBytes()
	freed2, err := s.freed(s.p, "r2")
	if err != nil {
		return err
	}
	s.tell("D read r2, which has the blocks now: %s, %s wrong bytes", second.Status, quantity(badBytes(&second), ""))

	s.promise("leases lost before the stop", exactly, 0, float64(early), "")
	s.promise("reclaimed after the stop (extension + settle + two steps)", atMost, ms(s.reclaimBound(lease-time.Duration(stopped-granted))), ms(after), "ms")
	s.promise("reads of overwritten blocks refused as stale", exactly, 1, is(outcome.Status == "stale"), "")
	s.never("requests with wrong data handed out", float64(handed))
	s.promise("refused after D goes on", atMost, ms(s.readBound()+s.cfg.Lease/6), ms(refusedAfter), "ms")
	s.promise("bytes of the next request read and checked", exactly, float64(size), float64(second.Bytes), "B")
	s.never("wrong bytes handed out", badBytes(&second))

	s.mark(laneP, timeline.Lease, granted, freed.TimeNS, fmt.Sprintf("lease on %d blocks", n))
	s.mark(laneP, timeline.Reclaimed, freed.TimeNS, 0, "reclaimed")
	s.mark(laneP, timeline.Reuse, overwritten, freed2.TimeNS, "same blocks, now r2's")
	s.mark(laneP, timeline.Completed, freed2.TimeNS, 0, "freed: "+freed2.Reason)
	s.mark(laneD, timeline.Waiting, granted, stopped, id+" waits")
	s.mark(laneD, timeline.Stopped, stopped, continued, "stopped")
	if outcome.Ev == "read_failed" {
		s.mark(laneD, timeline.Refused, outcome.TimeNS, 0, "refused: "+outcome.Status)
	} else {
		s.drawRead(continued, &outcome)
	}
	s.mark(laneD, timeline.Waiting, tracked2, asked2, "r2 waits")
	s.drawRead(asked2, &second)
	s.moment(stopped, "D is stopped")
	s.moment(freed.TimeNS, "P reclaims, overwrites")
	s.moment(continued, "D goes on, reads: "+outcome.Status)
	return nil
}

// overload: many requests wait; what P hears does not grow with their number.
func overload(s *stage) error {
	const requests, each = 200, 2
	ids, blocks := requestsOf(requests, each)
	granted, err := s.grant(ids, blocks)
	if err != nil {
		return err
	}
	s.tell("P granted %d requests, %s; all wait in D's queue", requests, amount(requests*each*s.blockBytes()))
	s.moment(granted, "granted")
	interval := s.cfg.Lease / 6
	if err := sleep(s.ctx, 2*interval, s.p, s.d); err != nil {
		return err
	}
	from, err := s.counters()
	if err != nil {
		return err
	}
	if err := sleep(s.ctx, 2*s.cfg.Lease+interval, s.p, s.d); err != nil {
		return err
	}
	to, err := s.counters()
	if err != nil {
		return err
	}
	window := time.Duration(to.at - from.at)
	batches, beats := to.batches-from.batches, to.beats-from.beats
	early := s.freedBefore()
	s.tell("in %.2f s P heard %s with %s: %.0f a batch, one batch per %.0f ms", window.Seconds(), plural.Counted(batches, "batch", "batches"), plural.Counted(beats, "heartbeat", "heartbeats"),
		float64(beats)/float64(max(1, batches)), ms(window)/float64(max(1, batches)))

	markD := s.d.mark()
	asked := bootNow()
	var reads []jsonl.Command
	for _, id := range ids {
		reads = append(reads, jsonl.Command{Cmd: "read", ID: id})
	}
	if _, err := s.d.ask(s.ctx, reads...); err != nil {
		return err
	}
	var bad float64
	last, done, completed := asked, 0, 0
	for _, id := range ids {
		r, err := s.outcome(s.d, id, markD)
		if err != nil {
			return err
		}
		bad += badBytes(&r)
		done += int(is(r.Ev == "read_done"))
		freed, err := s.freed(s.p, id)
		if err != nil {
			return err
		}
		completed += int(is(freed.Reason == "completed"))
		last = max(last, freed.TimeNS)
	}
	s.tell("D read all %d in %.0f ms, %s wrong bytes; P freed %d as completed", done, float64(last-asked)/1e6, quantity(bad, ""), completed)

	s.promise("batches heard in "+quantity(window.Seconds(), "s")+", one per interval", atMost, float64(window/interval+1), float64(batches), "")
	s.promise("requests kept by each batch", atLeast, requests, float64(beats)/float64(max(1, batches)), "")
	s.promise("leases lost while waiting", exactly, 0, float64(early), "")
	s.promise("requests read and proven", exactly, requests, float64(done), "")
	s.never("wrong bytes handed out", bad)
	s.promise("freed as completed", exactly, requests, float64(completed), "")

	s.mark(laneP, timeline.Lease, granted, last, fmt.Sprintf("%d leases, kept by one batch per %v", requests, interval))
	s.mark(laneP, timeline.FirstTerm, granted+uint64(s.cfg.Lease), 0, "")
	s.mark(laneP, timeline.Completed, last, 0, "freed: completed")
	s.mark(laneD, timeline.Waiting, granted, asked, fmt.Sprintf("%d requests wait", requests))
	s.mark(laneD, timeline.Read, asked, last, plural.Counted(done, "read", "reads"))
	s.moment(asked, "D reads all")
	return nil
}

// badBytes is how much of what a read handed out was not the request's. A read that does not say is wrong.
func badBytes(r *jsonl.Report) float64 {
	switch {
	case r.Ev != "read_done":
		return 0
	case r.BadBytes == nil:
		return float64(max(1, r.Bytes))
	}
	return float64(*r.BadBytes)
}

// refusal tells whether the fence kept data out that had come, or the row was seen before anything was read.
func refusal(r *jsonl.Report) string {
	if r.Landed == nil || r.BadBytes == nil || *r.Landed == 0 {
		return "before any of it came"
	}
	return fmt.Sprintf("after its data had come: %d bytes of it were another request's", *r.BadBytes)
}

func is(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
