package core

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// registration is memory on its way to the transport, on the thread that has called Register. A cache of 100 GiB takes seconds to minutes
// there: the kernel or the driver pins each page. Steps go on beside it.
type registration struct {
	regions []Region
	list    []transport.Region // what the transport gets: ranges of the cache, then memory of ours
	tr      transport.Transport
	began   clock.Instant
	mem     *record.Memory

	openDevices OpenDevices
	pace        registrationPace

	bytes   atomic.Uint64 // of list; until the devices have had their say, of the regions
	done    atomic.Uint64 // of these, bytes that the transport has
	cut     atomic.Bool   // it is to end
	ended   chan struct{} // closed when Register returns
	kept    bool
	strayed bool // a twin's read of it is open

	waited    bool          // letStepsIn has waited in vain
	waitedFor clock.Instant // the last step then

	proven, unproven int // regions
}

// errCut is what is told of a registration that Close has ended.
var errCut = fmt.Errorf("%w: kvl_close has cut the registration off", ErrClosed)

// registrationPace is when a registration is told of. Tests have their own.
type registrationPace struct {
	pieceBytes uint64        // the transport is handed whole ranges up to this at once
	every      time.Duration // a line of how far it is
	window     time.Duration // steps have the transport for so long between two pieces, if they have use for it
	slow       time.Duration // from then on it is slow
}

// setDefaults: a GiB is pinned within 0.1 to 1 s, by 4 KiB pages.
func (p *registrationPace) setDefaults() {
	if p.pieceBytes == 0 {
		*p = registrationPace{pieceBytes: 1 << 30, every: 5 * time.Second, window: 250 * time.Millisecond, slow: 30 * time.Second}
	}
}

// PaceRegistrations says how often a registration tells how far it is, and when it is slow: 5 s and 30 s otherwise. For tools that somebody
// looks at, and tests.
func (c *Core) PaceRegistrations(every, slow time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pace.setDefaults()
	c.pace.every, c.pace.slow = every, slow
}

// beginRegistration looks at what can be looked at without waiting for anybody, and lets steps leave the transport alone.
func (c *Core) beginRegistration(regions []Region) (*registration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed, c.ending:
		return nil, ErrClosed
	case c.hosted != nil:
		return nil, fmt.Errorf("%w: role host has no memory: register on the rank contexts", ErrState)
	case c.registering != nil:
		return nil, fmt.Errorf("%w: memory is being registered on another thread", ErrBusy)
	case c.registered != nil:
		return nil, fmt.Errorf("%w: the context has registered memory: call kvl_unregister first", ErrState)
	}
	regions, err := oneDevice(regions, uint32(c.cfg.DeviceID))
	if err != nil {
		return nil, err
	}
	if err := checkRegions(regions); err != nil {
		return nil, err
	}
	if err := c.checkHost(regions); err != nil {
		return nil, err
	}
	if err := c.agentFor(regions); err != nil {
		return nil, err
	}
	c.pace.setDefaults()
	r := &registration{
		regions: regions, tr: c.tr, began: c.clock(), mem: c.mem, openDevices: c.openDevices, pace: c.pace,
		ended: make(chan struct{}),
	}
	for _, region := range r.regions {
		r.bytes.Add(region.Bytes)
	}
	c.registering = r
	c.slept = false
	c.showBetween()
	return r, nil
}

func (c *Core) endRegistration(r *registration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.registering = nil
	close(r.ended)
	c.showBetween()
	c.Wake() // for what has waited
}

// cutRegistration ends the registration that is under way, if there is one, and lets none begin. Its caller has still to return from
// Register, so this Close is refused: ErrBusy. What the transport is at it does to its end.
func (c *Core) cutRegistration(timeout time.Duration) error {
	c.mu.Lock()
	c.ending = true
	r := c.registering
	c.mu.Unlock()
	if r == nil {
		return nil
	}
	r.cut.Store(true)
	select {
	case <-r.ended:
	case <-time.After(timeout):
	}
	return fmt.Errorf("%w: memory was being registered, which is cut off: call again when kvl_register has returned", ErrBusy)
}

// own adds what of ours peers read, and where their rows land.
func (r *registration) own() {
	for _, m := range [][]byte{r.mem.Board, r.mem.Landing} {
		r.list = append(r.list, transport.Region{Addr: record.Addr(m), Bytes: uint64(len(m))})
	}
	bytes := uint64(0)
	for _, t := range r.list {
		bytes += t.Bytes
	}
	r.bytes.Store(bytes)
}

// admits is a transport that knows before a registration what the whole of it would run into.
type admits interface {
	Admits(regions []transport.Region) error
}

// toTransport registers everything, piece by piece, and reports how many ranges the transport has, also on an error. In between steps send what is due: owners of what is tracked already must not
// wait for the whole of a cache, since their leases end meanwhile.
func (c *Core) toTransport(r *registration) (at int, err error) {
	if a, ok := r.tr.(admits); ok {
		if err := a.Admits(r.list); err != nil {
			return 0, r.refused(err)
		}
	}
	for at < len(r.list) {
		if r.cut.Load() {
			return at, errCut
		}
		n, bytes := at, uint64(0)
		for n < len(r.list) && (n == at || bytes+r.list[n].Bytes <= r.pace.pieceBytes) {
			bytes += r.list[n].Bytes
			n++
		}
		c.lockedReach(heartbeat.ReachNothing)
		err := r.tr.Register(r.list[at:n])
		c.lockedReach(heartbeat.ReachMessages)
		if err != nil {
			return at, r.refused(err)
		}
		c.letStepsIn(r)
		r.done.Add(bytes)
		at = n
	}
	return at, nil
}

func (c *Core) lockedReach(reach heartbeat.Reach) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setReach(reach)
}

// letStepsIn waits until steps have done what the last one found due. Where nobody steps, as where the thread of the steps is the one that
// registers, one such wait is lost, and not one for every piece.
func (c *Core) letStepsIn(r *registration) {
	for end := time.Now().Add(r.pace.window); !r.cut.Load(); time.Sleep(time.Millisecond) {
		step, due := c.due()
		if !due || r.waited && step == r.waitedFor {
			return
		}
		if !time.Now().Before(end) {
			r.waited, r.waitedFor = true, step
			return
		}
		c.Wake()
	}
}

// due reports whether something was due at the last step, and when that was.
func (c *Core) due() (step clock.Instant, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now, c.tracker.Calls(c.now)
}

func (r *registration) refused(err error) error {
	return fmt.Errorf("%w: register %d regions: %w", ErrTransport, len(r.regions), err)
}

// undo takes the first n ranges back. No peer has had a word of them. To unpin them takes its time, too. On an error the transport may have them
// still.
func (c *Core) undo(r *registration, n int) (err error) {
	if n > 0 {
		c.lockedReach(heartbeat.ReachNothing)
		err = r.tr.Unregister(r.list[:n])
		c.lockedReach(heartbeat.ReachMessages)
	}
	r.done.Store(0)
	return err
}

// watchRegistration tells how far a registration is, until stop.
func (c *Core) watchRegistration(r *registration) (stop func()) {
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(r.pace.every)
		defer tick.Stop()
		for slow := false; ; {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			c.mu.Lock()
			c.showBetween()
			c.mu.Unlock()
			now := c.clock()
			c.log.side().Put(log.Registering, now, log.Entry{A: r.done.Load(), B: r.bytes.Load()})
			if since := now.Sub(r.began); since >= r.pace.slow && !slow {
				slow = true
				c.log.side().Put(log.RegisteringSlow, now, log.Entry{A: uint64(since), B: r.bytes.Load()})
			}
		}
	}()
	return func() {
		close(done)
		<-over
	}
}

// gatherMemory says what of the cache the transport has. Under the lock.
func (c *Core) gatherMemory(g *planeGauges) {
	if r := c.registering; r != nil {
		g.RegisteredBytes, g.RegisteringBytes = r.done.Load(), r.bytes.Load()
		return
	}
	for _, r := range c.registered {
		g.RegisteredBytes += r.Bytes
	}
	g.RegionsProven, g.RegionsUnproven = c.proven, c.unproven
	if c.slept {
		g.Asleep = 1
	}
}
