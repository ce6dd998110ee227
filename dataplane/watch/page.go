package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/histogram"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Page is an open page of any process. It is read with calls, never mapped: a file that is cut makes an error and no signal.
//
// Threads: one at a time.
type Page struct {
	file      *os.File
	content   io.ReaderAt // of file
	path      string
	head      Head
	namespace uint64
	secs      [sections]section
	step      []Desc
	side      []Desc
	hists     []Desc
	tries     uint64 // copies that had to be read again

	main, names, cells, asked, ends []byte
	ring                            []record.LastEnd
}

// triesMax bounds how often a state is read that changes meanwhile. A page changes ten times a second, and a read takes microseconds.
const triesMax = 16

// Open opens a page and reads what never changes in it. ErrNotAPage, ErrVersion, or what the system says: of another user's
// page fs.ErrPermission.
func Open(path string) (*Page, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		err = &fs.PathError{Op: "open stats page", Path: path, Err: err}
		if errors.Is(err, unix.ELOOP) {
			err = fmt.Errorf("%w: %w", ErrNotAPage, err)
		}
		return nil, err
	}
	return openFile(os.NewFile(uintptr(fd), path), path)
}

// Page opens the writer's own page, whether it has a name or not.
func (w *Writer) Page() (*Page, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", w.fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("own stats page: %w", err)
	}
	return openFile(os.NewFile(uintptr(fd), w.path), w.path)
}

func openFile(f *os.File, path string) (*Page, error) {
	p := &Page{file: f, content: f, path: path}
	if err := p.readHead(); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// Close closes the file.
func (p *Page) Close() error { return p.file.Close() }

// Head is what never changes; Read gives the rest.
func (p *Page) Head() Head { return p.head }

func bad(what string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrNotAPage, fmt.Sprintf(what, args...))
}

// readHead believes nothing: every number is checked against the size of the file before it is used.
func (p *Page) readHead() error {
	st, err := p.file.Stat()
	switch {
	case err != nil:
		return err
	case !st.Mode().IsRegular():
		return bad("it is no file")
	case st.Size() < headLen || st.Size() > fileMax:
		return bad("it has %d bytes", st.Size())
	}
	b := make([]byte, headLen)
	if err := p.readAt(b, 0); err != nil {
		return err
	}
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	if string(b[:len(magic)]) != magic {
		return bad("it begins with %q", bytes.TrimRight(b[:len(magic)], "\x00"))
	}
	if v := word(hwVersion); v != version|headLen<<32 {
		return fmt.Errorf("%w: layout %d, this program knows %d: use the tool of the same release", ErrVersion, uint32(v), version)
	}
	size := word(hwSize)
	if size > uint64(st.Size()) {
		return bad("it says that it has %d bytes, and has %d", size, st.Size())
	}
	p.head = Head{
		Path: p.path, PID: int(word(hwPID)), Started: word(hwStarted), UID: int(word(hwUID)), Context: int(word(hwContext)),
		Hash: word(hwHash), Rank: int(word(hwRank)), TP: int(word(hwTP)), PP: int(word(hwPP)),
		Duration: time.Duration(word(hwDuration)), Interval: time.Duration(word(hwInterval)), Extension: time.Duration(word(hwExtension)),
		Opened: clock.Instant(word(hwOpened)),
	}
	p.namespace = word(hwNamespace)
	if err := p.trust(); err != nil {
		return err
	}
	rest, ok := b[textAt:], true
	for _, t := range [texts]*string{&p.head.Library, &p.head.Role, &p.head.Engine, &p.head.Drive, &p.head.Carrier, &p.head.Provider} {
		if *t, rest, ok = cutText(rest); !ok {
			return bad("a text of its head is cut")
		}
	}
	table, n := word(hwTable), word(hwTable+8)
	counts := [3]uint64{word(hwStep), word(hwSide), word(hwHists)}
	if table != headLen || n > size || table+n > size || counts[0]+counts[1]+counts[2] > min(n, descMax) || max(counts[0], counts[1], counts[2]) > n {
		return bad("its table of names does not fit")
	}
	for i := range p.secs {
		s := sectionAt + i*sectionLen
		p.secs[i] = section{word(s), word(s + 8), word(s + 16), word(s + 24), word(s + 32)}
	}
	want, wantSize := layout(int(n), int(counts[0]), int(counts[1]), int(counts[2]), int(min(p.secs[secMain].rows, ReadersMax)), int(min(p.secs[secRemotes].cells*remoteCell, RemotesMax)))
	if p.secs != want || size != wantSize {
		return bad("its parts do not lie where they must")
	}
	b = make([]byte, n)
	if err := p.readAt(b, int64(table)); err != nil {
		return err
	}
	for i, list := range [...]*[]Desc{&p.step, &p.side, &p.hists} {
		for range counts[i] {
			var d Desc
			if d, b, ok = cutDesc(b); !ok {
				return bad("its table of names is cut")
			}
			*list = append(*list, d)
		}
	}
	p.main, p.names, p.cells = make([]byte, want[secMain].copyLen), make([]byte, want[secNames].copyLen), make([]byte, want[secRemotes].copyLen)
	p.asked = make([]byte, want[secAsked].copyLen)
	return nil
}

// trust refuses a page under a page's name that is not what the name says, or that another user has made: anybody can write into
// /dev/shm, copy when a process was started, and tell root's tools of it what he likes. Numbers of another namespace are not ours to judge.
func (p *Page) trust() error {
	uid, pid, _, ok := ownName(filepath.Base(p.path))
	if p.path == "" || !ok {
		return nil // our own, or a copy that somebody keeps
	}
	h := &p.head
	if uid != h.UID || pid != h.PID {
		return bad("it is that of process %d of user %d", h.PID, h.UID)
	}
	if p.namespace != ownNamespace() {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(p.file.Fd()), &st); err != nil {
		return err
	}
	if int(st.Uid) != h.UID {
		return bad("it says that it is of user %d, and is of user %d", h.UID, st.Uid)
	}
	if at, lives := Started(pid); st.Uid != 0 && lives && at == h.Started { // what is root's may be of one that has become another user
		if user, ok := userOf(pid); ok && user != h.UID {
			return bad("it is of user %d, and process %d of user %d", h.UID, pid, user)
		}
	}
	return nil
}

func (p *Page) readAt(b []byte, at int64) error {
	_, err := p.content.ReadAt(b, at)
	if errors.Is(err, io.EOF) {
		return bad("somebody has cut it")
	}
	return err
}

// whole reads the last whole state of a cell into b; 0: none was ever written.
func (p *Page) whole(sec int, cell uint64, b []byte) (turn uint64, err error) {
	s := &p.secs[sec]
	var word [8]byte
	for range triesMax {
		if err := p.readAt(word[:], int64(s.at+cell*s.cellLen())); err != nil {
			return 0, err
		}
		if turn = binary.LittleEndian.Uint64(word[:]); turn == 0 {
			return 0, nil
		}
		if err := p.readAt(b, int64(s.place(cell, turn))); err != nil {
			return 0, err
		}
		// The writer turns to this copy again only after the next turn is said.
		if err := p.readAt(word[:], int64(s.at+cell*s.cellLen())); err != nil {
			return 0, err
		}
		if binary.LittleEndian.Uint64(word[:]) == turn {
			return turn, nil
		}
		p.tries++
	}
	return 0, fmt.Errorf("%s: %w", p.path, ErrTorn)
}

// Read takes the last state. On an error s is not to be used; ErrTorn says that another try may work.
func (p *Page) Read(s *Snapshot) error {
	turn, err := p.whole(secMain, 0, p.main)
	if err != nil {
		return err
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(p.main[8*i:]) }
	s.Head = p.head
	s.Head.Tables = s.Head.Tables[:0]
	s.Published = turn
	s.Epoch, s.BlockBytes = word(mwEpoch), word(mwBlockBytes)
	s.Stepped = clock.Instant(word(mwStepped))
	flags := word(mwFlags)
	s.Poisoned, s.Draining, s.Closed = flags&flagPoisoned != 0, flags&flagDraining != 0, flags&flagClosed != 0
	for i, name := range tableNames {
		if t := (Table{name, word(mwTables + 3*i), word(mwTables + 3*i + 1), word(mwTables + 3*i + 2)}); t.Addr != 0 {
			s.Tables = append(s.Tables, t)
		}
	}
	s.Alive = !s.Closed && alive(s.PID, s.Started, p.namespace, int(p.file.Fd()))
	s.Age = now().Sub(s.Stepped)
	s.Values = s.Values[:0]
	at := mainWords
	for i := range p.step {
		s.Values = append(s.Values, p.step[i].value(word(at)))
		at++
	}
	s.Histograms = s.Histograms[:0]
	for i := range p.hists {
		d := &p.hists[i]
		h := Histogram{Name: d.Name, Unit: d.Unit, Help: d.Help}
		h.Zero, h.Sum = word(at), math.Float64frombits(word(at+1))
		for k := range h.Counts {
			h.Counts[k] = word(at + 2 + k)
		}
		at += histogram.Words
		s.Histograms = append(s.Histograms, h)
	}
	for _, err := range [...]error{p.readReaders(s, p.main[8*at:], word(mwReaders)), p.readSide(s), p.readRemotes(s, word(mwRemotes)), p.readAsked(s), p.readEnds(s)} {
		if err != nil {
			return err
		}
	}
	s.settle()
	return nil
}

// settle lets a context be poisoned, or draining, as soon as one of the two says so: the last step, or what is written beside it, since a broken
// context does not step, and one that has nothing to do may not. The health of a broken one is then what the step would have said.
func (s *Snapshot) settle() {
	beside := func(name string) bool {
		v, _ := s.Value(name, "")
		return v != 0
	}
	s.Poisoned, s.Draining = s.Poisoned || beside("poisoned"), s.Draining || beside("draining")
	for i := range s.Values {
		switch v := &s.Values[i]; {
		case s.Poisoned && v.Name == "poisoned", s.Draining && v.Name == "draining":
			v.V = 1
		case s.Poisoned && v.Name == "healthy":
			v.V = 0
		}
	}
}

func (p *Page) readSide(s *Snapshot) error {
	b := make([]byte, len(p.side)*8)
	if _, err := p.whole(secSide, 0, b); err != nil {
		return err
	}
	for i := range p.side {
		s.Values = append(s.Values, p.side[i].value(binary.LittleEndian.Uint64(b[8*i:])))
	}
	return nil
}

func (d *Desc) value(v uint64) Value {
	return Value{Name: d.Name, Label: d.Label, Kind: d.Kind, Unit: d.Unit, Help: d.Help, V: v}
}

// now is CLOCK_BOOTTIME, which the writer's steps count by.
func now() clock.Instant {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return clock.Instant(ts.Nano())
}
