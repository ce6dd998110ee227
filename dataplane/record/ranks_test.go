package record

import (
	"bytes"
	"strings"
	"testing"
	"unsafe"
)

// room is an 8-byte aligned record of n bytes.
func room(n int) []byte {
	words := make([]uint64, n/8+1)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}

func TestARecordBetweenHostAndRankComesAsItWasPut(t *testing.T) {
	id := []byte(strings.Repeat("e", IDMax))
	rec := room(EngineLen + len(id))
	PutEngine(rec, Engine{Engine: 1, User: 2, TP: 3, PP: 4}, id)
	if e, got, ok := AsEngine(rec); !ok || e != (Engine{Engine: 1, User: 2, TP: 3, PP: 4, IDLen: IDMax}) || !bytes.Equal(got, id) {
		t.Errorf("engine: %+v, %d bytes, %v", e, len(got), ok)
	}
	rec = room(BlobLen + BlobPieceMax)
	blob := Blob{Kind: BlobPeer, Rank: 1, Handle: 2, Total: BlobPieceMax + 7, Offset: 7}
	PutBlob(rec, blob, bytes.Repeat([]byte{9}, BlobPieceMax))
	if b, piece, ok := AsBlob(rec); !ok || b != blob || len(piece) != BlobPieceMax || piece[0] != 9 {
		t.Errorf("blob: %+v, %d bytes, %v", b, len(piece), ok)
	}
	if BlobLen+BlobPieceMax != 4096-8 {
		t.Errorf("the longest piece makes a record of %d bytes", BlobLen+BlobPieceMax+8)
	}
	rec = room(64)
	PutEra(rec, Era{Era: 1, Epoch: 2, Secret: [2]uint64{3, 4}})
	if e, ok := AsEra(rec); !ok || e != (Era{Era: 1, Epoch: 2, Secret: [2]uint64{3, 4}}) {
		t.Errorf("era: %+v, %v", e, ok)
	}
	PutFull(rec, Full{Incarnation: 5, Mark: FullEnd})
	if f, ok := AsFull(rec); !ok || f != (Full{Incarnation: 5, Mark: FullEnd}) {
		t.Errorf("full: %+v, %v", f, ok)
	}
	PutReaderDead(rec, ReaderDead{Reader: 1, Epoch: 2})
	if d, ok := AsReaderDead(rec); !ok || d != (ReaderDead{Reader: 1, Epoch: 2}) {
		t.Errorf("reader dead: %+v, %v", d, ok)
	}
	state := RankState{Flags: RankRegistered, Held: 1, Tracked: 2, Reads: 3, Era: 4, Incarnation: 5, Registrations: 6, Steps: 7}
	PutRankState(rec, state)
	if s, ok := AsRankState(rec); !ok || s != state {
		t.Errorf("state: %+v, %v", s, ok)
	}
	PutEvent(rec, &Event{Kind: EvFreed, Rank: 3})
	if e, ok := AsRankEvent(rec); !ok || e.Kind != EvFreed || e.Rank != 3 {
		t.Errorf("event: %+v, %v", e, ok)
	}
	for name, tc := range map[string]struct {
		put func([]byte, uint64)
		as  func([]byte) (uint64, bool)
	}{
		"engine gone": {PutEngineGone, AsEngineGone},
		"pause":       {PutPause, AsPause},
		"drain":       {PutDrain, AsDrain},
		"handle": {func(rec []byte, v uint64) { PutHandle(rec, Handle(v)) }, func(rec []byte) (uint64, bool) {
			h, ok := AsHandle(rec)
			return uint64(h), ok
		}},
	} {
		tc.put(rec, 77)
		if v, ok := tc.as(rec[:8]); !ok || v != 77 {
			t.Errorf("%s: %d, %v", name, v, ok)
		}
		if _, ok := tc.as(rec[:7]); ok {
			t.Errorf("%s of 7 bytes is taken", name)
		}
	}
}

func TestARecordBetweenHostAndRankThatCannotBeIsRefused(t *testing.T) {
	engine := func(n uint32, room int) []byte {
		rec := make([]uint64, 200)
		b := unsafe.Slice((*byte)(unsafe.Pointer(&rec[0])), 1600)
		*(*Engine)(unsafe.Pointer(&rec[0])) = Engine{IDLen: n}
		return b[:EngineLen+room]
	}
	blob := func(total, offset uint32, piece int) []byte {
		rec := room(BlobLen + piece)
		PutBlob(rec, Blob{Kind: BlobOwn, Total: total, Offset: offset}, make([]byte, piece))
		return rec
	}
	full := func(mark uint32) []byte {
		rec := room(FullLen)
		PutFull(rec, Full{Incarnation: 1, Mark: mark})
		return rec
	}
	for _, tc := range []struct {
		name string
		ok   func() bool
		want bool
	}{
		{"an engine without an id", func() bool { _, _, ok := AsEngine(engine(0, 8)); return ok }, false},
		{"an id longer than the record", func() bool { _, _, ok := AsEngine(engine(9, 8)); return ok }, false},
		{"an id longer than any", func() bool { _, _, ok := AsEngine(engine(IDMax+1, IDMax+1)); return ok }, false},
		{"an id that fits", func() bool { _, _, ok := AsEngine(engine(8, 8)); return ok }, true},
		{"half an engine", func() bool { _, _, ok := AsEngine(make([]byte, EngineLen-1)); return ok }, false},
		{"a piece past the whole", func() bool { _, _, ok := AsBlob(blob(10, 4, 7)); return ok }, false},
		{"a piece at the end of numbers", func() bool { _, _, ok := AsBlob(blob(10, ^uint32(0), 7)); return ok }, false},
		{"no piece of something", func() bool { _, _, ok := AsBlob(blob(10, 0, 0)); return ok }, false},
		{"the last piece", func() bool { _, _, ok := AsBlob(blob(10, 3, 7)); return ok }, true},
		{"nothing any more", func() bool { _, _, ok := AsBlob(blob(0, 0, 0)); return ok }, true},
		{"half a blob", func() bool { _, _, ok := AsBlob(make([]byte, BlobLen-1)); return ok }, false},
		{"a mark that is neither", func() bool { _, ok := AsFull(full(3)); return ok }, false},
		{"no mark", func() bool { _, ok := AsFull(full(0)); return ok }, false},
		{"half a mark", func() bool { _, ok := AsFull(full(FullStart)[:FullLen-1]); return ok }, false},
		{"half an era", func() bool { _, ok := AsEra(make([]byte, EraLen-1)); return ok }, false},
		{"half an event", func() bool { _, ok := AsRankEvent(make([]byte, EventLen-1)); return ok }, false},
		{"half a state", func() bool { _, ok := AsRankState(make([]byte, RankStateLen-1)); return ok }, false},
		{"half a dead reader", func() bool { _, ok := AsReaderDead(make([]byte, ReaderDeadLen-1)); return ok }, false},
		{"nothing at all", func() bool { _, ok := AsRankState(nil); return ok }, false},
	} {
		if got := tc.ok(); got != tc.want {
			t.Errorf("%s: taken %v, want %v", tc.name, got, tc.want)
		}
	}
}
