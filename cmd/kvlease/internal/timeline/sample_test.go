package timeline

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"strings"
	"testing"
)

// sample is a chart with every kind of mark, as the demo makes it.
func sample() *Chart {
	beats := func(from, to float64) (marks []Mark) {
		for t := from; t < to; t += 0.2 {
			marks = append(marks, Mark{Kind: Beat, From: t})
		}
		return marks
	}
	a := func(label string) Run {
		return Run{
			Label:   label,
			Moments: []Moment{{0.12, "granted"}, {3.2, "scheduled: D reads"}},
			Lanes: []Lane{
				{"P (C)", append([]Mark{{Kind: Lease, From: 0.12, To: 3.26, Text: "lease on 16 blocks, held 3.14 s"}, {Kind: FirstTerm, From: 1.32, Text: "1.2 s"}, {Kind: Completed, From: 3.26, Text: "freed"}}, beats(0.3, 3.2)...)},
				{"D (node)", []Mark{{Kind: Waiting, From: 0.15, To: 3.2, Text: "r1 waits 3.05 s, 2.5 leases"}, {Kind: Read, From: 3.2, To: 3.24, Text: "2.0 MiB, 0 wrong bytes"}}},
			},
		}
	}
	c := Run{
		Label:   "inline, default transport",
		Moments: []Moment{{0.1, "granted"}, {0.8, "SIGSTOP"}, {1.65, "P reclaims, overwrites"}, {2.3, "SIGCONT, D reads"}, {2.34, "refused: stale"}},
		Lanes: []Lane{
			{"P (C)", append([]Mark{{Kind: Lease, From: 0.1, To: 1.65, Text: "lease on 16 blocks"}, {Kind: Reclaimed, From: 1.65}, {Kind: Reuse, From: 1.67, To: 2.9, Text: "other & <its> request"}}, beats(0.3, 0.8)...)},
			{"D (C)", []Mark{{Kind: Waiting, From: 0.12, To: 0.8, Text: "r1 waits"}, {Kind: Stopped, From: 0.8, To: 2.3, Text: "stopped"}, {Kind: Refused, From: 2.34, Text: "stale"}}},
		},
	}
	b := Run{
		Label:   "pump, default transport",
		Moments: []Moment{{0.1, "granted"}, {1.3, "SIGKILL"}, {2.05, "reclaimed after 0.75 s"}},
		Lanes: []Lane{
			{"P (C)", append([]Mark{{Kind: Lease, From: 0.1, To: 2.05, Text: "8 leases, 128 blocks"}, {Kind: Reclaimed, From: 2.05}, {Kind: Reuse, From: 2.1, To: 2.4, Text: "reused"}}, beats(0.3, 1.3)...)},
			{"D (C)", []Mark{{Kind: Waiting, From: 0.12, To: 1.3, Text: "8 requests wait"}, {Kind: Crash, From: 1.3}}},
		},
	}
	rest := Run{
		Label:   "TP 2 to 1, pump, UCX_TLS=tcp",
		Moments: []Moment{{0.9, "P needs blocks"}, {1.5, "P is back"}},
		Lanes: []Lane{
			{"P", []Mark{{Kind: Lease, From: 0.1, To: 0.9, Text: "4 leases"}, {Kind: Revoked, From: 0.9}, {Kind: Lease, From: 1.5, To: 2}, {Kind: Released, From: 2}}},
			{"D", []Mark{{Kind: Waiting, From: 0.1, To: 0.9}, {Kind: Reset, From: 0.5}, {Kind: Told, From: 0.95}, {Kind: Meeting, From: 1.5, To: 1.7}, {Kind: Aside, From: 1.8, To: 2.2, Text: "set aside"}, {Kind: Sent, From: 1.9}, {Kind: Broken, From: 2.3, Text: "wrong data"}}},
		},
	}
	return &Chart{
		Title:    "kvlease demo: one lease, end to end",
		Subtitle: "Separate processes over NIXL. Leases of 1.2 s; D's heartbeats every 0.2 s keep them alive, each buys 0.8 s.",
		Scenes: []Scene{
			{Title: "a  busy D", Story: "The request waits in D's queue for longer than two leases; heartbeats keep the blocks. Then D reads and P frees at once.", Runs: []Run{a("inline, default transport"), a("pump, UCX_TLS=tcp")}},
			{Title: "b  D crash", Story: "D is killed while requests wait. No more heartbeats: the leases run out and P has its blocks back.", Runs: []Run{b}},
			{Title: "c  stopped D", Story: "D is stopped past its lease, P gives the blocks to another request, D goes on and reads: the fence shows it, the data is thrown away.", Runs: []Run{c}},
			{Title: "d  the other kinds", Story: "No story.", Runs: []Run{rest}},
		},
	}
}

func draw(t *testing.T, c *Chart) string {
	t.Helper()
	var b bytes.Buffer
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTheFileIsWellFormedAndEscapesWhatItIsGiven(t *testing.T) {
	svg := draw(t, sample())
	if path := os.Getenv("KVLEASE_SAMPLE_SVG"); path != "" { // to look at it
		if err := os.WriteFile(path, []byte(svg), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dec := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := dec.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if strings.Contains(svg, "<its>") || !strings.Contains(svg, "other &amp; &lt;its&gt; request") {
		t.Error("text from outside is not escaped")
	}
}

func TestTheLegendExplainsExactlyTheMarksThatOccur(t *testing.T) {
	all := draw(t, sample())
	for k := Kind(0); k < kinds; k++ {
		if !strings.Contains(all, ">"+strings.ReplaceAll(meaning[k], "'", "&#39;")+"<") {
			t.Errorf("%q is not in the legend", meaning[k])
		}
	}
	one := sample()
	one.Scenes = one.Scenes[:1]
	if svg := draw(t, one); strings.Contains(svg, meaning[Crash]) {
		t.Error("the legend explains a crash where there is none")
	}
}

func TestEveryHeartbeatIsATickAndEveryLeaseABar(t *testing.T) {
	c := sample()
	beats, leases := 0, 0
	for _, s := range c.Scenes {
		for _, r := range s.Runs {
			for _, l := range r.Lanes {
				for _, m := range l.Marks {
					switch m.Kind {
					case Beat, Sent:
						beats++
					case Lease:
						leases++
					}
				}
			}
		}
	}
	svg := draw(t, c) // each with one more in the legend
	if got := strings.Count(svg, `<line class="beat"`); got != beats+2 {
		t.Errorf("%d ticks, want %d", got, beats+2)
	}
	if got := strings.Count(svg, `<rect class="lease"`); got != leases+1 {
		t.Errorf("%d bars, want %d", got, leases+1)
	}
}

func TestAnEmptyChartIsStillAFile(t *testing.T) {
	if svg := draw(t, &Chart{Title: "nothing"}); !strings.HasSuffix(svg, "</svg>\n") {
		t.Errorf("ends in %q", svg[max(0, len(svg)-20):])
	}
}

func TestTheAxisHasRoundStepsAndNotTooMany(t *testing.T) {
	for _, length := range []float64{0.3, 1, 4.7, 9, 40, 500, 900, 3600, 20_000, 400_000} {
		s := step(length)
		if n := length / s; n > 12 || n < 2 {
			t.Errorf("%v s get %v marks", length, n)
		}
	}
}
