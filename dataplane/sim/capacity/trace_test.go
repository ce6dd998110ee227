package capacity

import (
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestALineOfATraceThatCannotBeReadIsNamed(t *testing.T) {
	good := line(0, 10, 1)
	for _, tc := range []struct{ name, bad, want string }{
		{"no JSON", "{\n", "not a JSON object"},
		{"no object", "[1, 2]\n", "not a JSON object"},
		{"a text", `{"timestamp": "0", "input_length": 1, "output_length": 1}` + "\n", "timestamp"},
		{"two objects", `{"timestamp": 0, "input_length": 1, "output_length": 1} {}` + "\n", "not a JSON object"},
		{"no time", `{"input_length": 1, "output_length": 1}` + "\n", "timestamp is missing"},
		{"null", `{"timestamp": 0, "input_length": null, "output_length": 1}` + "\n", "input_length is missing"},
		{"no output", `{"timestamp": 0, "input_length": 1}` + "\n", "output_length is missing"},
		{"no tokens", line(0, 0, 1), "input_length is 0, allowed: 1 to"},
		{"too many tokens", line(0, tokensMax+1, 1), "allowed: 1 to"},
		{"less than none", line(0, 1, -1), "output_length is -1, allowed: 0 to"},
		{"before the start", line(-time.Second, 1, 1), "timestamp is -1000"},
		{"before the line above", line(0, 1, 1), "timestamp goes back from 5 to 0 ms"},
		{"a line without an end", strings.Repeat(" ", lineMax+1), "longer than"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := good + "\n" + good
			if strings.Contains(tc.want, "goes back") {
				before = good + "\n" + line(5*time.Millisecond, 1, 1)
			}
			_, err := Run(t.Context(), small(), leased(30*second), strings.NewReader(before+tc.bad))
			if err == nil || !strings.Contains(err.Error(), "line 4 of the trace") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want one that names line 4 and %q", err, tc.want)
			}
		})
	}
	if _, err := Run(t.Context(), small(), leased(30*second), strings.NewReader("\n \n")); !errors.Is(err, ErrConfig) {
		t.Errorf("a trace without requests: %v", err)
	}
	if _, err := Run(t.Context(), small(), leased(30*second), io.MultiReader(strings.NewReader(good), failing{})); !errors.Is(err, errDisk) || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a file that cannot be read further: %v", err)
	}
}

var errDisk = errors.New("disk")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errDisk }

func TestLoadMakesCopiesInOrderOfTime(t *testing.T) {
	for _, tc := range []struct {
		load   float64
		lo, hi int
	}{{1, 1000, 1000}, {3, 3000, 3000}, {0.5, 430, 570}, {2.25, 2180, 2320}} {
		c := small()
		c.Load, c.Spread = tc.load, 10*second
		var text strings.Builder
		for i := range 1000 {
			text.WriteString(line(time.Duration(i)*100*time.Millisecond, i+1, 1))
		}
		a := newArrivals(strings.NewReader(text.String()), &c)
		n, last := 0, time.Duration(-1)
		for {
			e, err := a.next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			n++
			own := time.Duration(e.input-1) * 100 * time.Millisecond
			if e.at < last || e.at < own || e.at >= own+c.Spread {
				t.Fatalf("load %v: request %d at %v after one at %v, its own time is %v", tc.load, e.input, e.at, last, own)
			}
			if tc.load == 1 && e.at != own {
				t.Fatalf("a load of 1 moves request %d from %v to %v", e.input, own, e.at)
			}
			last = e.at
			if a.copies.Len() > int(tc.load+1)*110 { // those of 10 s, and of one more
				t.Fatalf("%d copies kept", a.copies.Len())
			}
		}
		if n < tc.lo || n > tc.hi {
			t.Errorf("load %v: %d requests of 1,000, want %d to %d", tc.load, n, tc.lo, tc.hi)
		}
	}
}

// endless writes n lines, 20 a second, without ever holding them.
type endless struct {
	n, at int
	rest  string
}

func (e *endless) Read(p []byte) (int, error) {
	if e.rest == "" {
		if e.at == e.n {
			return 0, io.EOF
		}
		e.rest = line(time.Duration(e.at)*50*time.Millisecond, 200, 10)
		e.at++
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

func TestMemoryDoesNotGrowWithTheTrace(t *testing.T) {
	c := small()
	c.P, c.D, c.Slots, c.Prefill, c.Load = 2, 2, 4, 20000, 2
	heap := func(lines int) (bytes uint64, reqs, events int) {
		w, err := newWorld(c, leased(30*second), &endless{n: lines})
		if err != nil {
			t.Fatal(err)
		}
		r := w.rest(t)
		if r.Finished != uint64(2*lines) {
			t.Fatalf("%d finished of %d", r.Finished, 2*lines)
		}
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		runtime.KeepAlive(w)
		return m.HeapAlloc, len(w.reqs), w.events.Cap()
	}
	short, reqs, events := heap(1000)
	long, reqsLong, eventsLong := heap(20000)
	if long > short+1<<20 || reqsLong > 2*reqs+64 || eventsLong > 2*events+64 {
		t.Errorf("1,000 lines take %d bytes, %d requests, %d events; 20,000 take %d, %d, %d", short, reqs, events, long, reqsLong, eventsLong)
	}
}

func TestWhatCannotBeIsNamed(t *testing.T) {
	for _, tc := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.P = 0 }, "prefill engines 0, allowed: 1 to 4096"},
		{func(c *Config) { c.D = EnginesMax + 1 }, "decode engines 4097"},
		{func(c *Config) { c.BlockTokens = 0 }, "tokens of a block 0"},
		{func(c *Config) { c.BlockBytes = 0 }, "bytes of a block 0"},
		{func(c *Config) { c.CacheBlocks = -1 }, "blocks of a cache -1"},
		{func(c *Config) { c.Prefill = 0 }, "prefill speed 0, allowed: more than 0"},
		{func(c *Config) { c.Decode = math.NaN() }, "decode speed NaN"},
		{func(c *Config) { c.LinkRate = 0 }, "link rate 0, allowed: more than 0"},
		{func(c *Config) { c.Load = 0 }, "load 0, allowed: more than 0"},
		{func(c *Config) { c.Load = math.Inf(1) }, "load +Inf"},
		{func(c *Config) { c.CrashD = -1 }, "crashes of a decode engine an hour -1, allowed: 0 to"},
		{func(c *Config) { c.CrashP = 1e9 }, "crashes of a prefill engine an hour 1e+09"},
		{func(c *Config) { c.Wired = 1.5 }, "wired share 1.5, allowed: 0 to 1"},
		{func(c *Config) { c.Stalls = -1 }, "stalls an hour -1"},
		{func(c *Config) { c.Slots = 0 }, "slots 0"},
		{func(c *Config) { c.QueueMax = 1; c.Slots = 2 }, "queue of a decode engine 1, allowed: 2 to"},
		{func(c *Config) { c.Pass = 0 }, "pass 0s"},
		{func(c *Config) { c.Restart = 0 }, "restart 0s"},
		{func(c *Config) { c.StallMax = -1 }, "longest stall"},
		{func(c *Config) { c.Spread = -1 }, "spread"},
		{func(c *Config) { c.Tries = 0 }, "tries 0"},
		{func(c *Config) { c.Requests = -1 }, "requests -1"},
		{func(c *Config) { c.Router = "random" }, `router "random", allowed: round-robin, least-loaded`},
	} {
		c := small()
		tc.change(&c)
		_, err := Run(t.Context(), c, leased(30*second), strings.NewReader(line(0, 1, 1)))
		if !errors.Is(err, ErrConfig) || !strings.Contains(fmt.Sprint(err), tc.want) {
			t.Errorf("%v, want one that says %q", err, tc.want)
		}
	}
	for _, tc := range []struct {
		set  Setting
		want string
	}{
		{leased(0), "lease 0 s, allowed: 1s to 24h"},
		{fixedFor(25 * time.Hour), "fixed 90000 s, allowed"},
	} {
		if _, err := Run(t.Context(), small(), tc.set, strings.NewReader(line(0, 1, 1))); !errors.Is(err, ErrConfig) || !strings.Contains(fmt.Sprint(err), tc.want) {
			t.Errorf("%v, want one that says %q", err, tc.want)
		}
	}
	c := small()
	c.Pass = time.Second
	if _, err := Run(t.Context(), c, leased(2*second), strings.NewReader(line(0, 1, 1))); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "two lost heartbeats") {
		t.Errorf("a pass that a lease cannot survive: %v", err)
	}
}
