package group

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/histogram"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/siphash"
)

// Times are the distributions that a group keeps.
type Times struct {
	Drained histogram.Histogram // from a hook's word (kvl_grant, kvl_track) to the step that takes it; hooks take the coarse clock
	Life    histogram.Histogram // of leases, from the grant to the end on the last rank
	Connect histogram.Histogram // from when an engine was known not to be up on every rank to when it was
}

// TimesAt gives where they lie, DepthAt where that of the bytes lies that steps found in the producers' rings. Stepping thread.
func (g *Group) TimesAt() *Times               { return &g.times }
func (g *Group) DepthAt() *histogram.Histogram { return &g.sources.Depth }

// Untaken is how many bytes of the producers' records no step has taken. Any thread.
func (g *Group) Untaken() uint64 { return g.sources.Untaken() }

// LastEnds are the leases that ended last.
func (g *Group) LastEnds() *record.LastEnds { return &g.last }

func (g *Group) drained(said, now clock.Instant) {
	if said > 0 && said <= now {
		g.times.Drained.Observe(now.Sub(said))
	}
}

// remember keeps the end of a lease. Who read it the ranks know.
func (g *Group) remember(s uint32, k *lease) {
	slot := &g.mem.Slots[s]
	g.times.Life.Observe(time.Duration(k.end))
	e := g.last.Next()
	e.AtNs, e.Lease, e.User, e.HeldNs, e.Blocks, e.Reason = uint64(g.now), record.NewHandle(s, k.use), slot.User, uint64(k.end), slot.Blocks, uint16(k.grave)
	id := g.ids.of(slot)
	e.IDLen = uint16(len(id))
	if copy(e.ID[:], id) < len(id) {
		e.IDHash = siphash.Sum64(0, 0, id)
	}
}

// slept reports that a rank lives and has unregistered its memory, as an engine that is put to sleep does.
func (g *Group) slept(r *rank) bool { return r.everUp && !r.up && !r.broken && g.lost&r.bit == 0 }

// Asleep reports that all ranks that live have: no engine is up, which says nothing about any of them.
func (g *Group) Asleep() bool {
	slept := false
	for i := range g.ranks {
		r := &g.ranks[i]
		if g.lost&r.bit == 0 && !g.slept(r) {
			return false
		}
		slept = slept || g.slept(r)
	}
	return slept
}

// EnginePlaces is how many places of the engine table have been used.
func (g *Group) EnginePlaces() int { return g.places }

// ShowEngine tells how the engine in a place stands, as far as a host knows: bytes, heartbeats and rows are its ranks'. false: there is
// none. Stepping thread.
func (g *Group) ShowEngine(i int, v *heartbeat.EngineShown) bool {
	e := &g.engines[i]
	if e.facts == nil {
		return false
	}
	*v = heartbeat.EngineShown{
		Engine: e.facts.handle, Hash: e.facts.hash, ID: e.facts.name, State: heartbeat.Idle, Since: e.offAt, Native: e.epoch != 0, Epoch: e.epoch,
		Ranks: int(e.facts.shape.Ranks()), Connect: e.took, Connects: e.connects, Tracked: int(e.tracked), Offset: e.offset,
		Withdrew: e.died && e.why == heartbeat.Withdrew,
	}
	if a := g.reg.addresses[i].Load(); a != nil {
		v.Address = *a
	}
	switch {
	case e.isUp:
		v.State, v.Since = heartbeat.Connected, e.upAt
	case e.breaks > 0:
		v.State = heartbeat.Broken
	}
	if at := g.trouble(e); at != 0 && !g.asleep() && g.now.Sub(at) >= g.cfg.Duration/6 {
		v.Failing, v.FailingFor, v.Wanted = true, g.now.Sub(at), heartbeat.Wanted(v.Tracked, e.missedAt, g.now, g.cfg.Duration)
	}
	return true
}

// Add takes an engine into the gauges that count engines by how they stand.
func (v *Gauges) Add(e *heartbeat.EngineShown, duration time.Duration) {
	v.Engines++
	if !e.Failing {
		return
	}
	v.Failing++
	v.FailingMs = max(v.FailingMs, uint64(e.FailingFor/time.Millisecond))
	switch {
	case e.FailingFor < duration:
	case e.Wanted:
		v.FailingLong++
	default:
		v.FailingUnused++
	}
}
