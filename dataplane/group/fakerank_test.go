package group_test

import (
	"testing"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// wireEnd is a carrier in memory, the host's end, that loses what it is told to.
type wireEnd struct {
	room        int
	down, up    []rec
	staged      []rec
	gap, lost   bool
	incarnation uint64
	lose        func() bool
}

type rec struct {
	tag uint32
	b   []byte
}

func (w *wireEnd) used() (n int) {
	for _, r := range w.down {
		n += len(r.b) + 8
	}
	for _, r := range w.staged {
		n += len(r.b) + 8
	}
	return n
}

func (w *wireEnd) Fits(n int) bool { return !w.gap && !w.lost && w.used()+n+8 <= w.room }

func (w *wireEnd) Reserve(tag uint32, n int) []byte {
	if w.lost || w.gap {
		return nil
	}
	if !w.Fits(n) {
		w.gap = true
		return nil
	}
	b := words(n)
	w.staged = append(w.staged, rec{tag, b})
	return b
}

func (w *wireEnd) Publish() {
	for _, r := range w.staged {
		if w.gap { // behind a loss nothing arrives
			break
		}
		if w.lose() {
			w.gap = true
			break
		}
		w.down = append(w.down, r)
	}
	w.staged = nil
}

func (w *wireEnd) Next() (uint32, []byte, bool) {
	if len(w.up) == 0 {
		return 0, nil, false
	}
	r := w.up[0]
	w.up = w.up[1:]
	return r.tag, r.b, true
}

func (w *wireEnd) Release() {}

func (w *wireEnd) Gap() bool { return w.gap && !w.lost }

func (w *wireEnd) Begin() (uint64, bool) {
	if w.lost || w.used()+record.FullLen+8 > w.room {
		return 0, false
	}
	w.incarnation++
	b := words(record.FullLen)
	record.PutFull(b, record.Full{Incarnation: w.incarnation, Mark: record.FullStart})
	w.gap, w.staged = false, append(w.staged, rec{record.TagFull, b})
	return w.incarnation, true
}

func (w *wireEnd) State() stream.State {
	if w.lost {
		return stream.Lost
	}
	return stream.Attached
}

func (w *wireEnd) Pending() bool { return len(w.up) > 0 }

func (w *wireEnd) Untaken() uint64 { return 0 }

func (w *wireEnd) Sleeping(bool) {}

func (w *wireEnd) Counters() stream.Counters { return stream.Counters{} }

func (w *wireEnd) Err() error { return stream.ErrEnded } // asked once it is lost

func (w *wireEnd) Close() error { return nil }

// say is the rank's side; what is lost there the host has to ask for again.
func (w *wireEnd) say(tag uint32, b []byte) {
	if w.lose() {
		w.gap = true
		return
	}
	w.up = append(w.up, rec{tag, b})
}

// fakeRank does with the host's records what a rank does, and ends things when the test wants.
type fakeRank struct {
	w      *wireEnd
	leases map[record.Handle]*fakeLease
	tracks map[record.Handle]*fakeTrack
	lost   bool
}

type fakeLease struct {
	expected bool
	reason   int32 // 0: held
	revoke   bool
}

type fakeTrack struct {
	got, parts uint32
	untracked  bool
	outcome    int32 // -1: none
	held, back bool
	retired    bool
}

func (f *fakeRank) event(ev record.Event) {
	b := words(record.EventLen)
	record.PutEvent(b, &ev)
	f.w.say(record.TagEvent, b)
}

func (f *fakeRank) sayEnd(h record.Handle, reason int32) {
	f.event(record.Event{Kind: record.EvFreed, Handle: uint64(h), Status: reason})
}

func (f *fakeRank) sayTrack(h record.Handle, k *fakeTrack) {
	if k.outcome >= 0 {
		ev := record.Event{Kind: record.EvReadFailed, Handle: uint64(h), Status: k.outcome, Value0: 10}
		if k.outcome == record.ReadOK {
			ev.Kind = record.EvReadDone
		}
		if k.held {
			ev.Flags = record.FlagBlocksHeld
		}
		f.event(ev)
	}
	if k.back {
		f.event(record.Event{Kind: record.EvBlocksBack, Handle: uint64(h)})
	}
	if k.retired {
		b := words(8)
		record.PutHandle(b, h)
		f.w.say(record.TagRetired, b)
	}
}

func (f *fakeRank) end(h record.Handle, reason int32) {
	f.leases[h].reason = reason
	f.sayEnd(h, reason)
}

func (f *fakeRank) finish(h record.Handle, k *fakeTrack, outcome int32, held bool) {
	k.outcome, k.held, k.retired = outcome, held, !held
	f.sayTrack(h, k)
}

func (f *fakeRank) take(t *testing.T, r rec) {
	switch r.tag {
	case record.TagExpect:
		e, _, ok := record.AsExpect(r.b)
		if !ok {
			t.Fatal("a bad expect")
		}
		if f.leases[e.Lease] == nil {
			f.leases[e.Lease] = &fakeLease{expected: true}
		}
	case record.TagGrant:
		g, _, ok := record.AsGrant(r.b)
		if !ok {
			t.Fatal("a bad grant")
		}
		switch k := f.leases[g.Lease]; {
		case k == nil || k.expected && k.reason == 0:
			f.leases[g.Lease] = &fakeLease{}
		case k.reason != 0:
			f.sayEnd(g.Lease, k.reason)
		}
	case record.TagCancel:
		h, _ := record.AsHandle(r.b)
		if k := f.leases[h]; k != nil && k.reason == 0 {
			if k.expected {
				k.reason = record.FreedClosed
			} else {
				f.end(h, record.FreedRevoked)
			}
		}
	case record.TagRevoke:
		h, _ := record.AsHandle(r.b)
		if k := f.leases[h]; k != nil {
			k.revoke = true
		}
	case record.TagTrack:
		q, _, _, ok := record.AsTrack(r.b)
		if !ok {
			t.Fatal("a bad track")
		}
		if k := f.tracks[q.Track]; k == nil {
			f.tracks[q.Track] = &fakeTrack{outcome: -1}
		} else {
			f.sayTrack(q.Track, k)
		}
	case record.TagRead:
		q, runs, ok := record.AsRead(r.b)
		if !ok {
			t.Fatal("a bad read")
		}
		if k := f.tracks[q.Track]; k != nil && !k.untracked && k.outcome < 0 && q.Part == k.got {
			if len(runs) != 1 || runs[0].Local != q.Part {
				t.Fatalf("part %d of %d has runs %v", q.Part, q.Parts, runs)
			}
			k.got, k.parts = k.got+1, q.Parts
		}
	case record.TagUntrack:
		h, _ := record.AsHandle(r.b)
		k := f.tracks[h]
		if k == nil || k.untracked || k.outcome >= 0 {
			return
		}
		k.untracked = true
		if k.got > 0 {
			f.finish(h, k, record.ReadCancelled, h.Slot()%2 == 0 && k.got == k.parts)
			return
		}
		k.retired = true
		f.sayTrack(h, k)
	}
}

// back says that the blocks are back, and that nothing is left.
func (f *fakeRank) back(h record.Handle, k *fakeTrack) {
	k.back, k.retired = true, true
	f.event(record.Event{Kind: record.EvBlocksBack, Handle: uint64(h)})
	b := words(8)
	record.PutHandle(b, h)
	f.w.say(record.TagRetired, b)
}
