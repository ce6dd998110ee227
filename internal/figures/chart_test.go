package figures

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAnAxisHasWholeDecades(t *testing.T) {
	s := scaleOf([]float64{-3, 0, 7.3, 100, 8.6}, 0, 300)
	for _, tc := range []struct{ v, want float64 }{{1, 0}, {10, 150}, {100, 300}, {0, 0}, {-5, 0}, {1e9, 300}} {
		if got := s.at(tc.v); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%v is at %v, want %v", tc.v, got, tc.want)
		}
	}
	if diff := cmp.Diff([]float64{1, 10, 100}, s.ticks(10)); diff != "" {
		t.Errorf("ticks (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]float64{1, 100}, s.ticks(1)); diff != "" {
		t.Errorf("one step (-want +got):\n%s", diff)
	}
	for _, values := range [][]float64{nil, {0, -1}, {10}} {
		if s := scaleOf(values, 0, 1); !(s.high > s.low) {
			t.Errorf("the axis of %v is %+v", values, s)
		}
	}
}

func TestTheTargetIsALimitOrAShareOfTheBestPeer(t *testing.T) {
	value := func(v float64) *float64 { return &v }
	peers := []Peer{peer("NIXL", of(9, 10, 11)), peer("NIXL", of(7, 8, 9)), peer("memcpy", of(1, 2, 3))}
	for _, tc := range []struct {
		name string
		row  Row
		want float64
	}{
		{"none", Row{Peers: peers}, 0},
		{"a limit", Row{Limit: value(12), Ratio: value(2), Peers: peers}, 12},
		{"a share of the best of the first project", Row{Ratio: value(0.5), Peers: peers}, 16},
		{"where more is better, of the greatest", Row{Ratio: value(0.5), Better: "more", Peers: peers}, 5},
		{"no peer", Row{Ratio: value(1)}, 0},
	} {
		if got := tc.row.goal(); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// element is what a test asks of a picture.
type element struct {
	name, class string
	x, y        float64
}

// elements reads a picture as XML, which fails where it is none.
func elements(t *testing.T, svg []byte) (out []element, texts string) {
	t.Helper()
	in := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := in.Token()
		if errors.Is(err, io.EOF) {
			return out, texts
		}
		if err != nil {
			t.Fatal(err)
		}
		switch v := token.(type) {
		case xml.StartElement:
			e := element{name: v.Name.Local}
			for _, a := range v.Attr {
				n, _ := strconv.ParseFloat(a.Value, 64)
				switch a.Name.Local {
				case "class":
					e.class = a.Value
				case "cx", "x1":
					e.x = n
				case "cy", "y1":
					e.y = n
				}
			}
			out = append(out, e)
		case xml.CharData:
			texts += string(v) + "\n"
		}
	}
}

func TestAChartShowsEachSideTheTargetAndTheCurves(t *testing.T) {
	limit, no := 50.0, false
	row := func(what string, at float64, ours, theirs Summary) Row {
		return Row{Section: "lease", What: what, Unit: "ns", Family: "renew", At: at, Ours: ours, Peers: []Peer{peer("vLLM & co", theirs), peer("kvlease inline", ours)}}
	}
	f := file(row("<renew> 10", 10, of(10, 10, 10), of(100, 100, 100)), row("renew 1,000", 1000, of(99, 100, 1000), of(10000, 10000, 10000)),
		Row{Section: "other", What: "left out", Unit: "B", Ours: of(1, 2, 3)})
	f.Rows[1].Limit, f.Rows[1].Met = &limit, &no
	var out bytes.Buffer
	if err := f.WriteChart(&out, "A title", []string{"lease"}, true); err != nil {
		t.Fatal(err)
	}
	all, texts := elements(t, out.Bytes())
	for _, want := range []string{"A title\n", "<renew> 10\n", "10 ns  kvlease\n", "100 ns  vLLM & co\n", "10 ns to 100 ns, × 10\n", "100 ns to 10 µs, × 100\n", "commit c"} {
		if !strings.Contains(texts, want) {
			t.Errorf("%q is not in the texts", want)
		}
	}
	if strings.Contains(texts, "left out") {
		t.Error("a section that was not asked for is in it")
	}
	const decade = (plotRight - plotLeft) / 3 // 10 ns to 10 µs
	at := func(class string) (x []float64) {
		for _, e := range all {
			if e.name == "circle" && e.class == class && e.x >= plotLeft && e.y > 80 && e.y < 210 {
				x = append(x, math.Round(e.x-plotLeft))
			}
		}
		return x
	}
	if diff := cmp.Diff([]float64{0, math.Round(decade)}, at("ours")); diff != "" {
		t.Errorf("ours (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]float64{math.Round(decade), math.Round(3 * decade)}, at("peer0")); diff != "" {
		t.Errorf("the peer (-want +got):\n%s", diff)
	}
	var targets []float64
	for _, e := range all {
		if e.class == "missed" && e.y > 80 {
			targets = append(targets, math.Round(10*(e.x-plotLeft))/10)
		}
	}
	if diff := cmp.Diff([]float64{math.Round(10*decade*math.Log10(5)) / 10}, targets); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
	curves := 0
	for _, e := range all {
		if strings.HasSuffix(e.class, " curve") {
			curves++
		}
	}
	if curves != 3 {
		t.Errorf("%d curves, want one of ours and two of the peers", curves)
	}
}

func TestACurveNeedsTwoPointsAndHasThemInOrder(t *testing.T) {
	r := func(family string, at float64, project string) Row {
		return Row{Section: "s", What: family + strconv.FormatFloat(at, 'f', 0, 64), Unit: "ns", Family: family, At: at, Ours: of(1, at, at), Peers: []Peer{peer(project, of(1, 2, 3))}}
	}
	f := file(r("a", 100, "vLLM"), r("a", 10, "vLLM"), r("a", 0, "vLLM"), r("b", 10, "vLLM"), r("c", 10, "vLLM"), r("c", 20, "etcd"))
	got := f.families([]string{"s"})
	var names []string
	for _, m := range got {
		for _, c := range m.curves {
			names = append(names, m.name+" "+c.name)
		}
	}
	if diff := cmp.Diff([]string{"a kvlease", "a vLLM", "c kvlease"}, names); diff != "" {
		t.Errorf("curves (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]float64{10, 100}, got[0].curves[0].at); diff != "" {
		t.Errorf("points (-want +got):\n%s", diff)
	}
	if f.families([]string{"t"}) != nil {
		t.Error("curves of another section")
	}
}

func TestALaterRunReplacesRowsThatAreThere(t *testing.T) {
	f, later := file(row("a", of(1, 2, 3)), row("b", of(4, 5, 6))), file(row("b", of(7, 8, 9)), row("c", of(1, 1, 1)))
	later.Commit = "d"
	f.Replace(later)
	if len(f.Rows) != 2 || f.Rows[0].Ours.Median != 2 || f.Rows[1].Ours.Median != 8 || f.Commit != "c and d" {
		t.Errorf("%+v", f)
	}
}
