package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

func small() Config {
	return Config{Transport: "loopback", Memory: "dram", Blocks: []uint64{64, 4096}, Counts: []int{1, 8}, Rounds: 2, Samples: 2, Burst: 300}
}

// measure runs both ends in this process; d changes what D's transports do.
func measure(t *testing.T, ctx context.Context, cfg Config, d func(transport.Transport) transport.Transport) (*Result, error) {
	t.Helper()
	return measureOver(t, ctx, cfg, nil, d)
}

// over opens a transport and changes what it does.
func over(open core.OpenTransport, change func(transport.Transport) transport.Transport) map[string]core.OpenTransport {
	return map[string]core.OpenTransport{"loopback": func(cfg *core.Config, agent string) (transport.Transport, error) {
		tr, err := open(cfg, agent)
		if err == nil && change != nil {
			tr = change(tr)
		}
		return tr, err
	}}
}

func measureOver(t *testing.T, ctx context.Context, cfg Config, p, d func(transport.Transport) transport.Transport) (*Result, error) {
	t.Helper()
	open := core.Loopback(loopback.NewHub())
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	served := make(chan error, 1)
	go func() {
		err := Serve(context.Background(), inRead, outWrite, over(open, p))
		outWrite.Close()
		inRead.Close()
		served <- err
	}()
	r, err := Run(ctx, cfg, NewPeer(inWrite, outRead, func() string { return "" }), over(open, d))
	inWrite.Close()
	if err := <-served; err != nil {
		t.Errorf("P: %v", err)
	}
	return r, err
}

func sound(t *testing.T, what string, f Figure) {
	t.Helper()
	if f.Low <= 0 || f.Median < f.Low || f.High < f.Median {
		t.Errorf("%s: %+v", what, f)
	}
}

// near allows for what numbers lose in another order of the same sum.
func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-6*max(1, math.Abs(want)) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestEachWayOfEachShapeIsMeasuredAndShown(t *testing.T) {
	cfg := small()
	r, err := measure(t, t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	var shapes []string
	for i := range r.Reads {
		read := &r.Reads[i]
		shapes = append(shapes, read.name())
		var ways []string
		for _, w := range read.Ways {
			ways = append(ways, w.Way)
			sound(t, read.name()+" "+w.Way, w.Us)
			sound(t, read.name()+" "+w.Way+" GB/s", w.GBs)
			if w.FirstUs != nil && w.FirstUs.Median > w.Us.High {
				t.Errorf("%s %s: the first byte after %+v, all of it after %+v", read.name(), w.Way, *w.FirstUs, w.Us)
			}
		}
		if diff := cmp.Diff(readWays, ways); diff != "" {
			t.Errorf("ways of %s (-want +got):\n%s", read.name(), diff)
		}
		for _, w := range read.Ways {
			near(t, read.name()+" "+w.Way+", GB/s from us", w.GBs.Median, float64(read.Block)*float64(read.Count)/1000/w.Us.Median)
		}
		// of two rounds the median of differences is the difference of medians
		raw := read.way(WayRaw).Us.Median
		near(t, read.name()+", what the fence adds", read.FenceUs.Median, read.way(WayOurs).Us.Median-raw)
		near(t, read.name()+", what 8 bytes add", read.FenceLeastUs.Median, read.way(WayFenced).Us.Median-raw)
	}
	if diff := cmp.Diff([]string{"1 x 64", "8 x 64", "1 x 4.0K", "8 x 4.0K"}, shapes); diff != "" {
		t.Errorf("shapes (-want +got):\n%s", diff)
	}
	for _, ways := range [][]NotifWay{r.Notifications.Latency, r.Notifications.Burst} {
		if len(ways) != 2 || ways[0].Way != WayRaw || ways[1].Way != WayOurs {
			t.Fatalf("notifications: %+v", ways)
		}
		for _, w := range ways {
			sound(t, "notification "+w.Way, w.Us)
			sound(t, "notifications a second "+w.Way, w.PerSecond)
		}
	}

	line, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var again Result
	if err := json.Unmarshal(line, &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, &again, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("through JSON (-want +got):\n%s", diff)
	}
	var said, drawn bytes.Buffer
	if err := r.Write(&said); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteSVG(&drawn); err != nil {
		t.Fatal(err)
	}
	for _, want := range append(shapes, "memory dram", "loopback", "300 at once", "2 rounds of 2 samples") {
		if !strings.Contains(said.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, said.String())
		}
	}
	for _, want := range append(shapes, readWays...) {
		if !strings.Contains(drawn.String(), ">"+want+"<") {
			t.Errorf("the picture lacks %q", want)
		}
	}
	for x := xml.NewDecoder(&drawn); ; {
		if _, err := x.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
	}
}

// shortReads brings all but the last word.
type shortReads struct{ transport.Transport }

func (s shortReads) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	one := *spec
	one.Descs = append([]transport.Desc(nil), spec.Descs...)
	if last := &one.Descs[len(one.Descs)-1]; last.Len > 8 {
		last.Len -= 8
	}
	return s.Transport.PostRead(&one)
}

// failedReads end with an error.
type failedReads struct{ transport.Transport }

func (f failedReads) PollReads(xfers []transport.Xfer, out []transport.Status, spinNs int64) {
	f.Transport.PollReads(xfers, out, spinNs)
	for i := range xfers {
		if out[i] == transport.Done {
			out[i] = transport.Failed
		}
	}
}

func TestAReadThatBringsLessOrFailsEndsTheRun(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		d          func(transport.Transport) transport.Transport
	}{
		{"a block without its last word", "was read and holds 0xffffffffffffffff at byte 56", func(tr transport.Transport) transport.Transport { return shortReads{tr} }},
		{"a read that fails", "the read has failed", func(tr transport.Transport) transport.Transport {
			if strings.HasPrefix(tr.Agent(), "bench-raw-") {
				return failedReads{tr}
			}
			return tr
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if r, err := measure(t, t.Context(), small(), tc.d); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%+v, %v; want an error with %q", r, err, tc.want)
			}
		})
	}
}

func TestAnInterruptedRunSaysSoAndPEnds(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	reads := 0
	_, err := measure(t, ctx, small(), func(tr transport.Transport) transport.Transport {
		return counted{tr, func() {
			if reads++; reads == 5 {
				stop()
			}
		}}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with: %v", err)
	}
}

type counted struct {
	transport.Transport
	posted func()
}

func (c counted) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	c.posted()
	return c.Transport.PostRead(spec)
}

func TestAPeerThatDiesIsNamed(t *testing.T) {
	in, w := io.Pipe()
	in.Close()
	out, outWrite := io.Pipe()
	outWrite.Close()
	_, err := Run(t.Context(), small(), NewPeer(w, out, func() string { return ": out of memory" }), map[string]core.OpenTransport{"loopback": core.Loopback(loopback.NewHub())})
	if err == nil || !strings.Contains(err.Error(), "P has ended: out of memory") {
		t.Errorf("it ends with: %v", err)
	}
}

func TestFigures(t *testing.T) {
	s := series{5, 1, 9, 3}
	if diff := cmp.Diff(Figure{4, 1, 9}, s.figure()); diff != "" {
		t.Errorf("of an even number (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Figure{25, 20, 50}, (Figure{4, 2, 5}).per(100)); diff != "" {
		t.Errorf("as a rate (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Figure{1, -1, 2}, (series{5, 6, 7}).less(series{4, 7, 5})); diff != "" {
		t.Errorf("a difference by rounds (-want +got):\n%s", diff)
	}
}

func TestCheckNamesTheFlag(t *testing.T) {
	for _, tc := range []struct {
		want string
		set  func(*Config)
	}{
		{"--block and --count have 0 and 2 values", func(c *Config) { c.Blocks = nil }},
		{"--block has 60, allowed: 64", func(c *Config) { c.Blocks[1] = 60 }},
		{"--block has 100, allowed: 64 to 67108864 bytes, in words of 8", func(c *Config) { c.Blocks[1] = 100 }},
		{"--count has 0", func(c *Config) { c.Counts[0] = 0 }},
		{"--block 67108864 by --count 129 is 8657043456 bytes on each side", func(c *Config) { c.Blocks[1], c.Counts[1] = BlockMax, 129 }},
		{"--rounds is 0", func(c *Config) { c.Rounds = 0 }},
		{"--samples is 1001", func(c *Config) { c.Samples = 1001 }},
		{"--burst is 100001", func(c *Config) { c.Burst = 100001 }},
		{`--memory is "tape", allowed: dram, vram`, func(c *Config) { c.Memory = "tape" }},
	} {
		c := small()
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
		tc.set(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want %q", err, tc.want)
		}
	}
}
