package capacity

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
)

// tally is what a run counts.
type tally struct {
	grants       uint64
	freedBy      [16]uint64 // by record.Freed*; 0: with its process
	blockSeconds float64    // under leases
	wasted       float64    // of these, held when nobody would read any more
	handBack     float64    // of these, from the end of the read to the end of the lease
	held         holdings

	lostBy     [causesN]uint64
	lostTokens uint64
	tokens     uint64    // computed
	failedBy   [8]uint64 // reads, by record.Read*
	toldGone   uint64    // requests that heard, while they waited, that their lease was over
	atRisk     uint64

	refused    uint64 // requests that found their P's cache full
	refusedFor hist   // how long they waited for it
	crowded    uint64 // times that no D had room

	crashesP, crashesD, stalled uint64
	reclaim                     hist // from a reader's crash to the end of a lease
	first, whole                hist // from the arrival to the read, to the end

	cpu     [2]cpu // owners, readers
	beats   heartbeat.Counters
	samples samples
}

// holdings is what is under leases now.
type holdings struct {
	n              int
	blocks, wasted int64
}

func (h *holdings) add(t *tenure) { h.n++; h.blocks += int64(t.blocks) }

func (h *holdings) remove(t *tenure) {
	h.n--
	h.blocks -= int64(t.blocks)
	if t.dead != 0 {
		h.wasted -= int64(t.blocks)
	}
}

func (h *holdings) waste(t *tenure) { h.wasted += int64(t.blocks) }

// cpu is what steps took, by a clock outside the plane: that of the thread, since other processes want the cores, too.
type cpu struct {
	steps, timed uint64
	all, most    time.Duration // of those timed
	beats        uint64        // messages of heartbeats in all steps
	// Timed steps that did nothing but heartbeats, the messages in them, and steps that did less: took the rows that answer, or looked.
	pure, rest           time.Duration
	pureBeats, restSteps uint64
}

// total is what all steps took, by those that were timed.
func (c *cpu) total() time.Duration {
	return time.Duration(float64(c.all) / float64(max(c.timed, 1)) * float64(c.steps))
}

// ofBeats is at most what heartbeats took: as if none had shared a step with other work.
func (c *cpu) ofBeats() time.Duration {
	if c.pureBeats == 0 {
		return 0
	}
	each := float64(c.pure) / float64(c.pureBeats)
	if c.restSteps > 0 {
		each += float64(c.rest) / float64(c.restSteps)
	}
	return min(time.Duration(each*float64(c.beats)), c.total())
}

// marks are counters at an engine's last step.
type marks struct{ work, beats, data, fences, ends uint64 }

// count puts the time of a step where it belongs; negative: it was not timed.
func (w *world) count(e *engine, took time.Duration) {
	m := marks{work: e.plane.Work()}
	side := &w.cpu[0]
	if int(e.index) < w.cfg.P {
		m.beats = e.plane.Counters.BatchesReceived
	} else {
		side = &w.cpu[1]
		c := e.plane.Tracker.Counters()
		m.beats, m.ends = c.BeatBatches, c.EndBatches
		m.data, m.fences = e.plane.Reads.Counters.DataPosts, e.plane.Reads.Counters.FencePosts
	}
	was := e.seen
	e.seen = m
	n := m.beats - was.beats
	side.steps++
	side.beats += n
	if took < 0 {
		return
	}
	side.timed++
	side.all += took
	side.most = max(side.most, took)
	other := m.work - was.work
	if side == &w.cpu[0] {
		other -= n // each is a notification, too
	}
	if other != 0 || m.data != was.data || m.fences != was.fences || m.ends != was.ends {
		return
	}
	if n > 0 {
		side.pure += took
		side.pureBeats += n
	} else {
		side.rest += took
		side.restSteps++
	}
}

// takeCounters adds the counters of an engine that ends.
func (w *world) takeCounters(e *engine) {
	if int(e.index) < w.cfg.P {
		return
	}
	c := e.plane.Tracker.Counters()
	w.beats.BeatBatches += c.BeatBatches
	w.beats.BeatBytes += c.BeatBytes
	w.beats.Beats += c.Beats
	w.beats.Rows += c.Rows
	w.beats.Probes += c.Probes
	w.beats.FixedOver += c.FixedOver
	w.beats.Loads += c.Loads
	w.beats.Heals += c.Heals
}

// samples are what was under leases over time. When there are many every second one goes, and the next ones come half as often.
type samples struct {
	every time.Duration
	list  []Sample
}

const samplesMax = 512

func (w *world) sample() {
	s := &w.samples
	if s.every == 0 {
		s.every = time.Second
	}
	s.list = append(s.list, Sample{Span(w.now.Sub(start)), w.held.blocks, w.held.wasted})
	if len(s.list) == samplesMax {
		for k := range samplesMax / 2 {
			s.list[k] = s.list[2*k]
		}
		s.list = s.list[:samplesMax/2]
		s.every *= 2
	}
	next := time.Duration(s.list[len(s.list)-1].At) + s.every
	w.at(start.Add(next), happening{kind: evSample})
}

// checkRest is what must be so when everything has come to its end.
func (w *world) checkRest() {
	var ended uint64
	for _, n := range w.ends {
		ended += n
	}
	if ended != w.arrived {
		w.violated("every request ends in exactly one way", "", "%d of %d have", ended, w.arrived)
	}
	var freed uint64
	for _, n := range w.freedBy {
		freed += n
	}
	if freed != w.grants {
		w.violated("every grant ends once", "", "%d ends of %d grants", freed, w.grants)
	}
	if w.held.n != 0 || w.held.blocks != 0 || w.held.wasted != 0 {
		w.violated("nothing is held at the end", "", "%+v", w.held)
	}
	for _, p := range w.ps {
		if !p.alive {
			continue
		}
		if l := p.plane.Leases; p.free != w.cfg.CacheBlocks || p.held != 0 || l.Held() != 0 || l.Ending() != 0 || l.Blocks() != 0 {
			w.violated("every block is free at the end", p.id, "%d of %d free, %d leases held, %d ending", p.free, w.cfg.CacheBlocks, l.Held(), l.Ending())
		}
	}
	for _, d := range w.ds {
		if !d.alive {
			continue
		}
		if g := d.plane.Tracker.Gauges(); d.all.N != 0 || g.Tracked != 0 || g.Owed != 0 || g.Reading != 0 {
			w.violated("nothing is tracked at the end", d.id, "%d requests, %+v", d.all.N, g)
		}
	}
}
