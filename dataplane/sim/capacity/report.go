package capacity

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvlease/kvlease/internal/jsons"
)

// Table writes the results for people: first what each setting costs in blocks and requests, then in time, bytes and cores.
func Table(out io.Writer, cfg *Config, results []*Result) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(cells ...any) {
		for _, c := range cells {
			fmt.Fprintf(t, "%v\t", c)
		}
		fmt.Fprintln(t)
	}
	row("", "wasted", "of all", "hand-", "lost", "of all", "lease", "P", "D", "un-", "stale", "cache", "waited", "given")
	row("setting", "block-s", "caches", "back", "in all", "prefill", "ended", "crash", "crash", "proven", "reads", "full", "p99", "up")
	for _, r := range results {
		caches := float64(cfg.P) * float64(cfg.CacheBlocks) * time.Duration(r.Span).Seconds()
		row(r.Setting, count(r.WastedBlockSeconds), share(r.WastedBlockSeconds, caches), share(r.HandBackBlockSeconds, r.BlockSeconds),
			r.Lost, share(float64(r.LostTokens), float64(r.Tokens)), r.LostLease, r.LostPCrash, r.LostDCrash, r.LostUnproven, r.StaleReads, r.Refused, span(r.RefusedWait.P99), r.GivenUp+r.TurnedAway)
	}
	t.Flush()
	fmt.Fprintln(out)
	row("", "reclaimed", "", "", "", "first token", "", "beats", "bytes/s", "rows/s", "CPU us/s", "CPU us/s", "beats at", "beats at")
	row("setting", "leases", "p50", "p99", "max", "p50", "p99", "/s of a D", "of a D", "of a D", "of a P", "of a D", "most, P", "most, D")
	for _, r := range results {
		p, d := time.Duration(r.Span).Seconds()*float64(cfg.P), time.Duration(r.Span).Seconds()*float64(cfg.D)
		us := func(s Span, of float64) string { return short3(time.Duration(s).Seconds() * 1e6 / of) }
		row(r.Setting, r.Reclaim.N, span(r.Reclaim.P50), span(r.Reclaim.P99), span(r.Reclaim.Max), span(r.First.P50), span(r.First.P99),
			short3(float64(r.BeatMessages)/d), short3(float64(r.BeatBytes)/d), short3(float64(r.RowReads)/d),
			us(r.CPUP, p), us(r.CPUD, d), us(r.BeatCPUP, p), us(r.BeatCPUD, d))
	}
	t.Flush()
	if len(results) == 0 {
		return
	}
	r := results[0]
	wall := time.Duration(0)
	for _, r := range results {
		wall += time.Duration(r.Wall)
	}
	fmt.Fprintf(out, "\n%d requests to %d P and %d D; %d crashes of P and %d of D, %d stalls; %v of virtual time each; the runs took %v together\n",
		r.Requests, cfg.P, cfg.D, r.CrashesP, r.CrashesD, r.Stalls, time.Duration(r.Span).Round(time.Second), wall.Round(time.Second))
}

// plain is count without zeros that say nothing.
func plain(v float64) string {
	s := count(v)
	unit := ""
	if n := len(s) - 1; n >= 0 && (s[n] == 'k' || s[n] == 'M' || s[n] == 'G') {
		s, unit = s[:n], s[n:]
	}
	if strings.Contains(s, ".") && !strings.Contains(s, "e") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s + unit
}

// count is a large number with a letter for thousands.
func count(v float64) string {
	for _, u := range []struct {
		of   float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e4, "k"}} {
		if v >= u.of {
			if u.name == "k" {
				return short3(v/1e3) + "k"
			}
			return short3(v/u.of) + u.name
		}
	}
	return short3(v)
}

// short3 is a number with about three digits.
func short3(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

func share(v, of float64) string {
	if of == 0 {
		return "-"
	}
	return short3(100*v/of) + "%"
}

func span(s Span) string {
	d := time.Duration(s)
	switch {
	case d == 0:
		return "-"
	case d < time.Second:
		return short3(d.Seconds()*1e3) + "ms"
	}
	return short3(d.Seconds()) + "s"
}

// Report is the JSON of a comparison.
type Report struct {
	Version string              `json:"version"`
	Machine string              `json:"machine"`
	Trace   string              `json:"trace"`
	Config  Config              `json:"config"`
	Results jsons.List[*Result] `json:"results"`
}

// WriteJSON writes a report, indented. Each name ends with the unit of its time: seconds of results, nanoseconds of the configuration.
func WriteJSON(out io.Writer, r *Report) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(r)
}
