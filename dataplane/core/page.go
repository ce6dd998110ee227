package core

import (
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/internal/stats"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// pageEvery is the least time between two states of the stats page: of step time, so a context that stands still writes none, and its
// page says since when.
const pageEvery = 100 * time.Millisecond

// statsPage is how a context shows itself (package watch). What the page holds is what Stats tells: the same structs, whose fields are
// found once, by reflection; a step only follows pointers.
//
// Threads: the step's, under the core's lock.
type statsPage struct {
	out   *watch.Writer
	why   error // the folder could not hold it: nobody else sees it
	at    clock.Instant
	words []word
	live  watch.Live

	own     ownGauges
	tracker heartbeat.Gauges
	reads   read.Gauges
	stream  stream.Counters
	group   group.Gauges
	ranks   []group.RankStats
}

// ownGauges are what Stats finds itself: names as there.
type ownGauges struct {
	Held, HeldBlocks, Lingering, Expected         int
	Alive, ReadsOpen                              int
	LoadMaxNs                                     uint64
	Poisoned, Healthy                             int
	KvLeaseDurationMs, IntervalMs, ExtensionMs    int64
	StreamState, Misfit                           int
	MapsLoaded, MapsRefused                       uint64
	PumpClass                                     int
	StatsPageFailed                               uint64
	StatsPageShown                                int
}

// pageList collects what a page shows.
type pageList struct {
	descs []watch.Desc
	words []word
}

// add takes the fields of *s under snake case names.
func (l *pageList) add(prefix string, s any, kind watch.Kind) {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		f := v.Field(i)
		if !v.Type().Field(i).IsExported() {
			continue
		}
		name := prefix + stats.Name(v.Type().Field(i).Name)
		if f.Kind() != reflect.Array {
			l.word(name, "", f, kind)
			continue
		}
		for k := range f.Len() {
			l.word(name, strconv.Itoa(k), f.Index(k), kind)
		}
	}
}

func (l *pageList) word(name, label string, f reflect.Value, kind watch.Kind) {
	l.descs = append(l.descs, watch.Desc{Name: name, Label: label, Kind: kind})
	l.words = append(l.words, wordAt(f))
}

// openPage makes the page. A context opens without one if there is no memory for it.
func (c *Core) openPage() {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &statsPage{}
	var l pageList
	l.add("", &p.own, watch.Gauge)
	if c.hosted != nil {
		p.ranks = make([]group.RankStats, c.hosted.group.Ranks())
		l.add("", &c.hosted.group.Counters, watch.Counter)
		l.add("group_", &p.group, watch.Gauge)
		for n := range p.ranks {
			l.add(fmt.Sprintf("rank_%d_", n), &p.ranks[n], watch.Gauge)
		}
	} else {
		l.add("", &c.plane.Counters, watch.Counter)
		l.add("lease_", &c.leases.Counters, watch.Counter)
		l.add("beat_", c.tracker.CountersAt(), watch.Counter)
		l.add("tracker_", &p.tracker, watch.Gauge)
		l.add("read_", &c.reads.Counters, watch.Counter)
		l.add("reads_", &p.reads, watch.Gauge)
	}
	if c.ranked != nil {
		l.add("link_", &c.ranked.link.Counters, watch.Counter)
		l.add("stream_", &p.stream, watch.Counter)
	}
	if c.pump != nil {
		l.add("pump_", &c.pump.counters, watch.Counter)
	}
	p.words = l.words
	cfg := c.cfg
	head := watch.Head{
		Context: int(c.number), Library: Version, Role: cfg.Role, Engine: cfg.EngineID, Hash: wire.EngineHash([]byte(cfg.EngineID)), Rank: cfg.Rank(),
		TP: cfg.TPSize, PP: cfg.PPSize, Drive: cfg.Drive, Provider: cfg.Transport,
		Duration: cfg.Duration, Interval: cfg.Interval(), Extension: cfg.Extension(), Opened: c.clock(),
	}
	if cfg.Role != "engine" {
		head.Carrier = cfg.Carrier
	}
	var err error
	p.out, p.why, err = watch.New(&watch.Spec{Dir: cfg.StatsPage, Head: head, Step: l.descs, Readers: watch.ReadersMax, Remotes: min(cfg.EnginesMax, watch.RemotesMax)})
	if err != nil {
		c.pageErr = err
		return
	}
	c.pageErr = p.why
	c.page = p
	c.show(head.Opened)
}

// show writes a state of the page. Under the lock.
func (c *Core) show(now clock.Instant) {
	p := c.page
	p.at = now
	g := &p.own
	g.KvLeaseDurationMs, g.IntervalMs, g.ExtensionMs = c.cfg.Duration.Milliseconds(), c.cfg.Interval().Milliseconds(), c.cfg.Extension().Milliseconds()
	if c.hosted != nil {
		gr := c.hosted.group
		g.Held, g.HeldBlocks, g.Alive = gr.Held(), int(gr.Blocks()), gr.Alive()
		p.group = gr.Gauges()
		for n := range p.ranks {
			p.ranks[n] = gr.Rank(n)
		}
	} else {
		g.Held, g.HeldBlocks, g.Lingering, g.Expected = c.leases.Held(), int(c.leases.Blocks()), c.leases.Lingering(), c.leases.Expected()
		g.Alive, g.ReadsOpen = c.plane.Alive(), c.reads.Open()
		g.LoadMaxNs = uint64(c.agent.longest)
		p.tracker, p.reads = c.tracker.Gauges(), c.reads.Gauges()
	}
	p.live.Stepped, p.live.Epoch = now, c.mem.Epoch
	values := p.out.Values()
	for i, w := range p.words {
		values[i] = w.load()
	}
	p.out.Publish(&p.live)
}

// Page opens the context's own stats page, for the process itself. The caller closes it.
func (c *Core) Page() (*watch.Page, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.page != nil:
		return c.page.out.Page()
	case c.pageErr != nil:
		return nil, fmt.Errorf("%w: no stats page: %w", ErrUnavailable, c.pageErr)
	}
	return nil, fmt.Errorf("%w: no stats page", ErrClosed)
}

// closePage shows the last state and takes the page away. Under the lock.
func (c *Core) closePage() {
	if c.page == nil {
		return
	}
	c.page.live.Closed = true
	c.show(max(c.now, c.page.at))
	c.page.out.Close()
	c.page = nil
}
