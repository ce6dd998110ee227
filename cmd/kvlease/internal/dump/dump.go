// Package dump is `kvlease dump`: the lease table of a process, read from outside of it, whether it runs, hangs or is stopped.
package dump

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/pages"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/internal/jsons"
)

// Config of a dump.
type Config struct {
	PID     int
	Dir     string // of the stats pages
	Context int    // only this one; 0: all of the process
	Hashes  bool   // hashes in the place of request ids
	Version string
}

// Report is what a process has of leases.
type Report struct {
	PID      int                  `json:"pid"`
	State    string               `json:"process"` // running, stopped, waits for a disk, gone
	At       time.Time            `json:"at"`
	Version  string               `json:"kvlease_dump"`
	Contexts jsons.List[*Context] `json:"contexts"`
	Notes    jsons.List[string]   `json:"notes"`
}

// Context is one of its contexts.
type Context struct {
	Context     int    `json:"context"`
	Page        string `json:"page"`
	Engine      string `json:"engine"`
	Hash        string `json:"hash"`
	Role        string `json:"role"`
	Rank        int    `json:"rank"`
	TP          int    `json:"tp"`
	PP          int    `json:"pp"`
	Library     string `json:"library"`
	Drive       string `json:"drive"`
	Transport   string `json:"transport"`
	Carrier     string `json:"carrier,omitempty"`
	Epoch       string `json:"epoch"`
	Alive       bool   `json:"alive"`
	Poisoned    bool   `json:"poisoned"`
	Draining    bool   `json:"draining"`
	OpenNs      int64  `json:"open_ns"`     // since it was opened
	PageAgeNs   int64  `json:"page_age_ns"` // since the step that wrote the page last
	DurationNs  int64  `json:"kv_lease_duration_ns"`
	IntervalNs  int64  `json:"interval_ns"`
	ExtensionNs int64  `json:"extension_ns"`

	Held       uint64             `json:"held"` // this and what follows by the page
	Blocks     uint64             `json:"blocks"`
	BlockBytes uint64             `json:"block_bytes"`
	Freed      map[string]uint64  `json:"freed"`
	Untaken    uint64             `json:"untaken_bytes,omitempty"`    // of what its hooks were told; a step takes them
	LogLost    uint64             `json:"log_records_lost,omitempty"` // for want of somebody who takes them
	Memory     Memory             `json:"memory"`
	Readers    jsons.List[Reader] `json:"readers"`
	Owners     jsons.List[Owner]  `json:"owners"`
	Ends       jsons.List[End]    `json:"ends"` // those that ended last, oldest first

	Table  bool              `json:"table"` // leases were read from the memory of the process
	Why    string            `json:"why,omitempty"`
	Slots  uint64            `json:"slots,omitempty"`
	Used   int               `json:"slots_used,omitempty"` // ever
	Torn   int               `json:"torn,omitempty"`
	Leases jsons.List[Lease] `json:"leases"`

	err error
}

// Memory is what the transport has of a context.
type Memory struct {
	Registered  uint64 `json:"registered_bytes"`
	Registering uint64 `json:"registering_bytes,omitempty"` // to be reached; 0: no registration is under way
	Proven      uint64 `json:"regions_proven"`              // of which a page was read back as by a peer
	Unproven    uint64 `json:"regions_unproven"`            // of which that was not shown
	Asleep      bool   `json:"asleep,omitempty"`            // unregistered on purpose

	of bool // the context has memory, as a host has not
}

// Reader is an engine that holds blocks, as the page has it.
type Reader struct {
	Name         string `json:"name"`
	Hash         string `json:"hash,omitempty"`
	Epoch        string `json:"epoch,omitempty"`
	Leases       uint64 `json:"leases"`
	Blocks       uint64 `json:"blocks"`
	BeatAgeNs    *int64 `json:"beat_age_ns,omitempty"`
	LeastSlackNs *int64 `json:"least_slack_ns,omitempty"`
}

// Owner is an engine that this one reads from, as the page has it.
type Owner struct {
	Name       string `json:"name"`
	Hash       string `json:"hash"`
	Address    string `json:"address,omitempty"`
	State      string `json:"state"`
	Tracked    uint64 `json:"tracked"`
	Reads      uint64 `json:"reads_in_flight"`
	BeatAgeNs  *int64 `json:"beat_age_ns,omitempty"`
	HeardAgeNs *int64 `json:"heard_age_ns,omitempty"`
	Fails      uint64 `json:"fails"`
	Bytes      uint64 `json:"read_bytes"`
	Unheard    uint64 `json:"unheard_bytes"`
	Missed     bool   `json:"missed"`              // it fails, and requests are tracked there, or were lost, given up or not read there for it
	Asked      string `json:"handshake,omitempty"` // how asking it for its maps stands; empty: it is not asked
	AskFails   uint64 `json:"handshake_fails"`     // in a row
	AskSinceNs *int64 `json:"handshake_failing_ns,omitempty"`
	AskWhy     string `json:"handshake_why,omitempty"` // of the last failure
}

// End is a lease that has ended.
type End struct {
	Number     uint64 `json:"number"`
	AgoNs      int64  `json:"ago_ns"`
	Reason     string `json:"reason"`
	Slot       uint32 `json:"slot"`
	Use        uint32 `json:"use"`
	ID         string `json:"id,omitempty"` // its first 96 bytes
	IDHash     string `json:"id_hash,omitempty"`
	IDLen      int    `json:"id_len"`
	User       string `json:"user"`
	Reader     string `json:"reader"`
	ReaderHash string `json:"reader_hash,omitempty"`
	HeldNs     int64  `json:"held_ns"`
	Blocks     uint64 `json:"blocks"`
}

// Errors of a dump that found nothing to show.
var (
	ErrNoProcess = errors.New("there is no such process")
	ErrNoPage    = errors.New("it has no stats page")
)

// Run reads what there is. The report comes beside an error if a part of it could not be had.
func Run(cfg *Config) (*Report, error) {
	r := &Report{PID: cfg.PID, State: pages.ProcessState(cfg.PID), At: time.Now(), Version: cfg.Version, Contexts: []*Context{}}
	started, lives := watch.Started(cfg.PID)
	var paths []string
	var err error
	inner := cfg.PID
	if lives {
		inner = pages.InnerPID(cfg.PID)
		paths, err = pages.Of(cfg.PID, cfg.Dir)
	} else {
		r.State = pages.Gone
		paths, err = pages.Numbered(cfg.Dir, cfg.PID)
	}
	if err != nil {
		return nil, refused(cfg.PID, err)
	}
	names := pages.NewNames()
	names.LearnAll(cfg.Dir)
	var failed error
	take := func(lives bool) {
		for _, path := range paths {
			page, err := watch.Open(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue // just closed
			}
			if err != nil {
				failed = errors.Join(failed, refused(cfg.PID, err))
				continue
			}
			if h := page.Head(); h.PID == inner && (!lives || h.Started == started) && (cfg.Context == 0 || h.Context == cfg.Context) {
				// That it may not be read is true of all contexts alike, and said once.
				if err := r.add(cfg, page, names, lives); err != nil && !(errors.Is(err, errRefused) && errors.Is(failed, errRefused)) {
					failed = errors.Join(failed, err)
				}
			}
			page.Close()
		}
	}
	take(lives)
	if lives && len(r.Contexts) == 0 && failed == nil {
		if take(false); len(r.Contexts) > 0 {
			r.State = pages.Gone
			r.Notes = append(r.Notes, "the process that has this number now is another one, without a stats page")
		}
	}
	switch {
	case len(r.Contexts) > 0:
		return r, failed
	case failed != nil:
		return nil, failed
	case !lives:
		return nil, fmt.Errorf("process %d: %w, and none has left a stats page in %s in the last ten minutes", cfg.PID, ErrNoProcess, dir(cfg))
	case cfg.Context != 0:
		return nil, fmt.Errorf("process %d: no context %d has a stats page in %s", cfg.PID, cfg.Context, dir(cfg))
	}
	return nil, fmt.Errorf("process %d: %w in %s: it has no context of kvlease open, or its configuration names another folder (stats_page; --dir)", cfg.PID, ErrNoPage, dir(cfg))
}

func dir(cfg *Config) string {
	if cfg.Dir == "" {
		return watch.DefaultDir
	}
	return cfg.Dir
}

// refused says whose page it is that may not be read.
func refused(pid int, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("process %d: its stats page: %w: run as its user, or as root", pid, err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("process %d: %w: --dir is the folder that its configuration names, as it sees it (stats_page)", pid, err)
	}
	return fmt.Errorf("process %d: %w", pid, err)
}

// add takes a page and the memory that it names.
func (r *Report) add(cfg *Config, page *watch.Page, names *pages.Names, lives bool) error {
	var s watch.Snapshot
	if err := page.Read(&s); err != nil {
		return fmt.Errorf("process %d: %w", cfg.PID, err)
	}
	if !lives && s.Alive {
		return nil // it has another number here
	}
	names.Learn(&s)
	c := r.context(&s, names)
	r.Contexts = append(r.Contexts, c)
	switch {
	case !lives || s.Closed:
		c.Why = "the process has ended, this is what its stats page was left with"
		if lives {
			c.Why = "the context is closed, this is what its stats page was left with"
		}
	default:
		c.err = c.read(cfg.PID, &s, names)
		if at, still := watch.Started(cfg.PID); still && at != page.Head().Started || !still && c.err != nil {
			r.State = pages.Gone // meanwhile, and its number may be another's: what was read may be, too
			c.Table, c.Slots, c.Used, c.Torn, c.Leases, c.err = false, 0, 0, 0, []Lease{}, errGone
		}
	}
	for i := range c.Leases {
		c.Leases[i].hash(cfg.Hashes)
	}
	for i := range c.Ends {
		if cfg.Hashes {
			c.Ends[i].ID = ""
		}
	}
	if c.err != nil {
		c.Why = c.err.Error()
		if errors.Is(c.err, errRefused) {
			return fmt.Errorf("process %d: %w", cfg.PID, c.err)
		}
		return fmt.Errorf("process %d, context %d: %w", cfg.PID, c.Context, c.err)
	}
	return nil
}

// read takes the leases from the process's memory.
func (c *Context) read(pid int, s *watch.Snapshot, names *pages.Names) error {
	t, err := openTable(pid, s)
	if err != nil {
		return err
	}
	list, err := t.leases()
	if err != nil {
		return err
	}
	readers := map[int]*watch.Reader{}
	for i := range s.Readers {
		readers[s.Readers[i].Row] = &s.Readers[i]
	}
	for i := range list {
		if t.hot.Addr != 0 {
			list[i].read(readers, names)
		}
	}
	sortLeases(list)
	c.Table, c.Slots, c.Used, c.Torn = true, t.slots.Count, t.used, t.torn
	c.Leases = append(c.Leases, list...)
	if t.hot.Addr == 0 {
		c.Why = "a host knows ids, blocks and users; deadlines, readers and heartbeats are its ranks', which are processes or contexts of their own"
	}
	return nil
}

// context is what the page says.
func (r *Report) context(s *watch.Snapshot, names *pages.Names) *Context {
	now := s.Stepped.Add(s.Age)
	c := &Context{
		Context: s.Context, Page: s.Path, Engine: s.Engine, Hash: wire.HashText(s.Hash), Role: s.Role, Rank: s.Rank, TP: s.TP, PP: s.PP,
		Library: s.Library, Drive: s.Drive, Transport: s.Provider, Carrier: s.Carrier, Epoch: hex(s.Epoch), Alive: s.Alive, Poisoned: s.Poisoned,
		Draining: s.Draining, OpenNs: int64(now.Sub(s.Opened)), PageAgeNs: int64(s.Age), DurationNs: int64(s.Duration), IntervalNs: int64(s.Interval),
		ExtensionNs: int64(s.Extension), BlockBytes: s.BlockBytes, Freed: map[string]uint64{}, Readers: []Reader{}, Owners: []Owner{}, Ends: []End{}, Leases: []Lease{},
	}
	c.Held, _ = s.Value("held", "")
	c.Blocks, _ = s.Value("held_blocks", "")
	c.LogLost, _ = s.Value("log_lost", "")
	for name, to := range map[string]*uint64{
		"registered_bytes": &c.Memory.Registered, "registering_bytes": &c.Memory.Registering, "regions_proven": &c.Memory.Proven, "regions_unproven": &c.Memory.Unproven,
	} {
		*to, _ = s.Value(name, "")
	}
	_, c.Memory.of = s.Value("registered_bytes", "")
	asleep, _ := s.Value("asleep", "")
	c.Memory.Asleep = asleep != 0
	c.Untaken, _ = s.Value("untaken_bytes", "")
	for i, reason := range record.FreedNames {
		for _, name := range [...]string{"lease_freed", "freed"} { // of an engine or a rank, of a host
			if n, ok := s.Value(name, strconv.Itoa(i)); ok && n > 0 && reason != "" {
				c.Freed[reason] += n
			}
		}
	}
	for i := range s.Readers {
		k := &s.Readers[i]
		if k.Leases == 0 {
			continue
		}
		to := Reader{Name: names.Reader(k), Hash: wire.HashText(k.Hash), Leases: k.Leases, Blocks: k.Blocks, BeatAgeNs: ago(now, k.LastBeat)}
		if k.Epoch != 0 {
			to.Epoch = hex(k.Epoch)
		}
		if k.LeastSlack >= 0 && !k.Unnamed && s.Age <= 4*s.Interval { // the least of four intervals at most before the page's last step
			ns := int64(k.LeastSlack)
			to.LeastSlackNs = &ns
		}
		c.Readers = append(c.Readers, to)
	}
	for i := range s.Remotes {
		k := &s.Remotes[i]
		c.Owners = append(c.Owners, Owner{
			Name: k.ID, Hash: wire.HashText(k.Hash), Address: k.Address, State: k.State, Tracked: k.Tracked, Reads: k.Reads, BeatAgeNs: ago(now, k.LastBeat),
			HeardAgeNs: ago(now, k.LastRow), Fails: k.Fails, Bytes: k.Bytes, Unheard: k.Unheard, Missed: k.Missed,
			Asked: k.Asked.State, AskFails: k.Asked.Fails, AskSinceNs: ago(now, k.Asked.Since), AskWhy: k.Asked.Why,
		})
	}
	for i := range s.Ends {
		e := &s.Ends[i]
		end := End{
			Number: e.Number, AgoNs: int64(now.Sub(e.At)), Reason: e.Reason, Slot: uint32(e.Lease), Use: uint32(e.Lease>>32) - 1, ID: e.ID, IDHash: wire.HashText(e.IDHash), IDLen: e.IDLen,
			User: hex(e.User), Reader: names.Reader(&e.Reader), ReaderHash: wire.HashText(e.Reader.Hash), HeldNs: int64(e.Held), Blocks: e.Blocks,
		}
		if s.Role == "host" {
			end.Reader = ""
		}
		c.Ends = append(c.Ends, end)
	}
	return c
}

func ago(now, at clock.Instant) *int64 {
	if at == 0 {
		return nil
	}
	ns := int64(now.Sub(at))
	return &ns
}
