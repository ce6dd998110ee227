package read

import (
	"sync/atomic"
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/record"
)

// asRows views landing memory as rows. The transfers that fill a row have ended before it is looked at; the loads are
// atomic so that a word is never seen in halves.
func asRows(mem []byte) ([]record.Row, bool) {
	if uintptr(unsafe.Pointer(&mem[0]))&7 != 0 {
		return nil, false
	}
	return unsafe.Slice((*record.Row)(unsafe.Pointer(&mem[0])), len(mem)/record.RowLen), true
}

func loadRow(r *record.Row) record.Row {
	return record.Row{
		Fence:      atomic.LoadUint64(&r.Fence),
		DeadlineUs: atomic.LoadUint64(&r.DeadlineUs),
		GenBeats:   atomic.LoadUint64(&r.GenBeats),
		Zero:       atomic.LoadUint64(&r.Zero),
	}
}

func storeRow(r *record.Row, fence uint64) {
	atomic.StoreUint64(&r.Fence, fence)
	atomic.StoreUint64(&r.DeadlineUs, 0)
	atomic.StoreUint64(&r.GenBeats, 0)
	atomic.StoreUint64(&r.Zero, 0)
}
