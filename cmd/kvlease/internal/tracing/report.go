package tracing

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"path"
	"slices"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
	"github.com/kvlease/kvlease/dataplane/probe"
	"github.com/kvlease/kvlease/internal/jsons"
	"github.com/kvlease/kvlease/internal/plural"
)

// Report is what was counted since the probe was attached.
type Report struct {
	Seconds      float64
	Processes    int
	Files        []string
	Engines      []string // filters
	Groups       []Group
	Counters     probe.Counters
	OutliersFrom time.Duration
	Outliers     []Outlier
	OutliersSeen uint64
	Notes        []string
}

// Group is what happens between two engines, or within one.
type Group struct {
	From, To string
	Rows     []Row
}

// Row is a stage.
type Row struct {
	Stage probe.Stage
	probe.Histogram
}

func (g *Group) name() string {
	if g.To == "" {
		return printable(g.From)
	}
	return printable(g.From) + " → " + printable(g.To)
}

// slackNote explains the row whose trouble is at the small end.
const slackNote = "slack left ↓: p50, p10, p1, least"

func (r *Row) label() string {
	if r.Stage == probe.Slack {
		return r.Stage.String() + " ↓"
	}
	return r.Stage.String()
}

// columns are the middle and three values ever nearer to the bad end: of slack that is the small one.
func (r *Row) columns() [4]time.Duration {
	if r.Stage == probe.Slack {
		return [4]time.Duration{r.Quantile(0.5), r.Quantile(0.1), r.Quantile(0.01), r.Quantile(0)}
	}
	return [4]time.Duration{r.Quantile(0.5), r.Quantile(0.9), r.Quantile(0.99), time.Duration(r.Max)}
}

// printable is a name for a line: quoted where a terminal would act on it, and cut where it is long.
func printable(s string) string { return text.Cut(text.Printable(s), 60) }

// matches reports that one of both names is asked for. No filter asks for all.
func matches(engines []string, from, to string) bool {
	if len(engines) == 0 {
		return true
	}
	return slices.ContainsFunc(engines, func(pattern string) bool {
		for _, name := range []string{from, to} {
			if ok, err := path.Match(pattern, name); name != "" && (pattern == name || ok && err == nil) {
				return true
			}
		}
		return false
	})
}

// order is that in which rows stand: along the ways.
var order = []probe.Stage{
	probe.Posted, probe.Seen, probe.Extended, probe.Renewed, probe.Slack,
	probe.Arrived, probe.Fenced, probe.Reported, probe.Read, probe.ReadFailed,
	probe.Drained, probe.Step, probe.Stall,
}

// fill adds up what belongs to the same engines: an engine may have several processes and contexts.
func (r *Report) fill(s *probe.Snapshot, n *names) {
	type ends struct{ from, to string }
	groups := map[ends]map[probe.Stage]*probe.Histogram{}
	for i := range s.Series {
		e := &s.Series[i]
		from, to := n.ends(e.Stage, e.Context, e.From, e.To)
		if !matches(r.Engines, from, to) {
			continue
		}
		g := groups[ends{from, to}]
		if g == nil {
			g = map[probe.Stage]*probe.Histogram{}
			groups[ends{from, to}] = g
		}
		if g[e.Stage] == nil {
			g[e.Stage] = &probe.Histogram{}
		}
		g[e.Stage].Add(&e.Histogram)
	}
	for k, rows := range groups {
		g := Group{From: k.from, To: k.to}
		for _, stage := range order {
			if h := rows[stage]; h != nil {
				g.Rows = append(g.Rows, Row{Stage: stage, Histogram: *h})
			}
		}
		r.Groups = append(r.Groups, g)
	}
	slices.SortFunc(r.Groups, func(a, b Group) int {
		return cmp.Or(
			cmp.Compare(boolInt(a.To == ""), boolInt(b.To == "")), // ways first
			cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To),
		)
	})
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// lines are the report for people, none of them longer than 80 characters but for names and notes.
func (r *Report) lines() (head, body, foot []string) {
	head = append(head, fmt.Sprintf("kvlease trace: %.1f s, %s in %s, %s", r.Seconds, plural.Counted(r.Counters.Hits, "hit", "hits"), plural.Counted(r.Processes, "process", "processes"), plural.Counted(len(r.Files), "file", "files")))
	if len(r.Groups) > 0 {
		head = append(head, "", fmt.Sprintf("%-24s %9s %9s %9s %9s %9s", "", "n", "p50", "p90", "p99", "max"))
	}
	slack := false
	for i := range r.Groups {
		g := &r.Groups[i]
		body = append(body, g.name())
		for k := range g.Rows {
			h := &g.Rows[k]
			slack = slack || h.Stage == probe.Slack
			v := h.columns()
			body = append(body, fmt.Sprintf("  %s%*s %9d %9s %9s %9s %9s", h.label(), 22-len([]rune(h.label())), "", h.Count,
				duration(v[0]), duration(v[1]), duration(v[2]), duration(v[3])))
		}
	}
	if len(r.Groups) == 0 {
		why := "nothing has happened at the sites yet"
		if r.Counters.Hits > 0 && len(r.Engines) > 0 {
			why = "nothing has happened at the engines asked for"
		}
		body = append(body, why)
	}
	foot = append(foot, "")
	if slack {
		foot = append(foot, slackNote)
	}
	if r.OutliersFrom > 0 {
		foot = append(foot, fmt.Sprintf("outliers from %s: %d, lost %d", duration(r.OutliersFrom), r.OutliersSeen, r.Counters.OutliersLost))
	}
	for _, t := range r.troubles() {
		foot = append(foot, "  "+t)
	}
	for _, n := range r.Notes {
		foot = append(foot, "note: "+text.Printable(n))
	}
	if len(foot) == 1 {
		foot = nil
	}
	return head, body, foot
}

// troubles are the counters of what was lost or does not go together, in words; nothing of those that are 0.
func (r *Report) troubles() []string {
	c := &r.Counters
	var list []string
	for _, v := range []struct {
		n               uint64
		one, many, text string
	}{
		{c.SeenNoPost, "message", "messages", "seen whose post was not: sent from another host or process, or before the trace began"},
		{c.PostUnseen, "message", "messages", "posted that nobody here saw: received on another host or process"},
		{c.SeenDiffers, "message", "messages", "seen with another count of requests than posted: not timed"},
		{c.ExtendedNoSeen, "message", "messages", "applied that was not seen before"},
		{c.PostNoStep, "message", "messages", "posted in a step whose begin was not seen"},
		{c.ReadNoPost, "point", "points", "of reads that were posted before the trace began"},
		{c.StepNoBegin, "step", "steps", "whose begin was not seen"},
		{c.HooksSkipped, "hook", "hooks", "not timed, since more than 64 waited in a ring"},
		{c.Folded, "span", "spans", "counted under \"all others\", since there are too many pairs of engines"},
		{c.ValuesLost, "span", "spans", "lost"},
		{c.Evicted, "beginning", "beginnings", "of a way forgotten, since there were too many at a time"},
		{c.Misses, "hit", "hits", "left out by the kernel"},
	} {
		if v.n > 0 {
			list = append(list, plural.Counted(v.n, v.one, v.many)+" "+v.text)
		}
	}
	return list
}

// line is an outlier for people.
func (o *Outlier) line() string {
	ends := printable(o.From)
	if o.To != "" {
		ends += " → " + printable(o.To)
	}
	return fmt.Sprintf("%s  %s  %s  %s  process %d, %s", o.At.Format("15:04:05.000"), duration(time.Duration(o.TookNs)), o.stage, ends, o.PID, o.What)
}

// outlierLines are how many a text shows of them.
const outlierLines = 20

func (r *Report) writeText(w io.Writer) error {
	var b bytes.Buffer
	head, body, foot := r.lines()
	for _, l := range slices.Concat(head, body, foot) {
		b.WriteString(l + "\n")
	}
	shown := r.Outliers[max(0, len(r.Outliers)-outlierLines):]
	for i := range shown {
		b.WriteString("  " + shown[i].line() + "\n")
	}
	if left := len(r.Outliers) - len(shown); left > 0 {
		fmt.Fprintf(&b, "  and %d before these; --json has the last %d\n", left, outliersKept)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// writeScreen replaces what stands on a terminal of so many rows and columns, which a longer line would break to a second row.
func (r *Report) writeScreen(w io.Writer, rows, cols int) error {
	head, body, foot := r.lines()
	const outlierRows = 5
	for i := max(0, len(r.Outliers)-outlierRows); i < len(r.Outliers); i++ {
		foot = append(foot, "  "+r.Outliers[i].line())
	}
	if room := rows - 1 - len(head) - len(foot); rows > 0 && len(body) > room {
		room = max(room-1, 1)
		body = append(slices.Clone(body[:room]), fmt.Sprintf("  and %s: --engine shows fewer", plural.Counted(len(body)-room, "more line", "more lines")))
	}
	all := slices.Concat(head, body, foot)
	if rows > 0 {
		all = all[:min(len(all), max(rows-1, 1))]
	}
	var b bytes.Buffer
	b.WriteString("\x1b[H")
	for _, l := range all {
		if cols > 0 {
			l = text.Cut(l, cols)
		}
		b.WriteString(l + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	_, err := w.Write(b.Bytes())
	return err
}

// seriesJSON is a row for programs.
type seriesJSON struct {
	Stage   string                 `json:"stage"`
	From    string                 `json:"from"`
	To      string                 `json:"to,omitempty"`
	N       uint64                 `json:"n"`
	MeanNs  int64                  `json:"mean_ns"`
	P50Ns   int64                  `json:"p50_ns"`
	P90Ns   int64                  `json:"p90_ns"`
	P99Ns   int64                  `json:"p99_ns"`
	MaxNs   uint64                 `json:"max_ns"`
	SumNs   uint64                 `json:"sum_ns"`
	Buckets jsons.List[bucketJSON] `json:"buckets"`
}

// bucketJSON counts the values below BelowNs, and not below that of the bucket before.
type bucketJSON struct {
	BelowNs uint64 `json:"below_ns"`
	N       uint64 `json:"n"`
}

// countersJSON has each counter of the probe under its key.
type countersJSON struct {
	Hits           uint64 `json:"hits"`
	OutliersSeen   uint64 `json:"outliers"`
	OutliersLost   uint64 `json:"outliers_lost"`
	Folded         uint64 `json:"spans_folded"`
	ValuesLost     uint64 `json:"spans_lost"`
	HooksSkipped   uint64 `json:"hooks_skipped"`
	PostNoStep     uint64 `json:"posts_without_step"`
	PostUnseen     uint64 `json:"posts_unseen"`
	SeenNoPost     uint64 `json:"seen_without_post"`
	SeenDiffers    uint64 `json:"seen_mismatches"`
	ExtendedNoSeen uint64 `json:"extended_without_seen"`
	ReadNoPost     uint64 `json:"read_points_without_post"`
	StepNoBegin    uint64 `json:"step_ends_without_begin"`
	Evicted        uint64 `json:"evicted"`
	Misses         uint64 `json:"kernel_misses"`
}

func (r *Report) writeJSON(w io.Writer) error {
	c := &r.Counters
	out := struct {
		Seconds   float64                `json:"seconds"`
		Processes int                    `json:"processes"`
		Files     jsons.List[string]     `json:"files"`
		Series    jsons.List[seriesJSON] `json:"series"`
		Counters  countersJSON           `json:"counters"`
		Outliers  jsons.List[Outlier]    `json:"outliers"`
		Notes     jsons.List[string]     `json:"notes"`
	}{
		Seconds: r.Seconds, Processes: r.Processes, Files: r.Files, Series: []seriesJSON{}, Outliers: r.Outliers, Notes: r.Notes,
		Counters: countersJSON{
			Hits: c.Hits, OutliersSeen: r.OutliersSeen, OutliersLost: c.OutliersLost, Folded: c.Folded, ValuesLost: c.ValuesLost,
			HooksSkipped: c.HooksSkipped, PostNoStep: c.PostNoStep, PostUnseen: c.PostUnseen, SeenNoPost: c.SeenNoPost, SeenDiffers: c.SeenDiffers,
			ExtendedNoSeen: c.ExtendedNoSeen, ReadNoPost: c.ReadNoPost, StepNoBegin: c.StepNoBegin, Evicted: c.Evicted, Misses: c.Misses,
		},
	}
	for i := range r.Groups {
		g := &r.Groups[i]
		for k := range g.Rows {
			h := &g.Rows[k]
			s := seriesJSON{
				Stage: h.Stage.Key(), From: g.From, To: g.To, N: h.Count, MeanNs: int64(h.Mean()), P50Ns: int64(h.Quantile(0.5)),
				P90Ns: int64(h.Quantile(0.9)), P99Ns: int64(h.Quantile(0.99)), MaxNs: h.Max, SumNs: h.Sum,
			}
			for b, n := range h.Counts {
				if n > 0 {
					s.Buckets = append(s.Buckets, bucketJSON{probe.Lower(b + 1), n})
				}
			}
			out.Series = append(out.Series, s)
		}
	}
	line, err := text.JSON(out)
	if err != nil {
		return err
	}
	_, err = w.Write(line)
	return err
}
