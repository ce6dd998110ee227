// Package metrics shows stats pages (package watch) as Prometheus metrics: that of a context in its own process, or all of a machine.
// It reads the page, never the plane, so a scrape takes nothing from a step: no lock, no memory of its thread, not even its attention.
//
// Label sets stay bounded whatever peers call themselves: of each context at most 256 readers and 256 remote engines by name, the rest
// under "other"; no request ids. Names of metrics are ours, never a page's, so a page of somebody else cannot break a scrape.
package metrics

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/kvlease/kvlease/dataplane/watch"
)

const (
	remotesMax = 256 // remote engines by name; of readers the page has as many
	shownMax   = 256 // contexts of a machine that live, a scrape, and as many that are gone
	pagesMax   = 4096
	valuesMax  = 2048
)

// Collector turns pages into metrics when it is asked.
//
// Threads: any; one scrape at a time, the others wait.
type Collector struct {
	mu       sync.Mutex
	own      *watch.Page // of this process; nil: all pages in dir
	dir      string
	remains  *watch.Remains
	ended    bool
	snap     watch.Snapshot
	registry *prometheus.Registry
}

// Own shows the page of one context, which stays the caller's to close, once nothing is gathered any more.
func Own(page *watch.Page) *Collector { return newCollector(&Collector{own: page}) }

// Machine shows all pages in a folder that this user may read. A page whose process is gone is shown as down.
func Machine(dir string) *Collector {
	return newCollector(&Collector{dir: dir, remains: watch.NewRemains()})
}

func newCollector(c *Collector) *Collector {
	c.registry = prometheus.NewRegistry()
	c.registry.MustRegister(c)
	return c
}

// Gather gives all metrics of now. What could be gathered comes beside an error about the rest.
func (c *Collector) Gather() ([]*dto.MetricFamily, error) { return c.registry.Gather() }

// Describe names nothing: which labels there are depends on the pages.
func (c *Collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the pages and sends what they hold.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own != nil {
		err := ErrClosed
		if !c.ended {
			err = c.read(c.own)
		}
		if err != nil {
			out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
			return
		}
		e := emitter{out: out, snap: &c.snap, base: []string{clean(c.snap.Engine), c.snap.Role, strconv.Itoa(c.snap.Rank)}}
		e.context()
		return
	}
	c.machine(out)
}

// end waits for a look at the page that is under way, and lets none follow: the page may be closed then.
func (c *Collector) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}

// read takes a page's state. One that changes while it is read is tried again.
func (c *Collector) read(p *watch.Page) (err error) {
	for range 3 {
		if err = p.Read(&c.snap); !errors.Is(err, watch.ErrTorn) {
			break
		}
	}
	return err
}

// machine walks the pages of a folder.
func (c *Collector) machine(out chan<- prometheus.Metric) {
	paths, err := watch.List(c.dir)
	if err != nil {
		out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	counts := map[string]float64{}
	for _, state := range pageStates {
		counts[state] = 0
	}
	c.remains.Begin()
	shown, dead := map[string]bool{}, [][]string{}
	for i, path := range paths {
		if i >= pagesMax {
			counts["left_out"]++
			continue
		}
		base, err := c.page(path)
		labels := strings.Join(base, "\x00")
		switch {
		case errors.Is(err, fs.ErrNotExist): // it was just closed
		case errors.Is(err, fs.ErrPermission):
			counts["refused"]++
		case err != nil:
			counts["unreadable"]++
		case !c.remains.Shown(path, &c.snap):
			counts["old"]++
		case !c.snap.Alive:
			dead = append(dead, base)
		case shown[labels]:
			counts["twice"]++
		case counts["alive"] >= shownMax:
			counts["left_out"]++
		default:
			shown[labels] = true
			counts["alive"]++
			e := emitter{out: out, snap: &c.snap, machine: true, base: base}
			e.context()
		}
	}
	for _, base := range dead { // what lives comes first
		labels := strings.Join(base, "\x00")
		if shown[labels] {
			counts["twice"]++
			continue
		}
		if counts["dead"] >= shownMax {
			counts["left_out"]++
			continue
		}
		shown[labels] = true
		counts["dead"]++
		e := emitter{out: out, machine: true, base: base}
		e.put("up", 0)
	}
	for state, n := range counts {
		out <- constant(descOf("pages", nil, "state"), prometheus.GaugeValue, n, state)
	}
}

// pageStates are what becomes of a page.
var pageStates = [...]string{"alive", "dead", "old", "twice", "refused", "unreadable", "left_out"}

// page reads one page of the machine, and gives the values of machineLabels.
func (c *Collector) page(path string) (base []string, err error) {
	p, err := watch.Open(path)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if err := c.read(p); err != nil {
		return nil, err
	}
	h := &c.snap.Head
	// The number in the file's name, since contexts of two namespaces may share the one in the page. Two users may share both, each in a
	// container of his own.
	context := strings.TrimPrefix(filepath.Ext(path), ".")
	return []string{clean(h.Engine), clean(h.Role), strconv.Itoa(h.Rank), strconv.Itoa(h.PID), context}, nil
}

// baseLabels are on every metric of a context; the machine's on those of a machine, too.
var (
	baseLabels    = []string{"engine", "role", "rank"}
	machineLabels = []string{"engine", "role", "rank", "pid", "context"}
)

// descs by kind of labels and name: made once, since each is hashed.
var descs sync.Map

type descKey struct {
	name    string
	machine int
}

// descOf gives the description of a metric of the table; base nil: it belongs to no context.
func descOf(name string, base []string, labels ...string) *prometheus.Desc {
	key := descKey{name, len(base)}
	if d, ok := descs.Load(key); ok {
		return d.(*prometheus.Desc)
	}
	d := prometheus.NewDesc("kvlease_"+name, helpOf(name), append(append([]string{}, base...), labels...), nil)
	descs.Store(key, d)
	return d
}

func constant(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) prometheus.Metric {
	m, err := prometheus.NewConstMetric(d, kind, v, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(d, err)
	}
	return m
}

// clean makes a text of a page one that may stand in a label, and on the terminal of whoever looks at them by hand: names are what peers
// call themselves. It is how kvlease top and kvlease dump write them.
func clean(s string) string {
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
