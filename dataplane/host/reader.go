package host

import (
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/ringbuf"
)

// Remote names a lease of another engine, as its transfer parameters do.
type Remote struct {
	ID               []byte
	Native           bool // the fields below are set
	Epoch, Key       uint64
	Slot, Generation uint32

	ExpiresNs uint64 // a fixed life's end in CLOCK_MONOTONIC of the owner's host; 0: heartbeats renew it
}

func trackReq(track record.Handle, engine uint64, r *Remote, local []byte, user uint64, now clock.Instant) record.TrackReq {
	req := record.TrackReq{
		Track: track, Engine: engine, User: user, SaidNs: uint64(now), ExpiresNs: r.ExpiresNs,
		RemoteLen: uint16(len(r.ID)), LocalLen: uint16(len(local)),
	}
	if r.Native {
		req.Native, req.Epoch, req.Key, req.Slot, req.Generation = 1, r.Epoch, r.Key, r.Slot, r.Generation
	}
	return req
}

// Track starts heartbeats for a request.
func (h *Host) Track(engine uint64, r *Remote, local []byte, user uint64, now clock.Instant) (record.Handle, error) {
	if !validID(r.ID) || len(local) > record.IDMax || engine == 0 {
		return 0, ErrInvalid
	}
	if err := h.newWork(); err != nil {
		return 0, err
	}
	slot, use, ok := h.tracks.take()
	if !ok {
		return 0, h.full(&h.mem.Control.RefusedTable)
	}
	rec := h.ring.Reserve(record.TagTrack, record.TrackLen+len(r.ID)+len(local))
	if rec == nil {
		h.tracks.back(slot)
		return 0, h.full(&h.mem.Control.RefusedRing)
	}
	track := record.NewHandle(slot, use)
	record.PutTrack(rec, trackReq(track, engine, r, local, user, now), r.ID, local)
	atomic.StoreUint64(&h.mem.Tracks[slot].State, record.State(use, record.Tracked))
	h.publish(record.TagTrack, record.Sleeps) // a few ms are nothing to the first heartbeat, and a read wakes
	return track, nil
}

// Untrack ends a tracked request; the owner is told if it was not read. Said twice it does nothing more.
func (h *Host) Untrack(track record.Handle) error {
	return h.sayOnce(&h.tracks, record.TagUntrack, record.SaidCancel, track, record.Tracked, record.Reading)
}

// rejectsMax is how many bytes of the overflow rejects may take: the rest is for what may not be lost.
const rejectsMax = 1 << 20

// Reject tells the owner that nobody here will read, without tracking.
func (h *Host) Reject(engine uint64, r *Remote, now clock.Instant) error {
	if !validID(r.ID) || engine == 0 {
		return ErrInvalid
	}
	n := record.TrackLen + len(r.ID)
	if h.over.Drained() {
		h.rejects = 0
	} else if h.rejects+uint64(n) > rejectsMax {
		return h.full(&h.mem.Control.RefusedRing)
	}
	before := h.over.Position()
	rec := h.say(record.TagReject, n)
	if rec == nil {
		return h.full(&h.mem.Control.RefusedRing)
	}
	h.rejects += h.over.Position() - before
	record.PutTrack(rec, trackReq(0, engine, r, nil, 0, now), r.ID, nil)
	h.publish(record.TagReject, record.Dozes)
	return nil
}

// Read asks for the blocks of a tracked request. The runs are blocks at the same positions on both sides.
// One outcome event follows; then the tracking has ended. ErrInvalid also: more runs than the ring ever has room for.
func (h *Host) Read(track record.Handle, runs []record.Run) error {
	slot := track.Slot()
	if track == 0 || slot >= uint32(len(h.mem.Tracks)) {
		return ErrInvalid
	}
	if err := h.newWork(); err != nil {
		return err
	}
	parts := max(1, (len(runs)+record.RunsMax-1)/record.RunsMax)
	if parts > 1 && (parts+1)*ringbuf.RecordBytesMax > h.ring.Capacity() { // with the fill at the wrap: it might never fit
		return ErrInvalid
	}
	for part := range parts {
		some := runs[part*record.RunsMax : min(len(runs), (part+1)*record.RunsMax)]
		rec := h.ring.Reserve(record.TagRead, record.ReadLen+len(some)*record.RunLen)
		if rec == nil {
			h.ring.Discard()
			return h.full(&h.mem.Control.RefusedRing)
		}
		record.PutRead(rec, record.Read{Track: track, Part: uint32(part), Parts: uint32(parts), N: uint32(len(some))}, some)
	}
	was := record.State(track.Use(), record.Tracked)
	if !atomic.CompareAndSwapUint64(&h.mem.Tracks[slot].State, was, record.State(track.Use(), record.Reading)) {
		h.ring.Discard()
		return ErrStale
	}
	h.publish(record.TagRead, record.Dozes)
	return nil
}
