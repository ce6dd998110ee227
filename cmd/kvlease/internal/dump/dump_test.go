package dump

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/pages"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/standin"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/internal/require"
)

// until dumps this process until the report fits.
func until(t *testing.T, cfg *Config, what string, fits func(r *Report) bool) *Report {
	t.Helper()
	var text bytes.Buffer
	for late := time.Now().Add(standin.Longest); ; time.Sleep(5 * time.Millisecond) {
		r, err := Run(cfg)
		if err == nil && fits(r) {
			return r
		}
		if time.Now().After(late) {
			if r != nil {
				r.WriteText(&text, 20)
			}
			t.Fatalf("waited for: %s; %v\n%s", what, err, text.String())
		}
	}
}

func contextOf(r *Report, engine string) *Context {
	for _, c := range r.Contexts {
		if c.Engine == engine {
			return c
		}
	}
	return &Context{}
}

func leaseOf(c *Context, id string) *Lease {
	for i := range c.Leases {
		if c.Leases[i].ID == id {
			return &c.Leases[i]
		}
	}
	return nil
}

// long is an id that does not fit into its slot.
var long = strings.Repeat("long-", 20) + "id"

func TestEveryLeaseIsShownWithItsReaderAndWhatIsLeftOfIt(t *testing.T) {
	dir := require.Shm(t)
	p, d := standin.TestedPair(t, dir, "r1", "r2", long)
	cfg := &Config{PID: os.Getpid(), Dir: dir}
	r := until(t, cfg, "heartbeats of all, by a reader with a name", func(r *Report) bool {
		p := contextOf(r, "P")
		for _, id := range []string{"r1", "r2", long} {
			if l := leaseOf(p, id); l == nil || l.Beats < 2 || l.Reader != "D" {
				return false
			}
		}
		return len(p.Leases) == 3 && len(contextOf(r, "D").Owners) == 1 && contextOf(r, "D").Owners[0].Tracked == 3
	})
	if len(r.Contexts) != 2 || r.State != "running" || r.PID != os.Getpid() {
		t.Fatalf("%+v", r)
	}
	c := contextOf(r, "P")
	if !c.Table || c.Torn > 0 || !c.Alive || c.Used != 3 || c.Role != "engine" || c.DurationNs != int64(3*time.Second) {
		t.Errorf("%+v", c)
	}
	if o := contextOf(r, "D").Owners; len(o) != 1 || o[0].Name != "P" || o[0].State != "connected" || o[0].Tracked != 3 {
		t.Errorf("D reads from %+v", o)
	}
	last := int64(-1)
	for _, l := range c.Leases {
		if l.State != "held" || l.Blocks != 2 || l.SlackNs == nil || *l.SlackNs <= 0 || *l.SlackNs > c.DurationNs || *l.SlackNs < last || l.AgeNs == nil || *l.AgeNs <= 0 {
			t.Errorf("%+v, after a slack of %d", l, last)
		}
		last = *l.SlackNs
		if l.IDHash != hashOf(l.ID) {
			t.Errorf("%s: hash %s", l.ID, l.IDHash)
		}
	}
	if err := d.Read(p, "r1"); err != nil {
		t.Fatal(err)
	}
	r = until(t, cfg, "the end of one", func(r *Report) bool { return len(contextOf(r, "P").Ends) == 1 })
	e := contextOf(r, "P").Ends[0]
	if e.ID != "r1" || e.Reason != "completed" || e.Reader != "D" || e.Blocks != 2 || e.HeldNs <= 0 || e.Number != 1 {
		t.Errorf("%+v", e)
	}
	if n := len(contextOf(r, "P").Leases); n != 2 {
		t.Errorf("%d leases are left", n)
	}
}

// ofPage is the report of a context whose page has these values, and its text.
func ofPage(t *testing.T, names []string, values []uint64) (*Context, string) {
	t.Helper()
	return ofPageWith(t, names, values, nil)
}

// ofPageWith is ofPage of a page that has more in it.
func ofPageWith(t *testing.T, names []string, values []uint64, more func(w *watch.Writer)) (*Context, string) {
	t.Helper()
	dir := require.Shm(t)
	spec := &watch.Spec{Dir: dir, Remotes: 32, Head: watch.Head{Role: "engine", Engine: "E", Opened: core.Now()}}
	for _, name := range names {
		spec.Step = append(spec.Step, watch.Desc{Name: name, Kind: watch.Gauge})
	}
	w, why, err := watch.New(spec)
	if err != nil || why != nil {
		t.Fatal(err, why)
	}
	t.Cleanup(w.Close)
	copy(w.Values(), values)
	if more != nil {
		more(w)
	}
	if !w.Publish(&watch.Live{Stepped: core.Now()}) {
		t.Fatal("not published")
	}
	r, _ := Run(&Config{PID: os.Getpid(), Dir: dir}) // it has no leases that it could name
	if r == nil || len(r.Contexts) != 1 {
		t.Fatalf("%+v", r)
	}
	var text strings.Builder
	if err := r.WriteText(&text, 20); err != nil {
		t.Fatal(err)
	}
	return r.Contexts[0], text.String()
}

// The page of a process that hangs says what was left when it made its last step.
func TestSlackOfAStepLongAgoIsNotShown(t *testing.T) {
	for age, shown := range map[time.Duration]bool{0: true, 5 * time.Hour: false} {
		dir := require.Shm(t)
		w, why, err := watch.New(&watch.Spec{Dir: dir, Readers: 32, Head: watch.Head{Role: "engine", Engine: "E", Opened: core.Now(), Interval: time.Hour}})
		if err != nil || why != nil {
			t.Fatal(err, why)
		}
		w.PutReader(0, &watch.ReaderRow{Number: 8, Native: true, Hash: 11, Leases: 2, LastBeat: core.Now().Add(-age), LeastSlack: 3 * time.Second})
		w.SetReaders(1)
		if !w.Publish(&watch.Live{Stepped: core.Now().Add(-age)}) {
			t.Fatal("not published")
		}
		r, _ := Run(&Config{PID: os.Getpid(), Dir: dir}) // it has no leases that it could name
		w.Close()
		if r == nil || len(r.Contexts) != 1 || len(r.Contexts[0].Readers) != 1 {
			t.Fatalf("%+v", r)
		}
		if k := r.Contexts[0].Readers[0]; (k.LeastSlackNs != nil) != shown {
			t.Errorf("%v after its last step: %v", age, k.LeastSlackNs)
		}
	}
}

func TestHowHandshakesStandIsSaid(t *testing.T) {
	since := core.Now().Add(-time.Hour)
	c, text := ofPageWith(t, nil, nil, func(w *watch.Writer) {
		w.PutRemote(0, &watch.Remote{Engine: 1, ID: "P", State: "idle"})
		w.PutRemote(1, &watch.Remote{Engine: 2, ID: "Q", State: "connected", Missed: true})
		w.FinishRemotes(2)
		w.PutAsked([]watch.AskedRow{{Engine: 2, Asked: watch.Asked{State: "ready"}}, {Engine: 1, Asked: watch.Asked{State: "failed", Fails: 61, Since: since, Why: "unreachable"}}})
	})
	if o := c.Owners[0]; o.Asked != "failed" || o.AskFails != 61 || o.AskSinceNs == nil || *o.AskSinceNs < int64(time.Hour) || o.AskWhy != "unreachable" {
		t.Errorf("%+v", o)
	}
	if o := c.Owners[1]; o.Asked != "ready" || o.AskFails != 0 || o.AskSinceNs != nil || o.AskWhy != "" {
		t.Errorf("%+v", o)
	}
	if c.Owners[0].Missed || !c.Owners[1].Missed || !strings.Contains(text, "  connected, fails ") {
		t.Errorf("%+v\n%s", c.Owners, text)
	}
	if !strings.Contains(text, "  failed: 61 failures in 60m (unreachable)\n") || !strings.Contains(text, "  ready\n") {
		t.Error(text)
	}
}

func TestWhatTheLogHasLostIsSaid(t *testing.T) {
	c, text := ofPage(t, []string{"log_lost"}, []uint64{7})
	if want := "  7 records of its log are lost: nobody takes them, or too seldom\n"; c.LogLost != 7 || !strings.Contains(text, want) {
		t.Errorf("%d; want %q in:\n%s", c.LogLost, want, text)
	}
}

func TestWhatNoStepHasTakenIsSaid(t *testing.T) {
	c, text := ofPage(t, []string{"untaken_bytes"}, []uint64{64})
	if want := "  64 bytes of what its hooks were told no step has taken\n"; c.Untaken != 64 || !strings.Contains(text, want) {
		t.Errorf("%d; want %q in:\n%s", c.Untaken, want, text)
	}
	if strings.Contains(text, "memory: ") {
		t.Errorf("a context without memory, as a host is, has none that is missing:\n%s", text)
	}
}

func TestWhatOfTheMemoryIsRegisteredAndWasShownIsSaid(t *testing.T) {
	names := []string{"registered_bytes", "registering_bytes", "regions_proven", "regions_unproven", "asleep"}
	for want, values := range map[string][]uint64{
		"  memory: none is registered; nobody can read from it, and it reads nothing\n":            {0, 0, 0, 0, 0},
		"  memory: unregistered on purpose, it sleeps\n":                                           {0, 0, 0, 0, 1},
		"  memory: 64MB; of 2 regions a page was read back as by a peer\n":                         {64 << 20, 0, 2, 0, 0},
		"  memory: 64MB; that peers can read 1 region was not shown: memory_unproven in its log\n": {64 << 20, 0, 1, 1, 0},
		"  memory: 64MB of 128MB are registered so far\n":                                          {64 << 20, 128 << 20, 0, 0, 0},
		"  memory: 0B of 128MB are registered so far\n":                                            {0, 128 << 20, 0, 0, 0},
		"  memory: 64MB\n": {64 << 20, 0, 0, 0, 0},
	} {
		c, text := ofPage(t, names, values)
		if got := []uint64{c.Memory.Registered, c.Memory.Registering, c.Memory.Proven, c.Memory.Unproven}; !slices.Equal(got, values[:4]) || c.Memory.Asleep != (values[4] != 0) ||
			!strings.Contains(text, want) || strings.Contains(text, "memory: ") != (want != "") {
			t.Errorf("%v; want %v and %q in:\n%s", got, values, want, text)
		}
	}
}

func hashOf(id string) string { return fmt.Sprintf("%016x", wire.EngineHash([]byte(id))) }

func TestABugReportHasHashesInThePlaceOfIDs(t *testing.T) {
	dir := require.Shm(t)
	p, d := standin.TestedPair(t, dir, "secret-1", "secret-2", "secret-"+long)
	if err := d.Read(p, "secret-1"); err != nil {
		t.Fatal(err)
	}
	r := until(t, &Config{PID: os.Getpid(), Dir: dir, Hashes: true}, "one end and two leases", func(r *Report) bool {
		c := contextOf(r, "P")
		return len(c.Ends) == 1 && len(c.Leases) == 2 && c.Leases[0].IDHash != "" && c.Leases[1].IDHash != ""
	})
	var text, object bytes.Buffer
	if err := errors.Join(r.WriteText(&text, 1024), r.WriteJSON(&object)); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{text.String(), object.String()} {
		if strings.Contains(out, "secret") {
			t.Errorf("an id is in it: %s", out)
		}
		for _, id := range []string{"secret-1", "secret-2", "secret-" + long} {
			if !strings.Contains(out, hashOf(id)) {
				t.Errorf("the hash of %s is not in it: %s", id, out)
			}
		}
	}
	var back Report
	if err := json.Unmarshal(object.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(len(r.Contexts), len(back.Contexts)); diff != "" {
		t.Error(diff)
	}
}

func TestIDsOfPeersDoNothingToATerminal(t *testing.T) {
	dir := require.Shm(t)
	ids := []string{"a\x1b[2Jb", "a\u009b31mb", "\u202egnorw", "德国-1", "nl\nnl", "quote\"d"}
	standin.TestedPair(t, dir, ids...)
	r := until(t, &Config{PID: os.Getpid(), Dir: dir}, "all ids", func(r *Report) bool {
		for _, id := range ids {
			if leaseOf(contextOf(r, "P"), id) == nil {
				return false
			}
		}
		return true
	})
	var out, object bytes.Buffer
	if err := errors.Join(r.WriteText(&out, 20), r.WriteJSON(&object)); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{out.String(), object.String()} {
		for _, c := range text {
			if c != '\n' && (c < ' ' || c >= 0x7f && c < 0xa0 || c == '\u202e') {
				t.Errorf("%U is in %q", c, text)
				break
			}
		}
	}
	for _, want := range []string{`"a\x1b[2Jb"`, `"a\u009b31mb"`, "德国-1", `quote"d`, `"nl\nnl"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}

func TestWhatCannotBeDumpedIsSaid(t *testing.T) {
	dir := require.Shm(t)
	for _, tc := range []struct {
		name string
		cfg  Config
		is   error
		says string
	}{
		{"no such process", Config{PID: 1<<31 - 1, Dir: dir}, ErrNoProcess, "has left a stats page"},
		{"a process without kvlease", Config{PID: os.Getpid(), Dir: dir}, ErrNoPage, "--dir"},
		{"no such folder", Config{PID: os.Getpid(), Dir: "/nowhere"}, os.ErrNotExist, "/nowhere"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := Run(&tc.cfg)
			if r != nil || !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, %v", r, err)
			}
		})
	}
	standin.TestedPair(t, dir, "r1")
	if r, err := Run(&Config{PID: os.Getpid(), Dir: dir, Context: 1 << 20}); r != nil || err == nil || !strings.Contains(err.Error(), "no context 1048576") {
		t.Errorf("%v, %v", r, err)
	}
}

// Between the page and the memory a process may end, and its number be given to another.
func TestAProcessThatEndsWhileItIsDumpedHasNoLeases(t *testing.T) {
	dir := require.Shm(t)
	standin.TestedPair(t, dir, "r1")
	paths, err := watch.List(dir)
	if err != nil || len(paths) != 2 {
		t.Fatal(paths, err)
	}
	page, err := watch.Open(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"another process has its number", "it has ended"} {
		r := &Report{PID: other.Process.Pid, State: "running"}
		err := r.add(&Config{PID: other.Process.Pid}, page, pages.NewNames(), true)
		if !errors.Is(err, errGone) || len(r.Contexts) != 1 || r.Contexts[0].Table || len(r.Contexts[0].Leases) != 0 || r.Contexts[0].Why != errGone.Error() || r.State != pages.Gone {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
		other.Process.Kill()
		other.Wait()
	}
}

// A supervisor's next process may have the number of the one that died, above all in a container.
func TestWhatTheDeadLeftIsShownThoughAnotherProcessHasItsNumber(t *testing.T) {
	dir, left := require.Shm(t), require.Shm(t)
	standin.TestedPair(t, dir, "r1")
	paths, err := watch.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	started, ok := watch.Started(os.Getpid())
	if !ok {
		t.Fatal("no start of this process")
	}
	word := binary.LittleEndian.AppendUint64(nil, started)
	for _, path := range paths {
		data, err := os.ReadFile(path)
		at := bytes.Index(data, word)
		if err != nil || at < 0 {
			t.Fatal(at, err)
		}
		binary.LittleEndian.PutUint64(data[at:], started-1)
		if err := os.WriteFile(filepath.Join(left, filepath.Base(path)), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Run(&Config{PID: os.Getpid(), Dir: left})
	if err != nil || len(r.Contexts) != 2 || r.State != pages.Gone || len(r.Notes) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, c := range r.Contexts {
		if c.Alive || c.Table || !strings.Contains(c.Why, "the process has ended") {
			t.Errorf("%+v", c)
		}
	}
	if r, err = Run(&Config{PID: os.Getpid(), Dir: dir}); err != nil || len(r.Contexts) != 2 || !r.Contexts[0].Alive || len(r.Notes) != 0 {
		t.Errorf("its own pages: %+v, %v", r, err)
	}
}

// A rank asks nobody: its page does not know how handshakes stand, which is not that there are none.
func TestHandshakesOfARankAreItsHosts(t *testing.T) {
	for role, want := range map[string]bool{"rank": true, "engine": false} {
		var b bytes.Buffer
		c := &Context{Role: role, Owners: []Owner{{Name: "P", State: "idle"}}}
		c.writeOwners(&b)
		if got := strings.Contains(b.String(), "by host"); got != want {
			t.Errorf("%s: %s", role, b.String())
		}
	}
	failing := &Owner{Name: "P", Asked: "failed", AskFails: 2, AskWhy: "silent"}
	if got := (&Context{Role: "engine"}).asked(failing); !strings.HasPrefix(got, "failed: 2 failures in ") || !strings.HasSuffix(got, " (silent)") {
		t.Errorf("it says %q", got)
	}
}

// A host reads nothing itself: no reads in flight, no failures and no bytes would be untrue of an engine whose ranks read.
func TestAHostSaysNothingOfReadsThatItsRanksMake(t *testing.T) {
	for role, columns := range map[string]string{
		"host": "READS FROM  STATE      TRACKED  ADDRESS  HANDSHAKE",
		"rank": "READS FROM  STATE      TRACKED  READS  FAILS  BYTES  ADDRESS  HANDSHAKE",
	} {
		var b bytes.Buffer
		c := &Context{Role: role, Owners: []Owner{{Name: "P", State: "connected", Tracked: 7, Address: "h:1", Asked: "ready"}}}
		c.writeOwners(&b)
		if !strings.Contains(b.String(), "  "+columns+"\n") {
			t.Errorf("%s:%s\nwant %s", role, b.String(), columns)
		}
	}
}
