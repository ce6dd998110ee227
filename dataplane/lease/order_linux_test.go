package lease

import (
	"runtime/debug"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/record"
)

// The order of two stores cannot be seen from outside while both are made. So the slots lie in memory that nobody may write: an
// end stops at the first word of its slot that it changes, and by then the fence must stand.
func TestL10TheFenceIsRaisedBeforeAnythingTellsOfTheEnd(t *testing.T) {
	for _, tc := range []struct {
		name string
		open func(r *rig) record.Handle
		end  func(r *rig, h record.Handle)
	}{
		{"completion", func(r *rig) record.Handle {
			h := r.grant("a")
			r.t.Renew(r.entry(h), engineD, r.now) // the first message writes a flag
			return h
		}, func(r *rig, h record.Handle) { r.t.Complete(r.entry(h), engineD, 1, r.now) }},
		{"expiry", func(r *rig) record.Handle { return r.grant("a") }, func(r *rig, h record.Handle) { r.run(at(31)) }},
		{"cancel", func(r *rig) record.Handle { return r.grant("a") }, func(r *rig, h record.Handle) { r.t.Cancel(h, r.now) }},
		{"close", func(r *rig) record.Handle { return r.grant("a") }, func(r *rig, h record.Handle) { r.t.EndAll(record.FreedClosed, r.now) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 1)
			page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Munmap(page)
			r.mem.Slots = unsafe.Slice((*record.Slot)(unsafe.Pointer(&page[0])), 1)
			r.t.mem.Slots = r.mem.Slots
			h := tc.open(r)
			state := atomic.LoadUint64(&r.mem.Slots[0].State)
			if err := unix.Mprotect(page, unix.PROT_READ); err != nil {
				t.Fatal(err)
			}
			stopped := func() (stopped bool) {
				defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
				defer func() { stopped = recover() != nil }()
				tc.end(r, h)
				return false
			}()
			if !stopped || atomic.LoadUint64(&r.mem.Slots[0].State) != state {
				t.Fatal("the end has changed nothing of its slot")
			}
			r.wantFence(h, testBase+uint64(h.Use())+1)
		})
	}
}

func TestL10ALapsedExpectationMovesItsRowBeforeItIsTold(t *testing.T) {
	r := newRig(t, 2)
	h := r.expect("a")
	r.now = at(301)
	r.t.Sweep(r.now, tick, 0, 0)
	if r.t.Ending() != 1 {
		t.Fatalf("%d ends wait, want the expectation's", r.t.Ending())
	}
	r.wantFence(h, testBase+uint64(h.Use())+1)
}
