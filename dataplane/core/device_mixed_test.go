package core

import (
	"errors"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

func TestHostAndDeviceMemoryAreRegisteredTogether(t *testing.T) {
	l := newDeviceLab(t, `{}`)
	if err := l.d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	mixed := mixed(l.d.regions)
	if err := l.d.core.Register(mixed); err != nil {
		t.Fatal(err)
	}
	if len(l.dev.regions) != 1 || l.dev.regions[0].Name != "layer.1" {
		t.Errorf("the device is asked about %+v", l.dev.regions)
	}
	got := l.tr[1].registered
	if len(got) != 4 || got[0].Mem != transport.DRAM || got[0].Addr != mixed[0].Addr || got[1].Mem != transport.VRAM || got[1].Addr != mixed[1].Addr {
		t.Errorf("registered: %+v", got)
	}
	l.peer = l.connect(l.d, l.p)
	if ev := l.readOnce("r1", 7); ev.Status != record.ReadOK || l.d.wrong(7, blocks(40, 8)) != 0 || len(l.tr[1].without) != 0 {
		t.Errorf("read: %+v, %d wrong words, without the context: %q", ev, l.d.wrong(7, blocks(40, 8)), l.tr[1].without)
	}
}

// mixed says that the first layer is host memory and the second a device's.
func mixed(regions []Region) []Region {
	list := append([]Region(nil), regions...)
	list[0].Mem, list[1].Mem = transport.DRAM, transport.VRAM
	return list
}

// Sleep and wake of the reader: its own memory is written until its reads have ended.
func TestMixedMemoryStaysRegisteredUntilReadsIntoItHaveEnded(t *testing.T) {
	l := newDeviceLab(t, `{}`)
	if err := l.d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	for era := range uint64(3) {
		if err := l.d.core.Register(mixed(l.d.regions)); err != nil || l.dev.held != 1 {
			t.Fatalf("era %d: %v, held %d", era, err, l.dev.held)
		}
		l.peer = l.connect(l.d, l.p)
		tr := l.tr[len(l.tr)-1].Transport.(*loopback.Agent)
		there, here := blocks(3, 8), blocks(40, 8)
		_, remote := l.grant("r1", 7+era, there)
		track := l.track(remote, "d-r1", 7+era)
		l.run(200*time.Millisecond, 10*time.Millisecond)
		tr.HoldReads(true)
		l.read(track, here, there)
		l.run(100*time.Millisecond, 10*time.Millisecond)
		if err := l.d.core.Unregister(); !errors.Is(err, ErrBusy) || l.dev.held != 1 || l.d.core.registered == nil {
			t.Fatalf("era %d: Unregister under a read: %v, held %d", era, err, l.dev.held)
		}
		tr.HoldReads(false)
		l.run(200*time.Millisecond, 10*time.Millisecond)
		if done := l.d.take(record.EvReadDone); len(done) != 1 || l.d.wrong(7+era, here) != 0 {
			t.Errorf("era %d: %+v, %d wrong words", era, done, l.d.wrong(7+era, here))
		}
		if err := l.d.core.Unregister(); err != nil || l.dev.held != 0 {
			t.Fatalf("era %d: Unregister: %v, held %d", era, err, l.dev.held)
		}
		l.d.evs, l.p.evs = nil, nil
	}
}

// Sleep and wake of the owner: reads of others cannot be seen from it. None of them is handed out, and the devices are let go only once the
// agent is gone.
func TestMixedMemoryThatAnOwnerTakesAwayUnderReadsIsNeverHandedOut(t *testing.T) {
	l := &lab{t: t, now: clock.Instant(time.Hour), hub: loopback.NewHub(), size: loopbackConfig}
	dev := &device{current: map[int]bool{}}
	var last *guarded
	l.wrap = func(id string, tr transport.Transport) transport.Transport {
		if id != "P" {
			return tr
		}
		last = &guarded{Transport: tr, of: dev, calls: map[string]int{}}
		return last
	}
	l.p, l.d = l.node("P", `{}`), l.node("D", `{}`)
	l.p.core.UseDevices(dev.open)
	for era := range uint64(3) {
		if err := l.p.core.Unregister(); err != nil {
			t.Fatal(err)
		}
		if err := l.p.core.Register(mixed(l.p.regions)); err != nil || dev.held != 1 {
			t.Fatalf("era %d: %v, held %d", era, err, dev.held)
		}
		l.peer = l.connect(l.d, l.p)
		there, here := blocks(3, 8), blocks(40, 8)
		_, remote := l.grant("r1", 7+era, there)
		track := l.track(remote, "d-r1", 7+era)
		l.run(200*time.Millisecond, 10*time.Millisecond)
		agent(t, l.d).HoldReads(true)
		l.read(track, here, there)
		l.run(100*time.Millisecond, 10*time.Millisecond)
		dev.released = func() {
			if last.calls["Close"] == 0 {
				t.Errorf("era %d: the device is let go while the agent lives", era)
			}
		}
		if err := l.p.core.Unregister(); err != nil || dev.held != 0 || len(last.without) != 0 {
			t.Fatalf("era %d: Unregister: %v, held %d, without the context: %q", era, err, dev.held, last.without)
		}
		dev.released = nil
		clear(l.p.kv) // somebody else's by now
		agent(t, l.d).HoldReads(false)
		l.run(time.Second, 30*time.Millisecond)
		if done := l.d.take(record.EvReadDone); len(done) != 0 {
			t.Errorf("era %d: a read of memory that was taken away is done: %+v", era, done)
		}
		if err := l.p.core.Register(mixed(l.p.regions)); err != nil {
			t.Fatal(err)
		}
		l.peer = l.connect(l.d, l.p)
		l.run(time.Second, 30*time.Millisecond)
		_, remote = l.grant("r2", 70+era, there)
		l.read(l.track(remote, "d-r2", 70+era), here, there)
		l.run(time.Second, 30*time.Millisecond)
		if done := l.d.take(record.EvReadDone); len(done) != 1 || l.d.wrong(70+era, here) != 0 {
			t.Errorf("era %d: read afterwards: %+v, left %+v", era, done, l.d.evs)
		}
		l.d.evs, l.p.evs = nil, nil
	}
}
