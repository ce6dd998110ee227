package record

import "unsafe"

// LastEndLen is the length of a LastEnd.
const LastEndLen = int(unsafe.Sizeof(LastEnd{}))

// Bytes views the ring as it lies in memory.
func (l *LastEnds) Bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&l.Ring[0])), LastEndsMax*LastEndLen)
}

// PutLastEnds copies what lies in memory into ring.
func PutLastEnds(ring []LastEnd, bytes []byte) {
	copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(ring))), len(ring)*LastEndLen), bytes)
}
