package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/soak"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
	"github.com/kvlease/kvlease/internal/jsons"
	"github.com/kvlease/kvlease/internal/plural"
)

// Result is what was measured. Every figure is the median of the rounds' medians with the least and the most of them.
type Result struct {
	Date          string           `json:"date"`
	Version       string           `json:"version"`
	Machine       soak.Machine     `json:"machine"`
	Transport     string           `json:"transport"`
	Library       string           `json:"library,omitempty"` // of NIXL, with its version
	UCXTLS        string           `json:"ucx_tls,omitempty"` // as the environment says it; empty: UCX chooses
	Memory        string           `json:"memory"`
	Devices       [2]int           `json:"devices"` // of P and D, if the memory is a device's
	Links         jsons.List[Link] `json:"links"`   // that bytes may pass; empty: there are none
	Load          float64          `json:"load"`    // of the last minute, at the end
	Rounds        int              `json:"rounds"`
	Samples       int              `json:"samples"`
	Burst         int              `json:"burst"`
	Notifications Notifications    `json:"notifications"`
	Reads         jsons.List[Read] `json:"reads"`

	Keys map[string]any `json:"keys,omitempty"` // of the configuration, beside the bench's own
}

// Notifications are one alone, and a burst of them.
type Notifications struct {
	Latency jsons.List[NotifWay] `json:"latency"`
	Burst   jsons.List[NotifWay] `json:"burst"`
}

// NotifWay is one way of them: time until P has acted on the last.
type NotifWay struct {
	Way       string `json:"way"`
	Us        Figure `json:"us"`
	PerSecond Figure `json:"per_second"`
}

// Read is one size and number of blocks.
type Read struct {
	Block uint64              `json:"block"` // bytes
	Count int                 `json:"count"`
	Ways  jsons.List[ReadWay] `json:"ways"`
	// What the round's median of kvlease has more than that of raw: lists, lease and fence. And what a read of 8 bytes adds to raw.
	FenceUs      Figure `json:"fence_us"`
	FenceLeastUs Figure `json:"fence_least_us"`
}

// ReadWay is one way of it. A unit of GBs is 1,000,000,000 bytes a second.
type ReadWay struct {
	Way     string  `json:"way"`
	Us      Figure  `json:"us"`
	GBs     Figure  `json:"gb_s"`
	FirstUs *Figure `json:"first_us,omitempty"` // until the first word of the first block was seen here; not known of memory that the host cannot see
}

func (r *Read) way(name string) *ReadWay {
	for i := range r.Ways {
		if r.Ways[i].Way == name {
			return &r.Ways[i]
		}
	}
	return nil
}

// Name is a shape as a person says it.
func (r *Read) name() string { return fmt.Sprintf("%d x %s", r.Count, text.Bytes(float64(r.Block))) }

// SetLibrary says what moved the bytes, if that is NIXL.
func (r *Result) SetLibrary(version string) {
	r.Library, r.UCXTLS = version, os.Getenv("UCX_TLS")
}

func (r *Result) where() string {
	s := fmt.Sprintf("%s, %d cores, Linux %s", r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel)
	if r.Library != "" {
		s += "; NIXL " + r.Library
	} else {
		s += "; " + r.Transport
	}
	if r.UCXTLS != "" {
		s += ", UCX_TLS=" + r.UCXTLS
	}
	s += "; memory " + r.Memory
	if r.Memory != "dram" {
		s += fmt.Sprintf(" of device %d, read into device %d", r.Devices[0], r.Devices[1])
	}
	if len(r.Keys) > 0 {
		if keys, err := json.Marshal(r.Keys); err == nil {
			s += "; " + string(keys)
		}
	}
	return s
}

func (r *Result) how() string {
	s := fmt.Sprintf("Medians of %s of %s each way, the ways by turns; in brackets the least and the most of the rounds.",
		plural.Counted(r.Rounds, "round", "rounds"), plural.Counted(r.Samples, "sample", "samples"))
	if r.Load > float64(r.Machine.Cores) {
		s += fmt.Sprintf(" Load %.1f: the cores were shared with others.", r.Load)
	}
	return s
}

// three significant digits are more than a spread leaves.
func short(v float64) string {
	switch size := math.Abs(v); {
	case size >= 99.95:
		return fmt.Sprintf("%.0f", v)
	case size >= 9.995:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func spread(f Figure, one func(float64) string) string {
	return fmt.Sprintf("%s (%s..%s)", one(f.Median), one(f.Low), one(f.High))
}

func table(w io.Writer, columns []text.Column, rows [][]string) {
	for _, line := range text.Table(columns, rows) {
		fmt.Fprintln(w, line)
	}
}

// Write prints the tables.
func (r *Result) Write(to io.Writer) error {
	w := bufio.NewWriter(to)
	fmt.Fprintf(w, "kvlease %s, %s\n%s\n%s\n%s\n", r.Version, r.Date, r.where(), r.across(), r.how())
	fmt.Fprintf(w, "\nNotifications: until P has acted on the last\n")
	var rows [][]string
	for i := range r.Notifications.Latency {
		one, many := &r.Notifications.Latency[i], &r.Notifications.Burst[i]
		rows = append(rows, []string{one.Way, spread(one.Us, short), spread(many.PerSecond, text.Count)})
	}
	table(w, []text.Column{{Head: "way"}, {Head: "one, us", Right: true}, {Head: fmt.Sprintf("%d at once, a second", r.Burst), Right: true}}, rows)

	fmt.Fprintf(w, "\nReads, in GB/s\n")
	columns := []text.Column{{Head: "blocks", Right: true}}
	for _, way := range readWays {
		columns = append(columns, text.Column{Head: way, Right: true})
	}
	columns = append(columns, text.Column{Head: "of raw", Right: true})
	rows = nil
	for i := range r.Reads {
		row := []string{r.Reads[i].name()}
		for k := range r.Reads[i].Ways {
			row = append(row, spread(r.Reads[i].Ways[k].GBs, short))
		}
		row = append(row, fmt.Sprintf("%.0f %%", 100*r.Reads[i].way(WayOurs).GBs.Median/r.Reads[i].way(WayRaw).GBs.Median))
		rows = append(rows, row)
	}
	table(w, columns, rows)

	fmt.Fprintf(w, "\nReads, in us: the first word of the first block, the whole, and what the fence adds to the whole\n")
	rows = nil
	for i := range r.Reads {
		read := &r.Reads[i]
		row := []string{read.name()}
		for _, name := range []string{WayBare, WayRaw, WayOurs} {
			first := ""
			if f := read.way(name).FirstUs; f != nil {
				first = spread(*f, short)
			}
			row = append(row, first, spread(read.way(name).Us, short))
		}
		rows = append(rows, append(row, spread(read.FenceUs, short), spread(read.FenceLeastUs, short)))
	}
	table(w, []text.Column{{Head: "blocks", Right: true}, {Head: "bare first", Right: true}, {Head: "bare", Right: true},
		{Head: "raw first", Right: true}, {Head: "raw", Right: true}, {Head: "kvlease first", Right: true},
		{Head: "kvlease", Right: true}, {Head: "adds", Right: true}, {Head: "8 bytes add", Right: true}}, rows)
	return w.Flush()
}
