package demo

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
)

// readTimeout is D's patience (read_timeout) in the scene of a read that never ends.
const readTimeout = time.Second

// endlessRead: P stops, and D's read from it does not end. D gives up, and keeps the blocks until the bytes have landed.
func endlessRead(s *stage) error {
	const n = 64
	if s.cfg.onDevices() && s.cfg.Device.Reads == readsIPC && s.d.spec.hold == "" {
		return skipped{errors.New("the driver's copies are D's own and need nothing of P's process: such a read ends though P has stopped")}
	}
	granted, err := s.grant([]string{"r1"}, [][]uint32{sequence(8, n)})
	if err != nil {
		return err
	}
	size := float64(n * s.blockBytes())
	if err := sleep(s.ctx, s.cfg.Lease/3, s.p, s.d); err != nil {
		return err
	}
	stopped := bootNow()
	if err := s.p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if err := s.holdD(true); err != nil {
		return err
	}
	s.tell("%s P (SIGSTOP); D reads %s from it", s.say.paint.warn("stopped"), amount(uint64(size)))
	markD := s.d.mark()
	asked, given, err := s.read(s.d, "r1")
	if err != nil {
		return err
	}
	gaveUp := time.Duration(int64(given.TimeNS - asked))
	held := given.BlocksHeld != nil && *given.BlocksHeld
	s.tell("D gave up after %.2f s: %s, blocks held: %v; the engine recomputes", gaveUp.Seconds(), given.Status, held)
	if err := sleep(s.ctx, s.cfg.Lease/2, s.d); err != nil {
		return err
	}
	soon := 0
	for _, r := range s.d.reports(markD) {
		soon += int(is(r.Ev == "blocks_back"))
	}
	continued := bootNow()
	s.stopped = time.Duration(continued - stopped)
	if err := errors.Join(s.p.signal(syscall.SIGCONT), s.holdD(false)); err != nil {
		return err
	}
	back, err := s.d.await(s.ctx, `"blocks_back" of r1`, answerMax, markD, isEvent("blocks_back", "r1"))
	if err != nil {
		return err
	}
	freed, err := s.freed(s.p, "r1")
	if err != nil {
		return err
	}
	after := time.Duration(int64(back.TimeNS - continued))
	s.tell("P goes on: the late bytes land, and %.0f ms later D has its blocks back; P freed r1 (%s)", ms(after), freed.Reason)

	s.promise("read given up as timed out", exactly, 1, is(given.Status == "timeout"), "")
	s.promise("given up after (read_timeout)", atMost, ms(readTimeout+2*s.cfg.Pass+allowance), ms(gaveUp), "ms")
	s.promise("its blocks held, since bytes may still land", exactly, 1, is(held), "")
	s.never("blocks given back while P stood still", float64(soon))
	s.never("bytes still on their way when the blocks came back", onTheWay(&back, size))
	// TCP asks a peer that does not take anything ever more rarely: at worst it waits as long again as P was stopped.
	s.promise("blocks back after P goes on (as long again)", atMost, ms(s.stopped+2*s.cfg.Pass+allowance), ms(after), "ms")

	s.mark(laneP, timeline.Lease, granted, freed.TimeNS, fmt.Sprintf("lease on %d blocks", n))
	s.mark(laneP, timeline.Stopped, stopped, continued, "stopped")
	s.mark(laneP, timeline.Released, freed.TimeNS, 0, "freed: "+freed.Reason)
	s.mark(laneD, timeline.Waiting, granted, asked, "r1 waits")
	s.mark(laneD, timeline.Waiting, asked, given.TimeNS, "the read does not end")
	s.mark(laneD, timeline.Refused, given.TimeNS, 0, "given up: "+given.Status)
	s.mark(laneD, timeline.Aside, given.TimeNS, back.TimeNS, "its blocks are set aside")
	s.moment(stopped, "P is stopped, D reads")
	s.moment(given.TimeNS, "D gives up")
	s.moment(back.TimeNS, "bytes have landed, blocks back")
	return nil
}

// holdD has the copies of D's device stand still while P does, as those of a transport that needs P's process: an IPC copy needs nothing of it.
func (s *stage) holdD(on bool) error {
	if s.d.spec.hold == "" {
		return nil
	}
	if !on {
		return os.Remove(s.d.spec.hold)
	}
	s.tell("D's device stands still, too: its own copies would not wait for P")
	return os.WriteFile(s.d.spec.hold, nil, 0o600)
}

// onTheWay is how many bytes of a read of this size were not there when its blocks came back. P has kept the request's data all
// the time, so what is not the request's has not come. A report that does not say is wrong.
func onTheWay(back *jsonl.Report, size float64) float64 {
	if back.BadBytes == nil {
		return size
	}
	return float64(*back.BadBytes)
}
