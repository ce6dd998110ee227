package core

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Periods of the pump.
const (
	pumpBusy     = time.Millisecond // while there was traffic in the last pumpBusySpan, or a read is in flight
	pumpBusySpan = 100 * time.Millisecond
	pumpHeld     = 10 * time.Millisecond // while anything is held or tracked by a context with a transport, which announces nothing
	pumpStill    = 20 * time.Millisecond // the same, after pumpStillSpan without traffic
	pumpIdle     = 50 * time.Millisecond // otherwise: 20 wakes a second

	pumpStillSpan = time.Second
)

// A source is something beside the producers' rings that may have work for a step: a carrier of the stream between a host
// and its ranks. It has to write the pump's descriptor when it has, and the pump sleeps.
type source interface {
	// Sleeping says whether the pump is about to sleep on its descriptor. It is said before Pending is asked.
	Sleeping(bool)
	// Pending reports that a step would find something.
	Pending() bool
}

// pump is the thread that runs the step in pump mode.
type pump struct {
	core *Core
	fd   int
	stop atomic.Bool
	done chan struct{}
	pumpState
}

// pumpState is under the core's lock.
type pumpState struct {
	counters  PumpCounters
	class     priority
	lateMost  uint64        // of what Overslept counts the longest since the log has said it, in ns
	ended     clock.Instant // when the turn before ended
	traffic   uint64
	trafficAt clock.Instant
}

// PumpCounters tell what the pump has done. They only grow, but for the greatest ones, which ResetPump starts anew.
type PumpCounters struct {
	Turns       uint64 // steps
	TurnsIdle   uint64 // of these, with nothing held, tracked or done lately
	Woken       uint64 // sleeps that a producer, a carrier or the host ended
	TurnsMuted  uint64 // without heartbeats: the forward loop has not passed within stall_cover
	Overslept   uint64 // sleeps that took pumpLate longer than asked for
	StepMaxNs   uint64 // longest step
	PauseMaxNs  uint64 // longest time from the end of a step to the start of the next beyond the sleep asked for
	PriorityOff uint64 // priorities that were asked for and not permitted
}

// pumpLate is how much later than asked for a sleep may end before it is counted.
const pumpLate = 20 * time.Millisecond

// makeWake makes the descriptor that ends the pump's sleep, unless C has.
func (c *Core) makeWake() error {
	if c.mem.Control.WakeFd >= 0 {
		return nil
	}
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	c.mem.Control.WakeFd = int32(fd)
	return err
}

func startPump(c *Core) (*pump, error) {
	if err := c.makeWake(); err != nil {
		return nil, err
	}
	p := &pump{core: c, fd: int(c.mem.Control.WakeFd), done: make(chan struct{})}
	go p.run()
	return p, nil
}

// run steps until it is told to stop or the core breaks. With a priority the thread is its own and ends with the goroutine; one
// whose priority was not permitted stays the runtime's: in a host under the thread sanitizer an ending thread of Go can fall, when
// a signal of the runtime has come just before.
func (p *pump) run() {
	defer close(p.done)
	runtime.LockOSThread()
	own := p.prioritize() != priorityNone
	if !own {
		runtime.UnlockOSThread()
	}
	bed := makeBed(p.fd, own)
	defer bed.close()
	var asked time.Duration
	woken := true
	for !p.stop.Load() {
		var err error
		if asked, err = p.turn(asked, woken); err != nil {
			p.tellPoison()
			return
		}
		woken = p.sleep(bed, asked)
	}
}

// Of a broken context the pump goes on telling the others: soon at first, and then for as long as it is open, since one that stands
// still hears it when it goes on, and a stream may lose it.
const (
	poisonSoon  = time.Second
	poisonLater = 50 * time.Millisecond
)

func (p *pump) tellPoison() {
	told := func() bool {
		p.core.mu.Lock()
		defer p.core.mu.Unlock()
		return atomic.LoadUint32(&p.core.mem.Control.Poisoned) == 0 || p.core.tellPoison()
	}
	for end := time.Now().Add(poisonSoon); !told() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	for p.core.cfg.Role != "engine" && !p.stop.Load() {
		told()
		time.Sleep(poisonLater)
	}
}

// turn runs one step and tells how long to sleep. asked and woken are those of the sleep before.
func (p *pump) turn(asked time.Duration, woken bool) (time.Duration, error) {
	c := p.core
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock()
	p.slept(now, asked, woken)
	muted := c.cover(now)
	if err := c.step(); err != nil {
		return 0, err
	}
	p.ended = c.clock()
	p.counters.Turns++
	p.counters.StepMaxNs = max(p.counters.StepMaxNs, uint64(max(p.ended.Sub(now), 0)))
	due := clock.Never
	if muted { // its heartbeats stay due
		p.counters.TurnsMuted++
	} else {
		due = c.nextDue(now)
	}
	// What is due sooner is not made to wait: late heartbeats would add up to a longer interval.
	return max(min(p.period(now), due.Sub(now)), pumpBusy), nil
}

// slept counts the sleep that has ended. What a sleep was cut short by is no pause.
func (p *pump) slept(now clock.Instant, asked time.Duration, woken bool) {
	if p.ended == 0 {
		return
	}
	if woken {
		p.counters.Woken++
		return
	}
	over := now.Sub(p.ended) - asked
	p.counters.PauseMaxNs = max(p.counters.PauseMaxNs, uint64(max(over, 0)))
	if over > pumpLate {
		p.counters.Overslept++
		p.lateMost = max(p.lateMost, uint64(over))
	}
}

// period is the longest sleep for what there is to do.
func (p *pump) period(now clock.Instant) time.Duration {
	c := p.core
	if traffic := c.half().Traffic(); traffic != p.traffic {
		p.traffic, p.trafficAt = traffic, now
	}
	switch {
	case p.trafficAt != 0 && now.Sub(p.trafficAt) < pumpBusySpan, c.reading():
		return pumpBusy
	case atomic.LoadUint32(&c.mem.Control.Held) == 0:
		p.counters.TurnsIdle++
	case c.hosted != nil: // what ranks report wakes their host
	case now.Sub(p.trafficAt) < pumpStillSpan:
		return pumpHeld
	default:
		return pumpStill
	}
	return pumpIdle
}

// sleep waits for the period, a producer or a carrier, and tells whether it was one of these.
//
// Edge W2: asleep is stored before the rings are looked at again; pairs with W1 in the producer's publish, which stores
// head before it loads asleep. One of the two sees the other, so no record that may not wait for the period does. Carriers do the same.
func (p *pump) sleep(bed *bed, period time.Duration) (woken bool) {
	defer p.getUp()
	return !p.lieDown(period) || bed.sleep(period)
}

// lieDown says to all who may wake the pump that it sleeps, and reports whether it may. Under the lock, since carriers have one
// thread: other calls ask them where they stand.
func (p *pump) lieDown(period time.Duration) bool {
	c := p.core
	c.mu.Lock()
	defer c.mu.Unlock()
	atomic.StoreUint32(&c.mem.Control.Asleep, depth(period, c.cfg.Interval(), atomic.LoadUint32(&c.mem.Control.Held) != 0))
	for _, s := range c.sources {
		s.Sleeping(true)
	}
	return !p.pending() && !p.stop.Load()
}

// depth of a sleep: one of an engine that holds something and that is a small part of an interval is not ended for a request that is
// tracked from now on. The first of an idle one finds it at once.
func depth(period, interval time.Duration, held bool) uint32 {
	longest := pumpHeld
	if held {
		longest = pumpIdle
	}
	if period <= min(longest, max(interval/4, pumpBusy)) {
		return record.Dozes
	}
	return record.Sleeps
}

func (p *pump) getUp() {
	c := p.core
	c.mu.Lock()
	defer c.mu.Unlock()
	atomic.StoreUint32(&c.mem.Control.Asleep, 0)
	for _, s := range c.sources {
		s.Sleeping(false)
	}
}

func (p *pump) pending() bool {
	if p.core.half().Pending() {
		return true
	}
	for _, s := range p.core.sources {
		if s.Pending() {
			return true
		}
	}
	return false
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
	c.log.mute(muted, now, passed)
	if c.tracker != nil {
		c.tracker.Mute(muted)
	}
	return muted
}

// Pump gives the pump's counters; zero in inline mode.
func (c *Core) Pump() PumpCounters {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pump == nil {
		return PumpCounters{}
	}
	return c.pump.counters
}

// ResetPump starts the greatest ones of the pump's counters anew, and the longest load.
func (c *Core) ResetPump() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.agent != nil {
		c.agent.longest = 0
	}
	if c.pump != nil {
		c.pump.counters.StepMaxNs, c.pump.counters.PauseMaxNs = 0, 0
	}
}

func writeEventFd(fd int) {
	one := [8]byte{1}
	unix.Write(fd, one[:])
}
