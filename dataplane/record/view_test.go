package record

import (
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"
)

// A producer in another process can write into a record that it has published. The consumer must not read past the record
// for it.
func TestARecordWhoseLengthsChangeWhileItIsReadIsReadWithinItsBytes(t *testing.T) {
	words := make([]uint64, 512)
	rec := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), ReadLen+4*RunLen)
	read, track := (*Read)(unsafe.Pointer(&rec[0])), (*TrackReq)(unsafe.Pointer(&rec[0]))
	id := (*Expect)(unsafe.Pointer(&rec[0]))
	for _, tc := range []struct {
		name string
		word *uint32
		good uint32
		look func() int // bytes given behind the head, 0: refused
	}{
		{"read", &read.N, 1, func() int {
			_, runs, _ := AsRead(rec)
			return len(runs) * RunLen
		}},
		{"track", (*uint32)(unsafe.Pointer(&track.RemoteLen)), 1 << 16, func() int {
			_, remote, local, ok := AsTrack(rec)
			if !ok {
				return 0
			}
			return len(remote) + len(local)
		}},
		{"expect", &id.IDLen, 1, func() int {
			_, name, ok := AsExpect(rec)
			if ok && len(name) == 0 {
				t.Error("an id without bytes was taken")
			}
			return len(name)
		}},
	} {
		var stop atomic.Bool
		var done sync.WaitGroup
		done.Go(func() {
			for !stop.Load() {
				atomic.StoreUint32(tc.word, tc.good)
				atomic.StoreUint32(tc.word, 0)
				atomic.StoreUint32(tc.word, RunsMax)
			}
		})
		for range 1 << 20 {
			if n := tc.look(); n > len(rec) {
				t.Errorf("%s: %d bytes behind the head of a record of %d", tc.name, n, len(rec))
				break
			}
		}
		stop.Store(true)
		done.Wait()
	}
}
