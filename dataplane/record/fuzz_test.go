package record

import (
	"bytes"
	"testing"
	"unsafe"
)

// FuzzRecords: whatever bytes a record has, its views lie within it, and what they say makes the same record again.
func FuzzRecords(f *testing.F) {
	rec := func(n int, put func(rec []byte)) []byte {
		words := make([]uint64, n/8+1)
		b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
		put(b)
		return b
	}
	f.Add(rec(ExpectLen+3, func(b []byte) { PutExpect(b, Expect{Lease: NewHandle(1, 2), IDLen: 3}, []byte("abc")) }))
	f.Add(rec(GrantLen+3, func(b []byte) { PutGrant(b, Grant{Lease: NewHandle(1, 2), Blocks: 8, IDLen: 3}, []byte("abc")) }))
	f.Add(rec(TrackLen+3, func(b []byte) {
		PutTrack(b, TrackReq{Track: NewHandle(1, 2), RemoteLen: 2, LocalLen: 1}, []byte("ab"), []byte("c"))
	}))
	f.Add(rec(ReadLen+RunLen, func(b []byte) { PutRead(b, Read{Track: NewHandle(1, 2), Parts: 1, N: 1}, []Run{{0, 1, 2, 3}}) }))
	f.Add(rec(EngineLen+1, func(b []byte) { PutEngine(b, Engine{Engine: 1, TP: 1, PP: 1}, []byte("P")) }))
	f.Add(rec(BlobLen+5, func(b []byte) { PutBlob(b, Blob{Kind: BlobPeer, Total: 9, Offset: 4}, []byte("piece")) }))
	f.Add(rec(FullLen, func(b []byte) { PutFull(b, Full{Incarnation: 3, Mark: FullEnd}) }))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 4096 {
			return
		}
		from := rec(len(in), func(b []byte) { copy(b, in) }) // aligned, as rings give it
		same := func(what string, n int, put func(b []byte)) {
			if n > len(from) {
				t.Fatalf("%s of %d bytes in a record of %d", what, n, len(from))
			}
			if got := rec(n, put); !bytes.Equal(got, from[:n]) {
				t.Fatalf("%s: read from %x, written as %x", what, from[:n], got)
			}
		}
		if e, id, ok := AsExpect(from); ok {
			same("expect", ExpectLen+len(id), func(b []byte) { PutExpect(b, *e, id) })
		}
		if g, id, ok := AsGrant(from); ok {
			same("grant", GrantLen+len(id), func(b []byte) { PutGrant(b, *g, id) })
		}
		if q, remote, local, ok := AsTrack(from); ok {
			same("track", TrackLen+len(remote)+len(local), func(b []byte) { PutTrack(b, *q, remote, local) })
		}
		if r, runs, ok := AsRead(from); ok {
			same("read", ReadLen+len(runs)*RunLen, func(b []byte) { PutRead(b, *r, runs) })
		}
		if e, id, ok := AsEngine(from); ok {
			same("engine", EngineLen+len(id), func(b []byte) { PutEngine(b, e, id) })
		}
		if p, piece, ok := AsBlob(from); ok {
			same("blob", len(from), func(b []byte) { PutBlob(b, p, piece) })
			if uint64(p.Offset)+uint64(len(piece)) > uint64(p.Total) {
				t.Fatalf("a piece of %d bytes at %d of %d", len(piece), p.Offset, p.Total)
			}
		}
		if v, ok := AsFull(from); ok {
			same("full", FullLen, func(b []byte) { PutFull(b, v) })
		}
		if v, ok := AsEra(from); ok {
			same("era", EraLen, func(b []byte) { PutEra(b, v) })
		}
		if v, ok := AsRankState(from); ok {
			same("state", RankStateLen, func(b []byte) { PutRankState(b, v) })
		}
		if v, ok := AsReaderHeard(from); ok {
			same("reader heard", ReaderHeardLen, func(b []byte) { PutReaderHeard(b, v) })
		}
		if v, ok := AsTrouble(from); ok {
			same("trouble", TroubleLen, func(b []byte) { PutTrouble(b, v) })
		}
		if v, ok := AsReaderDead(from); ok {
			same("reader dead", ReaderDeadLen, func(b []byte) { PutReaderDead(b, v) })
		}
		if v, ok := AsRankEvent(from); ok {
			same("event", EventLen, func(b []byte) { PutEvent(b, &v) })
		}
		if v, ok := AsHandle(from); ok {
			same("handle", 8, func(b []byte) { PutHandle(b, v) })
		}
		if v, ok := AsPause(from); ok {
			same("pause", PauseLen, func(b []byte) { PutPause(b, v) })
		}
		AsPressure(from)
		AsAfter(from)
		AsDrain(from)
		AsEngineGone(from)
	})
}
