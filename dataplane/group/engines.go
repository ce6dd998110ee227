package group

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/internal/list"
	"github.com/kvlease/kvlease/dataplane/record"
)

// engine is the step's side of a remote engine.
type engine struct {
	facts    *facts // nil: none in this place
	maps     []PeerMap
	epoch    uint64         // of the boot that the maps are of
	why      heartbeat.Over // of died
	died     bool           // that boot: the ranks are told that there are no maps
	need     uint64         // ranks of ours that have still to be told them
	up       uint64         // ranks of ours that are connected to it
	fails    uint64         // ranks of ours where it fails
	failsAt  clock.Instant  // since when it fails on one of them or another
	isUp     bool           // EvEngineUp was said, or waits
	offAt    clock.Instant  // since when it is not up
	missedAt clock.Instant  // when a request was lost, given up in trouble, or could not be read here last; 0: none was
	upAt     clock.Instant  // and since when it is; this and the next two for the stats page
	took     time.Duration  // from offAt to upAt
	connects uint64
	pend     uint8  // pendDown, pendUp, pendDrains
	drains   uint64 // epoch of the boot of which it was said that it drains
	down     uint64 // requests touched
	tracked  uint64
	withdrew uint32 // times that it gave its memory up on purpose
	fixed    uint64 // of these, requests of fixed leases
	breaks   uint32 // times that it was up on all ranks, and then not
	offset   clock.Offset
	strange  uint64        // epoch of the last request of another boot than the maps, while no maps of it are known; 0: none
	since    clock.Instant // when it came
	inNews   list.Links
}

const (
	pendDown = 1 << iota
	pendUp
	pendDrains
)

func (e *engine) ofNews() *list.Links { return &e.inNews }

// newsStepMax bounds the engines whose news one step takes.
const newsStepMax = 64

func (g *Group) takeRegistry(now clock.Instant) {
	for range newsStepMax {
		if !g.takeNews() {
			return
		}
	}
}

// takeNews takes what was said about one engine; false: nothing was.
func (g *Group) takeNews() bool {
	i, s, ok := g.reg.take()
	if !ok {
		return false
	}
	e := &g.engines[i]
	if s.facts == nil {
		return true
	}
	if e.facts != s.facts {
		if s.removed { // nobody has heard of it
			g.reg.giveBack(i)
			return true
		}
		*e = engine{facts: s.facts, inNews: e.inNews, offAt: g.now}
		g.places = max(g.places, int(i)+1)
		for n := range g.ranks {
			r := &g.ranks[n]
			if r.hears() && (r.full.at == fullNone || r.full.at > fullEngines || r.full.at == fullEngines && i < r.full.next) {
				g.sendEngine(r, e)
			}
		}
	}
	if s.removed {
		g.forgetEngine(i, e)
		return true
	}
	if s.offsetNew {
		known := e.offset.Known()
		if e.offset = s.offset; !known && e.offset.Known() {
			g.clockKnown(e.facts.handle)
		}
	}
	if s.mapsNew {
		e.maps, e.epoch, e.died, e.why = s.maps, s.epoch, len(s.maps) == 0, s.why
		if !e.died && e.strange == e.epoch {
			e.strange = 0
		}
		if e.died && e.why == heartbeat.Withdrew { // what was lost was lost by its sleep or its close, not by trouble
			e.withdrew, e.missedAt = e.withdrew+1, 0
		}
		for n := range g.ranks {
			g.needMaps(&g.ranks[n], e)
		}
	}
	return true
}

// engineOf gives the engine of a handle; nil: it is not known. One that was added since the step began is.
func (g *Group) engineOf(engine uint64) *engine {
	i := record.Handle(engine).Slot()
	if engine>>32 == 0 || int(i) >= len(g.engines) {
		return nil
	}
	e := &g.engines[i]
	for e.facts == nil || e.facts.handle != engine {
		if e.facts != nil && e.facts.handle > engine || !g.takeNews() { // handles of a place grow
			return nil
		}
	}
	return e
}

func (g *Group) sendEngine(r *rank, e *engine) bool {
	f := e.facts
	rec := g.room(r, record.TagEngine, record.EngineLen+len(f.id))
	if rec == nil {
		return false
	}
	record.PutEngine(rec, record.Engine{Engine: f.handle, User: f.user, TP: f.shape.TP, PP: f.shape.PP}, f.id)
	return true
}

// forgetEngine tells the ranks, and makes the place free: handles grow, so nobody mixes up two engines of one place.
func (g *Group) forgetEngine(i uint32, e *engine) {
	for n := range g.ranks {
		r := &g.ranks[n]
		if rec := g.room(r, record.TagEngineGone, record.EngineGoneLen); rec != nil {
			record.PutEngineGone(rec, e.facts.handle)
		}
		if e.need&r.bit != 0 {
			r.needN--
		}
		if r.blob.engine == i {
			r.blob.on = false
		}
	}
	g.engineLost(e.facts.handle)
	list.Drop(&g.engineNews, g.engines, i, (*engine).ofNews)
	*e = engine{}
	g.reg.giveBack(i)
}

// fullEngine tells one place of the engine table, and has its maps told again.
func (g *Group) fullEngine(r *rank, i uint32) (int, bool) {
	e := &g.engines[i]
	if e.facts == nil {
		return 0, true
	}
	if !r.fits(record.EngineLen+len(e.facts.id)) || !g.sendEngine(r, e) {
		return 0, false
	}
	g.needMaps(r, e)
	return 1, true
}

// placeOf gives the place of an engine that the ranks may speak of; nil: there is none of that handle, or no longer.
func (g *Group) placeOf(handle uint64) (uint32, *engine) {
	i := record.Handle(handle).Slot()
	if handle>>32 == 0 || int(i) >= len(g.engines) || g.engines[i].facts == nil || g.engines[i].facts.handle != handle {
		return 0, nil
	}
	return i, &g.engines[i]
}

// engineOn takes a rank's word that it is connected to an engine, or no longer.
func (g *Group) engineOn(r *rank, handle uint64, up bool) {
	i, e := g.placeOf(handle)
	if e == nil {
		g.Counters.Repeated++
		return
	}
	if up {
		e.up |= r.bit
	} else {
		e.up &^= r.bit
	}
	g.engineLook(i)
}

// engineDrains takes that an engine takes nothing new; the first rank that sees it says it for all, once a boot.
func (g *Group) engineDrains(handle uint64) {
	i, e := g.placeOf(handle)
	if e == nil {
		g.Counters.Repeated++
		return
	}
	if e.drains != max(e.epoch, 1) {
		e.drains = max(e.epoch, 1)
		e.pend |= pendDrains
		list.Push(&g.engineNews, g.engines, i, (*engine).ofNews)
	}
}

// engineLook: an engine is up when all ranks are connected to it, and down when the first is not.
func (g *Group) engineLook(i uint32) {
	e := &g.engines[i]
	if e.facts == nil {
		return
	}
	up := (e.up|g.lost) == g.all && g.lost != g.all
	switch {
	case up && !e.isUp:
		e.isUp, e.missedAt = true, 0 // the trouble that it was missed in is over
		e.upAt, e.took, e.connects = g.now, g.now.Sub(e.offAt), e.connects+1
		g.times.Connect.Observe(e.took)
		e.pend |= pendUp
	case !up && e.isUp:
		e.isUp, e.offAt = false, g.now
		e.breaks++
		if e.pend&pendUp != 0 { // nobody has heard that it was up
			e.pend &^= pendUp
			return
		}
		e.pend |= pendDown
		e.down = e.tracked
	default:
		return
	}
	list.Push(&g.engineNews, g.engines, i, (*engine).ofNews)
}

// asleep reports that a rank of ours that lives has no memory registered: it reaches nobody, which says nothing about the engines.
func (g *Group) asleep() bool { return g.awake|g.lost != g.all }

// wake takes that a rank has registered its memory. With the last one the time of engines that are not up begins anew.
func (g *Group) wake(r *rank) {
	before := g.asleep()
	g.awake |= r.bit
	if !before || g.asleep() {
		return
	}
	for i := range g.engines[:g.places] {
		if e := &g.engines[i]; e.facts != nil && !e.isUp {
			e.offAt, e.missedAt = g.now, 0 // what was lost was lost by the sleep
		}
	}
}

// blobAt is how far the map that is being told to a rank has been told.
type blobAt struct {
	on     bool
	engine uint32
	at     int // in the ranks that it reaches
	off    int
	scan   uint32 // where to look for the next engine
}

func (g *Group) needMaps(r *rank, e *engine) {
	if len(e.maps) == 0 && !e.died || g.gone&r.bit != 0 {
		return
	}
	if e.need&r.bit == 0 {
		e.need |= r.bit
		r.needN++
	}
	if i := record.Handle(e.facts.handle).Slot(); r.blob.on && r.blob.engine == i {
		r.blob.at, r.blob.off = 0, 0 // from the start
	}
}

// piecesStepMax bounds the pieces of maps that a step tells a rank: 64 KiB.
const piecesStepMax = 16

// tellMaps tells a rank the maps of the engines' ranks that it talks to.
func (g *Group) tellMaps(r *rank) {
	b := &r.blob
	for range piecesStepMax {
		if !b.on && !g.nextMaps(r) {
			return
		}
		e := &g.engines[b.engine]
		reach := e.facts.reach[r.n]
		data := mapOf(e.maps, reach[b.at]) // nothing of one that died
		n := min(len(data)-b.off, record.BlobPieceMax)
		if !r.fits(record.BlobLen + n) {
			return
		}
		rec := g.room(r, record.TagBlob, record.BlobLen+n)
		if rec == nil {
			return
		}
		rank := reach[b.at]
		if e.died {
			rank = uint32(e.why)
		}
		record.PutBlob(rec, record.Blob{
			Kind: record.BlobPeer, Rank: rank, Handle: e.facts.handle, Total: uint32(len(data)), Offset: uint32(b.off),
		}, data[b.off:b.off+n])
		if b.off += n; b.off < len(data) {
			continue
		}
		g.Counters.MapsSent++
		b.off = 0
		if b.at++; b.at == len(reach) || e.died {
			b.on = false
			e.need &^= r.bit
			r.needN--
		}
	}
}

// nextMaps finds the next engine whose maps a rank needs.
func (g *Group) nextMaps(r *rank) bool {
	for range g.engines {
		if r.needN == 0 {
			return false
		}
		i := r.blob.scan
		r.blob.scan = (i + 1) % uint32(len(g.engines))
		if e := &g.engines[i]; e.need&r.bit != 0 {
			r.blob = blobAt{on: true, engine: i, scan: r.blob.scan}
			return true
		}
	}
	r.needN = 0
	return false
}

// View is how the ranks stand with an engine. Stepping thread.
func (g *Group) View(engine uint64) heartbeat.EngineView {
	_, e := g.placeOf(engine)
	if e == nil {
		return heartbeat.EngineView{}
	}
	v := heartbeat.EngineView{State: heartbeat.Idle, Tracked: int(e.tracked), Fixed: int(e.fixed), Breaks: e.breaks}
	if e.strange != 0 && len(e.maps) > 0 && e.tracked > 0 { // the ranks keep it apart for one duration
		v.Strange = g.now.Before(e.since.Add(g.cfg.Duration))
	}
	switch {
	case e.isUp:
		v.State = heartbeat.Connected
	case e.breaks > 0:
		v.State = heartbeat.Broken
	}
	return v
}

// EngineDied is the death wire's word about a reader of ours: it reads no more (L12). What we read from an engine of that name is not
// touched: any peer can name one in a hello that has said none itself, and an owner's end is its own wire's to tell (EngineOver).
func (g *Group) EngineDied(hash, epoch uint64) {
	d, left := record.ReaderDead{Reader: hash, Epoch: epoch}, uint64(0)
	for i := range g.ranks {
		if r := &g.ranks[i]; !g.sayDeath(r, d) && (g.dead|g.lost)&r.bit == 0 {
			left |= r.bit
		}
	}
	if k := g.keep(left, &g.Counters.DeathsUntold); k != nil {
		k.death, k.dead = true, d
	}
	g.send()
}
