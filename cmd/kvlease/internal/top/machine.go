package top

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/pages"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/internal/plural"
)

// pagesMax bounds the pages that are read: names of files cost others nothing.
const pagesMax = 4096

// machine are the pages of a folder. They stay open from one look to the next.
type machine struct {
	dir     string
	open    map[string]*opened
	remains *watch.Remains
	snap    watch.Snapshot
}

type opened struct {
	page *watch.Page
	dev  uint64
	ino  uint64
}

func newMachine(dir string) *machine {
	return &machine{dir: cmp.Or(dir, watch.DefaultDir), open: map[string]*opened{}, remains: watch.NewRemains(), snap: watch.Snapshot{SkipEnds: true}}
}

func (m *machine) close() {
	for path, o := range m.open {
		o.page.Close()
		delete(m.open, path)
	}
}

// take gives the page at a path: the one that is open, unless another file has the name now.
func (m *machine) take(path string) (*watch.Page, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if o := m.open[path]; o != nil {
		if o.dev == st.Dev && o.ino == st.Ino {
			return o.page, nil
		}
		o.page.Close()
		delete(m.open, path)
	}
	page, err := watch.Open(path)
	if err != nil {
		return nil, err
	}
	m.open[path] = &opened{page, st.Dev, st.Ino}
	return page, nil
}

// read looks at all pages.
func (m *machine) read() (list []*Engine, notes []string, err error) {
	paths, err := watch.List(m.dir)
	if err != nil {
		return nil, nil, err
	}
	refused, unreadable, why := 0, 0, ""
	if len(paths) > pagesMax {
		notes = append(notes, fmt.Sprintf("%s left out, this shows %d", plural.Counted(len(paths)-pagesMax, "page is", "pages are"), pagesMax))
		paths = paths[:pagesMax]
	}
	m.remains.Begin()
	there := make(map[string]bool, len(paths))
	for _, path := range paths {
		there[path] = true
		page, err := m.take(path)
		if err == nil {
			if err = m.snapshot(page); err == nil && m.remains.Shown(path, &m.snap) {
				list = append(list, engineOf(path, &m.snap))
			}
		}
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist): // just closed
		case errors.Is(err, fs.ErrPermission):
			refused++
		default:
			unreadable++
			why = strings.TrimPrefix(err.Error(), m.dir+"/")
		}
	}
	for path, o := range m.open {
		if !there[path] {
			o.page.Close()
			delete(m.open, path)
		}
	}
	if refused > 0 {
		notes = append(notes, fmt.Sprintf("%d of other users not shown: run as root", refused))
	}
	if unreadable > 0 {
		notes = append(notes, fmt.Sprintf("%d not readable: %s", unreadable, why))
	}
	return list, notes, nil
}

func (m *machine) snapshot(page *watch.Page) (err error) {
	for range 3 {
		if err = page.Read(&m.snap); !errors.Is(err, watch.ErrTorn) {
			break
		}
	}
	return err
}

// engineOf takes what a page says.
func engineOf(path string, s *watch.Snapshot) *Engine {
	value := func(name string, labels ...int) (sum uint64) {
		if len(labels) == 0 {
			sum, _ = s.Value(name, "")
		}
		for _, l := range labels {
			v, _ := s.Value(name, strconv.Itoa(l))
			sum += v
		}
		return sum
	}
	now := s.Stepped.Add(s.Age)
	e := &Engine{
		Source: path, Name: s.Engine, Hash: wire.HashText(s.Hash), Role: s.Role, Rank: s.Rank, Ranks: s.TP * s.PP, PID: s.PID, Context: s.Context, Library: s.Library,
		Drive: s.Drive, Carried: s.Provider, Age: max(0, s.Age), Duration: s.Duration, Interval: s.Interval, Extension: s.Extension,
		Leases: value("held"), Blocks: value("held_blocks"), Expected: value("expected") + value("group_expected"), Lingers: value("lingering"),
		Tracked: value("tracker_tracked") + value("group_tracked"), Reads: value("tracker_reading") + value("group_reading"),
		Stale:      value("beat_outcomes", record.ReadStale) + value("outcomes", record.ReadStale),
		Unproven:   value("beat_outcomes", record.ReadUnproven) + value("outcomes", record.ReadUnproven),
		Quarantine: value("reads_blocks_held"), Abandoned: value("reads_abandoned"), Late: value("lease_late_done"),
		RanksLost: value("group_ranks_lost"), LogLost: value("log_lost"), Untaken: value("untaken_bytes"), misfit: value("misfit") != 0, hostless: value("host_lost") != 0,
		key: path + " " + strconv.FormatInt(int64(s.Opened), 10), at: time.Duration(s.Stepped),
		Beaten: value("beats_received") + value("beat_beats"), bytes: value("read_bytes"),
		ofRank: s.Role == "rank", poisoned: s.Poisoned, draining: s.Draining, alive: s.Alive,
	}
	e.Bytes = e.Blocks * s.BlockBytes
	for _, memory := range [...]string{"registered_bytes", "group_ranks_up"} {
		n, ok := s.Value(memory, "")
		e.bare = e.bare || ok && n == 0
	}
	e.slept = int(value("asleep") + value("group_ranks_asleep"))
	if healthy, ok := s.Value("healthy", ""); ok && healthy == 0 {
		e.sick = true
	}
	if e.alive && e.Age > time.Second {
		started, ok := watch.Started(e.PID) // else it is the number of another process here
		e.stopped = ok && started == s.Started && pages.ProcessState(e.PID) == pages.Stopped
	}
	for i := range s.Readers {
		r := &s.Readers[i]
		p := Peer{
			Name: r.Name, Hash: wire.HashText(r.Hash), Kind: Holds, Leases: r.Leases, Blocks: r.Blocks, Bytes: r.Bytes, Expired: r.Expired,
			Beat: ago(now, r.LastBeat), Oldest: ago(now, r.Oldest), unnamed: r.Unnamed, key: fmt.Sprintf("r%d:%x:%x", r.Row, r.Hash, r.Epoch),
		}
		if (r.Unnamed || r.Other) && r.Leases == 0 {
			continue
		}
		if r.LeastSlack >= 0 && !r.Unnamed {
			slack := r.LeastSlack
			p.least = &slack
		}
		switch {
		case r.Unnamed:
			p.Name = nobody
		case r.Other:
			p.Name = others
		}
		e.Peers = append(e.Peers, p)
	}
	for i := range s.Remotes {
		r := &s.Remotes[i]
		e.Peers = append(e.Peers, Peer{
			Name: r.ID, Hash: wire.HashText(r.Hash), Kind: Reads, State: r.State, Leases: r.Tracked, Reads: r.Reads, Beat: ago(now, r.LastBeat), Heard: ago(now, r.LastRow),
			Since: ago(now, r.Since), Fails: r.Fails, Unheard: r.Unheard, Missed: r.Missed, Address: r.Address, key: fmt.Sprintf("e%x", r.Engine), bytes: r.Bytes,
			Asked: r.Asked.State, AskFails: r.Asked.Fails, AskSince: ago(now, r.Asked.Since), AskWhy: r.Asked.Why,
		})
	}
	return e
}

func ago(now, at clock.Instant) *time.Duration {
	if at == 0 {
		return nil
	}
	d := max(0, now.Sub(at))
	return &d
}
