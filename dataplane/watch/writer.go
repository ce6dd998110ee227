package watch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/histogram"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Spec is what a page is made with.
type Spec struct {
	Dir        string // folder in memory; empty: nobody else shall see it
	Head              // what does not change; Path, PID, Started and UID are found here
	Step       []Desc // values that Main takes
	Side       []Desc // values that PutSide takes
	Histograms []Desc
	Readers    int // rows, at most ReadersMax
	Remotes    int // rows, at most RemotesMax
}

// Writer is the context's side of its page.
//
// Threads: one, the step's; PutSide and PutAsked another one.
// Memory: all from New. Nothing else touches the heap, or maps the file: what somebody does to it can at worst make a write fail,
// which is counted, and raises no signal.
type Writer struct {
	fd   int
	path string
	file *os.File // keeps fd; closed once
	secs [sections]section

	main   []uint64 // the next state
	values []uint64 // in it
	hists  []uint64
	rows   []uint64
	names  []byte
	named  bool // names have changed
	remote []byte
	side   []uint64

	turns    [sections]uint64
	remTurns []uint64
	ended    uint64 // ends written

	asked    []byte // as side, another thread's
	askTurns []uint64
	askCells int // with a row in them

	failed atomic.Uint64
}

// New makes a page. If the folder cannot hold it, why says so, and the page is this process's alone: what is in it can still be read
// through Open. err: there is no memory for it at all.
func New(s *Spec) (w *Writer, why, err error) {
	n := s.Context
	var table []byte
	for _, list := range [...][]Desc{s.Step, s.Side, s.Histograms} {
		for i := range list {
			table = appendDesc(table, &list[i])
		}
	}
	secs, size := layout(len(table), len(s.Step), len(s.Side), len(s.Histograms), s.Readers, s.Remotes)
	w = &Writer{secs: secs, main: make([]uint64, secs[secMain].copyLen/8), names: make([]byte, secs[secNames].copyLen),
		remote: make([]byte, secs[secRemotes].copyLen), side: make([]uint64, len(s.Side)), remTurns: make([]uint64, secs[secRemotes].cells),
		asked: make([]byte, secs[secAsked].copyLen), askTurns: make([]uint64, secs[secAsked].cells)}
	rest := w.main[mainWords:]
	w.values, rest = rest[:len(s.Step)], rest[len(s.Step):]
	w.hists, w.rows = rest[:len(s.Histograms)*histogram.Words], rest[len(s.Histograms)*histogram.Words:]

	me, err := self()
	if err != nil {
		return nil, nil, err
	}
	head := w.head(s, me, n, table, size)
	fd := -1
	if s.Dir != "" {
		if fd, why = makeFile(s.Dir, head, secs[secNames].at, size); why == nil {
			w.path, why = publish(fd, s.Dir, me, n)
		}
		if why != nil && fd >= 0 {
			unix.Close(fd)
			fd = -1
		}
	}
	if fd < 0 {
		if fd, err = unix.MemfdCreate("kvlease-stats", unix.MFD_CLOEXEC); err == nil {
			err = fill(fd, head, secs[secNames].at, size)
		}
		if err != nil {
			return nil, why, fmt.Errorf("memory for the stats page: %w", err)
		}
	}
	w.fd, w.file = fd, os.NewFile(uintptr(fd), "kvlease-stats")
	return w, why, nil
}

// head is everything that is written once.
func (w *Writer) head(s *Spec, me identity, n int, table []byte, size uint64) []byte {
	b := make([]byte, headLen+len(table))
	copy(b, magic)
	put := func(at int, v uint64) { binary.LittleEndian.PutUint64(b[at:], v) }
	put(hwVersion, version|headLen<<32)
	put(hwSize, size)
	put(hwPID, uint64(me.pid))
	put(hwStarted, me.started)
	put(hwNamespace, me.namespace)
	put(hwUID, uint64(me.uid))
	put(hwContext, uint64(n))
	put(hwOpened, uint64(s.Opened))
	put(hwRank, uint64(s.Rank))
	put(hwTP, uint64(s.TP))
	put(hwPP, uint64(s.PP))
	put(hwDuration, uint64(s.Duration))
	put(hwInterval, uint64(s.Interval))
	put(hwExtension, uint64(s.Extension))
	put(hwHash, s.Hash)
	put(hwTable, headLen)
	put(hwTable+8, uint64(len(table)))
	put(hwStep, uint64(len(s.Step)))
	put(hwSide, uint64(len(s.Side)))
	put(hwHists, uint64(len(s.Histograms)))
	for i, sec := range w.secs {
		for k, v := range [...]uint64{sec.at, sec.copyLen, sec.cells, sec.rowLen, sec.rows} {
			put(sectionAt+i*sectionLen+8*k, v)
		}
	}
	at := b[textAt:textAt]
	for _, t := range [texts]string{s.Library, s.Role, s.Engine, s.Drive, s.Carrier, s.Provider} {
		at = appendText(at, t[:min(len(t), 256)])
	}
	copy(b[headLen:], table)
	return b
}

// makeFile makes a file without a name in a folder of memory, with head in it. So one that is killed on the way leaves nothing.
func makeFile(dir string, head []byte, keep, size uint64) (fd int, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return -1, fmt.Errorf("stats_page %s: %w", dir, err)
	}
	if fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC {
		return -1, fmt.Errorf("stats_page %s: no file system in memory (tmpfs): a step must not wait for a disk", dir)
	}
	fd, err = unix.Open(dir, unix.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, fmt.Errorf("stats_page: a file in %s: %w", dir, err)
	}
	if err = unix.Fchmod(fd, 0o600); err == nil {
		err = fill(fd, head, keep, size)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("stats_page: %d KiB in %s: %w", size>>10, dir, err)
	}
	return fd, nil
}

// fill takes the room of the first keep bytes; what lies behind takes it when it is used.
func fill(fd int, head []byte, keep, size uint64) error {
	err := unix.Fallocate(fd, 0, 0, int64(keep))
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	if err == nil {
		_, err = unix.Pwrite(fd, head, 0)
	}
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) // falls with the process: how others see that it lives (alive)
	}
	return err
}

// publish gives the file its name: <folder>/kvlease-stats.<uid>.<pid>.<n>. A name that is taken by a page that lives, of a process with
// our number in another namespace, is left alone.
func publish(fd int, dir string, me identity, n int) (path string, err error) {
	sweep(dir, time.Now())
	for try := range 1000 {
		path = filepath.Join(dir, fileName(me.uid, me.pid, n+try*100))
		err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
		if errors.Is(err, unix.EEXIST) && removeIf(path, func(h *Head, _ time.Duration) bool { return !h.Alive }, time.Now()) {
			err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
		}
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	if err != nil {
		return "", fmt.Errorf("stats_page: %s: %w", path, err)
	}
	return path, nil
}

// Path is the page's file; empty: it has none.
func (w *Writer) Path() string { return w.path }

// Failed counts the writes that failed: the file's folder is full, or somebody has cut the file.
func (w *Writer) Failed() uint64 { return w.failed.Load() }

// Values are those of the step, in the order of Spec.Step. What stands there is what Publish writes.
func (w *Writer) Values() []uint64 { return w.values }

// PutHistogram sets histogram i of Spec.Histograms.
func (w *Writer) PutHistogram(i int, h *histogram.Histogram) {
	to := w.hists[i*histogram.Words:][:histogram.Words]
	to[0], to[1] = h.Zero, math.Float64bits(h.Sum)
	copy(to[2:], h.Counts[:])
}

// Live is what may change of the head.
type Live struct {
	Stepped                    clock.Instant
	Epoch, BlockBytes          uint64
	Poisoned, Draining, Closed bool
	Tables                     [TablesN]record.Place
}

// Places in Live.Tables, whose names in a Snapshot are control, slots, rows, hot, granted, index and long_ids. The last four are those of
// lease.Places.
const (
	TableControl = iota
	TableSlots
	TableRows
	TableHot
	TableGranted
	TableIndex
	TableLongIDs
	TablesN
)

// Publish writes what has been put: values, histograms, readers. It tells whether that worked.
func (w *Writer) Publish(l *Live) bool {
	m := w.main
	m[mwStepped], m[mwEpoch], m[mwBlockBytes], m[mwFlags] = uint64(l.Stepped), l.Epoch, l.BlockBytes, 0
	for i, set := range [...]bool{l.Poisoned, l.Draining, l.Closed} {
		if set {
			m[mwFlags] |= 1 << i
		}
	}
	for i, t := range l.Tables {
		m[mwTables+3*i], m[mwTables+3*i+1], m[mwTables+3*i+2] = t.Addr, t.Stride, t.Count
	}
	used := len(m) - len(w.rows) + int(m[mwReaders])*readerWords
	ok := true
	if w.named {
		if ok = w.cell(secNames, 0, &w.turns[secNames], w.names[:m[mwReaders]*nameLen]); ok {
			w.named = false
		}
	}
	return w.cell(secMain, 0, &w.turns[secMain], bytesOf(m[:used])) && ok
}

// PutSide writes the values beside the step. One other thread.
func (w *Writer) PutSide(values []uint64) {
	if n := copy(w.side, values); n > 0 {
		w.cell(secSide, 0, &w.turns[secSide], bytesOf(w.side))
	}
}

// cell writes the copy of a cell that nobody reads, and then says that it is whole.
func (w *Writer) cell(sec int, cell uint64, turn *uint64, data []byte) bool {
	s := &w.secs[sec]
	if !w.write(data, s.place(cell, *turn+1)) {
		return false
	}
	next := [1]uint64{*turn + 1}
	if !w.write(bytesOf(next[:]), s.at+cell*s.cellLen()) {
		return false
	}
	*turn++
	return true
}

func (w *Writer) write(data []byte, at uint64) bool {
	if n := pwrite(w.fd, data, at); n != len(data) {
		w.failed.Add(1)
		return false
	}
	return true
}

// Close takes the page away; who has opened it can go on reading its last state.
func (w *Writer) Close() {
	if w.path != "" {
		unlinkOurs(w.path, w.fd)
	}
	w.file.Close()
}
