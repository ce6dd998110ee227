package sim

import (
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// hostCtx is a context of role host, put together as dataplane/core does it.
type hostCtx struct {
	steps
	life     *life
	mem      *record.Memory
	streams  *stream.Host
	group    *group.Group
	maps     [][]byte
	taken    uint64
	poisoned bool
	brokeAt  clock.Instant // true time of that
	buf      []byte
}

func (l *life) kind() string {
	if l.place.spec.Carrier == stream.KindDelta {
		return stream.KindDelta
	}
	return stream.KindProcess
}

// openHost makes the contexts of an engine with ranks.
func (l *life) openHost() error {
	p := l.place
	h := &hostCtx{life: l, mem: memory(p.slots(), 1, 1<<14, false)}
	h.mem.Epoch, h.mem.Secret = l.era.epoch, l.era.secret
	name := fmt.Sprintf("sim-%d-%s-%d", l.w.run, l.place.spec.ID, l.number) // contexts of a process meet by name; two places may run one engine id
	sc := stream.Config{EngineID: name, TP: p.shape().TP, PP: p.shape().PP, WakeFd: -1, RingBytes: stream.RingBytesMin}
	var err error
	if h.streams, err = stream.OpenHost(l.kind(), sc); err != nil {
		return err
	}
	l.host = h
	out, err := dataplane.NewEvents(h.mem.Events, nil)
	if err != nil {
		return err
	}
	var ends []stream.Carrier
	for n := range h.streams.Ranks() {
		ends = append(ends, h.streams.End(uint32(n)))
	}
	rc, sites := l.readConfig(), l.w.sites()
	h.group, err = group.New(group.Config{
		Self: p.shape(), Duration: p.lease(), FixedTTL: p.spec.BlocksTTL, ExpectMax: p.spec.ExpectMax, ReadTimeout: rc.ReadTimeout,
		Engines: enginesMax, RunsMax: 4096, MapMax: 1 << 14, Between: l.kind() == stream.KindDelta, Seed: l.era.epoch,
		Sites: sites,
	}, h.mem, ends, out)
	if err != nil {
		return err
	}
	h.group.SetWires(l.side)
	h.maps = make([][]byte, len(ends))
	h.beginEra()
	l.side.begin()
	if l.app.host, err = host.New(h.mem, h.wake); err != nil {
		return err
	}
	l.app.host.Trace(sites)
	l.app.host.HostOf(len(ends))
	h.mem.Control.Asleep = record.Listens
	h.buf = make([]byte, stream.MessageBytesMax)
	for n := range p.shape().Ranks() {
		sc.Rank = n
		c, err := stream.OpenRank(l.kind(), sc)
		if err != nil {
			return err
		}
		r, err := l.buildRank(n, c)
		if err != nil {
			_ = c.Close()
			return err
		}
		l.ranks = append(l.ranks, r)
		if err := r.register(); err != nil {
			return err
		}
	}
	h.steps.init(l, HostOnly, h.turn, h.nextDue)
	h.rank = -1
	return nil
}

// beginEra tells the ranks who this engine is to its readers from now on.
func (h *hostCtx) beginEra() {
	e := h.life.era
	h.mem.Epoch, h.mem.Secret = e.epoch, e.secret
	h.mem.Control.BeginEra(e.epoch, e.secret)
	h.group.SetEra(record.Era{Era: h.life.eras, Epoch: e.epoch, Secret: e.secret, DurationNs: uint64(h.life.place.lease())})
}

// turn is one step of the host.
func (h *hostCtx) turn() {
	if h.poisoned {
		h.group.Poison(h.life.place.local(h.w.now))
		h.flush()
		h.life.app.poll()
		return
	}
	if h.stepSafely() {
		h.life.app.poll()
	}
	h.flush()
	for _, r := range h.life.ranks {
		if !r.gone && r.carrier.Pending() {
			r.wake()
		}
	}
}

func (h *hostCtx) stepSafely() (ok bool) {
	defer func() {
		if what := recover(); what != nil {
			h.w.broke(Broken, h.life.place.spec.ID, "", "host: panic in a step: %v\n%s", what, debug.Stack())
			h.poison()
		}
	}()
	now := h.life.place.local(h.w.now)
	h.life.side.step(now)
	h.group.Step(now)
	if n := h.group.Counters.MapsTaken; n != h.taken {
		h.taken = n
		h.rankMaps()
	}
	if h.group.EraOver() {
		if slices.ContainsFunc(h.maps, func(m []byte) bool { return m != nil }) {
			h.withdraw()
		}
		h.life.era = h.life.nextEra()
		h.beginEra()
		h.life.side.begin()
		h.wake()
	}
	return true
}

func (h *hostCtx) withdraw() {
	h.life.side.withdraw()
	clear(h.maps)
}

// rankMaps publishes the maps of ranks that have registered in this era: core.rankMaps.
func (h *hostCtx) rankMaps() {
	for n := range h.maps {
		m := h.group.OwnMap(n)
		switch {
		case len(m) == 0 && h.maps[n] != nil:
			h.withdraw()
			h.life.side.begin()
			return
		case len(m) == 0 || slices.Equal(m, h.maps[n]):
			continue
		}
		own := new(wire.Handshake)
		if wire.ParseHandshake(m, own) != nil || own.Lease.Epoch != h.mem.Epoch {
			continue // of the era before
		}
		h.life.side.publish(uint32(n), m)
		h.maps[n] = m
	}
}

func (h *hostCtx) poison() {
	if h.poisoned {
		return
	}
	h.poisoned, h.brokeAt = true, h.w.now
	h.mem.Control.PoisonNs = uint64(h.life.place.local(h.w.now))
	atomic.StoreUint32(&h.mem.Control.Poisoned, 1)
	h.group.Flush()
	h.group.Poison(h.life.place.local(h.w.now))
	for _, r := range h.life.ranks {
		r.wake()
	}
	h.wake()
}

func (h *hostCtx) pending() bool {
	return !h.gone && h.group.Pending()
}

func (h *hostCtx) nextDue() clock.Instant {
	if h.poisoned {
		return h.w.now.Add(h.life.place.lease() / 16)
	}
	if h.group.Pending() {
		return h.w.now.Add(1)
	}
	return h.life.place.truly(h.group.NextDue(h.life.place.local(h.w.now)))
}

// flush hands on what the host's ends of delta carriers have to say.
func (h *hostCtx) flush() {
	for _, r := range h.life.ranks {
		r.flushDelta()
	}
}
