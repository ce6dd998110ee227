package soak

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvlease/kvlease/internal/jsons"
	"github.com/kvlease/kvlease/internal/kernel"
	"github.com/kvlease/kvlease/internal/plural"
)

// Result is one line of the results.
type Result struct {
	Date    string           `json:"date"`
	Commit  string           `json:"commit"`
	Machine Machine          `json:"machine"`
	Runs    jsons.List[*Run] `json:"runs"`
}

// Machine says where it was measured.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

// NewResult begins a result here and now.
func NewResult() *Result {
	r := &Result{Date: time.Now().UTC().Format(time.RFC3339), Commit: "unknown", Machine: ThisMachine()}
	if out, err := exec.Command("git", "rev-parse", "--short=10", "HEAD").Output(); err == nil {
		r.Commit = strings.TrimSpace(string(out))
		if out, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no").Output(); err != nil || len(out) > 0 {
			r.Commit += "+" // what was measured is not in any commit
		}
	}
	return r
}

// ThisMachine is the one that this process runs on.
func ThisMachine() Machine {
	return Machine{CPU: cpuName(), Cores: runtime.NumCPU(), Kernel: kernel.Release(), Go: runtime.Version()}
}

func cpuName() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for _, line := range strings.Split(string(text), "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// Print writes the tables.
func (r *Result) Print(w io.Writer) {
	fmt.Fprintf(w, "%s, commit %s, %s, %d cores, Linux %s, %s\n", r.Date, r.Commit, r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, r.Machine.Go)
	for _, run := range r.Runs {
		run.print(w)
	}
}

func (run *Run) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s, %.3g min; load: %s; busy %.0f %%, stolen %.1f %%, in the worst second %.0f %%\n", run.Mode, run.Minutes, run.Load,
		run.BusyPct, run.StealPct, run.StealMaxPct)
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "lease ms\trequests\tcompleted\tfalse expiries\tread\twrong\tfailed\tP step ms\tP pause ms\tD step ms\tD pause ms\tD load ms\tD late\t")
	for i, p := range run.P.Contexts {
		var d Figures
		if i < len(run.D.Contexts) {
			d = run.D.Contexts[i]
		}
		failed := uint64(0)
		for what, n := range d.Failed {
			if what != "at risk" {
				failed += n
			}
		}
		fmt.Fprintf(t, "%.0f\t%d\t%d\t%d\t%d\t%d\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%d\t\n", p.LeaseMs, p.Requests, p.Completed, p.Expired, d.Read, d.WrongData,
			failed, p.StepMaxMs, p.PauseMax, d.StepMaxMs, d.PauseMax, d.LoadMaxMs, d.Overslept)
	}
	t.Flush()
	for _, side := range []struct {
		name string
		p    Process
	}{{"P", run.P}, {"D", run.D}} {
		more := ""
		if side.p.Handshakes > 0 {
			more = ", " + plural.Counted(side.p.Handshakes, "time", "times") + " met an engine anew"
		}
		if c := side.p.Contexts; len(c) > 0 && c[0].Priority != "" && c[0].Priority != "none" {
			more += ", pump priority " + c[0].Priority
		}
		fmt.Fprintf(w, "  %s: %d collections (longest pause %.2f ms), %d scrapes of statistics (longest %.2f ms)%s\n", side.name,
			side.p.Collections, side.p.GCPauseMs, side.p.Scrapes, side.p.ScrapeMaxMs, more)
		fmt.Fprintf(w, "     the run: %v\n", side.p.Pressure)
		if side.p.Worst != nil {
			fmt.Fprintf(w, "     longest stall: %v\n", side.p.Worst)
		}
	}
	if run.ShortestMs > 0 {
		fmt.Fprintf(w, "  shortest lease without a false expiry: %.0f ms\n", run.ShortestMs)
	} else {
		fmt.Fprintln(w, "  no lease of the ladder held without a false expiry")
	}
}

// File is the name of the result's file in folder.
func (r *Result) File(folder string) string {
	return filepath.Join(folder, fmt.Sprintf("soak-%s-%s.json", r.Date[:10], strings.TrimSuffix(r.Commit, "+")))
}

// Save writes the result as one line.
func (r *Result) Save(to io.Writer) error { return json.NewEncoder(to).Encode(r) }
