package record

import "unsafe"

// Lengths of the fixed heads.
const (
	ExpectLen = int(unsafe.Sizeof(Expect{}))
	GrantLen  = int(unsafe.Sizeof(Grant{}))
	TrackLen  = int(unsafe.Sizeof(TrackReq{}))
	ReadLen   = int(unsafe.Sizeof(Read{}))
	RunLen    = int(unsafe.Sizeof(Run{}))
	EventLen  = int(unsafe.Sizeof(Event{}))
	SlotLen   = int(unsafe.Sizeof(Slot{}))
	TrkLen    = int(unsafe.Sizeof(Track{}))
	CtlLen    = int(unsafe.Sizeof(Control{}))
)

// PutExpect writes an EXPECT record. rec has ExpectLen + len(id) bytes, 8-byte aligned, as ringbuf gives it.
func PutExpect(rec []byte, e Expect, id []byte) {
	*(*Expect)(unsafe.Pointer(&rec[0])) = e
	copy(rec[ExpectLen:], id)
}

// PutGrant writes a GRANT record of GrantLen + len(id) bytes.
func PutGrant(rec []byte, g Grant, id []byte) {
	*(*Grant)(unsafe.Pointer(&rec[0])) = g
	copy(rec[GrantLen:], id)
}

// PutTrack writes a TRACK or REJECT record of TrackLen + len(remote) + len(local) bytes.
func PutTrack(rec []byte, t TrackReq, remote, local []byte) {
	*(*TrackReq)(unsafe.Pointer(&rec[0])) = t
	copy(rec[TrackLen:], remote)
	copy(rec[TrackLen+len(remote):], local)
}

// PutRead writes one part of a READ of ReadLen + len(runs) x RunLen bytes.
func PutRead(rec []byte, r Read, runs []Run) {
	*(*Read)(unsafe.Pointer(&rec[0])) = r
	if len(runs) > 0 {
		copy(unsafe.Slice((*Run)(unsafe.Pointer(&rec[ReadLen])), len(runs)), runs)
	}
}

// PutEvent writes an event of EventLen bytes.
func PutEvent(rec []byte, e *Event) { *(*Event)(unsafe.Pointer(&rec[0])) = *e }
