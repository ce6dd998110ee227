package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/sim"
	"github.com/kvlease/kvlease/internal/plural"
)

// lanesMax is how many requests of an engine get a lane of their own; the others are counted in its label.
const lanesMax = 16

// chart is the picture of a run: a lane for each engine and one for each of its leases and requests.
type chart struct {
	s     *sim.Schedule
	end   float64
	lanes map[string]*engineLanes
	run   timeline.Run
}

// engineLanes are an engine's own lane and those of what it holds and reads.
type engineLanes struct {
	own   timeline.Lane
	items []*item
}

// item is a lease of an owner or a request of a reader.
type item struct {
	name  string
	marks []timeline.Mark
	open  map[timeline.Kind]float64 // bars that have begun
}

// chartOf draws what the schedule did and the log tells.
func chartOf(s *sim.Schedule, res *sim.Result) *timeline.Chart {
	c := &chart{s: s, lanes: map[string]*engineLanes{}, end: s.Span.Seconds()}
	for _, e := range s.Engines {
		c.lanes[e.ID] = &engineLanes{own: timeline.Lane{Label: e.ID}}
	}
	last := s.Span
	for i := range res.Log {
		if e := &res.Log[i]; e.Kind == sim.Told || e.Kind == sim.Broke {
			last = max(last, e.At)
		}
	}
	c.end = last.Seconds()
	for i := range s.Actions {
		c.action(&s.Actions[i])
	}
	for i := range res.Log {
		c.entry(&res.Log[i])
	}
	return c.chart(res)
}

func (c *chart) item(engine, name string) *item {
	l := c.lanes[engine]
	if l == nil {
		return &item{open: map[timeline.Kind]float64{}}
	}
	for _, k := range l.items {
		if k.name == name {
			return k
		}
	}
	k := &item{name: name, open: map[timeline.Kind]float64{}}
	l.items = append(l.items, k)
	return k
}

// empty reports that there is nothing to draw of it.
func (k *item) empty() bool { return len(k.marks)+len(k.open) == 0 }

func (k *item) begin(kind timeline.Kind, at float64) {
	if _, ok := k.open[kind]; !ok {
		k.open[kind] = at
	}
}

func (k *item) finish(kind timeline.Kind, at float64, text string) {
	from, ok := k.open[kind]
	if !ok {
		return
	}
	delete(k.open, kind)
	k.marks = append(k.marks, timeline.Mark{Kind: kind, From: from, To: at, Text: text})
}

func (k *item) point(kind timeline.Kind, at float64, text string) {
	k.marks = append(k.marks, timeline.Mark{Kind: kind, From: at, Text: text})
}

// faults are the actions that are shown as words above all lanes.
var faults = []sim.Verb{
	sim.Partition, sim.SetLink, sim.Handshake, sim.WireCut, sim.Clock, sim.Poison, sim.Drain, sim.Unregister, sim.Register,
	sim.LoseRank, sim.RemoveEngine, sim.SetPass,
}

// passing are those whose For is how long they last.
var passing = []sim.Verb{sim.Partition, sim.SetLink, sim.Handshake}

func (c *chart) action(a *sim.Action) {
	at := a.At.Seconds()
	l := c.lanes[a.Engine]
	if l == nil {
		return
	}
	until := c.s.Span.Seconds()
	if a.For > 0 {
		until = min(until, (a.At + a.For).Seconds())
	}
	switch a.Do {
	case sim.Suspend:
		l.own.Marks = append(l.own.Marks, timeline.Mark{Kind: timeline.Stopped, From: at, To: until, Text: "machine suspended"})
	case sim.Stop, sim.Stall:
		l.own.Marks = append(l.own.Marks, timeline.Mark{Kind: timeline.Stopped, From: at, To: until, Text: fmt.Sprint(a.Do, " ", rankWord(a.Rank))})
	case sim.Kill:
		l.own.Marks = append(l.own.Marks, timeline.Mark{Kind: timeline.Crash, From: at, Text: "killed " + rankWord(a.Rank)})
		c.moment(at, a.Engine+" killed")
	case sim.Start:
		c.moment(at, a.Engine+" starts")
	case sim.Reset:
		l.own.Marks = append(l.own.Marks, timeline.Mark{Kind: timeline.Reset, From: at, Text: "connection to " + a.Peer + " cut"})
	default:
		if slices.Contains(faults, a.Do) {
			what := strings.TrimSpace(fmt.Sprint(a.Engine, " ", a.Do, " ", a.Peer))
			c.moment(at, what)
			if slices.Contains(passing, a.Do) && a.For > 0 && until > at {
				c.moment(until, what+" ends")
			}
		}
	}
}

func rankWord(rank int) string {
	switch rank {
	case sim.AllRanks:
		return "with all ranks"
	case sim.HostOnly:
		return "host"
	}
	return fmt.Sprint("rank ", rank)
}

func (c *chart) moment(at float64, text string) {
	c.run.Moments = append(c.run.Moments, timeline.Moment{At: at, Text: text})
}

// ends are the marks of a lease's ends.
var ends = map[int]timeline.Kind{
	record.FreedCompleted: timeline.Completed, record.FreedReleased: timeline.Released, record.FreedRevoked: timeline.Revoked,
	record.FreedExpired: timeline.Reclaimed, record.FreedClosed: timeline.Revoked, record.FreedDuplicate: timeline.Revoked,
	record.FreedPoisoned: timeline.Revoked, record.FreedLost: timeline.Revoked,
}

func (c *chart) entry(e *sim.Entry) {
	at := e.At.Seconds()
	switch e.Kind {
	case sim.Broke:
		c.moment(at, "BROKEN: "+e.What)
		if e.Req != "" {
			c.item(e.Engine, e.Req).point(timeline.Broken, at, e.What)
		}
	case sim.Sent:
		if l := c.lanes[e.Peer]; l != nil && (strings.HasPrefix(e.What, "renew") || strings.HasPrefix(e.What, "heartbeat")) {
			l.own.Marks = append(l.own.Marks, timeline.Mark{Kind: timeline.Sent, From: at, Text: "from " + e.Engine})
		}
	case sim.Acted:
		c.acted(e, at)
	case sim.Told:
		c.told(e, at)
	}
}

// acted draws what an engine said and was not refused.
func (c *chart) acted(e *sim.Entry, at float64) {
	verb, rest, _ := strings.Cut(e.What, " ")
	if l := c.lanes[e.Engine]; sim.Verb(verb) == sim.Kill && rest == "" && e.Rank < 0 && l != nil { // what it held and read goes with it
		for _, k := range l.items {
			for kind := range k.open {
				k.finish(kind, at, "")
			}
		}
	}
	if e.Req == "" || strings.HasPrefix(rest, "refused") {
		return
	}
	k := c.item(e.Engine, e.Req)
	switch sim.Verb(verb) {
	case sim.Grant:
		k.begin(timeline.Lease, at)
	case sim.Track:
		k.begin(timeline.Waiting, at)
	case sim.Read:
		k.finish(timeline.Waiting, at, "waits")
		k.begin(timeline.Read, at)
	case sim.Untrack:
		k.finish(timeline.Waiting, at, "given up")
	}
}

// told draws an event that an engine polled.
func (c *chart) told(e *sim.Entry, at float64) {
	if e.Req == "" {
		return
	}
	k := c.item(e.Engine, e.Req)
	switch e.Event {
	case record.EvFreed:
		k.finish(timeline.Lease, at, "lease")
		k.point(ends[e.Status], at, e.What)
	case record.EvReadDone:
		k.finish(timeline.Read, at, "read")
	case record.EvReadFailed:
		if from, ok := k.open[timeline.Read]; ok {
			delete(k.open, timeline.Read)
			k.marks = append(k.marks, timeline.Mark{Kind: timeline.Waiting, From: from, To: at, Text: "reads"})
		}
		k.point(timeline.Refused, at, e.What)
		if strings.Contains(e.What, "held") {
			k.begin(timeline.Aside, at)
		}
	case record.EvBlocksBack:
		k.finish(timeline.Aside, at, "blocks aside")
	case record.EvLeaseGone:
		k.finish(timeline.Waiting, at, "waits")
		k.point(timeline.Told, at, e.What)
	}
}

// chart puts the lanes below each other.
func (c *chart) chart(res *sim.Result) *timeline.Chart {
	for _, e := range c.s.Engines {
		l := c.lanes[e.ID]
		items := slices.DeleteFunc(slices.Clone(l.items), (*item).empty) // expected and cancelled, refused, rejected
		shown := items[:min(len(items), lanesMax)]
		if rest := len(items) - len(shown); rest > 0 {
			l.own.Label += fmt.Sprintf(" (%d more)", rest)
		}
		c.run.Lanes = append(c.run.Lanes, l.own)
		for _, k := range shown {
			for kind := range k.open {
				k.finish(kind, c.end, "")
			}
			c.run.Lanes = append(c.run.Lanes, timeline.Lane{Label: e.ID + "  " + short(k.name), Marks: k.marks})
		}
	}
	slices.SortStableFunc(c.run.Moments, func(a, b timeline.Moment) int { return cmp.Compare(a.At, b.At) })
	name := c.s.Name
	if name == "" {
		name = fmt.Sprintf("seed %d", c.s.Seed)
	}
	story := fmt.Sprintf("%s granted, %s accepted, %s compared.", plural.Counted(res.Granted, "lease", "leases"), plural.Counted(res.Done, "read", "reads"), plural.Counted(res.Compared, "block", "blocks"))
	if n := len(res.Violations); n > 0 {
		story += fmt.Sprintf(" BROKEN: %s.", res.Violations[0])
		if n > 1 {
			story += fmt.Sprintf(" And %d more.", n-1)
		}
	}
	return &timeline.Chart{
		Title: "kvlease sim: " + name, Subtitle: "Virtual time. A lane for each engine with the heartbeats that are sent to it, below it one for each of its leases and requests.",
		Scenes: []timeline.Scene{{Title: name, Story: story, Runs: []timeline.Run{c.run}}},
	}
}

func short(s string) string {
	if len(s) > 14 {
		return s[:13] + "…"
	}
	return s
}
