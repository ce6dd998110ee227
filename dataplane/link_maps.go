package dataplane

import (
	"sync"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// MapIn is the handshake map of a rank of a remote engine, or the word that the engine of the maps before is no more (Data is empty).
type MapIn struct {
	Engine uint64
	Rank   uint32
	Data   []byte
	why    heartbeat.Over // Data is empty
	buf    []byte
}

// maps puts the pieces of the host's blobs together.
type maps struct {
	free chan []byte
	full chan MapIn
	buf  []byte // being filled; nil: none
	head record.Blob
	at   uint32
}

func newMaps(most int) maps {
	m := maps{free: make(chan []byte, mapsMax), full: make(chan MapIn, mapsMax)}
	for range mapsMax {
		m.free <- make([]byte, most) // pages that nobody touches until a map is that long
	}
	return m
}

// Maps gives the maps that are complete, and deaths between them, in the order in which the host has said them. The context's
// loader takes them off the step, each with Load; the records of the host wait while all are with it.
func (l *Link) Maps() <-chan MapIn { return l.maps.full }

// Load hands on what Maps has given, and gives its memory back. The loader's goroutine.
func (l *Link) Load(m MapIn) error {
	defer l.Done(m)
	if len(m.Data) == 0 {
		_ = l.p.Tracker.EngineOver(m.Engine, m.why) // stale: it is not known here any more
		return nil
	}
	h := new(wire.Handshake)
	if err := wire.ParseHandshake(m.Data, h); err != nil {
		return err
	}
	return l.p.Tracker.LoadHandshake(m.Engine, m.Rank, h)
}

// Done gives the memory back of what is not handed on. Any goroutine.
func (l *Link) Done(m MapIn) { l.maps.free <- m.buf }

// ready takes a buffer for the next map. It reports false if all are with the loader.
func (m *maps) ready() bool {
	if m.buf == nil {
		select {
		case m.buf = <-m.free:
		default:
		}
	}
	return m.buf != nil
}

// piece takes one piece of a peer's map.
func (l *Link) piece(b record.Blob, piece []byte) {
	m := &l.maps
	if b.Kind == record.BlobPeer && b.Total == 0 { // it is no more: said behind the maps that are on their way to the tracker
		l.Counters.DeathsHeard++
		m.full <- MapIn{Engine: b.Handle, why: heartbeat.OverOf(b.Rank), buf: m.buf}
		m.buf, m.head, m.at = nil, record.Blob{}, 0
		return
	}
	if b.Offset == 0 {
		m.head, m.at = b, 0
	}
	if b.Kind != record.BlobPeer || b.Handle != m.head.Handle || b.Rank != m.head.Rank || b.Total != m.head.Total ||
		b.Offset != m.at || int(b.Total) > len(m.buf) {
		if m.at != 0 || b.Offset == 0 {
			l.Counters.MapsBroken++
		}
		m.head, m.at = record.Blob{}, 0 // a piece is missing: the full state brings the whole again
		return
	}
	copy(m.buf[b.Offset:], piece)
	if m.at += uint32(len(piece)); m.at < b.Total {
		return
	}
	l.Counters.MapsReceived++
	m.full <- MapIn{Engine: b.Handle, Rank: b.Rank, Data: m.buf[:b.Total], buf: m.buf} // has room for every buffer
	m.buf, m.head, m.at = nil, record.Blob{}, 0
}

// ownMap is our own handshake map on its way to the host.
type ownMap struct {
	mu            sync.Mutex
	next          []byte // handed in, not picked up
	registrations uint64
	news          atomic.Bool

	data   []byte
	number uint64 // of the registrations so far when data was picked up
	at     int
	done   bool // nothing of it is left to tell
	whole  bool // it was told to its end once: a full state has it told again, and changes nothing else
	any    bool
}

// SetMap hands in our own handshake map, for the host to serve, after memory was registered; nil: it was unregistered.
// The host hears of the registration when it has the whole of the map. m must not be changed any more. Any goroutine.
func (l *Link) SetMap(m []byte) {
	o := &l.own
	o.mu.Lock()
	defer o.mu.Unlock()
	o.next = m
	if m != nil {
		o.registrations++
	}
	o.news.Store(true)
}

// tellMap sends what there is room for, at most piecesStepMax.
func (l *Link) tellMap() {
	o := &l.own
	if o.news.Load() && o.mu.TryLock() {
		o.data, o.at, o.done, o.whole, o.any, o.number = o.next, 0, false, false, true, o.registrations
		o.news.Store(false)
		o.mu.Unlock()
	}
	if o.done || !o.any {
		return
	}
	for range piecesStepMax {
		n := min(len(o.data)-o.at, record.BlobPieceMax)
		rec := l.carrier.Reserve(record.TagBlob, record.BlobLen+n)
		if rec == nil {
			return
		}
		record.PutBlob(rec, record.Blob{Kind: record.BlobOwn, Rank: l.cfg.Rank, Total: uint32(len(o.data)), Offset: uint32(o.at)},
			o.data[o.at:o.at+n])
		if o.at += n; o.at == len(o.data) {
			o.done, o.whole = true, true
			l.state.Registrations = o.number // not before: a registration without a map would be one that is over
			return
		}
	}
}

// piecesStepMax bounds the pieces of maps of one step: 64 KiB.
const piecesStepMax = 16
