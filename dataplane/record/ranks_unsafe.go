package record

import "unsafe"

// Lengths of the fixed heads of records between host and rank.
const (
	EngineLen      = int(unsafe.Sizeof(Engine{}))
	EngineGoneLen  = int(unsafe.Sizeof(EngineGone{}))
	BlobLen        = int(unsafe.Sizeof(Blob{}))
	PauseLen       = int(unsafe.Sizeof(Pause{}))
	EraLen         = int(unsafe.Sizeof(Era{}))
	FullLen        = int(unsafe.Sizeof(Full{}))
	DrainLen       = int(unsafe.Sizeof(Drain{}))
	PoisonLen      = int(unsafe.Sizeof(Poison{}))
	HostLeavesLen  = int(unsafe.Sizeof(HostLeaves{}))
	ReaderHeardLen = int(unsafe.Sizeof(ReaderHeard{}))
	TroubleLen     = int(unsafe.Sizeof(Trouble{}))
	ReaderDeadLen  = int(unsafe.Sizeof(ReaderDead{}))
	RankStateLen   = int(unsafe.Sizeof(RankState{}))
)

// head copies a record's fixed head, once: what is checked is what is used.
func head[T any](rec []byte) (v T, ok bool) {
	if uintptr(len(rec)) < unsafe.Sizeof(v) {
		return v, false
	}
	return *(*T)(unsafe.Pointer(&rec[0])), true
}

func putHead[T any](rec []byte, v T) {
	_ = rec[unsafe.Sizeof(v)-1]
	*(*T)(unsafe.Pointer(&rec[0])) = v
}

// AsEngine views ENGINE: the handle, and the engine's id.
func AsEngine(rec []byte) (e Engine, id []byte, ok bool) {
	if e, ok = head[Engine](rec); !ok || e.IDLen == 0 || e.IDLen > IDMax {
		return e, nil, false
	}
	id, ok = tail(rec, uintptr(EngineLen), uint64(e.IDLen))
	return e, id, ok
}

// PutEngine writes ENGINE: EngineLen + len(id) bytes.
func PutEngine(rec []byte, e Engine, id []byte) {
	e.IDLen = uint32(len(id))
	putHead(rec, e)
	copy(rec[EngineLen:], id)
}

// AsEngineGone views ENGINE_GONE: the handle.
func AsEngineGone(rec []byte) (engine uint64, ok bool) {
	g, ok := head[EngineGone](rec)
	return g.Engine, ok
}

// PutEngineGone writes ENGINE_GONE.
func PutEngineGone(rec []byte, engine uint64) { putHead(rec, EngineGone{engine}) }

// AsBlob views BLOB: what it is a piece of, and the piece, which lies within the whole.
func AsBlob(rec []byte) (b Blob, piece []byte, ok bool) {
	if b, ok = head[Blob](rec); !ok {
		return b, nil, false
	}
	piece = rec[BlobLen:len(rec):len(rec)]
	end := uint64(b.Offset) + uint64(len(piece))
	return b, piece, end <= uint64(b.Total) && (len(piece) > 0 || b.Total == 0)
}

// PutBlob writes BLOB: BlobLen + len(piece) bytes, the piece at most BlobPieceMax.
func PutBlob(rec []byte, b Blob, piece []byte) {
	putHead(rec, b)
	copy(rec[BlobLen:], piece)
}

// AsPause views PAUSE: the nanoseconds left.
func AsPause(rec []byte) (leftNs uint64, ok bool) {
	p, ok := head[Pause](rec)
	return p.LeftNs, ok
}

// PutPause writes PAUSE.
func PutPause(rec []byte, leftNs uint64) { putHead(rec, Pause{leftNs}) }

// AsEra views ERA.
func AsEra(rec []byte) (Era, bool) { return head[Era](rec) }

// PutEra writes ERA.
func PutEra(rec []byte, e Era) { putHead(rec, e) }

// AsFull views FULL: one of the two marks.
func AsFull(rec []byte) (f Full, ok bool) {
	f, ok = head[Full](rec)
	return f, ok && (f.Mark == FullStart || f.Mark == FullEnd)
}

// PutFull writes FULL.
func PutFull(rec []byte, f Full) { putHead(rec, f) }

// AsDrain views DRAIN: the nanoseconds to do it in.
func AsDrain(rec []byte) (leftNs uint64, ok bool) {
	d, ok := head[Drain](rec)
	return d.LeftNs, ok
}

// PutDrain writes DRAIN.
func PutDrain(rec []byte, leftNs uint64) { putHead(rec, Drain{leftNs}) }

// PutPoison writes POISON, which says all by its tag.
func PutPoison(rec []byte) { putHead(rec, Poison{}) }

// PutHostLeaves writes HOST_LEAVES, which says all by its tag.
func PutHostLeaves(rec []byte) { putHead(rec, HostLeaves{}) }

// AsReaderDead views READER_DEAD.
func AsReaderDead(rec []byte) (ReaderDead, bool) { return head[ReaderDead](rec) }

// PutReaderDead writes READER_DEAD.
func PutReaderDead(rec []byte, d ReaderDead) { putHead(rec, d) }

// AsReaderHeard views READER_HEARD.
func AsReaderHeard(rec []byte) (ReaderHeard, bool) { return head[ReaderHeard](rec) }

// PutReaderHeard writes READER_HEARD.
func PutReaderHeard(rec []byte, h ReaderHeard) { putHead(rec, h) }

// AsTrouble views TROUBLE.
func AsTrouble(rec []byte) (Trouble, bool) { return head[Trouble](rec) }

// PutTrouble writes TROUBLE.
func PutTrouble(rec []byte, t Trouble) { putHead(rec, t) }

// AsRankEvent views EVENT, an Event of one rank. AsEvent is for our own rings, whose records have their length.
func AsRankEvent(rec []byte) (Event, bool) { return head[Event](rec) }

// PutHandle writes CANCEL, REVOKE, UNTRACK and RETIRED: 8 bytes. AsHandle views them.
func PutHandle(rec []byte, h Handle) { putHead(rec, h) }

// AsRankState views STATE.
func AsRankState(rec []byte) (RankState, bool) { return head[RankState](rec) }

// PutRankState writes STATE.
func PutRankState(rec []byte, s RankState) { putHead(rec, s) }
