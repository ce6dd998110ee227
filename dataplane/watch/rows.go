package watch

import (
	"encoding/binary"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// ReaderRow is what PutReader takes of one reader.
type ReaderRow struct {
	Number           uint64 // of this use of the row: a name belongs to one
	Native           bool
	Unnamed, Other   bool
	Hash, Epoch      uint64
	Leases, Blocks   uint64
	Oldest, LastBeat clock.Instant
	LeastSlack       time.Duration // less than 0: there is none
	Ended            [len(record.FreedNames)]uint64
}

const (
	rowNative = 1 << iota
	rowUnnamed
	rowOther
)

// PutReader sets row i; SetReaders says how many there are.
func (w *Writer) PutReader(i int, r *ReaderRow) {
	to := w.rows[i*readerWords:][:readerWords]
	flags := uint64(0)
	for k, set := range [...]bool{r.Native, r.Unnamed, r.Other} {
		if set {
			flags |= 1 << k
		}
	}
	to[0], to[1], to[2], to[3], to[4], to[5] = r.Number, flags, r.Hash, r.Epoch, r.Leases, r.Blocks
	to[6], to[7], to[8] = uint64(r.Oldest), uint64(r.LastBeat), uint64(r.LeastSlack)
	copy(to[9:], r.Ended[record.FreedCompleted:record.FreedClosed+1])
}

// SetReaders says how many rows of readers are in use.
func (w *Writer) SetReaders(n int) { w.main[mwReaders] = uint64(n) }

// Named tells whether row i has the name of that use of it.
func (w *Writer) Named(i int, number uint64) bool {
	return binary.LittleEndian.Uint64(w.names[i*nameLen:]) == number
}

// NameReader names row i; an empty name is one that is not known.
func (w *Writer) NameReader(i int, number uint64, name []byte) {
	to := w.names[i*nameLen:][:nameLen]
	n := copy(to[16:], name)
	binary.LittleEndian.PutUint64(to, number)
	binary.LittleEndian.PutUint64(to[8:], uint64(n))
	w.named = true
}

// PutRemote sets row i of the engines that are read from. Rows come in order from 0; FinishRemotes ends them.
func (w *Writer) PutRemote(i int, r *Remote) {
	row := w.remote[i%remoteCell*remoteLen:][:remoteLen]
	clear(row)
	known, native := uint64(0), uint64(0)
	if r.OffsetKnown {
		known = 1
	}
	if r.Native {
		native = 1
	}
	for k, v := range [...]uint64{
		r.Engine, r.Hash, uint64(r.Since), native, r.Epoch, uint64(r.Ranks), uint64(r.Handshake), r.Connects, uint64(r.LastBeat),
		uint64(r.LastRow), r.Fails, r.Tracked, r.Reads, r.Bytes, r.Unheard, known, uint64(r.Offset),
	} {
		binary.LittleEndian.PutUint64(row[8*k:], v)
	}
	copy(row[remoteState:remoteFlags*8], r.State)
	if r.Missed {
		binary.LittleEndian.PutUint64(row[8*remoteFlags:], 1)
	}
	copy(row[remoteWords*8:][:remoteID], r.ID)
	copy(row[remoteWords*8+remoteID:], r.Address)
	if i%remoteCell == remoteCell-1 {
		w.flushRemotes(i / remoteCell)
	}
}

func (w *Writer) flushRemotes(cell int) {
	w.cell(secRemotes, uint64(cell), &w.remTurns[cell], w.remote)
	clear(w.remote)
}

// FinishRemotes says that n rows were put: all there are.
func (w *Writer) FinishRemotes(n int) {
	if n%remoteCell != 0 {
		w.flushRemotes(n / remoteCell)
	}
	w.main[mwRemotes] = uint64(n)
}

// AskedRow is what PutAsked takes of one engine.
type AskedRow struct {
	Engine uint64 // handle, not 0
	Asked
}

// PutAsked writes how asking engines stands; those past the rows for engines are left out. The thread of PutSide.
func (w *Writer) PutAsked(list []AskedRow) {
	list = list[:min(len(list), len(w.askTurns)*remoteCell)]
	used := (len(list) + remoteCell - 1) / remoteCell
	for cell := range max(used, w.askCells) {
		clear(w.asked)
		for i := cell * remoteCell; i < min(len(list), (cell+1)*remoteCell); i++ {
			r, row := &list[i], w.asked[i%remoteCell*askedLen:][:askedLen]
			for k, v := range [...]uint64{r.Engine, r.Fails, uint64(r.Since)} {
				binary.LittleEndian.PutUint64(row[8*k:], v)
			}
			copy(row[askedState:askedWhy], r.State)
			copy(row[askedWhy:], r.Why)
		}
		w.cell(secAsked, uint64(cell), &w.askTurns[cell], w.asked)
	}
	w.askCells = used
}

// PutEnds writes the ends that are not in the page yet.
func (w *Writer) PutEnds(last *record.LastEnds) {
	from, n := w.ended, last.Total-w.ended
	if n == 0 {
		return
	}
	if n > EndsMax {
		from, n = last.Total-EndsMax, EndsMax
	}
	s := &w.secs[secEnds]
	claimed := [1]uint64{last.Total}
	if !w.write(bytesOf(claimed[:]), s.at) {
		return
	}
	bytes := last.Bytes()
	for n > 0 { // twice, if it goes round the end
		at := from % EndsMax
		k := min(n, EndsMax-at)
		if !w.write(bytes[at*endLen:][:k*endLen], s.at+endHeadLen+at*endLen) {
			return
		}
		from, n = from+k, n-k
	}
	if w.write(bytesOf(claimed[:]), s.at+8) {
		w.ended = last.Total
	}
}
