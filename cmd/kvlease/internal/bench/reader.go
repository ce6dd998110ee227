package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// reader is D with its view of P.
//
// Threads: one.
type reader struct {
	*side
	ctx    context.Context
	p      *Peer
	far    answer         // P's opOpen
	peer   transport.Peer // of the raw agent
	engine uint64
	user   uint64
	rng    *rand.Rand

	runs  []record.Run
	descs []transport.Desc
	xfer  [1]transport.Xfer
	state [1]transport.Status
}

func openReader(ctx context.Context, s *Spec, p *Peer, transports map[string]core.OpenTransport) (*reader, error) {
	d := &reader{ctx: ctx, p: p, rng: rand.New(rand.NewPCG(uint64(core.Now()), 8))}
	var err error
	if d.side, err = openSide("D", s, transports); err != nil { // first here: what is missing is told by it
		return d, err
	}
	if d.far, err = p.ask(ctx, request{Op: opOpen, Spec: s}); err != nil {
		return d, err
	}
	if d.peer, err = d.raw.Load(d.far.Meta); err != nil {
		return d, fmt.Errorf("the raw agent loads P: %w", err)
	}
	if d.engine, err = d.core.AddEngine(heartbeat.EngineDesc{ID: "bench-P"}); err != nil {
		return d, err
	}
	if err = d.core.Handshake(d.engine, 0, d.far.Handshake); err != nil {
		return d, err
	}
	up := false
	return d, d.until("the connection to P", func() (bool, error) {
		err := d.step(func(e *record.Event) error {
			up = up || e.Kind == record.EvEngineUp
			return nil
		})
		return up, err
	})
}

// close ends D's side, then P's: P answers reads to the last.
func (d *reader) close() error {
	if d.side == nil {
		return nil
	}
	var err error
	if d.peer != 0 && d.raw != nil {
		err = d.raw.Drop(d.peer)
	}
	err = errors.Join(err, d.side.close())
	if d.far.Meta != nil && d.ctx.Err() == nil {
		_, asked := d.p.ask(d.ctx, request{Op: opClose})
		err = errors.Join(err, asked)
	}
	return err
}

// until calls ok until it says so.
func (d *reader) until(what string, ok func() (bool, error)) error {
	end := core.Now().Add(longest)
	for n := 1; ; n++ {
		if done, err := ok(); done || err != nil {
			return err
		}
		if n%64 != 0 {
			continue
		}
		if err := d.ctx.Err(); err != nil {
			return err
		}
		if end.Before(core.Now()) {
			return fmt.Errorf("%s has not come in %v", what, longest)
		}
	}
}

func (d *reader) step(on func(*record.Event) error) error {
	if err := d.core.Step(); err != nil {
		return err
	}
	return d.poll(on)
}

// stepFor steps for a while in which nothing of interest happens.
func (d *reader) stepFor(span time.Duration) error {
	end := core.Now().Add(span)
	return d.until("the end of a pause", func() (bool, error) {
		return end.Before(core.Now()), d.step(func(*record.Event) error { return nil })
	})
}

// track has P grant n leases, and waits with their requests until P has heard of them.
func (d *reader) track(n int) ([]record.Handle, error) {
	const batch = 256 // of a line
	var tracks []record.Handle
	for len(tracks) < n {
		a, err := d.p.ask(d.ctx, request{Op: opGrant, N: min(batch, n-len(tracks))})
		if err != nil {
			return nil, err
		}
		for i := range a.Leases {
			l := &a.Leases[i]
			d.user++
			var h record.Handle
			if err := d.until("room for a request", func() (bool, error) {
				var err error
				h, err = d.host.Track(d.engine, &host.Remote{
					ID: []byte(l.ID), Native: true, Epoch: l.Epoch, Key: l.Key, Slot: l.Slot, Generation: l.Generation,
				}, []byte("local"), d.user, core.Now())
				if errors.Is(err, host.ErrFull) {
					return false, d.step(func(*record.Event) error { return nil })
				}
				return err == nil, err
			}); err != nil {
				return nil, err
			}
			tracks = append(tracks, h)
		}
	}
	return tracks, d.stepFor(heardIn)
}

// heardIn is how long first heartbeats and rows take to be out of the way.
const heardIn = 2 * time.Millisecond

// choose takes n blocks of each side by chance, as a cache that has been in use has them. Neighbours on both sides are one piece, for
// NIXL as for kvlease.
func (d *reader) choose(n int) {
	local, remote := d.rng.Perm(int(d.spec.Blocks))[:n], d.rng.Perm(int(d.spec.Blocks))[:n]
	d.runs, d.descs = d.runs[:0], d.descs[:0]
	for i := range n {
		l, r := uint32(local[i]), uint32(remote[i])
		if k := len(d.runs); k > 0 && l == d.runs[k-1].Local+d.runs[k-1].N && r == d.runs[k-1].Remote+d.runs[k-1].N {
			d.runs[k-1].N++
			continue
		}
		d.runs = append(d.runs, record.Run{Local: l, Remote: r, N: 1})
	}
	for _, run := range d.runs {
		d.descs = append(d.descs, transport.Desc{
			Local: d.mem.addr() + uint64(run.Local)*d.spec.Block, Remote: d.far.Addr + uint64(run.Remote)*d.spec.Block,
			Len: uint64(run.N) * d.spec.Block, LocalDevice: d.mem.device(), RemoteDevice: d.far.Device,
		})
	}
}

// marks is what P's block holds at its first and last 8 bytes.
type marks uint64

const blank = ^uint64(0) // never a mark

func (m marks) put(mem memory, block, size uint64) error {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(m))
	return errors.Join(mem.put(block*size, b[:]), mem.put(block*size+size-8, b[:]))
}

func (m marks) check(mem memory, block, size uint64) error {
	for _, at := range []uint64{block * size, block*size + size - 8} {
		var b [8]byte
		if err := mem.get(at, b[:]); err != nil {
			return err
		}
		if got := binary.LittleEndian.Uint64(b[:]); got != uint64(m) {
			return fmt.Errorf("block %d was read and holds %#x at byte %d, P has %#x", block, got, at-block*size, uint64(m))
		}
	}
	return nil
}

// each walks the blocks that are chosen.
func (d *reader) each(do func(local, remote uint64) error) error {
	for _, r := range d.runs {
		for i := range r.N {
			if err := do(uint64(r.Local+i), uint64(r.Remote+i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *reader) clear() error {
	return d.each(func(local, _ uint64) error { return marks(blank).put(d.mem, local, d.spec.Block) })
}

func (d *reader) check() error {
	if err := d.mem.settle(); err != nil {
		return err
	}
	return d.each(func(local, remote uint64) error { return marks(remote).check(d.mem, local, d.spec.Block) })
}

// read is one read of the chosen blocks in one way: how long it took, and after how long the first word of its first block was there,
// both in ns. track is kvlease's. first is 0 where the host cannot look, or has not seen it before the end.
func (d *reader) read(way string, track record.Handle) (took, first float64, err error) {
	if err := d.clear(); err != nil {
		return 0, 0, err
	}
	word := d.mem.word(uint64(d.runs[0].Local) * d.spec.Block)
	landed := func(start int64) {
		if first == 0 && word != nil && atomic.LoadUint64(word) != blank {
			first = float64(int64(core.Now()) - start)
		}
	}
	start := int64(core.Now())
	switch way {
	case WayCopy:
		for _, run := range d.runs {
			if err := d.mem.copy(uint64(run.Local)*d.spec.Block, uint64(run.Remote)*d.spec.Block, uint64(run.N)*d.spec.Block); err != nil {
				return 0, 0, err
			}
		}
		return float64(int64(core.Now()) - start), 0, d.putAway(way)
	case WayBare:
		err = d.rawRead(d.descs, nil, func() { landed(start) })
	case WayRaw:
		err = d.rawRead(d.descs, message, func() { landed(start) })
	case WayFenced:
		if err = d.rawRead(d.descs, nil, func() { landed(start) }); err == nil {
			one := d.descs[0]
			one.Len = 8
			err = d.rawRead([]transport.Desc{one}, message, func() {})
		}
	case WayOurs:
		err = d.ourRead(track, func() { landed(start) })
	}
	took = float64(int64(core.Now()) - start)
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", way, err)
	}
	if err := d.check(); err != nil {
		return 0, 0, err
	}
	return took, first, d.putAway(way)
}

// putAway waits until P has heard of the end of a read: over some transports a notification that P has not taken holds up the reads
// behind it, whose ways would be blamed.
func (d *reader) putAway(way string) error {
	r := request{Op: opPing}
	switch way {
	case WayRaw, WayFenced:
		r = request{Op: opNotif, N: 1}
	case WayOurs:
		r = request{Op: opFreed, N: 1}
	}
	_, err := d.askStepping(r)
	return err
}

// rawRead is a read of NIXL's. Like a stock engine's it carries the notification that tells P of its end.
func (d *reader) rawRead(descs []transport.Desc, notif []byte, look func()) error {
	x, err := d.raw.PostRead(&transport.ReadSpec{Peer: d.peer, LocalMem: d.mem.kind(), RemoteMem: d.mem.kind(), Descs: descs, Notif: notif})
	if err != nil {
		return err
	}
	d.xfer[0] = x
	if err := d.until("the end of a read", func() (bool, error) {
		look()
		d.raw.PollReads(d.xfer[:], d.state[:], 0)
		return d.state[0] != transport.Pending, nil
	}); err != nil {
		return err
	}
	if err := d.raw.Release(x); err != nil {
		return err
	}
	if d.state[0] != transport.Done {
		return errors.New("the read has failed")
	}
	look()
	return nil
}

// ourRead is a read with its fence. Its completion leaves in the step that reports it, as in an engine.
func (d *reader) ourRead(track record.Handle, look func()) error {
	if err := d.host.Read(track, d.runs); err != nil {
		return err
	}
	done := false
	return d.until("the end of a read", func() (bool, error) {
		err := d.step(func(e *record.Event) error {
			switch {
			case record.Handle(e.Handle) != track:
			case e.Kind == record.EvReadDone:
				done = true
			case e.Kind == record.EvReadFailed:
				return fmt.Errorf("the read has failed, status %d", e.Status)
			}
			return nil
		})
		look()
		return done, err
	})
}
