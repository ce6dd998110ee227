package watch

import (
	"encoding/binary"

	"github.com/kvlease/kvlease/dataplane/histogram"
	"github.com/kvlease/kvlease/dataplane/record"
)

// The file, all numbers little-endian and 8 bytes where nothing else is said:
//
//	head       4 KiB, written once: hw* words, then the sections, then texts
//	table      written once: what values and histograms are
//	main       two copies: mw* words, values of the step, histograms, one row a reader
//	names      two copies: names of the readers, written when one changes
//	side       two copies: values that come from outside of the step
//	remotes    cells of two copies: rows of the engines that are read from; a hole where none was ever written
//	asked      likewise: how asking them for their maps stands, which is found out beside the step
//	ends       a ring of rows, and two numbers before it: what is being written, what is whole
//
// What lies there twice begins with its turn: how often it was written. Copy turn mod 2 is whole.
const (
	magic   = "KVLSTATS"
	version = 2

	headLen = 4096
	fileMax = 16 << 20 // a reader believes no more
	descMax = 1 << 16  // values and histograms of a page: a reader keeps several times their bytes

	sectionAt  = 256 // in the head
	sectionLen = 40  // offset, bytes of a copy (of a row: ends), cells (rows), bytes of a row, rows of a copy
	textAt     = 512 // in the head: texts, each 2 bytes of length and the bytes
	turnLen    = 64  // before two copies
	textMax    = 1024
)

// Words of the head, by their place in bytes.
const (
	hwVersion   = 8 // 4 bytes, then 4 of the head's length
	hwSize      = 16
	hwPID       = 24
	hwStarted   = 32
	hwNamespace = 40
	hwUID       = 48
	hwContext   = 56
	hwOpened    = 64
	hwRank      = 72
	hwTP        = 80
	hwPP        = 88
	hwDuration  = 96
	hwInterval  = 104
	hwExtension = 112
	hwHash      = 120
	hwTable     = 128 // offset, length
	hwStep      = 144 // values of the step
	hwSide      = 152 // values beside it
	hwHists     = 160
)

// Texts of the head, in this order.
const (
	textLibrary = iota
	textRole
	textEngine
	textDrive
	textCarrier
	textProvider
	texts
)

// Sections.
const (
	secMain = iota
	secNames
	secSide
	secRemotes
	secAsked
	secEnds
	sections
)

// Words of main.
const (
	mwStepped    = iota
	mwEpoch      //
	mwFlags      // flag*
	mwBlockBytes //
	mwReaders    // rows in use
	mwRemotes    // rows in use
	mwTables     // tablesMax times address, stride, count
	mainWords    = mwTables + 3*tablesMax
)

const (
	flagPoisoned = 1 << iota
	flagDraining
	flagClosed
)

// tableNames are the memory that dump looks into, in the order of Live.Tables.
var tableNames = [TablesN]string{"control", "slots", "rows", "hot", "granted", "index", "long_ids"}

const tablesMax = 12

// Rows.
const (
	readerWords = 16
	nameMax     = 256
	nameLen     = 8 + 8 + nameMax // number of the row's use, length, bytes
	remoteWords = 24
	remoteID    = 256
	remoteAddr  = 64
	remoteLen   = remoteWords*8 + remoteID + remoteAddr
	remoteState = 17 * 8 // in the row: a short text
	remoteFlags = 23     // the word behind it: 1: missed
	remoteCell  = 32     // rows of a cell, those of asked, too
	askedWords  = 8
	askedLen    = askedWords * 8
	askedState  = 3 * 8 // in the row: two short texts
	askedWhy    = 5 * 8
	endLen      = uint64(record.LastEndLen)
	endHeadLen  = 64 // before the ring: what is being written, what is whole

	unnamedNumber = 1 // of the first two rows of readers: those of nobody, and of all others
	otherNumber   = 2
)

// EndsMax is how many ends a page remembers, ReadersMax and RemotesMax how many engines it has rows for.
const (
	EndsMax    = record.LastEndsMax
	ReadersMax = 256
	RemotesMax = 1024
)

type section struct{ at, copyLen, cells, rowLen, rows uint64 }

// cellLen is the room of a cell with both copies.
func (s *section) cellLen() uint64 { return turnLen + 2*round(s.copyLen) }

func (s *section) end() uint64 { return s.at + s.cells*s.cellLen() }

// place gives where copy turn mod 2 of a cell lies.
func (s *section) place(cell, turn uint64) uint64 {
	return s.at + cell*s.cellLen() + turnLen + turn%2*round(s.copyLen)
}

func round(n uint64) uint64 { return (n + 63) &^ 63 }

// layout places the sections behind a table of tableLen bytes.
func layout(tableLen, step, side, hists, readers, remotes int) (list [sections]section, size uint64) {
	list[secMain] = section{copyLen: uint64(mainWords+step+hists*histogram.Words+readers*readerWords) * 8, cells: 1, rowLen: readerWords * 8, rows: uint64(readers)}
	list[secNames] = section{copyLen: uint64(readers) * nameLen, cells: 1, rowLen: nameLen, rows: uint64(readers)}
	list[secSide] = section{copyLen: uint64(side) * 8, cells: 1, rowLen: 8, rows: uint64(side)}
	list[secRemotes] = section{copyLen: remoteCell * remoteLen, cells: uint64(remotes+remoteCell-1) / remoteCell, rowLen: remoteLen, rows: remoteCell}
	list[secAsked] = section{copyLen: remoteCell * askedLen, cells: list[secRemotes].cells, rowLen: askedLen, rows: remoteCell}
	at := page(headLen + uint64(tableLen))
	for i := range secEnds {
		list[i].at = at
		at = page(list[i].end())
	}
	list[secEnds] = section{at: at, copyLen: endLen, cells: EndsMax, rowLen: endLen, rows: 1}
	return list, page(at + endHeadLen + EndsMax*endLen)
}

func page(n uint64) uint64 { return (n + 4095) &^ 4095 }

// appendText appends a text as 2 bytes of length and its bytes.
func appendText(b []byte, s string) []byte {
	s = s[:min(len(s), textMax)]
	b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

// cutText takes a text off b.
func cutText(b []byte) (s string, rest []byte, ok bool) {
	if len(b) < 2 {
		return "", nil, false
	}
	n := int(binary.LittleEndian.Uint16(b))
	if n > textMax || len(b) < 2+n {
		return "", nil, false
	}
	return string(b[2 : 2+n]), b[2+n:], true
}

// Desc says what a value or a histogram is.
type Desc struct {
	Name, Label, Unit, Help string
	Kind                    Kind
}

func appendDesc(b []byte, d *Desc) []byte {
	b = append(b, byte(d.Kind))
	for _, s := range [...]string{d.Name, d.Label, d.Unit, d.Help} {
		b = appendText(b, s)
	}
	return b
}

func cutDesc(b []byte) (d Desc, rest []byte, ok bool) {
	if len(b) < 1 {
		return d, nil, false
	}
	d.Kind, b = Kind(b[0]), b[1:]
	for _, s := range [...]*string{&d.Name, &d.Label, &d.Unit, &d.Help} {
		if *s, b, ok = cutText(b); !ok {
			return d, nil, false
		}
	}
	return d, b, true
}
