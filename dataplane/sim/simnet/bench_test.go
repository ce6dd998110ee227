package simnet_test

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// fleet is owners and readers, each reader with every owner loaded and the other way round.
type fleet struct {
	net             *simnet.Net
	owners, readers []*simnet.Agent
	toOwner, back   [][]transport.Peer
	rows, landing   []byte
	in              *transport.Inbox
}

const kvAddr, kvBytes = 1 << 40, 1 << 36

func newFleet(b *testing.B, owners, readers int) *fleet {
	f := &fleet{
		net: simnet.New(simnet.Config{Seed: 1, Start: clock.Instant(time.Hour), Link: simnet.Link{
			Delay: 10 * time.Microsecond, Jitter: 40 * time.Microsecond, ReadDelay: 20 * time.Microsecond,
		}}),
		rows: make([]byte, 4096), landing: make([]byte, 4096), in: transport.NewInbox(256, 1<<16),
	}
	at := func(m []byte) transport.Region {
		return transport.Region{Addr: uint64(uintptr(unsafe.Pointer(&m[0]))), Bytes: uint64(len(m))}
	}
	agents := func(kind string, n int, mem []byte) (all []*simnet.Agent) {
		for i := range n {
			a, err := f.net.Agent(fmt.Sprintf("%s-%d", kind, i), simnet.AgentConfig{Sized: true, Rate: 25e9})
			if err != nil {
				b.Fatal(err)
			}
			if err := a.Register([]transport.Region{at(mem), {Addr: kvAddr, Bytes: kvBytes, Mem: transport.VRAM}}); err != nil {
				b.Fatal(err)
			}
			all = append(all, a)
		}
		return all
	}
	f.owners, f.readers = agents("P", owners, f.rows), agents("D", readers, f.landing)
	load := func(at, of []*simnet.Agent) (all [][]transport.Peer) {
		for _, a := range at {
			var peers []transport.Peer
			for _, o := range of {
				blob, err := o.Metadata()
				if err != nil {
					b.Fatal(err)
				}
				p, err := a.Load(blob)
				if err != nil {
					b.Fatal(err)
				}
				peers = append(peers, p)
			}
			all = append(all, peers)
		}
		return all
	}
	f.toOwner, f.back = load(f.readers, f.owners), load(f.owners, f.readers)
	return f
}

// eventRate adds the events of the clock in a second.
func (f *fleet) eventRate(b *testing.B) {
	b.ReportMetric(float64(f.net.Counters().Events)/b.Elapsed().Seconds(), "events/s")
}

// Per notification: posted, carried over and polled, among 100 owners and 1,000 readers.
func BenchmarkNotification(b *testing.B) {
	for _, size := range []int{64, 1024, 16384} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			f := newFleet(b, 100, 1000)
			msg := make([]byte, size)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				d, p := i%len(f.readers), i%len(f.owners)
				if err := f.readers[d].Send(f.toOwner[d][p], msg); err != nil {
					b.Fatal(err)
				}
				f.net.Advance(f.net.Now().Add(time.Microsecond))
				f.in.Reset()
				f.owners[p].Poll(f.in)
			}
			f.eventRate(b)
		})
	}
}

// Per read: posted, ended by the clock, polled and released, among 100 owners and 1,000 readers.
func BenchmarkRead(b *testing.B) {
	for name, spec := range map[string]transport.ReadSpec{
		"row": {Descs: []transport.Desc{{Len: 32}}},
		"1 GiB in 16 descriptors without memory": {
			LocalMem: transport.VRAM, RemoteMem: transport.VRAM, Descs: make([]transport.Desc, 16),
		},
	} {
		b.Run(name, func(b *testing.B) {
			f := newFleet(b, 100, 1000)
			for k := range spec.Descs {
				d := &spec.Descs[k]
				if spec.LocalMem == transport.VRAM {
					*d = transport.Desc{Local: kvAddr + uint64(k)<<28, Remote: kvAddr + uint64(k)<<30, Len: 64 << 20}
				} else {
					d.Local = uint64(uintptr(unsafe.Pointer(&f.landing[0])))
					d.Remote = uint64(uintptr(unsafe.Pointer(&f.rows[0])))
				}
			}
			type open struct {
				d int
				x transport.Xfer
			}
			window := make([]open, 0, 1000)
			xs, out := make([]transport.Xfer, 1), make([]transport.Status, 1)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				d, p := i%len(f.readers), i%len(f.owners)
				spec.Peer = f.toOwner[d][p]
				x, err := f.readers[d].PostRead(&spec)
				if err != nil {
					b.Fatal(err)
				}
				window = append(window, open{d, x})
				if len(window) < cap(window) {
					continue
				}
				for _, w := range window {
					for xs[0], out[0] = w.x, transport.Pending; ; f.net.Advance(f.net.NextEvent()) {
						if f.readers[w.d].PollReads(xs, out, 0); out[0] != transport.Pending {
							break
						}
					}
					if out[0] != transport.Done || f.readers[w.d].Release(w.x) != nil {
						b.Fatal("a read failed")
					}
				}
				window = window[:0]
			}
			f.eventRate(b)
		})
	}
}
