package top

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
)

var update = flag.Bool("update", false, "write the screens in testdata anew")

func some(v float64) *float64 { return &v }

func after(d time.Duration) *time.Duration { return &d }

// engine is one with leases of 30 s.
func engine(name string, change func(e *Engine)) *Engine {
	e := &Engine{
		Source: "/dev/shm/x", Name: name, Role: "engine", Ranks: 1, PID: 4711, Context: 1, Duration: 30 * time.Second, Interval: 5 * time.Second, Extension: 20 * time.Second,
		key: name, Beats: some(0), alive: true, Age: 40 * time.Millisecond, Peers: []Peer{},
	}
	if change != nil {
		change(e)
	}
	return e
}

func holder(name string, leases uint64, beat, least time.Duration) Peer {
	return Peer{Name: name, Kind: Holds, Leases: leases, Blocks: 40 * leases, Bytes: leases * 40 << 16, Beat: &beat, least: &least, Oldest: after(time.Minute), key: name}
}

func reading(list ...*Engine) Reading {
	r := Reading{At: time.Date(2026, 11, 30, 3, 4, 5, 0, time.UTC), Engines: list}
	for _, e := range list {
		e.judge()
	}
	return r
}

// night is what an operator may see at three in the morning.
func night() Reading {
	return reading(
		engine("prefill-0", func(e *Engine) {
			e.Leases, e.Blocks, e.Bytes, e.Beats = 14, 560, 560<<16, some(2.8)
			e.Peers = []Peer{
				holder("decode-0", 12, 4200*time.Millisecond, 15*time.Second),
				holder("decode-1", 1, 16*time.Second, 14900*time.Millisecond),
				holder("decode-2", 0, 100*time.Second, -1),
				{Name: "nobody yet", Kind: Holds, Leases: 1, Blocks: 40, Bytes: 40 << 16, Oldest: after(3 * time.Second), unnamed: true, key: "nobody"},
			}
			e.Peers[2].least, e.Peers[2].Expired = nil, 3
		}),
		engine("decode-0", func(e *Engine) {
			e.PID, e.Tracked, e.Reads, e.Rate, e.Beats, e.Stale, e.Quarantine = 4712, 12, 2, 3.42e9, some(2.4), 1, 2
			e.Peers = []Peer{{Name: "prefill-0", Kind: Reads, State: "connected", Leases: 12, Reads: 2, Rate: 3.42e9, Beat: after(4200 * time.Millisecond), Heard: after(time.Millisecond), Since: after(time.Hour), key: "p"}}
		}),
		engine("decode-1", func(e *Engine) {
			e.PID, e.Tracked, e.stopped, e.Age = 4713, 1, true, 16*time.Second
			e.Peers = []Peer{{Name: "prefill-0", Kind: Reads, State: "connected", Leases: 1, Beat: after(16 * time.Second), Heard: after(16 * time.Second), key: "p"}}
		}),
		engine("tp2", func(e *Engine) {
			e.Role, e.Ranks, e.PID, e.Leases, e.Blocks, e.Bytes, e.draining = "host", 2, 4714, 1, 8, 8<<20, true
		}),
		engine("tp2", func(e *Engine) {
			e.Role, e.Ranks, e.PID, e.Leases, e.Blocks, e.Bytes, e.ofRank, e.key = "rank", 2, 4715, 1, 8, 4<<20, true, "tp2 r0"
		}),
		engine("gone", func(e *Engine) { e.PID, e.alive, e.Leases, e.Blocks = 4716, false, 3, 24 }),
		engine("bad", func(e *Engine) { e.PID, e.poisoned, e.Late = 4717, true, 2 }),
	)
}

func screen(v *view) string {
	var b strings.Builder
	for _, l := range v.lines() {
		b.WriteString(l.String() + "\n")
	}
	return b.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestScreens(t *testing.T) {
	for _, tc := range []struct {
		name          string
		width, height int
		keys          string
	}{
		{"night-80x24.txt", 80, 24, ""},
		{"night-132x30.txt", 132, 30, ""},
		{"decode-80x24.txt", 80, 24, "s s j j"},
		{"paused-40x10.txt", 40, 10, "p G"},
		{"help-80x24.txt", 80, 24, "h"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := &view{width: tc.width, height: tc.height, where: "/dev/shm"}
			v.set(night())
			for _, k := range strings.Fields(tc.keys) {
				if v.press(k) {
					t.Fatalf("%s ends it", k)
				}
			}
			golden(t, tc.name, screen(v))
		})
	}
	var out strings.Builder
	if err := writeText(&out, night(), &Config{}); err != nil {
		t.Fatal(err)
	}
	golden(t, "night-once.txt", out.String())
}

// Whatever is shown, no line is longer than the screen, and there are as many as it has.
func TestEveryScreenFitsItsTerminal(t *testing.T) {
	many := night()
	for i := range 300 {
		many.Engines = append(many.Engines, engine(fmt.Sprintf("德国-%03d", i), func(e *Engine) {
			e.key = fmt.Sprint(i)
			for k := range i % 40 {
				e.Peers = append(e.Peers, holder(fmt.Sprintf("\x1b[2J\u202e%d", k), uint64(k), time.Second, 15*time.Second))
			}
		}))
	}
	many = reading(many.Engines...)
	for _, size := range [][2]int{{80, 24}, {40, 8}, {41, 9}, {79, 23}, {109, 50}, {110, 24}, {250, 70}, {39, 24}, {80, 7}, {0, 0}, {3, 1}} {
		for _, r := range []Reading{{}, night(), many} {
			v := &view{width: size[0], height: size[1]}
			v.set(r)
			for _, key := range []string{"", "G", "tab", "pgdown", "pgdown", "up", "tab", "g", "s", "s", "s", "s", "s", "s", "r", "pgdown", "p", "h"} {
				v.press(key)
				lines := v.lines()
				if size[0] >= 40 && size[1] >= 8 && len(lines) != size[1] {
					t.Fatalf("%v after %q: %d lines", size, key, len(lines))
				}
				for _, l := range lines {
					if w := text.Width(l.String()); w > size[0] {
						t.Fatalf("%v after %q: %d cells in %q", size, key, w, l)
					}
				}
				if out := screen(v); strings.ContainsAny(out, "\x1b\u202e") {
					t.Fatalf("%v after %q: a name acts on the terminal: %q", size, key, out)
				}
			}
		}
	}
}

func TestTextOfOneLookCutsNoName(t *testing.T) {
	long := strings.Repeat("engine-", 30)
	r := reading(engine(long, func(e *Engine) { e.Peers = []Peer{holder("d-"+long, 1, time.Second, 15*time.Second)} }))
	var out strings.Builder
	if err := writeText(&out, r, &Config{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{" " + long + " eng ", " d-" + long + " holds "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

func TestTheSelectionStaysWithItsEngineAndComesIntoView(t *testing.T) {
	list := make([]*Engine, 300)
	for i := range list {
		list[i] = engine(fmt.Sprintf("engine-%03d", i), func(e *Engine) { e.Leases = uint64(i); e.Bytes = uint64(i) })
	}
	v := &view{width: 80, height: 24}
	v.set(reading(list...))
	for range 123 {
		v.press("down")
	}
	shows := func(name string) {
		t.Helper()
		if e := v.selected(); e == nil || e.Name != name {
			t.Fatalf("selected: %+v", e)
		}
		for _, l := range v.lines() {
			if l.selected && strings.Contains(l.String(), name) {
				return
			}
		}
		t.Fatalf("%s is not on the screen\n%s", name, screen(v))
	}
	shows("engine-123")
	v.press("s")
	v.press("s") // by bytes, most first
	shows("engine-123")
	v.press("r")
	shows("engine-123")
	v.set(reading(append(list[:123:123], list[124:]...)...)) // it has gone: the next one takes its place
	shows("engine-124")
	v.press("end")
	shows("engine-299")
	v.press("home")
	shows("engine-000")
	v.set(reading())
	if !strings.Contains(screen(v), "no engine on kvlease has a stats page") {
		t.Errorf("%s", screen(v))
	}
	v.set(reading(list[7]))
	shows("engine-007")
}

func TestWhatIsLeftShrinksWhileAReaderIsSilent(t *testing.T) {
	last := Level(0)
	for beat := time.Duration(0); beat < 19*time.Second; beat += time.Second {
		e := engine("p", func(e *Engine) { e.Leases, e.Peers = 1, []Peer{holder("d", 1, beat, 15*time.Second)} })
		e.judge()
		want := min(15*time.Second, 20*time.Second-beat)
		if e.Slack == nil || *e.Slack != want {
			t.Fatalf("silent for %v: %v left, want %v", beat, e.Slack, want)
		}
		if e.Level < last {
			t.Fatalf("silent for %v: level %d after %d", beat, e.Level, last)
		}
		last = e.Level
	}
	if last != Alarm {
		t.Errorf("a second before the end the level is %d", last)
	}
	for _, tc := range []struct { // heartbeats that come wait for a step: whoever sends them is not to blame
		name  string
		age   time.Duration
		beat  time.Duration
		state string
		words string
	}{
		{"it steps", time.Second, 30 * time.Second, "silent", "d has let 1 lease run out"},
		{"it does not step", 30 * time.Second, 30 * time.Second, unheard, "d cannot be heard without a step, and the deadline of 1 lease has passed"},
		{"it does not step, and there is some time left", 17 * time.Second, 17 * time.Second, unheard, "d cannot be heard without a step: 3.0s left to 1 lease"},
		{"it has not stepped for a moment", 8 * time.Second, 8 * time.Second, unheard, ""},
	} {
		e := engine("p", func(e *Engine) { e.Age, e.Leases, e.Peers = tc.age, 1, []Peer{holder("d", 1, tc.beat, 15*time.Second)} })
		e.judge()
		var words []string
		for _, w := range e.Trouble {
			if strings.HasPrefix(w, "d ") {
				words = append(words, w)
			}
		}
		if got := strings.Join(words, "; "); e.Peers[0].State != tc.state || got != tc.words {
			t.Errorf("%s: %q, %q; want %q, %q", tc.name, e.Peers[0].State, got, tc.state, tc.words)
		}
	}
	stuck := engine("p", func(e *Engine) { e.Leases, e.Peers = 1, []Peer{holder("d", 1, time.Hour, 15*time.Second)} })
	stuck.Peers[0].Oldest = after(2 * time.Hour)
	if stuck.judge(); stuck.Slack == nil || *stuck.Slack != 20*time.Second-time.Hour {
		t.Errorf("leases of an owner that stands still have %v left", stuck.Slack)
	}
	young := engine("p", func(e *Engine) { e.Leases, e.Peers = 1, []Peer{holder("d", 1, 17*time.Second, 21*time.Second)} })
	young.Peers[0].Oldest = after(17 * time.Second)
	if young.judge(); *young.Slack != 13*time.Second {
		t.Errorf("in their first term of 30 s, 17 s after the grant, leases have %v left", young.Slack)
	}
	fixed := engine("p", func(e *Engine) { e.Leases, e.Peers = 1, []Peer{holder("d", 1, time.Hour, 0)} })
	fixed.Peers[0].least = nil
	if fixed.judge(); fixed.Slack != nil {
		t.Errorf("leases that no heartbeat renews have %v left", fixed.Slack)
	}
}

func TestColoursAreLeftOutButMarksStay(t *testing.T) {
	for _, colours := range []bool{true, false} {
		v := &view{width: 80, height: 24, colours: colours}
		v.set(night())
		out := v.paint()
		for _, code := range []string{"31", "32", "33"} {
			if has := strings.Contains(out, "\x1b["+code+"m") || strings.Contains(out, ";"+code+"m"); has != colours {
				t.Errorf("colours %v: code %s %v", colours, code, has)
			}
		}
		if !strings.Contains(out, "\x1b[7m") || !strings.Contains(out, "!") {
			t.Errorf("colours %v: no headings or no marks", colours)
		}
	}
}
