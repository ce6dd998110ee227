package core

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	_ "embed"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/histogram"
	"github.com/kvlease/kvlease/dataplane/internal/stats"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// pageEvery is the time between two states of the stats page, those aside with which a context comes to rest, sleeps or wakes: of step time, so
// a context that stands still writes none, and its page says since when.
const pageEvery = 100 * time.Millisecond

// statsPage is how a context shows itself (package watch). Its values are what Stats tells: the same structs, whose fields are found
// once, by reflection; a step only follows pointers.
//
// Threads: the step's, under the core's lock; side has its own.
type statsPage struct {
	out   *watch.Writer
	at    clock.Instant
	words []word
	hists []*histogram.Histogram
	live  watch.Live
	side  *pageSide

	gauges  gauges
	step    histogram.Histogram // how long steps take
	boot    clock.Instant       // CLOCK_BOOTTIME of began
	began   time.Time
	regions *Region // those whose block length is known
	walk    engineWalk
	reader  watch.ReaderRow
	alive   bool   // the last step has left something to do
	traffic uint64 // what had been done by the state that was shown last
	hidden  bool   // its folder could not hold it: nobody else sees it
}

//go:generate env KVLEASE_UPDATE=1 go test -count=1 -run TestTheHelpTextsOfThePageAreTheCommentsOfItsFields .

//go:embed page_help.txt
var pageHelpText string

// pageHelp says what the values are: the comments of the fields, which go generate collects.
var pageHelp = func() map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(pageHelpText) {
		if name, help, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); ok {
			all[name] = help
		}
	}
	return all
}()

// pageList collects what a page shows.
type pageList struct {
	descs []watch.Desc
	words []word
}

// add takes the fields of *s under snake case names. Of an array each element is a value, labelled with its number. Among counters what is
// no uint64, or the most of something, is a gauge.
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
	if f.Kind() != reflect.Uint64 || strings.Contains(name, "_max_") {
		kind = watch.Gauge
	}
	unit := ""
	for _, u := range [...]string{"ns", "ms", "bytes"} {
		if strings.HasSuffix(name, "_"+u) {
			unit = u
		}
	}
	help := name
	if rest, ok := strings.CutPrefix(name, "rank_"); ok { // rank_7_held: once for all ranks
		if _, rest, ok = strings.Cut(rest, "_"); ok {
			help = "rank_" + rest
		}
	}
	l.descs = append(l.descs, watch.Desc{Name: name, Label: label, Kind: kind, Unit: unit, Help: pageHelp[help]})
	l.words = append(l.words, wordAt(f))
}

// values are those that the step shows.
func (c *Core) values(g *gauges) *pageList {
	l := &pageList{}
	l.add("", &g.own, watch.Gauge)
	if c.hosted != nil {
		l.add("", &c.hosted.group.Counters, watch.Counter)
		l.add("group_", &g.group, watch.Gauge)
		for n := range g.ranks {
			l.add(fmt.Sprintf("rank_%d_", n), &g.ranks[n], watch.Counter)
		}
	} else {
		l.add("", &g.plane, watch.Gauge)
		l.add("", &c.plane.Counters, watch.Counter)
		l.add("lease_", &c.leases.Counters, watch.Counter)
		l.add("beat_", c.tracker.CountersAt(), watch.Counter)
		l.add("tracker_", &g.tracker, watch.Gauge)
		l.add("read_", &c.reads.Counters, watch.Counter)
		l.add("reads_", &g.reads, watch.Gauge)
	}
	if c.ranked != nil {
		l.add("", &g.rank, watch.Gauge)
		l.add("link_", &c.ranked.link.Counters, watch.Counter)
		l.add("stream_", &g.stream, watch.Counter)
	}
	if c.pump != nil {
		l.add("pump_", &c.pump.counters, watch.Counter)
		l.add("pump_", &g.pump, watch.Gauge)
	}
	return l
}

// distributions are the histograms, with what they are.
func (c *Core) distributions(p *statsPage) (list []watch.Desc) {
	add := func(h *histogram.Histogram, name, unit, help string) {
		list = append(list, watch.Desc{Name: name, Unit: unit, Help: help})
		p.hists = append(p.hists, h)
	}
	const s = "seconds"
	add(&p.step, "step_time", s, "Length of a step, and of its wait for the context's lock.")
	if c.hosted != nil {
		t := c.hosted.group.TimesAt()
		add(&t.Connect, "handshake_time", s, "From when an engine was known not to be connected on every rank to when it was.")
		add(&t.Life, "lease_life", s, "From the grant of a lease to its end on the last rank.")
		add(&t.Drained, "drain_time", s, "From kvl_grant or kvl_track to the step that takes its record.")
		add(c.hosted.group.DepthAt(), "ring_depth", "bytes", "Bytes that a step found in a producer's ring.")
		return list
	}
	leases, beats := &c.leases.Times, c.tracker.TimesAt()
	add(&leases.Slack, "slack", s, "Time that a renewal found left to a lease's deadline; of a stock reader by its own heartbeats.")
	add(&leases.StallGap, "stall", s, "Gaps between steps longer than stall_gap, of a context with something to do.")
	add(&leases.Life, "lease_life", s, "From the grant of a lease to its end.")
	add(&leases.DeathFree, "reclaim_time", s, "From the last heartbeat of a dead reader to each end of a lease that its death brought.")
	add(&beats.BeatLate, "beat_late", s, "From when a round of heartbeats was due to the step that begins it.")
	add(&beats.Connect, "handshake_time", s, "From when an engine was known to be without a connection to when it had one.")
	add(&beats.Read, "read_time", s, "From a read's first post to its outcome.")
	add(&c.reads.FenceTime, "fence_time", s, "From the arrival of a source's data to the word of its fence; 0 where one step saw both.")
	add(&c.plane.Times.Drained, "drain_time", s, "From kvl_grant or kvl_track to the step that takes its record.")
	add(&c.plane.Times.Entries, "batch_size", "requests", "Requests named in a message of heartbeats, completions or releases.")
	if c.ranked == nil {
		add(c.plane.DepthAt(), "ring_depth", "bytes", "Bytes that a step found in a producer's ring.")
	}
	return list
}

// openPage makes the page. A context opens without one if there is no memory for it.
func (c *Core) openPage() {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &statsPage{began: time.Now()}
	p.boot = Now()
	p.walk.c, p.walk.p = c, p
	if c.hosted != nil {
		p.gauges.ranks = make([]group.RankStats, c.hosted.group.Ranks())
	}
	l := c.values(&p.gauges)
	p.words = l.words
	p.side = newPageSide(c)
	cfg := c.cfg
	head := watch.Head{
		Context: int(c.number), Library: Version, Role: cfg.Role, Engine: cfg.EngineID, Hash: wire.EngineHash([]byte(cfg.EngineID)), Rank: cfg.Rank(),
		TP: cfg.TPSize, PP: cfg.PPSize, Drive: cfg.Drive, Provider: cfg.Transport,
		Duration: cfg.Duration, Interval: cfg.Interval(), Extension: cfg.Extension(), Opened: c.clock(),
	}
	if cfg.Role != "engine" {
		head.Carrier = cfg.Carrier
	}
	out, why, err := watch.New(&watch.Spec{
		Dir: cfg.StatsPage, Head: head, Step: l.descs, Side: p.side.list.descs, Histograms: c.distributions(p),
		Readers: watch.ReadersMax, Remotes: min(cfg.EnginesMax, watch.RemotesMax),
	})
	if c.pageErr = why; err != nil {
		c.pageErr = err
	}
	if c.pageErr != nil && c.cfg.StatsPage != "" {
		c.log.side().Put(log.PageMissing, c.clock(), log.Entry{Text: c.pageErr.Error()})
	}
	if err != nil {
		return
	}
	p.out, p.hidden = out, why != nil
	p.tables(c)
	c.page = p
	c.show(head.Opened)
	p.side.start(out)
}

// tables says where kvlease dump finds the leases.
func (p *statsPage) tables(c *Core) {
	t := &p.live.Tables
	t[watch.TableControl] = record.PlaceOf(controlOf(c.mem.Control))
	t[watch.TableSlots] = record.PlaceOf(c.mem.Slots)
	if c.leases == nil {
		t[watch.TableLongIDs] = c.hosted.group.LongIDs()
		return
	}
	_, rows := record.Board(c.mem.Board)
	l := c.leases.Places()
	t[watch.TableRows] = record.PlaceOf(rows[:len(c.mem.Slots)])
	t[watch.TableHot], t[watch.TableGranted], t[watch.TableIndex], t[watch.TableLongIDs] = l.Hot, l.Granted, l.Index, l.LongIDs
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

// PagePath is the file of the stats page; empty and why: nobody else sees it.
func (c *Core) PagePath() (path string, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.page == nil {
		return "", c.pageErr
	}
	return c.page.out.Path(), c.pageErr
}

// closePage shows the last state and takes the page away. Under the lock.
func (c *Core) closePage() {
	p := c.page
	if p == nil {
		return
	}
	p.side.halt()
	p.live.Closed = true
	c.show(max(c.now, p.at))
	p.out.Close()
	c.page = nil
}
