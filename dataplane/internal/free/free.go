// Package free keeps which places of a table nobody uses.
package free

import "github.com/kvlease/kvlease/dataplane/internal/list"

// None is no place. It is that of lists, since places stand in both.
const None = list.None

// Places hands out the places 0 to n-1 of a table: those given back, the last first, then those never used, in their order. A table of
// which little is in use stays small in memory: nothing of it, nor of this, is written before a place is taken.
//
// Memory: all from New, 4 bytes a place, of which as many are touched as were ever free again at once.
type Places struct {
	back     []uint32
	fresh, n uint32 // places from fresh on were never used
}

// New is of a table of n places, all of them free.
func New(n int) Places { return Places{back: make([]uint32, 0, n), n: uint32(n)} }

// Take gives a free place, None if there is none.
func (f *Places) Take() uint32 {
	if last := len(f.back) - 1; last >= 0 {
		i := f.back[last]
		f.back = f.back[:last]
		return i
	}
	if f.fresh == f.n {
		return None
	}
	f.fresh++
	return f.fresh - 1
}

// Give makes a place free again.
//
// Preconditions: it is taken.
func (f *Places) Give(i uint32) { f.back = append(f.back, i) } // never past its capacity: a place is in it once

// Left is the number of free places.
func (f *Places) Left() int { return int(f.n-f.fresh) + len(f.back) }

// Used is the number of places that are taken.
func (f *Places) Used() int { return int(f.fresh) - len(f.back) }
