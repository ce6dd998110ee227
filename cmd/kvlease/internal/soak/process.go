package soak

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
)

// Serve is one of the two processes: side is P or D. It takes the spec and then commands, a line each, from in (go, report; the
// end of it ends the process), and answers ready, up and its figures on out. Offers travel over pipe.
func Serve(side string, in io.Reader, out io.Writer, pipe *os.File, transports map[string]core.OpenTransport) error {
	debug.SetGCPercent(-1) // as in the library: collected off the step, by the collector
	defer core.StartCollector().Stop()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() {
		return lines.Err()
	}
	p := &process{side: side}
	if err := json.Unmarshal(lines.Bytes(), &p.spec); err != nil {
		return err
	}
	members := len(p.spec.Leases)
	if side == "P" {
		members++ // the one that readers leave and meet again
	}
	for i := range members {
		m, err := openMember(&p.spec, side, i, transports)
		if err != nil {
			return fmt.Errorf("context %d: %w", i, err)
		}
		p.members = append(p.members, m)
	}
	fmt.Fprintln(out, "ready")
	if err := p.begin(pipe); err != nil {
		return err
	}
	if side == "D" {
		for _, m := range p.members {
			for !m.up.Load() && !p.stop.Load() {
				time.Sleep(10 * time.Millisecond)
			}
		}
		fmt.Fprintln(out, "up")
	}
	for lines.Scan() {
		switch lines.Text() {
		case "go":
			for _, m := range p.members { // what opening took is no step under load
				m.most()
				m.mu.Lock()
				m.fig.StepMaxMs, m.fig.PauseMax, m.fig.LoadMaxMs, m.ended = 0, 0, 0, time.Time{}
				m.mu.Unlock()
			}
			p.mu.Lock()
			p.began = readPressure()
			p.window, p.worst = p.began, nil
			p.mu.Unlock()
			p.going.Store(true)
		case "report":
			if err := json.NewEncoder(out).Encode(p.report()); err != nil {
				return err
			}
		}
	}
	p.stop.Store(true)
	p.loops.Wait()
	return p.failed
}

type process struct {
	side    string
	spec    Spec
	members []*member
	going   atomic.Bool
	stop    atomic.Bool
	loops   sync.WaitGroup

	mu      sync.Mutex
	failed  error
	scrapes uint64
	longest time.Duration
	began   Pressure // when the load began
	window  Pressure // when the scrape before began
	worst   *Stall
}

func (p *process) begin(pipe *os.File) error {
	if p.side == "P" {
		var mu sync.Mutex
		enc := json.NewEncoder(pipe)
		for _, m := range p.members {
			m.going = &p.going
			m.offers = func(o *Offer) {
				mu.Lock()
				defer mu.Unlock()
				if err := enc.Encode(o); err != nil {
					p.fail(err)
				}
			}
		}
	} else {
		for i, m := range p.members {
			var err error
			if m.engine, err = m.core.AddPeer(heartbeat.EngineDesc{ID: engineID("P", i)}, "127.0.0.1", p.spec.Port+i); err != nil {
				return err
			}
		}
		go p.readOffers(pipe)
	}
	for i, m := range p.members {
		work := m.decode
		if p.side == "P" {
			if work = m.prefill; i == len(p.spec.Leases) {
				work = func() {}
			}
		}
		p.loops.Go(func() {
			if err := m.run(&p.stop, work); err != nil {
				p.fail(err)
			}
		})
	}
	go p.scrape()
	return nil
}

func (p *process) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil && !p.stop.Load() {
		p.failed = err
		fmt.Fprintln(os.Stderr, "soak:", p.side, err)
	}
}

func (p *process) readOffers(pipe *os.File) {
	dec := json.NewDecoder(bufio.NewReader(pipe))
	for {
		var o Offer
		if dec.Decode(&o) != nil {
			return
		}
		p.members[o.Context].in <- o
	}
}

// scrape reads every context's statistics once a second, as an exporter would.
func (p *process) scrape() {
	for !p.stop.Load() {
		time.Sleep(scrapeEvery)
		now := readPressure()
		for _, m := range p.members {
			began := time.Now()
			var stats struct {
				Beats uint64 `json:"beats_applied"`
				Sent  uint64 `json:"beat_beats"`
				Class int    `json:"pump_class"`
			}
			json.Unmarshal(m.core.Stats(), &stats)
			p.mu.Lock()
			p.scrapes++
			p.longest = max(p.longest, time.Since(began))
			p.mu.Unlock()
			m.mu.Lock()
			m.fig.Beats = max(stats.Beats, stats.Sent)
			m.fig.Priority = ""
			if p.spec.Mode == "pump" {
				m.fig.Priority = [...]string{"none", "nice", "rr"}[min(max(stats.Class, 0), 2)]
			}
			m.mu.Unlock()
		}
		p.look(now)
	}
}

// look ends a window: the worst stall of the run is kept with what the machine waited for from the begin of the scrape before to the
// end of this one, which may itself have been held up by that stall. next is when the window that follows began.
func (p *process) look(next Pressure) {
	if !p.going.Load() {
		return
	}
	var all []Stall
	for _, m := range p.members[:len(p.spec.Leases)] {
		all = append(all, m.most())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := worst(all); s != nil && (p.worst == nil || s.Ms > p.worst.Ms) {
		s.Window = readPressure().since(p.window)
		s.At = time.Since(p.began.at).Seconds()
		p.worst = s
	}
	p.window = next
}

// worst gives the longest of the contexts' stalls; nil: there was none.
func worst(all []Stall) *Stall {
	var w Stall
	for _, s := range all {
		if s.Ms > w.Ms {
			w = s
		}
	}
	if w.Ms == 0 {
		return nil
	}
	w.Others = -1
	for _, s := range all {
		if s.Ms >= w.Ms/2 {
			w.Others++
		}
	}
	return &w
}

func (p *process) report() Process {
	now := readPressure()
	p.look(now)
	var gc runtime.MemStats
	runtime.ReadMemStats(&gc)
	r := Process{Collections: gc.NumGC}
	for _, ns := range gc.PauseNs {
		r.GCPauseMs = max(r.GCPauseMs, float64(ns)/1e6)
	}
	for i, m := range p.members {
		if i == len(p.spec.Leases) {
			continue
		}
		r.Contexts = append(r.Contexts, m.figures())
		m.mu.Lock()
		r.Handshakes += m.met
		m.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Scrapes, r.ScrapeMaxMs = p.scrapes, ms(p.longest)
	r.Pressure, r.Worst = now.since(p.began), p.worst
	return r
}
