package watch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/histogram"
	"github.com/kvlease/kvlease/internal/require"
)

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
