package core

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// third is an agent of nobody's engine that can send what it likes to P.
func third(t *testing.T, l *lab) (transport.Transport, transport.Peer) {
	t.Helper()
	a, err := l.hub.New("third", loopbackConfig)
	if err != nil {
		t.Fatal(err)
	}
	blob, err := l.p.core.tr.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Load(blob)
	if err != nil {
		t.Fatal(err)
	}
	return a, p
}

func native(kind wire.Kind, epoch uint64, readers uint16, slot, generation uint32, key uint64) []byte {
	msg := wire.AppendHeader(nil, &wire.Header{Kind: kind, Readers: readers, Engine: 0xabc, Epoch: epoch, Count: 1})
	return wire.AppendEntry(msg, slot, generation, key)
}

// Each message that a peer must not send: the step goes on, the lease stays, the named counter says what it was.
func TestEachMalformedNotificationIsCountedAndChangesNothing(t *testing.T) {
	l := newLab(t, `{}`)
	a, peer := third(t, l)
	lease, remote := l.grant("req-1", 7, blocks(0, 8))
	l.run(100*time.Millisecond, 30*time.Millisecond)
	c := &l.p.core.plane.Counters
	k := &l.p.core.leases.Counters
	cut := func(msg []byte, n int) []byte { return msg[:n] }
	with := func(msg []byte, at int, b byte) []byte { msg = bytes.Clone(msg); msg[at] = b; return msg }
	renew := native(wire.Renew, 9, 0, lease.Slot(), lease.Use(), remote.Key)
	for _, tc := range []struct {
		name  string
		msg   []byte
		count func() uint64
	}{
		{"S01 a completion without a count", []byte("req-1"), func() uint64 { return c.MalformedStock }},
		{"S01 a completion with text for a count", []byte("req-1:x"), func() uint64 { return c.MalformedStock }},
		{"S02 bytes that are no UTF-8", []byte("req-1\x80:1"), func() uint64 { return c.MalformedStock }},
		{"S03 an empty message", []byte{}, func() uint64 { return c.MalformedStock }},
		{"S03 only a colon", []byte(":"), func() uint64 { return c.MalformedStock }},
		{"a negative count", []byte("req-1:-1"), func() uint64 { return c.MalformedStock }},
		{"no readers at all", []byte("req-1:0"), func() uint64 { return c.MalformedStock }},
		{"a count past any number of ranks", []byte("req-1:99999999999999999999"), func() uint64 { return c.MalformedStock }},
		{"S04 a heartbeat of commas only", []byte("HB:,,,,"), func() uint64 { return c.BatchesReceived }},
		{"S05 a heartbeat of nothing", []byte("HB:"), func() uint64 { return c.MalformedStock }},
		{"a heartbeat of an id nobody holds", []byte("HB:req-10"), func() uint64 { return k.UnknownRenew }},
		{"a completion of an id nobody holds", []byte("req-10:1"), func() uint64 { return k.UnknownDone }},
		{"a push registration", []byte("PUSH_REG:\x80"), func() uint64 { return c.PushRegs }},
		{"native, one byte", []byte{0xFF}, func() uint64 { return c.MalformedNative }},
		{"native, wrong second byte", with(renew, 1, 0), func() uint64 { return c.MalformedNative }},
		{"native, cut in the header", cut(renew, 31), func() uint64 { return c.MalformedNative }},
		{"native, cut in an entry", cut(renew, len(renew)-1), func() uint64 { return c.MalformedNative }},
		{"native, bytes behind the last entry", append(bytes.Clone(renew), 0), func() uint64 { return c.MalformedNative }},
		{"native, a count that lies", with(renew, 31, 0x7f), func() uint64 { return c.MalformedNative }},
		{"native, epoch 0", native(wire.Renew, 0, 0, 0, 0, remote.Key), func() uint64 { return c.MalformedNative }},
		{"native, a completion of no readers", native(wire.Complete, 9, 0, 0, 0, remote.Key), func() uint64 { return c.MalformedNative }},
		{"native, a newer version", with(renew, 2, 2), func() uint64 { return c.UnknownKinds }},
		{"native, an unknown kind", with(renew, 3, 77), func() uint64 { return c.UnknownKinds }},
		{"native, a wrong key", native(wire.Renew, 9, 0, lease.Slot(), lease.Use(), remote.Key+1), func() uint64 { return k.BadKey }},
		{"native, a release with a wrong key", native(wire.Release, 9, 0, lease.Slot(), lease.Use(), 0), func() uint64 { return k.BadKey }},
		{"native, another use of the slot", native(wire.Complete, 9, 1, lease.Slot(), lease.Use()+1, remote.Key), func() uint64 { return k.BadKey }},
		{"native, a slot past the table", native(wire.Complete, 9, 1, 1<<31, 0, remote.Key), func() uint64 { return k.UnknownDone }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := tc.count()
			deadline := rowDeadline(l, lease)
			if err := a.Send(peer, tc.msg); err != nil {
				t.Fatal(err)
			}
			l.step(time.Millisecond)
			if got := tc.count(); got != before+1 { // shows C09.2, C16.3, S01.1, S02.1, S03.1
				t.Errorf("the counter stands at %d, want %d; plane %+v; leases %+v", got, before+1, *c, *k)
			}
			if held := l.p.core.leases.Held(); held != 1 {
				t.Errorf("%d leases held, want 1", held)
			}
			if got := rowDeadline(l, lease); got != deadline {
				t.Errorf("the deadline moved from %d to %d", deadline, got)
			}
			if len(l.p.evs) != 0 {
				t.Errorf("events: %+v", l.p.evs)
			}
		})
	}
}

func rowDeadline(l *lab, lease record.Handle) uint64 {
	_, rows := record.Board(l.p.core.mem.Board)
	return rows[lease.Slot()].DeadlineUs
}

// Random bytes, random mutations of good messages: nothing ends, nothing panics, nothing grows.
func TestAHundredThousandHostileMessagesChangeNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	l := newLab(t, `{}`)
	a, peer := third(t, l)
	lease, remote := l.grant("req-1", 7, blocks(0, 8))
	l.run(100*time.Millisecond, 30*time.Millisecond)
	good := [][]byte{
		[]byte("HB:req-2,req-3"), []byte("req-2:2"), native(wire.Renew, 9, 0, lease.Slot(), lease.Use(), ^remote.Key),
		native(wire.Complete, 9, 1, lease.Slot(), lease.Use(), ^remote.Key),
	}
	for i := range 100_000 {
		msg := bytes.Clone(good[rng.IntN(len(good))])
		switch rng.IntN(3) {
		case 0:
			msg = make([]byte, rng.IntN(100))
			for j := range msg {
				msg[j] = byte(rng.Uint32())
			}
		case 1:
			msg[rng.IntN(min(len(msg), 32))] ^= 1 << rng.IntN(8)
		case 2:
			msg = msg[:rng.IntN(len(msg)+1)]
		}
		if err := a.Send(peer, msg); err != nil {
			t.Fatal(err)
		}
		if i%64 == 0 {
			l.step(10 * time.Microsecond)
		}
	}
	l.step(10 * time.Microsecond)
	if held := l.p.core.leases.Held(); held != 1 {
		t.Fatalf("%d leases held, want 1; events %+v", held, l.p.evs)
	}
	if got := l.p.core.plane.Counters.NotifsReceived; got < 100_000 {
		t.Errorf("only %d messages arrived", got)
	}
}

// A heartbeat of 4 MiB costs some steps of bounded length, not the process, whatever stands between its commas.
func TestAHeartbeatOfFourMebibytesIsAppliedOverSeveralSteps(t *testing.T) {
	for _, tc := range []struct {
		name  string
		piece func(i int) string
		cut   uint64 // steps that leave something, at 32,768 elements a step
	}{
		{"ids", func(i int) string { return fmt.Sprintf("nobody-%08d,", i) }, 262_000 >> 15},
		{"nothing", func(int) string { return "," }, 4 << 20 >> 15},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, `{}`)
			a, peer := third(t, l)
			lease, _ := l.grant("req-1", 7, blocks(0, 8))
			l.run(12*time.Second, 30*time.Millisecond)
			before := rowDeadline(l, lease)
			msg := []byte("HB:")
			for i := 0; len(msg) < 4<<20-64; i++ {
				msg = append(msg, tc.piece(i)...)
			}
			msg = append(msg, "req-1"...)
			if err := a.Send(peer, msg); err != nil {
				t.Fatal(err)
			}
			for range 160 {
				l.step(time.Millisecond)
			}
			if cut := l.p.core.plane.Counters.EntriesCut; cut < tc.cut-1 {
				t.Errorf("%d steps were cut: a step applied more than its maximum", cut)
			}
			if got := rowDeadline(l, lease); got <= before {
				t.Errorf("the last id of a long heartbeat was not renewed: %d, before %d", got, before)
			}
		})
	}
}

// L8: what arrives behind a message that takes several steps has arrived. A lease that was looked at once waits for it.
func TestAHeartbeatBehindAMessageOfSeveralStepsSavesALeaseThatIsDue(t *testing.T) {
	l := newLab(t, `{}`)
	a, peer := third(t, l)
	lease, _ := l.grant("req-1", 7, blocks(0, 8))
	long := []byte("HB:")
	for i := 0; len(long) < 4<<20-64; i++ {
		long = append(long, fmt.Sprintf("nobody-%08d,", i)...)
	}
	due := &l.p.core.leases.Counters.Due
	for end := l.now.Add(40 * time.Second); *due == 0 && l.now < end; {
		l.step(10 * time.Millisecond)
	}
	for _, msg := range [][]byte{append(long, "nobody"...), []byte("HB:req-1")} {
		if err := a.Send(peer, msg); err != nil {
			t.Fatal(err)
		}
		l.step(time.Millisecond)
	}
	l.run(time.Second, 10*time.Millisecond)
	if cut := l.p.core.plane.Counters.EntriesCut; *due == 0 || cut < 7 {
		t.Fatalf("%d first looks, %d steps cut: the message did not take the time of the second look", *due, cut)
	}
	if freed := l.p.take(record.EvFreed); len(freed) != 0 || l.p.core.leases.Held() != 1 {
		t.Errorf("lease %#x was freed under a heartbeat that had arrived: %+v", lease, freed)
	}
}

// S04: ids with commas are renewed by a stock heartbeat, whose format has no escape for them.
func TestAStockHeartbeatRenewsIdsWithCommas(t *testing.T) {
	l := newLab(t, `{}`)
	a, peer := third(t, l)
	plain, _ := l.grant("req-1", 7, blocks(0, 8))
	odd, _ := l.grant("x,y,z", 8, blocks(8, 8))
	l.run(12*time.Second, 30*time.Millisecond)
	was := [2]uint64{rowDeadline(l, plain), rowDeadline(l, odd)}
	if err := a.Send(peer, []byte("HB:nobody,x,y,z,req-1")); err != nil {
		t.Fatal(err)
	}
	l.step(time.Millisecond)
	if now := [2]uint64{rowDeadline(l, plain), rowDeadline(l, odd)}; now[0] <= was[0] || now[1] <= was[1] { // shows S04.1
		t.Errorf("deadlines %v, before %v: both must have moved", now, was)
	}
	if err := a.Send(peer, []byte("x,y,z:1")); err != nil {
		t.Fatal(err)
	}
	l.step(time.Millisecond)
	if freed := l.p.take(record.EvFreed); len(freed) != 1 || freed[0].Handle != uint64(odd) || freed[0].Status != record.FreedCompleted {
		t.Errorf("freed: %+v", freed)
	}
	if n := l.p.core.leases.CommaIDs(); n != 0 {
		t.Errorf("%d ids with commas are counted after the last one has gone", n)
	}
}

// A message that is dropped unread had counted as arrived while it waited: the second look must not wait for it for ever.
func TestADroppedMessageDoesNotHoldAnExpiredLease(t *testing.T) {
	l := newLab(t, `{"parse_max":1048576,"notifs_step_max":1}`)
	a, peer := third(t, l)
	l.grant("req-1", 7, blocks(0, 8))
	for l.p.core.leases.Counters.Due == 0 { // until the first look
		l.step(10 * time.Millisecond)
	}
	for _, msg := range [][]byte{[]byte("HB:x"), []byte("HB:x"), make([]byte, 1<<20+8192)} {
		if err := a.Send(peer, msg); err != nil {
			t.Fatal(err)
		}
	}
	l.step(60 * time.Millisecond) // the second look notes what waits
	l.run(time.Second, 100*time.Millisecond)
	if freed := l.p.take(record.EvFreed); len(freed) != 1 || freed[0].Status != record.FreedExpired {
		t.Errorf("freed: %+v; %d messages were too long", freed, l.p.core.plane.Counters.NotifsTooLong)
	}
	if l.p.core.plane.Counters.NotifsTooLong != 1 { // shows F2.1
		t.Errorf("%d messages were too long, want 1", l.p.core.plane.Counters.NotifsTooLong)
	}
}
