package watch

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvlease/kvlease/internal/require"
)

// deadPage is a page whose process was started at another time than the one that has its number now.
func deadPage(t *testing.T, dir string, n int) string {
	t.Helper()
	s := spec(dir)
	s.Context = n
	w := newPage(t, s)
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

func TestPagesOfDeadProcessesStayForTenMinutes(t *testing.T) {
	dir := require.Shm(t)
	old, young, foreign := deadPage(t, dir, 1), deadPage(t, dir, 2), filepath.Join(dir, fileName(os.Geteuid(), os.Getpid(), 3))
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
		deadPage(t, dir, 10+n)
	}
	sweep(dir, time.Now())
	left, err := List(dir)
	if err != nil || len(left) != deadMax+2 {
		t.Errorf("%d pages are left, want %d dead ones, one that lives and one that is none: %v", len(left), deadMax, err)
	}
}

func TestWhatADeadProcessLeftCanBeRemovedAndALivingOneKeepsItsPage(t *testing.T) {
	dir := require.Shm(t)
	alive := newPage(t, spec(dir))
	alive.Publish(fillState(alive, 1))
	dead := deadPage(t, dir, 1)
	RemoveDead(dir, os.Getpid()+1)
	if left, err := List(dir); err != nil || len(left) != 2 {
		t.Errorf("by another process's number: %v %v", left, err)
	}
	RemoveDead(dir, os.Getpid())
	if left, err := List(dir); err != nil || len(left) != 1 || left[0] != alive.Path() {
		t.Errorf("%s was to go, and there are %v %v", dead, left, err)
	}
}
