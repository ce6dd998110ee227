package watch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/histogram"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/internal/require"
)

func TestAPageThatFindsNoRoomIsTheProcesssOwn(t *testing.T) {
	for name, dir := range map[string]string{"no such folder": filepath.Join(require.Shm(t), "none"), "a disk": "/proc", "no folder": ""} {
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

// A process of another namespace has our number, too, and its page keeps its name.
func TestAPageThatLivesIsNotReplaced(t *testing.T) {
	dir := require.Shm(t)
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
	w := newPage(t, spec(require.Shm(t)))
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
			s := spec(require.Shm(b))
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
