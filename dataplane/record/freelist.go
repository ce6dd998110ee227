package record

import "sync/atomic"

// PushFree gives a slot back to the host. One pusher (the core), and a taker that only ever takes the whole list
// (TakeFree), so there is no ABA.
//
// Edge F1: the compare-and-swap releases the slot's words; pairs with F2 in TakeFree.
func PushFree(head *uint32, next *uint32, slot uint32) {
	for {
		old := atomic.LoadUint32(head)
		atomic.StoreUint32(next, old)
		if atomic.CompareAndSwapUint32(head, old, slot) {
			return
		}
	}
}

// TakeFree takes the whole list; the caller walks it by the next links. Edge F2: acquire, pairs with F1.
func TakeFree(head *uint32) uint32 { return atomic.SwapUint32(head, None) }

// Raise stores v if it is more than what is there: fence words only ever grow.
func Raise(w *uint64, v uint64) {
	for {
		old := atomic.LoadUint64(w)
		if old >= v || atomic.CompareAndSwapUint64(w, old, v) {
			return
		}
	}
}
