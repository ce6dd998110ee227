package core

import (
	"slices"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// entering is a transport that notes in which loads the device's context is current.
type entering struct {
	transport.Transport
	of    *device
	loads []bool
}

func (c *entering) Load(blob []byte) (transport.Peer, error) {
	c.loads = append(c.loads, c.of.entered())
	return c.Transport.Load(blob)
}

// A driver takes its time to begin, and engines are loaded meanwhile. UCX unpacks what a peer has told of its device memory then, and has no way
// to it over NVLink for the life of that where no context is current (uct_cuda_ipc_is_peer_accessible).
func TestWhoIsLoadedBeforeTheDeviceIsHeldIsLoadedAgainWithItsContext(t *testing.T) {
	l := newLab(t, `{}`)
	if err := l.d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	dev := &device{current: map[int]bool{}}
	var tr *entering
	l.wrap = func(_ string, inner transport.Transport) transport.Transport {
		tr = &entering{Transport: inner, of: dev}
		return tr
	}
	for i := range l.d.regions {
		l.d.regions[i].Mem = transport.VRAM
	}
	l.d.core.UseDevices(func() (Devices, error) {
		if tr != nil { // the agent is there
			l.run(time.Second, 10*time.Millisecond)
		}
		return dev.open()
	})
	if err := l.d.core.Register(l.d.regions); err != nil {
		t.Fatal(err)
	}
	l.run(time.Second, 10*time.Millisecond)
	if !slices.Equal(tr.loads, []bool{false, true}) {
		t.Fatalf("loads with a context: %v, want one without, and one with", tr.loads)
	}
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote := l.grant("r1", 7, there)
	track := l.track(remote, "d-r1", 7)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	l.read(track, here, there)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 1 || l.d.wrong(7, here) != 0 {
		t.Errorf("read afterwards: %+v, left %+v", done, l.d.evs)
	}
	l.run(20*time.Second, 500*time.Millisecond)
	if n := l.d.core.tracker.Counters(); len(tr.loads) != 2 || n.Disconnects+n.MadeAnew != 0 {
		t.Errorf("%d loads, %d connections broken, %d made anew", len(tr.loads), n.Disconnects, n.MadeAnew)
	}
}
