// Package figures reads the result files of bench/run.py, says what moved between two of them beyond the noise, and draws them.
package figures

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/kvlease/kvlease/internal/jsons"
)

// ErrFile is what Load answers for a file that is no result of bench/run.py.
var ErrFile = errors.New("not a result file of bench/run.py")

// File is one run.
type File struct {
	Date    string             `json:"date"`
	Commit  string             `json:"commit"` // with a + behind it if the tree had changes
	Machine map[string]any     `json:"machine"`
	Load    map[string]float64 `json:"load"` // at the end of each section
	Steal   *float64           `json:"steal_percent"`
	Rows    jsons.List[Row]    `json:"rows"`
}

// Row is one thing that was measured.
type Row struct {
	Section string           `json:"section"`
	What    string           `json:"what"`
	Target  string           `json:"target"`           // in words
	Unit    string           `json:"unit"`             // ns, B, % of a core, /s, threads
	Better  string           `json:"better,omitempty"` // more, if a greater figure is the better one
	Limit   *float64         `json:"limit,omitempty"`  // of the median, in Unit
	Ratio   *float64         `json:"ratio_target,omitempty"`
	Tail    bool             `json:"tail,omitempty"`   // a distribution of single events, not of rounds
	Family  string           `json:"family,omitempty"` // rows of one growth curve
	At      float64          `json:"at,omitempty"`     // how many of what the curve grows with
	Ours    Summary          `json:"ours"`
	Peers   jsons.List[Peer] `json:"peers"`
	Met     *bool            `json:"met"`
}

// Summary is what is left of a row's samples.
type Summary struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	P99    float64 `json:"p99"`
	N      int     `json:"n"`
}

// Peer is what was measured beside ours, in turn with it.
type Peer struct {
	Project string `json:"project"`
	What    string `json:"what"`
	Summary
}

// name is a peer in one text.
func (p *Peer) name() string {
	if p.What == "" {
		return p.Project
	}
	return p.Project + ", " + p.What
}

// ownProjects are peers of rows.py that run kvlease's code: they move with it, so they say nothing of the machine.
var ownProjects = []string{"kvlease on 0.32", "kvlease inline", "kvlease loopback", "without", "unscraped", "ctypes", "one producer"}

func (p *Peer) own() bool { return slices.Contains(ownProjects, p.Project) }

// units are those that a row may have.
var units = []string{"ns", "B", "%", "/s", "threads"}

// Load reads a file and checks what Compare and the charts rely on. Errors say the path; ErrFile and what the file has wrong.
func Load(path string) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := new(File)
	if err := json.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("%s: %w: %v", path, ErrFile, err)
	}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("%s: %w: %v", path, ErrFile, err)
	}
	return f, nil
}

func (f *File) check() error {
	if f.Commit == "" || f.Date == "" || len(f.Machine) == 0 {
		return errors.New("it lacks commit, date or machine")
	}
	if len(f.Rows) == 0 {
		return errors.New("it has no rows")
	}
	seen := make(map[string]bool)
	for i := range f.Rows {
		r := &f.Rows[i]
		switch {
		case r.Section == "" || r.What == "":
			return fmt.Errorf("row %d has no section or no name", i+1)
		case seen[r.key()]:
			return fmt.Errorf("%q stands in it twice", r.key())
		case !slices.Contains(units, r.Unit):
			return fmt.Errorf("%q has the unit %q, known are %q", r.key(), r.Unit, units)
		case r.Better != "" && r.Better != "more":
			return fmt.Errorf("%q has better %q, known is \"more\"", r.key(), r.Better)
		}
		seen[r.key()] = true
		if err := r.Ours.check(); err != nil {
			return fmt.Errorf("%q: ours: %w", r.key(), err)
		}
		for k := range r.Peers {
			p := &r.Peers[k]
			if p.Project == "" {
				return fmt.Errorf("%q: a peer has no project", r.key())
			}
			if err := p.check(); err != nil {
				return fmt.Errorf("%q: %s: %w", r.key(), p.name(), err)
			}
		}
	}
	return nil
}

func (s *Summary) check() error {
	for _, v := range []float64{s.Median, s.Min, s.Max, s.P99} {
		if math.IsInf(v, 0) || math.IsNaN(v) {
			return errors.New("a figure is not a number")
		}
	}
	switch {
	case s.N < 1:
		return fmt.Errorf("n is %d", s.N)
	case s.Min > s.Median || s.Median > s.Max || s.P99 < s.Median || s.P99 > s.Max:
		return fmt.Errorf("min %g, median %g, p99 %g, max %g are not in order", s.Min, s.Median, s.P99, s.Max)
	}
	return nil
}

// key is what a row is found by in another file.
func (r *Row) key() string { return r.Section + ": " + r.What }

// Replace puts the rows of a later run in the place of those that f has, and names both commits. Rows that f has not are left out.
func (f *File) Replace(later *File) {
	for i := range f.Rows {
		for k := range later.Rows {
			if later.Rows[k].key() == f.Rows[i].key() {
				f.Rows[i] = later.Rows[k]
			}
		}
	}
	if later.Commit != f.Commit {
		f.Commit += " and " + later.Commit
	}
}
