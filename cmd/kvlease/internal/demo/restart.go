package demo

import (
	"syscall"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
)

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

	if err := s.restartP(); err != nil {
		return err
	}
	back := bootNow()
	s.tell("P is back at the same address (pid %d): for D a new engine, in whose blocks r2 is where r1 was", s.p.proc.PID())
	granted2, err := s.grantTo([]string{"r2"}, [][]uint32{sequence(8, n)})
	if err != nil {
		return err
	}
	up, err := s.d.await(s.ctx, `"engine_up" of the new P`, answerMax, markD, isEvent("engine_up", ""))
	if err != nil {
		return err
	}
	_, first, err := s.read(s.d, "r1")
	if err != nil {
		return err
	}
	asked, second, err := s.read(s.d, "r2")
	if err != nil {
		return err
	}
	freed, err := s.freed(s.p, "r2")
	if err != nil {
		return err
	}
	s.tell("D read r2 from the new P: %s, %s wrong bytes; r1 of the old one was refused as %s", second.Status, quantity(badBytes(&second), ""), first.Status)

	s.promise("D told after the kill, by the death wire", atMost, ms(wireBound), ms(told), "ms")
	s.promise("new P known after its first request (an interval)", atMost, ms(s.cfg.Lease/6+2*s.cfg.Pass+loadMax+allowance), float64(int64(up.TimeNS-granted2))/1e6, "ms")
	s.promise("bytes read from the new P and checked", exactly, float64(n*s.blockBytes()), float64(second.Bytes), "B")
	s.never("wrong bytes handed out", badBytes(&second)+badBytes(&first))
	s.promise("request of the old P refused", exactly, 1, is(first.Ev == "read_failed"), "")
	s.promise("freed as completed", exactly, 1, is(freed.Reason == "completed"), "")

	s.mark(laneP, timeline.Lease, granted, killed, "lease of r1")
	s.mark(laneP, timeline.Crash, killed, 0, "SIGKILL")
	s.mark(laneP, timeline.Lease, granted2, freed.TimeNS, "lease of r2")
	s.mark(laneP, timeline.Completed, freed.TimeNS, 0, "freed: "+freed.Reason)
	s.mark(laneD, timeline.Waiting, granted, gone.TimeNS, "r1 waits")
	s.mark(laneD, timeline.Told, gone.TimeNS, 0, "lease_gone")
	s.mark(laneD, timeline.Meeting, granted2, up.TimeNS, "D meets the new P")
	s.mark(laneD, timeline.Refused, first.TimeNS, 0, "r1 refused: "+first.Status)
	s.drawRead(asked, &second)
	s.moment(killed, "P is killed")
	s.moment(back, "P is back, at once with a request")
	return nil
}

// restartP starts P anew, as it was.
func (s *stage) restartP() error {
	again, err := start(s.cfg.launch, s.p.spec)
	if err != nil {
		return err
	}
	s.p = again
	s.all = append(s.all, again)
	_, err = again.await(s.ctx, `"ready"`, readyMax, 0, isEvent("ready", ""))
	return err
}
