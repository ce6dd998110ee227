package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/histogram"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/internal/require"
)

// What is beside the step is newer once no step comes, and the step's flag is newer until it is written again.
func TestAPageIsPoisonedAsSoonAsTheStepOrWhatIsBesideItSaysSo(t *testing.T) {
	for _, tc := range []struct {
		name    string
		step    bool
		side    uint64
		healthy uint64
	}{{"neither", false, 0, 1}, {"the step", true, 0, 0}, {"beside it", false, 1, 0}, {"both", true, 1, 0}} {
		t.Run(tc.name, func(t *testing.T) {
			sp := spec(require.Shm(t))
			sp.Step, sp.Side = append(sp.Step, Desc{Name: "healthy", Kind: Gauge}), append(sp.Side, Desc{Name: "poisoned", Kind: Gauge})
			w := newPage(t, sp)
			w.Values()[len(sp.Step)-1] = 1
			w.PutSide([]uint64{99, tc.side})
			if !w.Publish(&Live{Stepped: 1000, Poisoned: tc.step}) {
				t.Fatal("it could not be written")
			}
			s := readPage(t, w.Path())
			poisoned, _ := s.Value("poisoned", "")
			healthy, _ := s.Value("healthy", "")
			if s.Poisoned != (tc.healthy == 0) || poisoned != 1-tc.healthy || healthy != tc.healthy {
				t.Errorf("poisoned %v, %d; healthy %d", s.Poisoned, poisoned, healthy)
			}
			if side, _ := s.Value("side", ""); side != 99 {
				t.Errorf("side is %d", side)
			}
		})
	}
}

func TestAPageDrainsAsSoonAsTheStepOrWhatIsBesideItSaysSo(t *testing.T) {
	for _, tc := range []struct {
		name string
		step bool
		side uint64
		want bool
	}{{"neither", false, 0, false}, {"the step", true, 0, true}, {"beside it", false, 1, true}, {"both", true, 1, true}} {
		t.Run(tc.name, func(t *testing.T) {
			sp := spec(require.Shm(t))
			sp.Side = append(sp.Side, Desc{Name: "draining", Kind: Gauge})
			w := newPage(t, sp)
			w.PutSide([]uint64{99, tc.side})
			if !w.Publish(&Live{Stepped: 1000, Draining: tc.step}) {
				t.Fatal("it could not be written")
			}
			s := readPage(t, w.Path())
			if v, _ := s.Value("draining", ""); s.Draining != tc.want || v == 1 != tc.want || s.Poisoned {
				t.Errorf("draining %v, %d; poisoned %v", s.Draining, v, s.Poisoned)
			}
		})
	}
}

func TestAPageSaysWhatWasPutIntoIt(t *testing.T) {
	dir := require.Shm(t)
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
			Handshake: time.Second, OffsetKnown: true, Offset: -time.Minute, LastRow: 3, Missed: i == 39})
	}
	w.FinishRemotes(40)
	asked := []AskedRow{{Engine: 99, Asked: Asked{State: "ready"}}}
	for i := range 40 { // in another order
		asked = append(asked, AskedRow{Engine: uint64(40 - i), Asked: Asked{State: "incompatible", Fails: uint64(40 - i), Since: 7, Why: "wrong_engine"}})
	}
	w.PutAsked(asked)
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
	if r := s.Remotes[39]; r.Engine != 40 || r.ID != "engine-39" || r.Address != "host:1" || r.State != "connected" || r.Native || r.Bytes != 1<<40 || r.Handshake != time.Second || r.Offset != -time.Minute || !r.OffsetKnown || r.LastRow != 3 || !r.Missed || s.Remotes[38].Missed {
		t.Errorf("the last engine is %+v", r)
	}
	for i, r := range s.Remotes {
		if want := (Asked{State: "incompatible", Fails: uint64(i + 1), Since: 7, Why: "wrong_engine"}); r.Asked != want {
			t.Errorf("asking engine %d stands so: %+v", i, r.Asked)
		}
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

func TestWhatIsNoPageIsRefusedWithItsReason(t *testing.T) {
	dir := require.Shm(t)
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
		{"an older layout", change(hwVersion, version-1), ErrVersion, "layout 1"},
		{"a newer layout", change(hwVersion, version+1), ErrVersion, "layout 3"},
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
	w := newPage(t, spec(require.Shm(t)))
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

// Fewer are asked than before, or nobody: what was said of them is taken back. More than there are rows for do no harm.
func TestWhoIsNotAskedAnyMoreIsNotShownAsAsked(t *testing.T) {
	sp := spec(require.Shm(t))
	sp.Remotes = 40
	w := newPage(t, sp)
	for i := range 40 {
		w.PutRemote(i, &Remote{Engine: uint64(i + 1)})
	}
	w.FinishRemotes(40)
	w.Publish(&Live{})
	for _, n := range []int{0, 100, 33, 1, 0, 40} {
		asked := make([]AskedRow, n)
		for i := range asked {
			asked[i] = AskedRow{Engine: uint64(i + 1), Asked: Asked{State: "failed", Fails: 1}}
		}
		w.PutAsked(asked)
		got := 0
		for _, r := range readPage(t, w.Path()).Remotes {
			if got += int(r.Asked.Fails); r.Asked.Fails > 0 && r.Engine > uint64(n) {
				t.Errorf("engine %d is asked, of %d", r.Engine, n)
			}
		}
		if want := min(n, 40); got != want {
			t.Errorf("%d engines are shown as asked, want %d", got, want)
		}
	}
	if w.Failed() != 0 {
		t.Errorf("%d writes failed", w.Failed())
	}
}
