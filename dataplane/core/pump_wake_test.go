package core

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

func newEventFd(t testing.TB) int {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// wakes counts the wakes of a pump, which sleeps so, that say makes.
func (c *Core) wakes(t testing.TB, sleep uint32, say func() error) int {
	t.Helper()
	empty(int(c.mem.Control.WakeFd))
	atomic.StoreUint32(&c.mem.Control.Asleep, sleep)
	err := say()
	atomic.StoreUint32(&c.mem.Control.Asleep, 0)
	if err != nil {
		t.Fatal(err)
	}
	var count [8]byte // which empty does not tell
	if n, _ := unix.Read(int(c.mem.Control.WakeFd), count[:]); n != len(count) {
		return 0
	}
	return int(binary.LittleEndian.Uint64(count[:]))
}

func TestARecordEndsASleepOnlyIfItMayNotWait(t *testing.T) {
	const never = record.Listens
	id, r := []byte("r"), &host.Remote{ID: []byte("remote")}
	type acts struct {
		h       *host.Host
		e       uint64
		lease   record.Handle // granted
		hope    record.Handle // expected, and taken
		track   record.Handle
		readers record.Handle // tracked for a read
	}
	for _, tc := range []struct {
		name         string
		engine, host uint32 // the lightest sleep that it ends, by the role of the context
		say          func(a *acts) error
	}{
		{"expect", never, never, func(a *acts) error { _, err := a.h.Expect(id); return err }},
		{"a grant that was not expected", never, record.Dozes, func(a *acts) error { _, err := a.h.Grant(host.Grant{ID: id}, 1); return err }},
		{"a grant whose expectation was taken", never, never, func(a *acts) error {
			_, err := a.h.Grant(host.Grant{ID: []byte("hope"), Expected: a.hope}, 1)
			return err
		}},
		{"a grant whose expectation is on its way", never, record.Dozes, func(a *acts) error {
			l, err := a.h.Expect(id)
			if err == nil {
				_, err = a.h.Grant(host.Grant{ID: id, Expected: l}, 1)
			}
			return err
		}},
		{"a grant in place of an expectation that was cancelled", never, record.Dozes, func(a *acts) error {
			err := a.h.Cancel(a.hope)
			if err == nil {
				_, err = a.h.Grant(host.Grant{ID: id, Expected: a.hope}, 1)
			}
			return err
		}},
		{"the cancel of an expectation", never, never, func(a *acts) error { return a.h.Cancel(a.hope) }},
		{"the cancel of a lease", record.Dozes, record.Dozes, func(a *acts) error { return a.h.Cancel(a.lease) }},
		{"revoke", record.Dozes, record.Dozes, func(a *acts) error { return a.h.Revoke(a.lease) }},
		{"pressure", record.Dozes, record.Dozes, func(a *acts) error { return a.h.Pressure(1) }},
		{"track", record.Sleeps, record.Sleeps, func(a *acts) error { _, err := a.h.Track(a.e, r, nil, 0, 1); return err }},
		{"untrack", record.Dozes, record.Dozes, func(a *acts) error { return a.h.Untrack(a.track) }},
		{"reject", record.Dozes, record.Dozes, func(a *acts) error { return a.h.Reject(a.e, r, 1) }},
		{"read", record.Dozes, record.Dozes, func(a *acts) error { return a.h.Read(a.readers, []record.Run{{N: 1}}) }},
	} {
		for ranks, least := range map[int]uint32{1: tc.engine, 2: tc.host} {
			for sleep := uint32(record.Dozes); sleep <= record.Listens; sleep++ {
				t.Run(fmt.Sprintf("%s, %d ranks, sleep %d", tc.name, ranks, sleep), func(t *testing.T) {
					f := newFleet(t, stream.KindProcess)
					f.wake = func() int { return newEventFd(t) }
					p, d := f.team("P", ranks, 1), f.team("D", 1, 1)
					a := &acts{h: p.host, e: f.connect(p, d)}
					a.lease, _ = p.grant("lease", 1, blocks(0, 2))
					var err error
					if a.hope, err = a.h.Expect([]byte("hope")); err != nil {
						t.Fatal(err)
					}
					a.track, a.readers = p.track(a.e, r, 1), p.track(a.e, r, 2)
					f.turns(5)
					if got, want := p.core.wakes(t, sleep, func() error { return tc.say(a) }) > 0, sleep >= least; got != want {
						t.Errorf("the sleep was ended: %v, want %v", got, want)
					}
				})
			}
		}
	}
}

func TestWhatMayWaitWakesAPumpWhoseRingFills(t *testing.T) {
	l := newLab(t, `{"ring_bytes":4096}`)
	l.p.core.mem.Control.WakeFd = int32(newEventFd(t))
	n, said := 0, 0
	for ; n == 0; said++ {
		n = l.p.core.wakes(t, record.Dozes, func() error {
			_, err := l.p.host.Expect(fmt.Appendf(nil, "request-%d", said)) // shows that no room is left before anybody is woken
			return err
		})
	}
	if said < 4 {
		t.Errorf("expectation %d has woken the pump: the ring is not a quarter full by then", said)
	}
	l.stepOne(l.p)
	if n := l.p.core.wakes(t, record.Dozes, func() error { _, err := l.p.host.Expect([]byte("later")); return err }); n != 0 {
		t.Error("an expectation wakes a pump whose ring is empty")
	}
}

// The step that finds the completion takes the expectation and the grant first, so neither has to wake the pump.
func TestACompletionThatIsThereBeforeAnyStepHasTakenTheGrantEndsTheLease(t *testing.T) {
	for _, native := range []bool{true, false} {
		l := newLab(t, `{}`)
		l.run(time.Second, 30*time.Millisecond) // D knows P
		expected, err := l.p.host.Expect([]byte("r1"))
		if err != nil {
			t.Fatal(err)
		}
		there, here := blocks(3, 8), blocks(40, 8)
		l.p.fill(7, there)
		lease, err := l.p.host.Grant(host.Grant{ID: []byte("r1"), Blocks: 8, User: 7, Expected: expected}, l.now)
		if err != nil {
			t.Fatal(err)
		}
		remote := &host.Remote{ID: []byte("r1")}
		if native {
			remote = &host.Remote{ID: []byte("r1"), Native: true, Epoch: l.p.core.mem.Epoch, Key: l.p.host.Key(lease), Slot: lease.Slot(), Generation: lease.Use()}
		}
		track := l.track(remote, "d-r1", 70)
		l.stepOne(l.d)
		l.read(track, here, there)
		for range 20 { // P stands still
			l.advance(time.Millisecond)
			l.stepOne(l.d)
		}
		if done := l.d.take(record.EvReadDone); native && len(done) != 1 {
			t.Fatalf("native: %v, D's events: %+v", native, l.d.evs)
		}
		l.stepOne(l.p)
		freed := l.p.take(record.EvFreed)
		if native && (len(freed) != 1 || freed[0].Status != record.FreedCompleted) {
			t.Errorf("freed in P's first step: %+v", freed)
		}
		for _, c := range []string{"lease_unknown_renew", "lease_unknown_done", "lease_unknown_release"} {
			if n := l.p.core.stat(c); n != 0 {
				t.Errorf("native %v: %s %v", native, c, n)
			}
		}
	}
}

// A host's ranks hear of messages while its pump sleeps. They know the expectation, and keep them until the grant comes.
func TestARankKeepsWhatComesBeforeAGrantForWhichTheHostsPumpWasNotWoken(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	f.wake = func() int { return newEventFd(t) }
	p, d := f.team("P", 2, 1), f.team("D", 2, 1)
	e := f.connect(d, p)
	expected, err := p.host.Expect([]byte("r1"))
	if err != nil {
		t.Fatal(err)
	}
	f.turns(5)
	there, here := blocks(3, 8), blocks(20, 8)
	p.fill(7, there)
	var lease record.Handle
	p.stopped = true // its pump sleeps
	if n := p.core.wakes(t, record.Sleeps, func() (err error) {
		lease, err = p.host.Grant(host.Grant{ID: []byte("r1"), Blocks: 8, User: 7, Expected: expected}, f.now())
		return err
	}); n != 0 {
		t.Fatalf("%d wakes", n)
	}
	track := d.track(e, p.remote("r1", lease), 70)
	d.read(track, here, there)
	d.event(record.EvReadDone, track)
	f.turns(20) // the completion comes to both ranks
	if p.of(record.EvFreed, lease) != 0 {
		t.Fatal("the host's pump did not sleep")
	}
	p.stopped = false
	if freed := p.event(record.EvFreed, lease); freed.Status != record.FreedCompleted || d.wrong(7, here) != 0 {
		t.Errorf("freed: %+v", freed)
	}
	for i, c := range p.cores() {
		if n := c.stat("lease_unknown_done") + c.stat("lease_unknown_renew"); n != 0 {
			t.Errorf("rank %d was told of %d unknown requests", i, n)
		}
	}
}

func TestTheDepthOfASleepIsItsShareOfAnInterval(t *testing.T) {
	for _, tc := range []struct {
		period, interval time.Duration
		held             bool
		want             uint32
	}{
		{pumpBusy, 5 * time.Second, false, record.Dozes},
		{pumpHeld, 5 * time.Second, true, record.Dozes},
		{pumpIdle, 5 * time.Second, true, record.Dozes}, // a host's
		{pumpIdle, 5 * time.Second, false, record.Sleeps},
		{pumpHeld, 20 * time.Millisecond, true, record.Sleeps},
		{pumpIdle, 100 * time.Millisecond, true, record.Sleeps},
		{pumpBusy, 2 * time.Millisecond, false, record.Dozes},
	} {
		if got := depth(tc.period, tc.interval, tc.held); got != tc.want {
			t.Errorf("a sleep of %v at an interval of %v, held %v: %d, want %d", tc.period, tc.interval, tc.held, got, tc.want)
		}
	}
}

// Arrivals at a transport are not announced; a host's ranks wake it. Renewals, which come all the time, are no traffic.
func TestAPumpLooksForArrivalsOnlyWhereTheyCome(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	p := f.open("P", 2, 1)
	for _, tc := range []struct {
		name               string
		core               *Core
		traffic, soon, now time.Duration
	}{{"host", p.core, pumpBusy, pumpIdle, pumpIdle}, {"rank", p.ranks[0].core, pumpBusy, pumpHeld, pumpStill}} {
		pump := pump{core: tc.core}
		at := func(after time.Duration) time.Duration { return pump.period(f.now().Add(after)) }
		pump.traffic = tc.core.half().Traffic() + 1
		atomic.StoreUint32(&tc.core.mem.Control.Held, 1)
		got := []time.Duration{at(0), at(pumpBusySpan), at(pumpStillSpan)}
		if want := []time.Duration{tc.traffic, tc.soon, tc.now}; !slices.Equal(got, want) || pump.counters.TurnsIdle != 0 {
			t.Errorf("a %s that holds something, as traffic comes, %v and %v later: %v, want %v; %d turns idle", tc.name, pumpBusySpan, pumpStillSpan, got, want, pump.counters.TurnsIdle)
		}
		atomic.StoreUint32(&tc.core.mem.Control.Held, 0)
		if got := at(pumpStillSpan); got != pumpIdle || pump.counters.TurnsIdle != 1 {
			t.Errorf("a %s that holds nothing: %v, %d turns idle, want %v", tc.name, got, pump.counters.TurnsIdle, pumpIdle)
		}
	}
}

func TestRenewalsDoNotKeepAPumpAwake(t *testing.T) {
	l := newLab(t, `{}`)
	_, remote := l.grant("r1", 7, blocks(0, 8))
	l.track(remote, "d-r1", 70)
	l.run(time.Second, pumpHeld)
	pump := pump{core: l.p.core}
	renewed := l.p.stat("batches_received")
	for end := l.now.Add(2 * l.p.core.cfg.Interval()); l.now < end; l.step(pumpHeld) {
		if period := pump.period(l.now); period == pumpBusy && end.Sub(l.now) < l.p.core.cfg.Interval() {
			t.Fatalf("it sleeps for %v although only renewals come", period)
		}
	}
	if l.p.stat("batches_received") == renewed {
		t.Error("no renewal has come: nothing is shown")
	}
}
