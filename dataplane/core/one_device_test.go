package core

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// A map names one device, and transports compare the number for host memory, too: loopback as NIXL.
func TestPeersAskForMemoryUnderTheNumberThatItIsRegisteredUnder(t *testing.T) {
	const dram, vram = transport.DRAM, transport.VRAM
	for _, tc := range []struct {
		name, config string
		mems         [2]transport.Mem // of the two layers
		device       uint32           // as the engine says it of device memory; 0 for host memory
	}{
		{"host memory", `{}`, [2]transport.Mem{dram, dram}, 0},
		{"host memory with a number", `{"device_id":3}`, [2]transport.Mem{dram, dram}, 0},
		{"the second device", `{}`, [2]transport.Mem{vram, vram}, 1},
		{"a device that is not the one of the configuration", `{"device_id":3}`, [2]transport.Mem{vram, vram}, 1},
		{"both kinds", `{}`, [2]transport.Mem{dram, vram}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := &lab{t: t, now: clock.Instant(time.Hour), hub: loopback.NewHub(), size: loopbackConfig}
			l.p, l.d = l.unregisteredNode("P", tc.config), l.unregisteredNode("D", tc.config)
			for _, n := range []*node{l.p, l.d} {
				for i := range n.regions {
					if n.regions[i].Mem = tc.mems[i]; tc.mems[i] == vram {
						n.regions[i].Device = tc.device
					}
				}
				if err := n.core.Register(n.regions); err != nil {
					t.Fatal(err)
				}
			}
			l.peer = l.connect(l.d, l.p)
			there, here := blocks(3, 8), blocks(40, 8)
			_, remote := l.grant("r", 7, there)
			track := l.track(remote, "d-r", 7)
			l.run(200*time.Millisecond, 10*time.Millisecond)
			l.read(track, here, there)
			l.run(200*time.Millisecond, 10*time.Millisecond)
			if done := l.d.take(record.EvReadDone); len(done) != 1 || l.d.wrong(7, here) != 0 {
				t.Errorf("read: %+v, failed: %+v, %d wrong words", done, l.d.take(record.EvReadFailed), l.d.wrong(7, here))
			}
		})
	}
}

func TestMemoryOfTwoDevicesIsRefused(t *testing.T) {
	l := newLab(t, `{}`)
	if err := l.d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	for i := range l.d.regions {
		l.d.regions[i].Mem, l.d.regions[i].Device = transport.VRAM, uint32(i)
	}
	err := l.d.core.Register(l.d.regions)
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "on devices 0 and 1") || !strings.Contains(err.Error(), "a context for each device") {
		t.Errorf("%v", err)
	}
}
