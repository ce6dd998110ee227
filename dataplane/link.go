package dataplane

import (
	"errors"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/internal/list"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/submit"
)

// LinkConfig is what a rank's end of the stream is made with.
type LinkConfig struct {
	Rank    uint32 // pp_rank x tp_size + tp_rank
	Engines int    // places for remote engines, as the tracker has
	MapMax  int    // longest handshake map, bytes; default 1 MiB
	// Era is called in the step that is told of a new era, before any grant of it is applied. nil: nobody wants to know.
	Era func(record.Era)
}

// mapsMax is how many maps may be with the loader (Maps). The records of the host wait for it to give one back.
const mapsMax = 4

// Link is a rank's end of the stream between it and its host. It is the source of the rank's plane, and the sink of its
// events: one that finds no room stays where it is and is put again, so nothing of the rank's is lost on its side. What the
// stream loses on the way is told once more when the host sends its full state: grants and tracks that it repeats do nothing
// if they are alive here, and are answered once more with their end if they have ended.
//
// Threads: the step's, for all but SetMap, Maps and Done.
// Memory: all from NewLink. Only a step that is told of a new engine allocates, its name.
type Link struct {
	cfg     LinkConfig
	carrier stream.Carrier
	p       *Plane
	mem     *record.Memory

	leases  []leaseTold
	tracks  []trackTold
	engines []engineTold
	again   list.List // leases whose end is told once more
	news    list.List // tracks with something to tell
	states  list.List // engines whose state is told once more

	era        record.Era
	eraKnown   bool
	state      record.RankState
	saidState  record.RankState
	stateDue   bool
	stateAt    uint64 // step of the last one
	full       uint64 // the full state that is being taken, 0: none
	draining   bool
	hostLost   bool
	hostLeaves bool // it has said that it closes
	lostSaid   bool
	refused    bool // the host takes part without us, or we without it: told once
	refuseSaid bool
	rowsClosed bool
	poisonSaid bool
	lostAt     int // next track to untrack

	maps     maps
	own      ownMap
	troubles troubles
	said     readersSaid

	id   [record.IDMax]byte // a copy: the carrier may be memory that another process writes to
	id2  [record.IDMax]byte
	runs [record.RunsMax]record.Run
	ev   record.Event
	g    record.Grant
	t    record.TrackReq
	r    record.Read

	in       submit.Counters
	Counters LinkCounters
}

// LinkCounters of a rank's end. They only grow.
type LinkCounters struct {
	Told         uint64 // events told to the host
	ToldAgain    uint64 // of these, those repeated for a full state
	ToldHeld     uint64 // times that an event found no room
	Repeated     uint64 // grants, expectations, tracks and parts of reads that were known already
	OlderUses    uint64 // expectations that gave way to a newer use of their slot
	Misfits      uint64 // records that do not fit what is here
	FullStates   uint64 // taken up to their end
	MapsReceived uint64
	DeathsHeard  uint64 // of remote engines
	MapsBroken   uint64 // maps with a piece missing, or longer than MapMax
	NoEra        uint64 // grants before the first era: the full state repeats them
	EnginesBad   uint64 // engines that the tracker refused

	ReadersDropped uint64 // words of readers about their death wires for which there was no room
}

// leaseTold is the last end of a slot that the host was told of.
type leaseTold struct {
	held   uint64 // ns
	user   uint64
	use    uint32
	blocks uint32
	reason uint8 // 0: none yet
	list.Links
}

// trackTold is what the host was told of a slot's present or last use.
type trackTold struct {
	value0, value1 uint64
	user           uint64
	use            uint32
	parts          uint32 // of its read, taken so far
	flags          uint32 // of the outcome
	status         uint8
	is             uint8 // tell*: what is known
	due            uint8 // tell*: what is to be told once more, or first (tellRetired)
	live           bool
	list.Links
}

// What is known of a track, in the order in which it is told.
const (
	tellGone = 1 << iota
	tellOutcome
	tellBack
	tellRetired
)

// engineTold is the remote engine in a place.
type engineTold struct {
	handle  uint64
	user    uint64
	value0  uint64
	named   uint64        // the full state that named it last
	kind    uint16        // EvEngineUp or EvEngineDown, as told last; 0: neither
	trouble clock.Instant // since when it fails, as told last (heartbeat.Tracker.Trouble); 0: it does not
	retell  bool          // what was told of that may have been lost
	list.Links
}

func (e *leaseTold) ofQueue() *list.Links  { return &e.Links }
func (e *trackTold) ofQueue() *list.Links  { return &e.Links }
func (e *engineTold) ofQueue() *list.Links { return &e.Links }

// NewLink makes a rank's end over its memory and carrier.
func NewLink(cfg LinkConfig, mem *record.Memory, carrier stream.Carrier) *Link {
	if cfg.Engines == 0 {
		cfg.Engines = 4096
	}
	if cfg.MapMax == 0 {
		cfg.MapMax = 1 << 20
	}
	return &Link{
		cfg: cfg, carrier: carrier, mem: mem,
		leases: make([]leaseTold, len(mem.Slots)), tracks: make([]trackTold, len(mem.Tracks)), engines: make([]engineTold, cfg.Engines),
		again: list.New(), news: list.New(), states: list.New(),
		maps: newMaps(cfg.MapMax), stateDue: true,
	}
}

func (l *Link) join(p *Plane) { l.p = p }

// Era is the one in force; false: the host has told none yet.
func (l *Link) Era() (record.Era, bool) { return l.era, l.eraKnown }

// Draining reports that the host has asked for a drain.
func (l *Link) Draining() bool { return l.draining }

// Host is where the host stands.
func (l *Link) Host() stream.State { return l.carrier.State() }

// Sleeping says to the host whether this context sleeps; Pending of the plane is asked after it.
func (l *Link) Sleeping(sleeps bool) { l.carrier.Sleeping(sleeps) }

// State is what the host is told about this rank.
func (l *Link) State() record.RankState { return l.state }

// Spent says whether the era that the host has told last is over here: memory that was registered in it, or before the first, is gone.
func (l *Link) Spent(spent bool) {
	l.state.Flags &^= record.RankSpent
	if spent {
		l.state.Flags |= record.RankSpent
	}
}

// Poisoned tells the host that this rank's core broke, when its rows are closed, and each time that the host begins a full state,
// since the stream may have lost it. No step does that any more: call it again and again. It reports whether the host was told.
func (l *Link) Poisoned() bool {
	for range brokenTakesMax { // nothing else of what the host says is for a broken rank
		tag, _, ok := l.carrier.Next()
		if !ok {
			break
		}
		l.poisonSaid = l.poisonSaid && tag != record.TagFull
	}
	l.carrier.Release()
	l.poisonSaid = l.poisonSaid || l.tellFlag(record.RankPoisoned)
	return l.poisonSaid
}

// brokenTakesMax bounds the records that one call of Poisoned takes.
const brokenTakesMax = 4096

// Closed tells the host that this context closes. Called once its rows are closed and its reads have ended, before the carrier goes.
// If it finds no room, the host waits one duration.
func (l *Link) Closed() { l.tellFlag(record.RankClosed) }

func (l *Link) tellFlag(flag uint32) bool {
	l.state.Flags |= flag
	rec := l.carrier.Reserve(record.TagState, record.RankStateLen)
	if rec == nil {
		return l.carrier.State() == stream.Lost // nobody is there to be told
	}
	record.PutRankState(rec, l.state)
	l.carrier.Publish()
	return true
}

// telling reports that the host has not been told all: a step says a bounded part, and a full stream takes none.
func (l *Link) telling() bool {
	return l.carrier.State() == stream.Attached &&
		(l.own.news.Load() || l.own.any && !l.own.done || l.said.n > 0 || l.troubles.left > 0 || l.stateDue || l.again.Head != list.None || l.news.Head != list.None || l.states.Head != list.None)
}

func (l *Link) pending() bool {
	if (l.again.Head != list.None || l.news.Head != list.None || l.states.Head != list.None) && l.carrier.Fits(record.EventLen) {
		return true
	}
	return l.carrier.Pending() && (l.maps.buf != nil || len(l.maps.free) > 0)
}

// Refuse has this rank's own loop told that it and its host do not fit each other. The step's thread.
func (l *Link) Refuse() { l.refused = true }

// look tells this rank's own loop once that its host does not take it: it was made for other sizes, or its place is taken. It goes
// on asking, since the host's successor may.
func (l *Link) look() {
	if l.refuseSaid {
		return
	}
	if !l.refused && l.carrier.State() == stream.Waiting {
		err := l.carrier.Err()
		if l.refused = err != nil && (errors.Is(err, stream.ErrTaken) || errors.Is(err, stream.ErrInvalid)); l.refused {
			l.p.cfg.Log.Put(log.HostRefuses, l.p.last, log.Entry{Text: err.Error()})
		}
	}
	if l.refused {
		l.ev = record.Event{Kind: record.EvHostDown, Status: record.HostRefuses}
		l.refuseSaid = l.p.out.Put(&l.ev)
	}
}

// lost does what is left to do when the host is gone: its requests are untracked, so that owners are told; leases end at
// their deadlines, and cannot be read any more unless its process has ended for certain.
func (l *Link) lost(now clock.Instant) {
	if !l.rowsClosed && !errors.Is(l.carrier.Err(), stream.ErrEnded) {
		// It may live, and give the blocks to others, since it counts what is held here as ended (L10).
		l.rowsClosed = true
		l.p.Leases.FenceAll()
	}
	if !l.lostSaid {
		l.ev = record.Event{Kind: record.EvHostDown}
		if l.lostSaid = l.p.out.Put(&l.ev); l.lostSaid {
			kind := log.HostLost
			if l.hostLeaves {
				kind = log.HostLeft
			}
			l.p.cfg.Log.Put(kind, now, log.Entry{})
		}
	}
	for n := 0; l.lostAt < len(l.tracks) && n < lostStepMax; n++ { // the rest in the next step
		if e := &l.tracks[l.lostAt]; e.live {
			l.p.Tracker.Untrack(record.NewHandle(uint32(l.lostAt), e.use), now)
		}
		l.lostAt++
	}
}

const lostStepMax = 4096
