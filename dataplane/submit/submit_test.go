package submit_test

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/submit"
	"github.com/kvlease/kvlease/ringbuf"
)

// log is a sink that writes down what it hears.
type log []string

func (l *log) add(format string, args ...any) { *l = append(*l, fmt.Sprintf(format, args...)) }

func (l *log) Expect(e *record.Expect, id []byte, _ clock.Instant) {
	l.add("expect %d %s", e.Lease.Slot(), id)
}
func (l *log) Grant(g *record.Grant, id []byte, _ clock.Instant) {
	l.add("grant %d %s", g.Lease.Slot(), id)
}
func (l *log) Cancel(h record.Handle, _ clock.Instant) { l.add("cancel %d", h.Slot()) }
func (l *log) Revoke(h record.Handle, _ clock.Instant) { l.add("revoke %d", h.Slot()) }
func (l *log) Pressure(blocks uint32, _ clock.Instant) { l.add("pressure %d", blocks) }
func (l *log) Track(t *record.TrackReq, remote, local []byte, _ clock.Instant) {
	l.add("track %d %s %s", t.Track.Slot(), remote, local)
}
func (l *log) Untrack(h record.Handle, _ clock.Instant) { l.add("untrack %d", h.Slot()) }
func (l *log) Reject(_ *record.TrackReq, remote []byte, _ clock.Instant) {
	l.add("reject %s", remote)
}
func (l *log) ReadPart(r *record.Read, runs []record.Run, _ clock.Instant) {
	l.add("read %d part %d with %d", r.Track.Slot(), r.Part, len(runs))
}

func words(n int) []byte {
	w := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), len(w)*8)[:n]
}

// producers are rings and their producers' ends.
func producers(t testing.TB, n int) (*submit.Sources, []*ringbuf.Producer, []*ringbuf.Producer, *record.Memory) {
	t.Helper()
	mem := &record.Memory{}
	var rings, overs []*ringbuf.Producer
	for range n {
		for _, list := range []*[][]byte{&mem.Rings, &mem.Overflows} {
			m := words(ringbuf.Bytes(4096))
			if err := ringbuf.Format(m, 4096); err != nil {
				t.Fatal(err)
			}
			*list = append(*list, m)
		}
		r, err := ringbuf.NewProducer(mem.Rings[len(mem.Rings)-1])
		if err != nil {
			t.Fatal(err)
		}
		o, err := ringbuf.NewProducer(mem.Overflows[len(mem.Overflows)-1])
		if err != nil {
			t.Fatal(err)
		}
		rings, overs = append(rings, r), append(overs, o)
	}
	s, err := submit.New(mem, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, rings, overs, mem
}

func say(p *ringbuf.Producer, tag, slot uint32) {
	record.PutHandle(p.Reserve(tag, 8), record.NewHandle(slot, 0))
	p.Publish()
}

// overflow is what a producer does that its ring has refused room.
func overflow(ring, over *ringbuf.Producer, tag, slot uint32) {
	if ring.Refused() == 0 {
		ring.Reserve(tag, ringbuf.PayloadBytesMax+1)
	}
	rec := over.Reserve(tag, 16)
	*(*uint64)(unsafe.Pointer(&rec[0])) = ring.Position()
	record.PutHandle(rec[8:], record.NewHandle(slot, 0))
	over.Publish()
}

func TestWhatOverflowedComesBehindWhatWasInTheRingBeforeIt(t *testing.T) {
	s, rings, overs, _ := producers(t, 1)
	var got log
	say(rings[0], record.TagCancel, 1)
	say(rings[0], record.TagCancel, 2)
	overflow(rings[0], overs[0], record.TagUntrack, 3)
	for range 3 {
		s.Drain(1, &got, 0)
	}
	s.Drain(8, &got, 0)
	if diff := cmp.Diff(log{"cancel 1", "cancel 2", "untrack 3"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if s.Pending() || s.Counters.Records != 3 || s.Counters.RecordsBad != 0 {
		t.Errorf("pending %v, %+v", s.Pending(), s.Counters)
	}
}

// A producer may write into both rings after the step has found the first one empty and before it looks at the second.
func TestAnOverflowEntryWaitsForWhatTheRingShowsOnlyLater(t *testing.T) {
	s, rings, overs, _ := producers(t, 1)
	var got log
	record.PutHandle(rings[0].Reserve(record.TagCancel, 8), record.NewHandle(1, 0)) // not seen yet
	overflow(rings[0], overs[0], record.TagUntrack, 1)
	s.Drain(8, &got, 0)
	if len(got) > 0 || !s.Pending() {
		t.Errorf("taken before what was said before it: %v", got)
	}
	rings[0].Publish()
	s.Drain(8, &got, 0)
	if diff := cmp.Diff(log{"cancel 1", "untrack 1"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The rings that nobody looks at are those of producers that were never refused room.
func TestWhatOverflowsIsTakenAlsoLongAfterTheRefusal(t *testing.T) {
	s, rings, overs, _ := producers(t, 3)
	var got log
	for slot := range uint32(4) { // first what was refused leaves nothing, then it overflows again and again
		rings[1].Reserve(record.TagCancel, ringbuf.PayloadBytesMax+1)
		s.Drain(8, &got, 0)
		if s.Pending() {
			t.Error("pending with nothing said")
		}
		overflow(rings[1], overs[1], record.TagUntrack, slot)
		if !s.Pending() {
			t.Errorf("entry %d is not pending", slot)
		}
		s.Drain(8, &got, 0)
	}
	if diff := cmp.Diff(log{"untrack 0", "untrack 1", "untrack 2", "untrack 3"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestACutDoesNotAlwaysHitTheSameProducer(t *testing.T) {
	s, rings, _, _ := producers(t, 3)
	for i, r := range rings {
		for range 6 {
			say(r, record.TagCancel, uint32(i))
		}
	}
	taken := map[string]int{}
	for range 6 {
		var got log
		s.Drain(2, &got, 0)
		for _, line := range got {
			taken[line]++
		}
	}
	if len(taken) != 3 {
		t.Errorf("after six cut steps: %v", taken)
	}
	if s.Counters.RecordsCut != 6 {
		t.Errorf("%d cuts", s.Counters.RecordsCut)
	}
}

func TestARingThatContradictsItselfStopsOnlyItsProducer(t *testing.T) {
	s, rings, _, mem := producers(t, 2)
	say(rings[1], record.TagCancel, 1)
	mem.Rings[0][64] = 3 // a head that is no multiple of 8
	var got log
	s.Drain(8, &got, 0)
	if diff := cmp.Diff(log{"cancel 1"}, got); diff != "" || s.Pending() {
		t.Errorf("pending %v, (-want +got):\n%s", s.Pending(), diff)
	}
}

func TestEveryRecordReachesItsMethod(t *testing.T) {
	id := []byte("abc")
	h := record.NewHandle(5, 1)
	handle := words(8)
	record.PutHandle(handle, h)
	expect, grant := words(record.ExpectLen+3), words(record.GrantLen+3)
	record.PutExpect(expect, record.Expect{Lease: h, IDLen: 3}, id)
	record.PutGrant(grant, record.Grant{Lease: h, IDLen: 3}, id)
	track, read := words(record.TrackLen+6), words(record.ReadLen+record.RunLen)
	record.PutTrack(track, record.TrackReq{Track: h, RemoteLen: 3, LocalLen: 3}, id, []byte("def"))
	record.PutRead(read, record.Read{Track: h, Part: 2, Parts: 3, N: 1}, []record.Run{{N: 1}})
	pressure := words(8)
	pressure[0] = 9
	for _, tc := range []struct {
		tag  uint32
		rec  []byte
		want string
	}{
		{record.TagExpect, expect, "expect 5 abc"}, {record.TagGrant, grant, "grant 5 abc"},
		{record.TagCancel, handle, "cancel 5"}, {record.TagRevoke, handle, "revoke 5"}, {record.TagUntrack, handle, "untrack 5"},
		{record.TagPressure, pressure, "pressure 9"}, {record.TagTrack, track, "track 5 abc def"}, {record.TagReject, track, "reject abc"},
		{record.TagRead, read, "read 5 part 2 with 1"},
	} {
		var got log
		if !submit.Apply(&got, tc.tag, tc.rec, 0) || len(got) != 1 || got[0] != tc.want {
			t.Errorf("tag %d: %v, want %q", tc.tag, got, tc.want)
		}
		for n := range tc.rec { // cut short it reaches nobody
			var none log
			if submit.Apply(&none, tc.tag, tc.rec[:n], 0) || len(none) != 0 {
				t.Errorf("tag %d with %d of %d bytes: %v", tc.tag, n, len(tc.rec), none)
			}
		}
	}
	var none log
	if submit.Apply(&none, record.TagEvent, handle, 0) || len(none) != 0 {
		t.Error("a record of another stream was applied")
	}
}

func TestADrainAllocatesNothing(t *testing.T) {
	s, rings, overs, _ := producers(t, 2)
	var got counting
	if n := testing.AllocsPerRun(100, func() {
		say(rings[0], record.TagCancel, 1)
		overflow(rings[1], overs[1], record.TagCancel, 2)
		s.Drain(8, &got, 0)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if got.n < 200 {
		t.Fatalf("%d records", got.n)
	}
}

// BenchmarkDrainNothing is a step's look at 256 producers that say nothing.
func BenchmarkDrainNothing(b *testing.B) {
	s, _, _, _ := producers(b, 256)
	var got counting
	b.ReportAllocs()
	for b.Loop() {
		s.Drain(65536, &got, 0)
	}
	if s.Counters.Records != 0 || s.Pending() {
		b.Fatalf("%d records, pending %v", s.Counters.Records, s.Pending())
	}
}

type counting struct {
	log
	n int
}

func (c *counting) Cancel(record.Handle, clock.Instant) { c.n++ }
