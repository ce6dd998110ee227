package core

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
)

// Periods of the pump.
const (
	pumpBusy      = time.Millisecond       // while there was work in the last pumpBusySpan
	pumpBusySpan  = 100 * time.Millisecond //
	pumpHeld      = 10 * time.Millisecond  // while anything is held or tracked
	pumpIdle      = 50 * time.Millisecond  // otherwise: 20 wakes a second
	pumpStopCheck = time.Second
)

// pump is the thread that runs the step in pump mode.
type pump struct {
	core *Core
	fd   int
	stop atomic.Bool
	done chan struct{}
}

func startPump(c *Core) (*pump, error) {
	fd := int(c.mem.Control.WakeFd)
	if fd < 0 {
		var err error
		if fd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
			return nil, err
		}
		c.mem.Control.WakeFd = int32(fd)
	}
	p := &pump{core: c, fd: fd, done: make(chan struct{})}
	go p.run()
	return p, nil
}

// run steps until it is told to stop or the core breaks. The thread is its own, so that a turn of the Go scheduler does
// not stand between a heartbeat and its time.
func (p *pump) run() {
	runtime.LockOSThread()
	defer close(p.done)
	var work uint64
	var workAt clock.Instant
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	for !p.stop.Load() {
		now, due, seen, err := p.turn()
		if err != nil {
			return
		}
		if seen != work {
			work, workAt = seen, now
		}
		period := pumpIdle
		switch {
		case now.Sub(workAt) < pumpBusySpan:
			period = pumpBusy
		case atomic.LoadUint32(&p.core.mem.Control.Held) != 0:
			period = pumpHeld
		}
		// A heartbeat that is due sooner is not made to wait: late ones would add up to a longer interval.
		p.sleep(fds, max(min(period, due.Sub(now)), pumpBusy))
	}
}

// turn runs one step and tells when something is due next and how much work has been done so far.
func (p *pump) turn() (now, due clock.Instant, work uint64, err error) {
	c := p.core
	c.mu.Lock()
	defer c.mu.Unlock()
	now = c.clock()
	muted := c.cover(now)
	if err = c.step(); err != nil {
		return now, clock.Never, 0, err
	}
	due = clock.Never
	if !muted { // else its heartbeats stay due
		due = c.tracker.NextDue(now)
	}
	return now, due, c.plane.Work(), nil
}

// sleep waits for the period or for a producer.
//
// Edge W2: asleep is stored before the rings are looked at again; pairs with W1 in the producer's publish, which stores
// head before it loads asleep. One of the two sees the other, so no record waits for the period.
func (p *pump) sleep(fds []unix.PollFd, period time.Duration) {
	asleep := &p.core.mem.Control.Asleep
	atomic.StoreUint32(asleep, 1)
	if !p.core.plane.Pending() && !p.stop.Load() {
		ts := unix.NsecToTimespec(int64(period))
		fds[0].Revents = 0
		unix.Ppoll(fds, &ts, nil)
	}
	atomic.StoreUint32(asleep, 0)
	if fds[0].Revents != 0 {
		var buf [8]byte
		unix.Read(p.fd, buf[:])
	}
}

// halt ends the pump and waits for it.
func (p *pump) halt() {
	p.stop.Store(true)
	writeEventFd(p.fd)
	<-p.done
}

// cover lets the pump beat for the engine only while its forward loop has passed within stall_cover, or has said that
// it pauses: a hung engine must not keep another one's blocks.
func (c *Core) cover(now clock.Instant) (muted bool) {
	ctl := c.mem.Control
	passed := clock.Instant(atomic.LoadUint64(&ctl.PassNs))
	paused := clock.Instant(atomic.LoadUint64(&ctl.PauseUntilNs))
	muted = passed != 0 && now.Sub(passed) > c.cfg.StallCover && now > paused
	c.tracker.Mute(muted)
	return muted
}

func writeEventFd(fd int) {
	one := [8]byte{1}
	unix.Write(fd, one[:])
}
