package watch

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/histogram"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/internal/child"
	"github.com/kvlease/kvlease/internal/require"
)

// memory is a folder of shared memory that the test has for itself.
func memory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(DefaultDir, "kvlease-watch-test-")
	if err != nil {
		require.Skip(t, "shm", err.Error())
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// spec is a page with a few of everything.
func spec(dir string) *Spec {
	s := &Spec{Dir: dir, Readers: ReadersMax, Remotes: RemotesMax, Side: []Desc{{Name: "side", Kind: Gauge}}}
	s.Library, s.Role, s.Engine, s.Drive, s.Carrier, s.Provider = "1.2.3", "rank", "engine-A", "pump", "shm", "loopback"
	s.Hash, s.Rank, s.TP, s.PP, s.Opened = 77, 1, 2, 1, 5
	s.Duration, s.Interval, s.Extension = 30*time.Second, 5*time.Second, 20*time.Second
	for i := range 100 {
		s.Step = append(s.Step, Desc{Name: fmt.Sprint("value_", i), Kind: Counter, Unit: "bytes", Help: "number " + strconv.Itoa(i)})
	}
	s.Histograms = []Desc{{Name: "times", Unit: "seconds", Help: "spans"}, {Name: "sizes", Unit: "things"}}
	return s
}

func newPage(t testing.TB, s *Spec) *Writer {
	t.Helper()
	w, why, err := New(s)
	if err != nil || s.Dir != "" && why != nil {
		t.Fatalf("%v, %v", why, err)
	}
	t.Cleanup(w.Close)
	return w
}

func readPage(t testing.TB, path string) *Snapshot {
	t.Helper()
	p, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := new(Snapshot)
	if err := p.Read(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// fill puts the state of number n: every word says which one it is.
func fillState(w *Writer, n uint64) *Live {
	for i := range w.Values() {
		w.Values()[i] = n
	}
	var h histogram.Histogram
	h.Zero, h.Sum = n, float64(n)
	for i := range h.Counts {
		h.Counts[i] = n
	}
	w.PutHistogram(0, &h)
	w.PutHistogram(1, &h)
	for i := range 50 {
		w.PutReader(i, &ReaderRow{Number: uint64(i + 1), Hash: n, Leases: n, Blocks: n})
	}
	w.SetReaders(50)
	return &Live{Stepped: clock.Instant(n), Epoch: n, BlockBytes: 1}
}

// torn tells what of a snapshot is not of one state.
func torn(s *Snapshot) string {
	n := s.Epoch
	for _, v := range s.Values {
		if v.Name != "side" && v.V != n {
			return fmt.Sprintf("%s is %d in state %d", v.Name, v.V, n)
		}
	}
	for _, h := range s.Histograms {
		for i, c := range h.Counts {
			if c != n || h.Zero != n {
				return fmt.Sprintf("%s: bucket %d is %d in state %d", h.Name, i, c, n)
			}
		}
	}
	for _, r := range s.Readers {
		if r.Leases != n || r.Hash != n {
			return fmt.Sprintf("a reader has %d leases in state %d", r.Leases, n)
		}
	}
	return ""
}

func TestAPageSaysWhatWasPutIntoIt(t *testing.T) {
	dir := memory(t)
	w := newPage(t, spec(dir))
	if want := filepath.Join(dir, fmt.Sprintf("kvlease-stats.%d.%d.0", os.Geteuid(), os.Getpid())); w.Path() != want {
		t.Errorf("the file is %s, want %s", w.Path(), want)
	}
	w.Values()[3] = 42
	var h histogram.Histogram
	h.ObserveN(time.Second, 7)
	w.PutHistogram(1, &h)
	w.PutReader(0, &ReaderRow{Number: 1, Unnamed: true, Leases: 5, Blocks: 9, LeastSlack: -1})
	w.PutReader(1, &ReaderRow{Number: 2, Other: true})
	w.PutReader(2, &ReaderRow{Number: 0})
	w.PutReader(3, &ReaderRow{Number: 8, Native: true, Hash: 11, Epoch: 12, Leases: 2, Blocks: 3, Oldest: 4, LastBeat: 6, LeastSlack: time.Second, Ended: [9]uint64{0, 1, 2, 3, 4, 5, 6, 7, 0}})
	w.NameReader(3, 8, []byte("decode-0"))
	w.SetReaders(4)
	for i := range 40 {
		w.PutRemote(i, &Remote{Engine: uint64(i + 1), ID: fmt.Sprint("engine-", i), Hash: uint64(i), Address: "host:1", State: "connected", Native: i%2 == 0, Bytes: 1 << 40,
			Handshake: time.Second, OffsetKnown: true, Offset: -time.Minute, LastRow: 3})
	}
	w.FinishRemotes(40)
	var last record.LastEnds
	for i := range 1500 {
		e := last.Next()
		e.AtNs, e.Reason, e.Reader, e.Blocks, e.IDLen = uint64(i), record.FreedExpired, 8, 4, 3
		copy(e.ID[:], "abc")
		if i%100 == 0 {
			w.PutEnds(&last)
		}
	}
	w.PutEnds(&last)
	w.PutSide([]uint64{99})
	live := &Live{Stepped: 1000, Epoch: 33, BlockBytes: 100, Draining: true}
	live.Tables[TableHot] = record.Place{Addr: 0xabc000, Stride: 32, Count: 10}
	if !w.Publish(live) {
		t.Fatal("it could not be written")
	}
	s := readPage(t, w.Path())
	if v, ok := s.Value("value_3", ""); !ok || v != 42 {
		t.Errorf("value_3 is %d", v)
	}
	if v := s.Values[3]; v.Unit != "bytes" || v.Kind != Counter || v.Help != "number 3" {
		t.Errorf("it is described as %+v", v)
	}
	if v, _ := s.Value("side", ""); v != 99 {
		t.Errorf("side is %d", v)
	}
	if h := s.Histogram("sizes"); h == nil || h.Counts[-histogram.First] != 7 || h.Sum != 7 || h.Unit != "things" {
		t.Errorf("sizes is %+v", h)
	}
	if len(s.Readers) != 3 || !s.Readers[0].Unnamed || s.Readers[0].Bytes != 900 || s.Readers[0].LeastSlack != -1 || !s.Readers[1].Other {
		t.Errorf("readers are %+v", s.Readers)
	}
	if r := s.Readers[2]; r.Name != "decode-0" || r.Row != 3 || !r.Native || r.Hash != 11 || r.Epoch != 12 || r.Oldest != 4 || r.LastBeat != 6 || r.LeastSlack != time.Second ||
		r.Completed != 1 || r.Released != 2 || r.Revoked != 3 || r.Expired != 4 || r.Poisoned != 5 || r.Duplicate != 6 || r.Closed != 7 {
		t.Errorf("the reader is %+v", r)
	}
	if len(s.Remotes) != 40 {
		t.Fatalf("%d engines", len(s.Remotes))
	}
	if r := s.Remotes[39]; r.Engine != 40 || r.ID != "engine-39" || r.Address != "host:1" || r.State != "connected" || r.Native || r.Bytes != 1<<40 || r.Handshake != time.Second || r.Offset != -time.Minute || !r.OffsetKnown || r.LastRow != 3 {
		t.Errorf("the last engine is %+v", r)
	}
	if len(s.Ends) != EndsMax || s.Ends[0].Number != 1500-EndsMax+1 || s.Ends[EndsMax-1].Number != 1500 {
		t.Fatalf("%d ends, from %d", len(s.Ends), s.Ends[0].Number)
	}
	if e := s.Ends[5]; e.Reason != "expired" || e.ID != "abc" || e.IDHash == 0 || e.Reader.Name != "decode-0" || e.Blocks != 4 || uint64(e.At) != e.Number-1 {
		t.Errorf("an end is %+v", e)
	}
	head := s.Head
	if head.PID != os.Getpid() || head.UID != os.Geteuid() || head.Library != "1.2.3" || head.Role != "rank" || head.Engine != "engine-A" || head.Drive != "pump" || head.Carrier != "shm" ||
		head.Provider != "loopback" || head.Rank != 1 || head.TP != 2 || head.Epoch != 33 || head.Stepped != 1000 || !head.Draining || head.Closed || head.Poisoned || !head.Alive || head.Published != 1 ||
		head.Duration != 30*time.Second || head.Interval != 5*time.Second || head.Extension != 20*time.Second || head.Hash != 77 || head.BlockBytes != 100 || head.Age <= 0 {
		t.Errorf("the head is %+v", head)
	}
	if len(head.Tables) != 1 || head.Tables[0] != (Table{"hot", 0xabc000, 32, 10}) {
		t.Errorf("tables are %+v", head.Tables)
	}
	s.SkipEnds = true
	p, err := w.Page()
	if err != nil || p.Read(s) != nil || len(s.Ends) != 0 {
		t.Errorf("without ends there are %d: %v", len(s.Ends), err)
	}
	p.Close()
}

func TestAPageIsForItsUserAlone(t *testing.T) {
	w := newPage(t, spec(memory(t)))
	old := unix.Umask(0)
	open := newPage(t, func() *Spec { s := spec(filepath.Dir(w.Path())); s.Context = 1; return s }())
	unix.Umask(old)
	for _, path := range []string{w.Path(), open.Path()} {
		if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
			t.Errorf("%s: %v %v", path, st.Mode(), err)
		}
	}
	if os.Geteuid() != 0 {
		require.Skip(t, "root", "only root can be another user")
	}
	if err := os.Chmod(filepath.Dir(w.Path()), 0o755); err != nil {
		t.Fatal(err)
	}
	run := runSelf(t, "open", w.Path())
	run.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := run.CombinedOutput()
	if !strings.Contains(string(out), "permission denied") {
		t.Errorf("another user: %s %v", out, err)
	}
}

// runSelf is this test program as another process.
func runSelf(t testing.TB, args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // where others may read it
		if copied := filepath.Join(os.TempDir(), "kvlease-watch-self-"+strconv.Itoa(os.Getpid())); len(args) > 0 && args[0] == "open" {
			data, err := os.ReadFile(exe)
			if err == nil {
				err = os.WriteFile(copied, data, 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Remove(copied) })
			exe = copied
		}
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "KVLEASE_WATCH_TEST="+strings.Join(args, "\n"))
	return cmd
}

func TestMain(m *testing.M) {
	do := strings.Split(os.Getenv("KVLEASE_WATCH_TEST"), "\n")
	switch do[0] {
	case "":
		os.Exit(m.Run())
	case "open":
		_, err := Open(do[1])
		fmt.Println(err)
	case "write": // states as fast as it can, until it is killed
		s := spec(do[1])
		w, why, err := New(s)
		if err != nil || why != nil {
			fmt.Println(why, err)
			os.Exit(1)
		}
		w.Publish(fillState(w, 1))
		fmt.Println(w.Path())
		for n := uint64(2); ; n++ {
			w.Publish(fillState(w, n))
		}
	}
	os.Exit(0)
}

// A reader sees states whole, whatever the writer is doing, and the last whole one of a writer that was killed in the middle.
func TestAWriterThatIsKilledLeavesAWholeState(t *testing.T) {
	dir := memory(t)
	rounds := 150
	if testing.Short() {
		rounds = 20
	}
	var reads, again uint64
	for i := range rounds {
		cmd := runSelf(t, "write", dir)
		_, out := child.Pipes(t, cmd)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() }) // also if the test fails before it does
		path, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatalf("%q %v", path, err)
		}
		path = strings.TrimSpace(path)
		p, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		var s Snapshot
		for range 1 + i%20 {
			switch err := p.Read(&s); {
			case errors.Is(err, ErrTorn): // it writes without a pause
			case err != nil:
				t.Fatal(err)
			default:
				reads++
				if what := torn(&s); what != "" {
					t.Fatalf("torn: %s", what)
				}
			}
		}
		cmd.Process.Kill()
		cmd.Wait()
		for range 2 {
			if err := p.Read(&s); err != nil {
				t.Fatalf("after its death: %v", err)
			}
			if what := torn(&s); what != "" {
				t.Fatalf("after its death: %s", what)
			}
		}
		if s.Alive {
			t.Errorf("process %d was killed and counts as alive", s.PID)
		}
		again += p.tries
		p.Close()
		os.Remove(path)
	}
	t.Logf("%d states read, %d copies read again", reads, again)
	if again == 0 && !testing.Short() {
		t.Error("no copy was ever written over while it was read: the check was not needed once")
	}
}

// The control of the test above: without the look at the turn afterwards states are torn.
func TestWithoutTheSecondLookStatesAreTorn(t *testing.T) {
	w := newPage(t, spec(memory(t)))
	var stop atomic.Bool
	done := make(chan struct{})
	w.Publish(fillState(w, 1))
	go func() {
		defer close(done)
		for n := uint64(2); !stop.Load(); n++ {
			w.Publish(fillState(w, n))
		}
	}()
	defer func() { stop.Store(true); <-done }()
	p, err := Open(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b := make([]byte, p.secs[secMain].copyLen)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if err := p.readAt(b, int64(p.secs[secMain].place(0, 1))); err != nil {
			t.Fatal(err)
		}
		first, last := b[8*mainWords:][:8], b[8*(mainWords+99):][:8]
		if string(first) != string(last) {
			return
		}
	}
	t.Error("a copy that is written all the time was never seen torn")
}

func TestWhatIsNoPageIsRefusedWithItsReason(t *testing.T) {
	dir := memory(t)
	w := newPage(t, spec(dir))
	w.Publish(fillState(w, 1))
	good, err := os.ReadFile(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	change := func(at int, b ...byte) []byte {
		data := append([]byte(nil), good...)
		copy(data[at:], b)
		return data
	}
	for _, tc := range []struct {
		name string
		data []byte
		is   error
		says string
	}{
		{"an empty file", nil, ErrNotAPage, "0 bytes"},
		{"another file", change(0, []byte("ELF")...), ErrNotAPage, "begins with"},
		{"a newer layout", change(hwVersion, 2), ErrVersion, "layout 2"},
		{"a file that was cut", good[:len(good)/2], ErrNotAPage, "it says that it has"},
		{"a size past the end", change(hwSize+2, 0xff), ErrNotAPage, "it says that it has"},
		{"a table past the end", change(hwTable+8, 0xff, 0xff, 0xff), ErrNotAPage, "table of names"},
		{"more values than the table has", change(hwStep, 101), ErrNotAPage, ""},
		{"parts elsewhere", change(sectionAt+1, 0xff), ErrNotAPage, "parts"},
		{"a part of another size", change(sectionAt+8, 1), ErrNotAPage, "parts"},
		{"a text that is too long", change(textAt, 0xff, 0xff), ErrNotAPage, "text"},
		{"another process's", change(hwPID, 1, 0, 0, 0), ErrNotAPage, "process 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(dir, fileName(os.Geteuid(), os.Getpid(), 900))
			if err := os.WriteFile(path, tc.data, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(path); !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v", err)
			}
		})
	}
	link := filepath.Join(dir, "link")
	os.Symlink(w.Path(), link)
	if _, err := Open(link); !errors.Is(err, ErrNotAPage) {
		t.Errorf("a link: %v", err)
	}
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrNotAPage) {
		t.Errorf("a folder: %v", err)
	}
	fifo := filepath.Join(dir, "fifo")
	unix.Mkfifo(fifo, 0o600)
	if _, err := Open(fifo); !errors.Is(err, ErrNotAPage) { // and does not wait
		t.Errorf("a pipe: %v", err)
	}
}

// Whoever cuts the file of a living context makes its reads fail, and nothing else: nobody maps it.
func TestACutFileIsAnErrorAndNoSignal(t *testing.T) {
	w := newPage(t, spec(memory(t)))
	w.Publish(fillState(w, 1))
	p, err := Open(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := os.Truncate(w.Path(), 0); err != nil {
		t.Fatal(err)
	}
	var s Snapshot
	if err := p.Read(&s); !errors.Is(err, ErrNotAPage) {
		t.Errorf("a read of a cut file: %v", err)
	}
	for n := range uint64(10) {
		w.Publish(fillState(w, n+2)) // makes it longer again, with a hole
	}
}

func TestAPageThatFindsNoRoomIsTheProcesssOwn(t *testing.T) {
	for name, dir := range map[string]string{"no such folder": filepath.Join(memory(t), "none"), "a disk": "/proc", "no folder": ""} {
		t.Run(name, func(t *testing.T) {
			w, why, err := New(spec(dir))
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if w.Path() != "" || (why == nil) != (dir == "") || why != nil && !strings.Contains(why.Error(), dir) {
				t.Errorf("path %q, why %v", w.Path(), why)
			}
			w.Publish(fillState(w, 3))
			p, err := w.Page()
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			var s Snapshot
			if err := p.Read(&s); err != nil || torn(&s) != "" || s.Epoch != 3 || s.Head.Path != "" {
				t.Errorf("%v %+v", err, s.Head)
			}
		})
	}
}

// small mounts a memory file system of so many bytes.
func small(t *testing.T, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		require.Skip(t, "root", "a small memory file system is mounted here: "+err.Error())
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestAFullFolderHidesThePage(t *testing.T) {
	w, why, err := New(spec(small(t, 64<<10)))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if !errors.Is(why, unix.ENOSPC) || w.Path() != "" {
		t.Errorf("%q: %v", w.Path(), why)
	}
	if !w.Publish(fillState(w, 1)) {
		t.Error("the page of the process itself could not be written")
	}
}

func TestAFolderThatFillsUpLaterIsCounted(t *testing.T) {
	dir := small(t, 512<<10)
	w := newPage(t, spec(dir))
	if !w.Publish(fillState(w, 1)) {
		t.Fatal("the first state has no room")
	}
	if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the folder is not full: %v", err)
	}
	var last record.LastEnds
	for range EndsMax {
		last.Next()
	}
	w.PutEnds(&last) // this part takes its room when it is used
	if w.Failed() == 0 {
		t.Error("nothing is counted")
	}
	if !w.Publish(fillState(w, 2)) {
		t.Error("a part that has its room could not be written")
	}
	if s := readPage(t, w.Path()); s.Epoch != 2 || torn(s) != "" || len(s.Ends) != 0 {
		t.Errorf("state %d, %d ends", s.Epoch, len(s.Ends))
	}
}

func TestPagesOfDeadProcessesStayForTenMinutes(t *testing.T) {
	dir := memory(t)
	dead := func(n int) string { // a page whose process was started at another time
		w := newPage(t, func() *Spec { s := spec(dir); s.Context = n; return s }())
		w.Publish(fillState(w, 1))
		data, err := os.ReadFile(w.Path())
		if err != nil {
			t.Fatal(err)
		}
		data[hwStarted]++
		path := w.Path()
		w.Close()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	old, young, foreign := dead(1), dead(2), filepath.Join(dir, fileName(os.Geteuid(), os.Getpid(), 3))
	os.WriteFile(foreign, []byte("something else"), 0o600)
	past := time.Now().Add(-deadKept - time.Minute)
	os.Chtimes(old, past, past)
	os.Chtimes(foreign, past, past)
	alive := newPage(t, spec(dir))
	alive.Publish(fillState(alive, 1))
	os.Chtimes(alive.Path(), past, past)
	sweep(dir, time.Now())
	for path, want := range map[string]bool{old: false, young: true, foreign: true, alive.Path(): true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", path, err == nil, want)
		}
	}
	if s := readPage(t, young); s.Alive {
		t.Error("a page of another process with our number counts as ours")
	}
	for n := range deadMax + 5 {
		dead(10 + n)
	}
	sweep(dir, time.Now())
	left, err := List(dir)
	if err != nil || len(left) != deadMax+2 {
		t.Errorf("%d pages are left, want %d dead ones, one that lives and one that is none: %v", len(left), deadMax, err)
	}
}

// A process of another namespace has our number, too, and its page keeps its name.
func TestAPageThatLivesIsNotReplaced(t *testing.T) {
	dir := memory(t)
	first, second := newPage(t, spec(dir)), newPage(t, spec(dir))
	if first.Path() == second.Path() || first.Path() == "" || second.Path() == "" {
		t.Errorf("two pages at %q and %q", first.Path(), second.Path())
	}
	list, err := List(dir)
	if err != nil || len(list) != 2 {
		t.Errorf("%v %v", list, err)
	}
	path := first.Path()
	first.Close()
	third := newPage(t, spec(dir))
	if third.Path() != path {
		t.Errorf("the free name is not taken: %s", third.Path())
	}
}

func TestPublishAllocatesNothingAndIsShort(t *testing.T) {
	w := newPage(t, spec(memory(t)))
	var last record.LastEnds
	r, row := &Remote{ID: "engine", Address: "host:1", State: "connected", Engine: 1}, &ReaderRow{Number: 1}
	var live Live
	if n := testing.AllocsPerRun(200, func() {
		for i := range 40 {
			w.PutRemote(i, r)
			w.PutReader(i, row)
		}
		w.NameReader(3, 7, row2name)
		w.FinishRemotes(40)
		for range 10 {
			last.Next()
		}
		w.PutEnds(&last)
		w.PutSide(sideValues)
		w.Publish(&live)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

var (
	row2name   = []byte("some agent")
	sideValues = []uint64{1}
)

// One state, as ten times a second: 100 values, 12 histograms and so many readers, and one cell of engines.
func BenchmarkPublish(b *testing.B) {
	for _, readers := range []int{2, 20, 256} {
		b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) {
			s := spec(memory(b))
			for len(s.Step) < 300 {
				s.Step = append(s.Step, Desc{Name: fmt.Sprint("more_", len(s.Step)), Kind: Counter})
			}
			for len(s.Histograms) < 12 {
				s.Histograms = append(s.Histograms, Desc{Name: fmt.Sprint("h_", len(s.Histograms))})
			}
			w := newPage(b, s)
			var h histogram.Histogram
			var live Live
			row, r := &ReaderRow{Number: 1}, &Remote{ID: "engine", State: "connected", Engine: 1}
			b.ReportAllocs()
			for b.Loop() {
				for i := range s.Histograms {
					w.PutHistogram(i, &h)
				}
				for i := range readers {
					w.PutReader(i, row)
				}
				w.SetReaders(readers)
				for i := range 20 {
					w.PutRemote(i, r)
				}
				w.FinishRemotes(20)
				w.Publish(&live)
			}
		})
	}
}
