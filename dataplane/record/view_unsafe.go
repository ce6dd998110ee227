package record

import (
	"sync/atomic"
	"unsafe"
)

// The casts below need 8-byte alignment, which ringbuf gives to every record, and lengths, which each checks. Each length is
// loaded once: what was checked is what is used, whatever a producer does to a record that it has published.

func tail(rec []byte, head uintptr, n uint64) ([]byte, bool) {
	if uint64(len(rec)) < uint64(head)+n {
		return nil, false
	}
	return rec[head : uint64(head)+n : uint64(head)+n], true
}

// AsExpect views a record as an Expect and its id.
func AsExpect(rec []byte) (*Expect, []byte, bool) {
	if len(rec) < int(unsafe.Sizeof(Expect{})) {
		return nil, nil, false
	}
	e := (*Expect)(unsafe.Pointer(&rec[0]))
	n := atomic.LoadUint32(&e.IDLen)
	id, ok := tail(rec, unsafe.Sizeof(*e), uint64(n))
	return e, id, ok && n > 0 && n <= IDMax
}

// AsGrant views a record as a Grant and its id.
func AsGrant(rec []byte) (*Grant, []byte, bool) {
	if len(rec) < int(unsafe.Sizeof(Grant{})) {
		return nil, nil, false
	}
	g := (*Grant)(unsafe.Pointer(&rec[0]))
	n := atomic.LoadUint32(&g.IDLen)
	id, ok := tail(rec, unsafe.Sizeof(*g), uint64(n))
	return g, id, ok && n > 0 && n <= IDMax
}

// AsHandle views CANCEL, REVOKE and UNTRACK.
func AsHandle(rec []byte) (Handle, bool) {
	if len(rec) < 8 {
		return 0, false
	}
	return *(*Handle)(unsafe.Pointer(&rec[0])), true
}

// AsAfter views the first word of an overflow entry: the position that the main ring must be taken to first.
func AsAfter(rec []byte) (uint64, bool) {
	if len(rec) < 8 {
		return 0, false
	}
	return *(*uint64)(unsafe.Pointer(&rec[0])), true
}

// AsPressure views PRESSURE: the blocks wanted.
func AsPressure(rec []byte) (uint32, bool) {
	if len(rec) < 8 {
		return 0, false
	}
	return *(*uint32)(unsafe.Pointer(&rec[0])), true
}

// AsTrack views TRACK and REJECT: the request, the remote id, the local id.
func AsTrack(rec []byte) (t *TrackReq, remote, local []byte, ok bool) {
	if len(rec) < int(unsafe.Sizeof(TrackReq{})) {
		return nil, nil, nil, false
	}
	t = (*TrackReq)(unsafe.Pointer(&rec[0]))
	both := atomic.LoadUint32((*uint32)(unsafe.Pointer(&t.RemoteLen))) // and LocalLen behind it
	lens := *(*[2]uint16)(unsafe.Pointer(&both))
	n, m := uint64(lens[0]), uint64(lens[1])
	remote, ok = tail(rec, unsafe.Sizeof(*t), n)
	if !ok || n == 0 || n > IDMax || m > IDMax {
		return nil, nil, nil, false
	}
	local, ok = tail(rec, unsafe.Sizeof(*t)+uintptr(n), m)
	return t, remote, local, ok
}

// AsRead views one part of a read: the head and its runs.
func AsRead(rec []byte) (*Read, []Run, bool) {
	if len(rec) < int(unsafe.Sizeof(Read{})) {
		return nil, nil, false
	}
	r := (*Read)(unsafe.Pointer(&rec[0]))
	n := atomic.LoadUint32(&r.N)
	runs, ok := tail(rec, unsafe.Sizeof(*r), uint64(n)*uint64(unsafe.Sizeof(Run{})))
	if !ok || n > RunsMax {
		return nil, nil, false
	}
	if n == 0 {
		return r, nil, true
	}
	return r, unsafe.Slice((*Run)(unsafe.Pointer(&runs[0])), int(n)), true
}

// AsEvent views a 64-byte event.
func AsEvent(rec []byte) *Event { return (*Event)(unsafe.Pointer(&rec[0])) }

// Slots views memory as lease slots. mem must be 8-byte aligned.
func Slots(mem []byte) []Slot {
	return unsafe.Slice((*Slot)(unsafe.Pointer(&mem[0])), len(mem)/int(unsafe.Sizeof(Slot{})))
}

// Tracks views memory as tracking slots.
func Tracks(mem []byte) []Track {
	return unsafe.Slice((*Track)(unsafe.Pointer(&mem[0])), len(mem)/int(unsafe.Sizeof(Track{})))
}

// Board views memory as a board: the header and its rows.
func Board(mem []byte) (*BoardHeader, []Row) {
	rows := mem[BoardHeadLen:]
	return (*BoardHeader)(unsafe.Pointer(&mem[0])), unsafe.Slice((*Row)(unsafe.Pointer(&rows[0])), len(rows)/RowLen)
}

// AsControl views memory as the control page.
func AsControl(mem []byte) *Control { return (*Control)(unsafe.Pointer(&mem[0])) }

// Addr is the address of memory, for registration with a transport.
func Addr(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&mem[0]))) }
