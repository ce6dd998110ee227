package capacity

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestAHistogramIsExactToA256th(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 7))
	for range 50 {
		var h hist
		var all []time.Duration
		for range 1 + r.IntN(2000) {
			d := time.Duration(math.Exp(r.Float64() * 40))
			all = append(all, d)
			h.add(d)
		}
		slices.Sort(all)
		for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 1} {
			want := all[max(int(math.Ceil(q*float64(len(all))))-1, 0)]
			if got := h.quantile(q); got < want || float64(got) > float64(want)*(1+1.0/256)+1 {
				t.Fatalf("quantile %v of %d: %v, want %v", q, len(all), got, want)
			}
		}
		if s := h.spans(); s.N != uint64(len(all)) || s.Min != Span(all[0]) || s.Max != Span(all[len(all)-1]) {
			t.Fatalf("%+v, want %d from %v to %v", s, len(all), all[0], all[len(all)-1])
		}
	}
	var none hist
	none.add(-5)
	if none.quantile(0.5) != 0 || (&hist{}).quantile(0.5) != 0 {
		t.Error("a negative span, or none, is not 0")
	}
}

func compared(t *testing.T) (*Config, []*Result) {
	t.Helper()
	c, _ := drawn(11)
	c.D, c.CrashD, c.Wired, c.Restart = 4, 300, 0, second
	rs, err := Compare(t.Context(), c, []Setting{leased(6 * second), leased(30 * second), fixedFor(480 * second)}, func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(traceOf(11, 120))), nil
	}, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &c, rs
}

func TestSettingsAreComparedOnTheSameLoad(t *testing.T) {
	var opened, closed, told atomic.Int32
	sets := []Setting{leased(6 * second), leased(12 * second), fixedFor(30 * second), fixedFor(60 * second)}
	rs, err := Compare(t.Context(), small(), sets, func() (io.ReadCloser, error) {
		opened.Add(1)
		return &counted{strings.NewReader(strings.Join(twoRequests(), "")), &closed}, nil
	}, 3, func(*Result) { told.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rs {
		if r.Setting != sets[i].Name() || r.Requests != 2 {
			t.Errorf("place %d: %s with %d requests, want %s with 2", i, r.Setting, r.Requests, sets[i].Name())
		}
	}
	if opened.Load() != 4 || closed.Load() != 4 || told.Load() != 4 {
		t.Errorf("opened %d times, closed %d, told %d", opened.Load(), closed.Load(), told.Load())
	}
	opened.Store(0)
	some, err := Compare(t.Context(), small(), sets, func() (io.ReadCloser, error) {
		if opened.Add(1) == 3 {
			return nil, errDisk
		}
		return &counted{strings.NewReader(strings.Join(twoRequests(), "")), &closed}, nil
	}, 1, nil)
	if !errors.Is(err, errDisk) || len(some) != 2 || some[0].Setting != sets[0].Name() || some[1].Setting != sets[1].Name() {
		t.Errorf("the third fails: %v, %d results, want the two before it", err, len(some))
	}
	if _, err := Compare(t.Context(), small(), sets, func() (io.ReadCloser, error) { return nil, errDisk }, 2, nil); !errors.Is(err, errDisk) {
		t.Errorf("a trace that cannot be opened: %v", err)
	}
	if _, err := Compare(t.Context(), small(), []Setting{leased(0)}, nil, 2, nil); !errors.Is(err, ErrConfig) {
		t.Errorf("a wrong setting: %v", err)
	}
}

func TestARunThatIsCalledOffEnds(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	stop(errDisk)
	if _, err := Run(ctx, small(), leased(30*second), &endless{n: 1 << 30}); !errors.Is(err, errDisk) {
		t.Errorf("%v, want the reason", err)
	}
}

type counted struct {
	io.Reader
	closed *atomic.Int32
}

func (c *counted) Close() error { c.closed.Add(1); return nil }

func TestTheTableHasARowForEachSetting(t *testing.T) {
	c, rs := compared(t)
	var out bytes.Buffer
	Table(&out, c, rs)
	for _, r := range rs {
		if strings.Count(out.String(), r.Setting) != 2 {
			t.Errorf("%s is not in both tables:\n%s", r.Setting, out.String())
		}
	}
	width := 0
	for l := range strings.Lines(out.String()) {
		width = max(width, len(l))
	}
	if width > 180 {
		t.Errorf("%d columns", width)
	}
	Table(&out, c, nil)
}

func TestTheReportIsJSONInSeconds(t *testing.T) {
	c, rs := compared(t)
	var out bytes.Buffer
	if err := WriteJSON(&out, &Report{Version: "v", Config: *c, Results: rs}); err != nil {
		t.Fatal(err)
	}
	var again Report
	if err := json.Unmarshal(out.Bytes(), &again); err != nil || len(again.Results) != 3 || timeless(again.Results[1]) != timeless(rs[1]) {
		t.Errorf("a report that was read again: %v\n%s\n%s", err, timeless(again.Results[1]), timeless(rs[1]))
	}
	var back struct {
		Config  struct{ P int } `json:"config"`
		Results []struct {
			Setting string  `json:"setting"`
			Term    float64 `json:"term_s"`
			Reclaim struct {
				N   int     `json:"n"`
				Max float64 `json:"max_s"`
			} `json:"reclaim"`
			Samples []struct {
				At float64 `json:"at_s"`
			} `json:"samples"`
		} `json:"results"`
	}
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	last := back.Results[2]
	if last.Setting != "fixed 480 s" || last.Term != 480 || back.Results[0].Term != 6 {
		t.Errorf("%+v", last)
	}
	if n := len(last.Samples); n < 3 || last.Samples[1].At-last.Samples[0].At < 1 || last.Reclaim.N == 0 || last.Reclaim.Max > 485 {
		t.Errorf("%d samples, reclaimed %+v", n, last.Reclaim)
	}
}

func TestTheChartsAreWellFormedAndShowEachSetting(t *testing.T) {
	c, rs := compared(t)
	rs[1].Setting = `<lease & "30">`
	for _, results := range [][]*Result{rs, rs[:1], nil} {
		var out bytes.Buffer
		if err := SVG(&out, c, results); err != nil {
			t.Fatal(err)
		}
		texts := map[string]int{}
		for d := xml.NewDecoder(bytes.NewReader(out.Bytes())); ; {
			tok, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%v in\n%s", err, out.String())
			}
			switch tok := tok.(type) {
			case xml.CharData:
				texts[strings.TrimSpace(string(tok))]++
			case xml.StartElement:
				for _, a := range tok.Attr {
					if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
						t.Errorf("%s %s=%q", tok.Name.Local, a.Name.Local, a.Value)
					}
				}
			}
		}
		for _, r := range results {
			if texts[r.Setting] != 6 { // five charts of bars, and the lines' legend
				t.Errorf("%q stands in %d charts, want 6", r.Setting, texts[r.Setting])
			}
		}
	}
	if name := os.Getenv("KVLEASE_CAPACITY_SVG"); name != "" { // to look at
		var out bytes.Buffer
		if err := SVG(&out, c, rs); err != nil || os.WriteFile(name, out.Bytes(), 0o644) != nil {
			t.Errorf("%v", err)
		}
	}
}

func TestAnAxisHoldsItsValuesAndItsTicksAreRound(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 9))
	for range 2000 {
		var vs []float64
		for range 1 + r.IntN(9) {
			v := math.Exp(r.Float64()*40 - 15)
			if r.IntN(4) == 0 {
				v = 0
			}
			vs = append(vs, v)
		}
		for _, log := range []bool{false, true} {
			a := newAxis(log, vs)
			for _, v := range vs {
				if h := a.height(v); h < 0 || h > 1+1e-9 || v == 0 && h != 0 {
					t.Fatalf("%v of %v reaches %v", v, vs, h)
				}
			}
			if n := len(a.ticks()); n < 2 || !log && n > 8 || log && n > 22 {
				t.Fatalf("%d ticks for %v", n, vs)
			}
		}
	}
}
