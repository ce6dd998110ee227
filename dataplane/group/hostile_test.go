package group_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/topology"
)

// A table larger than what a step looks at for a lost rank.
func TestALargeTableIsCountedToItsEndWhenARankIsLost(t *testing.T) {
	const many = 70000
	mem := memory(t, 1, 1<<20)
	mem.Slots = record.Slots(words(many * record.SlotLen))
	mem.Rings[0] = ring(t, 16<<20)
	mem.Control.BeginEra(9, [2]uint64{1, 2})
	out, err := dataplane.NewEvents(mem.Events, nil)
	must(t, err)
	never := func() bool { return false }
	a, b := &wireEnd{room: 1 << 30, gap: true, lose: never}, &wireEnd{room: 1 << 30, gap: true, lose: never}
	g, err := group.New(group.Config{Self: two, Duration: duration, Engines: 4, MapMax: 64}, mem, []stream.Carrier{a, b}, out)
	must(t, err)
	h, err := host.New(mem, nil)
	must(t, err)
	id := make([]byte, 8)
	now := clock.Instant(time.Hour)
	for i := range many {
		binary.LittleEndian.PutUint64(id, uint64(i)+1)
		if _, err := h.Grant(host.Grant{ID: id, Blocks: 1}, now); err != nil {
			t.Fatal(i, err)
		}
	}
	for range 4 {
		now = now.Add(time.Millisecond)
		g.Step(now)
		a.down, b.down = nil, nil
	}
	if g.Held() != many {
		t.Fatalf("held %d", g.Held())
	}
	a.lost, b.lost = true, true
	freed := 0
	var buf [256]record.Event
	for range 1000 {
		now = now.Add(time.Millisecond)
		g.Step(now)
		for {
			n := h.Poll(buf[:], now)
			for _, ev := range buf[:n] {
				if ev.Kind == record.EvFreed {
					freed++
				}
			}
			if n < len(buf) {
				break
			}
		}
		if g.Alive() == 0 {
			break
		}
	}
	if freed != many || g.Held() != 0 {
		t.Errorf("%d freed of %d, %d held", freed, many, g.Held())
	}
}

// records cuts a fuzzer's bytes into records.
func records(data []byte, each func(tag uint32, rec []byte)) {
	for len(data) >= 3 {
		n := min(int(data[1])|int(data[2]&3)<<8, len(data)-3)
		rec := words(max(n, 8))[:n]
		copy(rec, data[3:3+n])
		each(uint32(data[0]), rec)
		data = data[3+n:]
	}
}

func seeds(f *testing.F) {
	add := func(tag byte, rec []byte) {
		f.Add(append([]byte{tag, byte(len(rec)), byte(len(rec) >> 8)}, rec...))
	}
	ev := words(record.EventLen)
	record.PutEvent(ev, &record.Event{Kind: record.EvFreed, Status: 1, Handle: uint64(record.NewHandle(0, 0))})
	add(record.TagEvent, ev)
	record.PutEvent(ev, &record.Event{Kind: record.EvReadFailed, Status: 3, Flags: 1, Handle: uint64(record.NewHandle(0, 0))})
	add(record.TagEvent, ev)
	h := words(8)
	record.PutHandle(h, record.NewHandle(0, 0))
	for _, tag := range []byte{record.TagRetired, record.TagCancel, record.TagRevoke, record.TagUntrack, record.TagDrain, record.TagPause, record.TagPoison, record.TagEngineGone} {
		add(tag, h)
	}
	b := words(record.BlobLen + 8)
	record.PutBlob(b, record.Blob{Kind: record.BlobOwn, Total: 8}, []byte("12345678"))
	add(record.TagBlob, b)
	record.PutBlob(b, record.Blob{Kind: record.BlobPeer, Total: 8, Handle: 1 << 32}, []byte("12345678"))
	add(record.TagBlob, b)
	g := words(record.GrantLen + 4)
	record.PutGrant(g, record.Grant{Lease: record.NewHandle(1, 0), Blocks: 1, IDLen: 4}, []byte("abcd"))
	add(record.TagGrant, g)
	q := words(record.TrackLen + 4)
	record.PutTrack(q, record.TrackReq{Track: record.NewHandle(1, 0), Engine: 1 << 32, RemoteLen: 4}, []byte("abcd"), nil)
	add(record.TagTrack, q)
	r := words(record.ReadLen + record.RunLen)
	record.PutRead(r, record.Read{Track: record.NewHandle(1, 0), Parts: 1, N: 1}, runs(0, 0, 1))
	add(record.TagRead, r)
	e := words(record.EngineLen + 1)
	record.PutEngine(e, record.Engine{Engine: 1 << 32, TP: 1, PP: 1}, []byte("P"))
	add(record.TagEngine, e)
	era := words(record.EraLen)
	record.PutEra(era, record.Era{Era: 2, Epoch: 3})
	add(record.TagEra, era)
	tr := words(record.TroubleLen)
	record.PutTrouble(tr, record.Trouble{Engine: 1 << 32, ForNs: ^uint64(0)})
	add(record.TagTrouble, tr)
	s := words(record.RankStateLen)
	record.PutRankState(s, record.RankState{Flags: 7, Registrations: 2})
	add(record.TagState, s)
}

// Whatever a rank says, the host neither breaks nor gives a slot back that the other rank holds.
func FuzzAHostHearsAnything(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		mem := memory(t, 1, 1<<14)
		mem.Slots, mem.Tracks = mem.Slots[:8], mem.Tracks[:8]
		mem.Control.BeginEra(9, [2]uint64{1, 2})
		out, err := dataplane.NewEvents(mem.Events, nil)
		must(t, err)
		never := func() bool { return false }
		good, bad := &wireEnd{room: 1 << 16, gap: true, lose: never}, &wireEnd{room: 1 << 16, gap: true, lose: never}
		g, err := group.New(group.Config{Self: two, Duration: duration, Engines: 2, MapMax: 64, RunsMax: 64, LongIDs: 2}, mem, []stream.Carrier{good, bad}, out)
		must(t, err)
		h, err := host.New(mem, nil)
		must(t, err)
		peer, err := g.AddEngine(group.EngineDesc{ID: "P", TP: 2})
		must(t, err)
		now := clock.Instant(time.Hour)
		lease, err := h.Grant(host.Grant{ID: []byte("a"), Blocks: 1}, now)
		must(t, err)
		track, err := h.Track(peer, &host.Remote{ID: []byte("b")}, nil, 1, now)
		must(t, err)
		must(t, h.Read(track, runs(0, 0, 1)))
		g.Step(now)
		records(data, func(tag uint32, rec_ []byte) { bad.up = append(bad.up, rec{tag, rec_}) })
		var buf [16]record.Event
		for range 4 {
			now = now.Add(time.Second)
			g.Step(now)
			good.down, bad.down = nil, nil
			for n := h.Poll(buf[:], now); n > 0; n = h.Poll(buf[:], now) {
				for _, ev := range buf[:n] {
					if ev.Kind == record.EvFreed || ev.Kind == record.EvReadDone || ev.Kind == record.EvReadFailed {
						t.Fatalf("%+v, and the other rank has said nothing", ev)
					}
				}
			}
		}
		good.lost, bad.lost = true, true
		freed, failed := 0, 0
		for range 8 {
			now = now.Add(time.Second)
			g.Step(now)
			for n := h.Poll(buf[:], now); n > 0; n = h.Poll(buf[:], now) {
				for _, ev := range buf[:n] {
					switch {
					case ev.Kind == record.EvFreed && ev.Handle == uint64(lease):
						freed++
					case ev.Kind == record.EvReadFailed && ev.Handle == uint64(track):
						failed++
					}
				}
			}
		}
		if freed != 1 || failed != 1 || g.Alive() != 0 {
			t.Fatalf("%d ends, %d outcomes, %+v", freed, failed, g.Gauges())
		}
	})
}

// Whatever a host says, a rank neither breaks nor stops stepping.
func FuzzARankHearsAnything(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		l := newLab(t)
		e := l.engine("P", topology.Shape{TP: 1, PP: 1}, stream.KindProcess, nil)
		r := e.ranks[0]
		e.ready()
		c := e.hosts.End(0)
		records(data, func(tag uint32, b []byte) {
			if tag == record.TagEngine && len(b) > 0 {
				b[0] &= 15 // engines inside the table, now and then
			}
			if room := c.Reserve(tag, len(b)); room != nil {
				copy(room, b)
			}
		})
		c.Publish()
		for range 4 {
			l.now = l.now.Add(time.Second)
			r.plane.Step(l.now)
			for len(r.link.Maps()) > 0 {
				_ = r.link.Load(<-r.link.Maps()) // refused
			}
		}
		if r.link.Counters.Told > 1<<16 {
			t.Fatal("a flood of events")
		}
	})
}
