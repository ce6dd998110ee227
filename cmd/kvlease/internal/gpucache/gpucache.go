// Package gpucache is the KV cache of an engine stand-in in device memory. The host never touches it: blocks are made and looked at in a
// cache of the host (package kvcache), and the driver copies them. What a prefill writes comes later, behind an event, as kernels write.
package gpucache

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/kvcache"
	"github.com/kvlease/kvlease/cuda"
)

// Cache is one allocation with a region per layer, one behind the other.
//
// Threads: one.
type Cache struct {
	host   *kvcache.Cache
	driver *cuda.Driver
	ctx    *cuda.Context
	stream cuda.Stream
	base   uint64
	from   uint64 // as much again, block for block: what launches copy

	launches []*launch
	spare    []cuda.Event
}

// launch is KV that a prefill writes.
type launch struct {
	event  cuda.Event
	blocks []uint32
	over   bool // nobody asks for its event any more
}

// Open takes a cache of the same shape as host on a device of the driver, whose primary context is made if there is none: this process is its
// own engine.
func Open(driver *cuda.Driver, device int, host *kvcache.Cache) (_ *Cache, err error) {
	c := &Cache{host: host, driver: driver}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.ctx, err = driver.Make(device); err != nil {
		return nil, err
	}
	if c.stream, err = c.ctx.NewStream(); err != nil {
		return nil, err
	}
	if c.base, err = c.ctx.Alloc(uint64(host.Layers) * c.layer()); err != nil {
		return nil, fmt.Errorf("the KV cache: %w", err)
	}
	if c.from, err = c.ctx.Alloc(uint64(host.Layers) * c.layer()); err != nil {
		return nil, fmt.Errorf("what a prefill writes from: %w", err)
	}
	return c, c.ctx.SyncMemops(c.from) // else a copy into it may be late for the stream
}

func (c *Cache) layer() uint64 { return uint64(c.host.Blocks) * uint64(c.host.BlockLen) }

// Addr is where a layer begins.
func (c *Cache) Addr(layer uint32) uint64 { return c.base + uint64(layer)*c.layer() }

// Device is its ordinal.
func (c *Cache) Device() int { return c.ctx.Device() }

// piece is neighbouring blocks of one layer.
type piece struct {
	at   uint64 // behind the begin of the first layer
	host []byte
}

func (c *Cache) pieces(blocks []uint32) (list []piece) {
	for l := range c.host.Layers {
		for i := 0; i < len(blocks); {
			n := 1
			for i+n < len(blocks) && blocks[i+n] == blocks[i]+uint32(n) {
				n++
			}
			at := int(blocks[i]) * c.host.BlockLen
			list = append(list, piece{uint64(l)*c.layer() + uint64(at), c.host.Layer(l)[at:][:n*c.host.BlockLen]})
			i += n
		}
	}
	return list
}

// Fill writes a request's KV into these blocks and returns when it is there.
func (c *Cache) Fill(request string, blocks []uint32) error {
	c.host.Fill(request, blocks)
	return c.put(blocks)
}

// Clear makes sure that what a block held before does not look like data that was read.
func (c *Cache) Clear(blocks []uint32) error {
	c.host.Clear(blocks)
	return c.put(blocks)
}

func (c *Cache) put(blocks []uint32) error {
	if err := c.settle(); err != nil {
		return err
	}
	for _, p := range c.pieces(blocks) {
		if err := c.ctx.CopyIn(c.base+p.at, p.host); err != nil {
			return err
		}
	}
	return nil
}

// Launch has the device write a request's KV into these blocks. It returns at once: they are written when the event has fired. Done is due.
func (c *Cache) Launch(request string, blocks []uint32) (event uint64, err error) {
	c.host.Fill(request, blocks)
	if err := c.reap(); err != nil {
		return 0, err
	}
	for _, l := range c.launches { // one whose lease ended early may still copy from where this one begins
		if slices.ContainsFunc(l.blocks, func(b uint32) bool { return slices.Contains(blocks, b) }) {
			if err := c.settle(); err != nil {
				return 0, err
			}
			break
		}
	}
	var copies []cuda.Copy
	for _, p := range c.pieces(blocks) {
		if err := c.ctx.CopyIn(c.from+p.at, p.host); err != nil {
			return 0, err
		}
		copies = append(copies, cuda.Copy{To: c.base + p.at, From: c.from + p.at, Bytes: uint64(len(p.host))})
	}
	l := &launch{blocks: slices.Clone(blocks)}
	if l.event, err = c.newEvent(); err != nil {
		return 0, err
	}
	if _, err := c.ctx.Copies(c.stream, copies, l.event); err != nil {
		c.spare = append(c.spare, l.event)
		return 0, err
	}
	c.launches = append(c.launches, l)
	return uint64(l.event), nil
}

func (c *Cache) newEvent() (cuda.Event, error) {
	if n := len(c.spare); n > 0 {
		e := c.spare[n-1]
		c.spare = c.spare[:n-1]
		return e, nil
	}
	return c.ctx.NewEvent()
}

// Fired reports whether a launch is done, or why that cannot be known.
func (c *Cache) Fired(event uint64) (bool, error) { return c.ctx.Fired(cuda.Event(event)) }

// Done says that nobody asks for a launch's event any more.
func (c *Cache) Done(event uint64) {
	for _, l := range c.launches {
		l.over = l.over || uint64(l.event) == event
	}
}

// reap takes back what launches held that are done and over.
func (c *Cache) reap() (err error) {
	c.launches = slices.DeleteFunc(c.launches, func(l *launch) bool {
		if !l.over || err != nil {
			return false
		}
		fired := false
		if fired, err = c.ctx.Fired(l.event); err != nil || !fired {
			return false
		}
		c.spare = append(c.spare, l.event)
		return true
	})
	return err
}

// settleMax is how long work of a device may stand in the way of its next.
const settleMax = 5 * time.Second

// settle waits for all launches: a block that is written or looked at next may still be one of theirs, if its lease ended early.
func (c *Cache) settle() error {
	for end := time.Now().Add(settleMax); ; time.Sleep(100 * time.Microsecond) {
		left := 0
		for _, l := range c.launches {
			fired, err := c.ctx.Fired(l.event)
			if err != nil {
				return err
			}
			if !fired {
				left++
			}
		}
		if left == 0 {
			return c.reap()
		}
		if time.Now().After(end) {
			return fmt.Errorf("device %d: %d launches have not ended within %v", c.Device(), left, settleMax)
		}
	}
}

// get fetches blocks to where the host can look at them.
func (c *Cache) get(blocks []uint32) error {
	for _, p := range c.pieces(blocks) {
		if err := c.ctx.CopyOut(p.host, c.base+p.at); err != nil {
			return err
		}
	}
	return nil
}

// BadBytes counts the bytes of these blocks that are not the request's.
func (c *Cache) BadBytes(request string, blocks []uint32) (uint64, error) {
	if err := c.get(blocks); err != nil {
		return 0, err
	}
	return c.host.BadBytes(request, blocks), nil
}

// Landed counts the bytes of cleared blocks that have been written since.
func (c *Cache) Landed(blocks []uint32) (uint64, error) {
	if err := c.get(blocks); err != nil {
		return 0, err
	}
	return c.host.Landed(blocks), nil
}

// Close gives everything back. Nothing may be registered, and nobody may read. Of a device that is lost there is nothing to be given back:
// the first error is told.
func (c *Cache) Close() (err error) {
	keep := func(e error) {
		if err == nil {
			err = e
		}
	}
	if c.ctx == nil {
		return nil
	}
	keep(c.settle())
	for _, l := range c.launches {
		keep(c.ctx.EndEvent(l.event))
	}
	for _, e := range c.spare {
		keep(c.ctx.EndEvent(e))
	}
	for _, at := range []uint64{c.base, c.from} {
		if at != 0 {
			keep(c.ctx.Free(at))
		}
	}
	if c.stream != 0 {
		keep(c.ctx.EndStream(c.stream))
	}
	keep(c.ctx.Release())
	c.ctx, c.launches, c.spare = nil, nil, nil
	return err
}
