package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kvlease/kvlease/internal/plural"
)

// Limits of an answer.
const (
	bodyMax    = 64 << 20
	enginesMax = 4096 // contexts of one URL
	fetchMax   = 5 * time.Second
)

// remote is a metrics URL.
type remote struct {
	url     string
	client  *http.Client
	began   time.Time
	most    int64 // bytes of an answer
	engines int   // contexts of an answer
}

// ParseURL completes what a user has typed: HOST:PORT is http, and its metrics are at /metrics.
func ParseURL(text string) (string, error) {
	full := text
	if !strings.Contains(text, "://") {
		full = "http://" + text
	}
	const wanted = "wanted: HOST:PORT, as 10.0.0.1:9478 or [fd00::1]:9478, or a URL of http or https"
	u, err := url.Parse(full)
	switch {
	case err != nil:
		return "", fmt.Errorf("--url %q is none, %s", text, wanted)
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("--url %q is of %s, %s", text, u.Scheme, wanted)
	case u.Hostname() == "":
		return "", fmt.Errorf("--url %q names no host, %s", text, wanted)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/metrics"
	}
	return u.String(), nil
}

func newRemote(url string) *remote {
	return &remote{url: url, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, ResponseHeaderTimeout: fetchMax}}, began: time.Now(), most: bodyMax, engines: enginesMax}
}

func (r *remote) close() { r.client.CloseIdleConnections() }

// read asks for the metrics. What does not answer is shown as one that is missing.
func (r *remote) read(ctx context.Context) (list []*Engine, notes []string) {
	ctx, cancel := context.WithTimeout(ctx, fetchMax)
	defer cancel()
	families, err := r.fetch(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v", fetchMax)
	}
	if err != nil {
		return []*Engine{{Source: r.url, Name: r.url, key: r.url, why: err.Error()}}, nil
	}
	list, left := r.contexts(families)
	if len(list) == 0 {
		return []*Engine{{Source: r.url, Name: r.url, key: r.url, why: "it answers, and has no metrics of kvlease"}}, nil
	}
	if left > 0 {
		notes = []string{fmt.Sprintf("%s: %s left out, this shows %d", r.url, plural.Counted(left, "context is", "contexts are"), r.engines)}
	}
	return list, notes
}

func (r *remote) fetch(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	resp, err := r.client.Do(req)
	if err != nil {
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err // without the URL, which stands beside it
		}
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s", resp.Status)
	}
	body := io.LimitedReader{R: resp.Body, N: r.most}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&body)
	switch {
	case body.N <= 0:
		return nil, fmt.Errorf("its answer is longer than %d MiB", r.most>>20)
	case err != nil:
		return nil, fmt.Errorf("its answer is no text of Prometheus: %w", err)
	}
	return families, nil
}

// labels of a metric.
func labels(m *dto.Metric) map[string]string {
	all := make(map[string]string, len(m.Label))
	for _, l := range m.Label {
		all[l.GetName()] = l.GetValue()
	}
	return all
}

func valueOf(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	}
	return m.Untyped.GetValue()
}

// number is a value as a count; what is none is 0.
func number(v float64) uint64 {
	if !(v >= 0) || v >= 1<<63 {
		return 0
	}
	return uint64(v)
}

func seconds(v float64) time.Duration {
	const most = 1e9
	if !(v > -most && v < most) {
		return 0
	}
	return time.Duration(v * 1e9)
}

func secondsOf(v float64) *time.Duration {
	d := seconds(v)
	return &d
}

// parsed collects the contexts of one answer.
type parsed struct {
	url   string
	at    time.Duration
	list  []*Engine
	most  int             // of them
	left  map[string]bool // those past it
	index map[string]*Engine
	peers map[string]int // by context and peer: place in its Peers
}

// contexts are those of an answer, at most so many, and how many it has beyond.
func (r *remote) contexts(families map[string]*dto.MetricFamily) (list []*Engine, left int) {
	p := &parsed{url: r.url, at: time.Since(r.began), most: r.engines, left: map[string]bool{}, index: map[string]*Engine{}, peers: map[string]int{}}
	for _, name := range takenNames { // in one order, so that the same contexts are left out each time
		take, f := taken[name], families["kvlease_"+name]
		if f == nil {
			continue
		}
		for _, m := range f.Metric {
			l := labels(m)
			if e := p.engine(l); e != nil {
				take(p, e, l, valueOf(m))
			}
		}
	}
	for _, e := range p.list {
		e.Peers = slices.DeleteFunc(e.Peers, func(k Peer) bool { return k.Leases == 0 && k.Kind == Holds && (k.unnamed || k.Name == others) })
		if e.Role == "rank" { // what is the host's to say is not among the rank's
			for i := range e.Peers {
				if k := &e.Peers[i]; k.Kind == Holds {
					e.Leases, e.Blocks, e.Bytes = e.Leases+k.Leases, e.Blocks+k.Blocks, e.Bytes+k.Bytes
				}
			}
		}
	}
	return p.list, len(p.left)
}

// engine finds the context that a metric is of. An engine's own metrics have no process number; those of kvlease export have.
func (p *parsed) engine(l map[string]string) *Engine {
	role, ok := l["role"]
	if !ok {
		return nil
	}
	key := strings.Join([]string{p.url, l["engine"], role, l["rank"], l["pid"], l["context"]}, " ")
	if e := p.index[key]; e != nil {
		return e
	}
	if len(p.list) >= p.most {
		p.left[key] = true
		return nil
	}
	rank, _ := strconv.Atoi(l["rank"])
	pid, _ := strconv.Atoi(l["pid"])
	context, _ := strconv.Atoi(l["context"])
	e := &Engine{
		Source: p.url, Name: l["engine"], Role: role, Rank: rank, Ranks: 1, PID: pid, Context: context, key: key, at: p.at, alive: true, ofRank: role == "rank",
	}
	p.index[key] = e
	p.list = append(p.list, e)
	return e
}

// peer finds the peer of a context that a metric is of.
func (p *parsed) peer(e *Engine, kind Kind, name, hash, more string) *Peer {
	key := e.key + " " + string(kind) + " " + name + " " + hash + " " + more
	i, ok := p.peers[key]
	if !ok {
		i = len(e.Peers)
		p.peers[key] = i
		switch {
		case more == "unnamed":
			name = nobody
		case more == "other":
			name = others
		case name == hash:
			name = "" // another engine may know it
		}
		e.Peers = append(e.Peers, Peer{Name: name, Hash: hash, Kind: kind, key: key, unnamed: more == "unnamed"})
	}
	return &e.Peers[i]
}

type taker func(p *parsed, e *Engine, l map[string]string, v float64)

// taken are the metrics that are shown, without kvlease_, and what becomes of them.
var taken = map[string]taker{
	"up": func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.alive = v != 0 },
	"engine_info": func(_ *parsed, e *Engine, l map[string]string, _ float64) {
		tp, _ := strconv.Atoi(l["tp"])
		pp, _ := strconv.Atoi(l["pp"])
		e.Hash, e.Carried, e.Drive, e.Library, e.Ranks = l["hash"], l["transport"], l["drive"], l["version"], max(tp, 1)*max(pp, 1)
	},
	"healthy":                    func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.sick = v == 0 },
	"poisoned":                   func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.poisoned = v != 0 },
	"draining":                   func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.draining = v != 0 },
	"lease_duration_seconds":     func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Duration = seconds(v) },
	"heartbeat_interval_seconds": func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Interval = seconds(v) },
	"lease_extension_seconds":    func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Extension = seconds(v) },
	"step_age_seconds":           func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Age = seconds(v) },
	"leases_held":                func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Leases = number(v) },
	"blocks_held":                func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Blocks = number(v) },
	"held_bytes":                 func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Bytes = number(v) },
	"leases_lingering":           func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Lingers = number(v) },
	"requests_tracked":           func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Tracked = number(v) },
	"reads_in_flight":            func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Reads = number(v) },
	"heartbeats_received_total":  func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Beaten += number(v) },
	"heartbeats_sent_total":      func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Beaten += number(v) },
	"read_bytes_total":           func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.bytes = number(v) },
	"submissions_untaken_bytes":  func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Untaken = number(v) },
	"registered_bytes":           func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.bare = v == 0 },
	"asleep":                     func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.slept = int(number(v)) },
	"ranks_asleep":               func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.slept = int(number(v)) },
	"ranks_up":                   func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.bare = v == 0 },
	"ranks_lost":                 func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.RanksLost = number(v) },
	"host_lost":                  func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.hostless = v != 0 },
	"misfit":                     func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.misfit = v != 0 },
	"reads_aside":                func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Quarantine = number(v) },
	"transfers_abandoned":        func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Abandoned = number(v) },
	"log_records_lost_total":     func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.LogLost = number(v) },
	"late_stock_reads_total":     func(_ *parsed, e *Engine, _ map[string]string, v float64) { e.Late = number(v) },
	"reads_total": func(_ *parsed, e *Engine, l map[string]string, v float64) {
		switch l["outcome"] {
		case "stale":
			e.Stale = number(v)
		case "unproven":
			e.Unproven = number(v)
		}
	},

	"reader_leases":                   ofReader(func(k *Peer, v float64) { k.Leases = number(v) }),
	"reader_blocks":                   ofReader(func(k *Peer, v float64) { k.Blocks = number(v) }),
	"reader_held_bytes":               ofReader(func(k *Peer, v float64) { k.Bytes = number(v) }),
	"reader_oldest_lease_age_seconds": ofReader(func(k *Peer, v float64) { k.Oldest = secondsOf(v) }),
	"reader_beat_age_seconds":         ofReader(func(k *Peer, v float64) { k.Beat = secondsOf(v) }),
	"reader_least_slack_seconds":      ofReader(func(k *Peer, v float64) { k.least = secondsOf(v) }),
	"reader_leases_freed_total": func(p *parsed, e *Engine, l map[string]string, v float64) {
		if l["reason"] == "expired" {
			p.peer(e, Holds, l["reader"], l["hash"], l["kind"]).Expired = number(v)
		}
	},

	"remote_connected": ofRemote(func(k *Peer, v float64) {
		if v != 0 {
			k.State = "connected"
		} else if k.State == "" {
			k.State = "apart"
		}
	}),
	"remote_state_age_seconds": func(p *parsed, e *Engine, l map[string]string, v float64) {
		k := p.peer(e, Reads, l["remote"], l["hash"], "")
		k.State, k.Since = l["state"], secondsOf(v)
	},
	"remote_beat_age_seconds": ofRemote(func(k *Peer, v float64) { k.Beat = secondsOf(v) }),
	"remote_row_age_seconds":  ofRemote(func(k *Peer, v float64) { k.Heard = secondsOf(v) }),
	"remote_fails":            ofRemote(func(k *Peer, v float64) { k.Fails = number(v) }),
	"remote_handshake_failures": func(p *parsed, e *Engine, l map[string]string, v float64) {
		if k := p.peer(e, Reads, l["remote"], l["hash"], ""); v > 0 {
			k.AskFails, k.AskWhy = number(v), l["why"]
		}
	},
	"remote_requests_tracked": ofRemote(func(k *Peer, v float64) { k.Leases = number(v) }),
	"remote_reads_in_flight":  ofRemote(func(k *Peer, v float64) { k.Reads = number(v) }),
	"remote_read_bytes_total": ofRemote(func(k *Peer, v float64) { k.bytes = number(v) }),
	"remote_missed":           ofRemote(func(k *Peer, v float64) { k.Missed = v != 0 }),
	"remote_unheard_bytes":    ofRemote(func(k *Peer, v float64) { k.Unheard = number(v) }),
}

var takenNames = slices.Sorted(maps.Keys(taken))

func ofReader(put func(k *Peer, v float64)) taker {
	return func(p *parsed, e *Engine, l map[string]string, v float64) {
		put(p.peer(e, Holds, l["reader"], l["hash"], l["kind"]), v)
	}
}

func ofRemote(put func(k *Peer, v float64)) taker {
	return func(p *parsed, e *Engine, l map[string]string, v float64) {
		put(p.peer(e, Reads, l["remote"], l["hash"], ""), v)
	}
}

// readAll asks all URLs at once.
func readAll(ctx context.Context, list []*remote) (all []*Engine, notes []string) {
	answers, said := make([][]*Engine, len(list)), make([][]string, len(list))
	var wg sync.WaitGroup
	for i, r := range list {
		wg.Go(func() { answers[i], said[i] = r.read(ctx) })
	}
	wg.Wait()
	for i, a := range answers {
		all, notes = append(all, a...), append(notes, said[i]...)
	}
	return all, notes
}
