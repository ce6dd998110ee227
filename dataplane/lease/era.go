package lease

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/record"
)

// ErrEra is why an era cannot begin.
var ErrEra = errors.New("lease table: no new era")

// Reset begins another era on the same memory: readers see another board, whose keys and fence words nobody knows who knew the
// former ones. Of that era nothing is accepted any more: no key, no early message, no claim, no grant that was on its way (it
// ends as closed when it arrives). What is told about it stays: ends that wait, and the ids freed last.
//
// Preconditions: EndAll has ended every lease, and no agent serves the board: its rows are rewritten, lower than they were.
// base is the fence word of use 0, below 2^62; a slot's row starts at base + its uses so far. On an error the board stays closed.
func (t *Table) Reset(secret [2]uint64, base, epoch uint64) error {
	switch {
	case base >= 1<<62:
		return fmt.Errorf("%w: base %#x, want less than 2^62", ErrEra, base)
	case t.held > 0:
		return fmt.Errorf("%w: leases held: %d", ErrEra, t.held)
	case atomic.LoadUint32(&t.mem.Control.Poisoned) != 0:
		return fmt.Errorf("%w: the context is poisoned", ErrEra)
	}
	for s := range uint32(len(t.hot)) { // messages are kept for slots that were never used, too
		switch k := &t.hot[s]; {
		case k.phase() == phaseExpected: // its grant is said and on its way
			t.drop(s, k)
		case k.phase() == phaseFree && *k != hot{}:
			t.forget(k)
		}
	}
	t.gone.clear() // in place: a rank does this in the step that hears of the era
	t.left.clear()
	t.wanted, t.ripens = 0, 0
	t.secret, t.base, t.closed = secret, base, false
	t.rekey()

	// kvl_fence_all closes the header before the rows, and this opens it before the rows: a fence that comes between is seen below.
	atomic.StoreUint32(&t.mem.Header.Flags, 0)
	t.mem.Header.Base, t.mem.Header.Epoch = base, epoch
	for s := range t.mem.Slots {
		row := &t.mem.Rows[s]
		put(&row.DeadlineUs, 0)
		put(&row.GenBeats, 0)
		fence := base + uint64(stateUse(atomic.LoadUint64(&t.mem.Slots[s].State)))
		if s < t.slotsUsed && t.hot[s].phase() == phaseEnded {
			fence++
		}
		atomic.StoreUint64(&row.Fence, fence)
	}
	publishBarrier()
	if atomic.LoadUint32(&t.mem.Header.Flags)&record.BoardClosed != 0 || atomic.LoadUint32(&t.mem.Control.Poisoned) != 0 {
		t.FenceAll()
		return fmt.Errorf("%w: the context was poisoned meanwhile", ErrEra)
	}
	return nil
}

// Drain marks the board: the owner takes no new requests, and what it holds can be read until it ends.
func (t *Table) Drain() { atomic.OrUint32(&t.mem.Header.Flags, record.BoardDraining) }
