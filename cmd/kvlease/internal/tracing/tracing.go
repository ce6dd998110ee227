// Package tracing is `kvlease trace`: it finds the processes, attaches the probe, and shows where time goes.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kvlease/kvlease/dataplane/probe"
	"github.com/kvlease/kvlease/internal/output"
	"github.com/kvlease/kvlease/internal/plural"
)

// Config of a trace.
type Config struct {
	PIDs     []int         // these processes; none: see Library
	Library  string        // every process that maps this file; empty, without PIDs: every process that maps any file with sites
	Engines  []string      // show what has one of these at an end; patterns of path.Match
	For      time.Duration // 0: until interrupted, or until the processes named have gone
	Every    time.Duration // print as often; 0: at the end only
	Outliers time.Duration // tell spans that long one by one; 0: none
	Pages    string        // folder of the stats pages, which have the names; empty: where they usually are
	JSON     bool
	SVG      string                  // file; empty: none
	Screen   bool                    // out is a terminal: each print replaces the one before
	Size     func() (rows, cols int) // of it; 0: not known
}

// outliersKept is how many are kept for the end and for programs; all are counted.
const outliersKept = 1000

// hiddenUsual is how many processes even root may not look at, where the first one of a container has more rights than it.
const hiddenUsual = 1

// rescan is how often new processes are looked for.
const rescan = time.Second

// tracer is a trace that runs.
type tracer struct {
	cfg      Config
	out      io.Writer
	picture  *output.File
	probe    *probe.Probe
	files    *probe.Files
	names    *names
	began    time.Time
	attached map[attachment]*probe.Attachment
	paths    map[string]bool  // of all files that were ever attached to
	library  *probe.File      // of Config.Library
	watched  map[int]*process // those named by PIDs
	notes    []string
	outliers outliers
}

// attachment is a file in one process, or with pid 0 in all.
type attachment struct {
	file *probe.File
	pid  int
}

// Run traces and prints until the time is over or the context is done, which is no error.
func Run(ctx context.Context, cfg Config, out io.Writer) error {
	picture, err := output.Open(cfg.SVG, "name another file by --svg")
	if err != nil {
		return err
	}
	defer picture.Close()
	p, err := probe.Open(probe.Config{Outliers: cfg.Outliers})
	if err != nil {
		return err
	}
	t := &tracer{
		cfg: cfg, out: out, picture: picture, probe: p, files: probe.NewFiles(), names: newNames(cfg.Pages),
		attached: map[attachment]*probe.Attachment{}, paths: map[string]bool{}, watched: map[int]*process{}, notes: probe.Caveats(),
	}
	defer t.close()
	if err := t.attach(); err != nil {
		return err
	}
	t.began = time.Now()
	if cfg.Outliers > 0 {
		collected := make(chan struct{})
		stop := make(chan struct{})
		go func() {
			defer close(collected)
			t.outliers.collect(p, stop)
		}()
		defer func() { close(stop); <-collected }()
	}
	return t.run(ctx)
}

// close detaches: the sites of the processes are nops again.
func (t *tracer) close() {
	for _, a := range t.attached {
		a.Detach()
	}
	for _, p := range t.watched {
		p.close()
	}
	t.probe.Close()
	t.files.Close()
}

// attach does it for the first time: what the user has named must be there.
func (t *tracer) attach() error {
	switch {
	case len(t.cfg.PIDs) > 0:
		for _, pid := range t.cfg.PIDs {
			p, err := openProcess(pid)
			if err != nil {
				return err
			}
			t.watched[pid] = p
			files, err := t.files.Of(pid)
			if err != nil {
				return err
			}
			for _, f := range files {
				if err := t.add(f, pid); err != nil {
					return err
				}
			}
		}
		return nil
	case t.cfg.Library != "":
		return t.addLibrary()
	}
	return t.scan()
}

func (t *tracer) addLibrary() error {
	f, err := t.files.Library(t.cfg.Library)
	if err != nil {
		return err
	}
	t.library = f
	return t.add(f, 0)
}

func (t *tracer) add(f *probe.File, pid int) error {
	key := attachment{f, pid}
	if t.attached[key] != nil {
		return nil
	}
	a, err := t.probe.Attach(f, pid)
	if err != nil {
		return err
	}
	t.attached[key], t.paths[f.Path] = a, true
	return nil
}

// leave detaches from what was written into.
func (t *tracer) leave() {
	for _, f := range t.files.Overwritten() {
		t.detach(func(key attachment) bool { return key.file == f })
		t.note(f.Path + " was written into: processes that had it mapped may fail, with and without a trace. A new version is put in its place as a new file, never written into the old one")
	}
}

func (t *tracer) detach(which func(attachment) bool) {
	for key, a := range t.attached {
		if which(key) {
			a.Detach()
			delete(t.attached, key)
		}
	}
}

// scan leaves what was written into, and attaches to what is there by now.
func (t *tracer) scan() error {
	t.leave()
	switch {
	case t.cfg.Library != "":
		return t.scanLibrary()
	case len(t.cfg.PIDs) > 0:
		return t.scanWatched()
	}
	return t.scanAll()
}

// scanLibrary attaches anew to a library that was written into, once it is whole, and notes that another file has its name.
func (t *tracer) scanLibrary() error {
	if len(t.attached) > 0 {
		if !t.library.At(t.cfg.Library) {
			t.note(t.cfg.Library + " is another file by now, or gone: processes that map the new one are not traced")
		}
		return nil
	}
	var missing *probe.Missing
	if err := t.addLibrary(); errors.As(err, &missing) {
		return err
	}
	return nil // else it is perhaps not whole yet
}

// scanWatched attaches to files that named processes have loaded meanwhile.
func (t *tracer) scanWatched() error {
	for pid := range t.watched {
		files, err := t.files.Of(pid)
		if err != nil {
			continue // it goes, or had files before
		}
		for _, f := range files {
			if err := t.add(f, pid); err != nil && !errors.Is(err, probe.ErrGone) {
				return err
			}
		}
	}
	return nil
}

// scanAll attaches to files with sites of whatever runs by now. A probe at a file is there for processes that map it later, too, so only
// files matter that nobody had before. Those that nobody can map any more are given back.
func (t *tracer) scanAll() error {
	all, hidden, err := t.files.All()
	if err != nil {
		return err
	}
	if hidden > hiddenUsual && len(all) == 0 && len(t.attached) == 0 {
		t.note(plural.Counted(hidden, "process", "processes") + " could not be looked at, among them perhaps the engines: run as root, or add cap_sys_ptrace to the program's capabilities")
	}
	used := map[*probe.File]bool{}
	for _, p := range all {
		for _, f := range p.Files {
			used[f] = true
			var missing *probe.Missing
			if err := t.add(f, 0); errors.As(err, &missing) {
				return err
			} else if err != nil { // the others can still be traced
				t.note(err.Error())
			}
		}
	}
	if hidden <= hiddenUsual {
		for _, f := range t.files.Unreachable(used) { // else a host that copies libraries runs out of descriptors
			t.detach(func(key attachment) bool { return key.file == f })
		}
	}
	return nil
}

func (t *tracer) note(text string) {
	if !slices.Contains(t.notes, text) {
		t.notes = append(t.notes, text)
	}
}

func (t *tracer) run(ctx context.Context) error {
	var end <-chan time.Time
	if t.cfg.For > 0 {
		timer := time.NewTimer(t.cfg.For)
		defer timer.Stop()
		end = timer.C
	}
	var show <-chan time.Time
	if t.cfg.Every > 0 {
		ticker := time.NewTicker(t.cfg.Every)
		defer ticker.Stop()
		show = ticker.C
	}
	look := time.NewTicker(rescan)
	defer look.Stop()
	if len(t.attached) == 0 && !t.cfg.JSON {
		fmt.Fprintln(t.out, "no process has a library with trace sites mapped yet; waiting for one")
	}
	for {
		select {
		case <-ctx.Done():
			return t.finish()
		case <-end:
			return t.finish()
		case <-show:
			if err := t.print(false); err != nil {
				return err
			}
		case <-look.C:
			if err := t.scan(); err != nil {
				return err
			}
			s, err := t.probe.Read()
			if err != nil {
				return err
			}
			t.learn(s) // of processes that will have gone when it is printed
			if t.gone() {
				return t.finish()
			}
		}
	}
}

// gone detaches from processes that have ended, and tells whether all named ones have.
func (t *tracer) gone() bool {
	if len(t.cfg.PIDs) == 0 {
		return false
	}
	for pid, p := range t.watched {
		if !p.ended() {
			continue
		}
		t.note(fmt.Sprintf("process %d has ended", pid))
		t.detach(func(key attachment) bool { return key.pid == pid })
		p.close()
		delete(t.watched, pid)
	}
	return len(t.watched) == 0
}

func (t *tracer) finish() error {
	if err := t.print(true); err != nil {
		return err
	}
	return nil
}

// print reads the probe and shows what it has counted.
func (t *tracer) print(last bool) error {
	r, err := t.report()
	if err != nil {
		return err
	}
	switch {
	case t.cfg.JSON:
		err = r.writeJSON(t.out)
	case t.cfg.Screen:
		rows, cols := t.cfg.Size() // it may have been made smaller
		err = r.writeScreen(t.out, rows, cols)
	default:
		err = r.writeText(t.out)
	}
	if err != nil || !last || t.cfg.SVG == "" {
		return err
	}
	if err := t.picture.Write(r.WriteSVG); err != nil {
		return err
	}
	if !t.cfg.JSON {
		fmt.Fprintf(t.out, "picture: %s\n", t.cfg.SVG)
	}
	return nil
}

// learn finds names for what was counted, and says how many processes that was in.
func (t *tracer) learn(s *probe.Snapshot) (processes int) {
	pids := map[uint32]bool{}
	for i := range s.Series {
		if pid := s.Series[i].Context.PID; pid != 0 {
			pids[pid] = true
		}
	}
	for _, a := range s.Aliases {
		pids[a.Context.PID] = true
	}
	t.names.learn(slices.Sorted(maps.Keys(pids)), s.Aliases)
	return len(pids)
}

// report puts what was counted in order, under names.
func (t *tracer) report() (*Report, error) {
	s, err := t.probe.Read()
	if err != nil {
		return nil, err
	}
	processes := t.learn(s)
	r := &Report{
		Seconds: time.Since(t.began).Seconds(), Processes: processes, Counters: s.Counters,
		OutliersFrom: t.cfg.Outliers, Notes: slices.Concat(t.notes, t.files.Notes), Engines: t.cfg.Engines,
	}
	r.Files = slices.Sorted(maps.Keys(t.paths))
	r.fill(s, t.names)
	if t.cfg.Outliers > 0 {
		r.Outliers, r.OutliersSeen = t.outliers.take(t.names, t.cfg.Engines)
	}
	return r, nil
}

// duration is a span in three digits, as in 1.23 us.
func duration(d time.Duration) string {
	v, unit := float64(d), "ns"
	for _, u := range []string{"us", "ms", "s"} {
		if v < 999.5 {
			break
		}
		v, unit = v/1e3, u
	}
	digits := 0
	if unit != "ns" {
		switch {
		case v < 9.995:
			digits = 2
		case v < 99.95:
			digits = 1
		}
	}
	return strings.TrimSpace(fmt.Sprintf("%.*f %s", digits, v, unit))
}
