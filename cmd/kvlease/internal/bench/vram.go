package bench

import (
	"errors"

	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// vram is memory of a GPU. The process has no engine beside it, so the device's context is made here and stays current on the side's
// thread, which calls NIXL. What a transfer is compared with is the driver's copy of the same blocks to the host.
type vram struct {
	ctx    *cuda.Context
	pushed bool
	at     uint64
	host   []byte
}

func openVRAM(bytes uint64, other bool, device int) (_ memory, err error) {
	driver, err := cuda.Open("")
	if err != nil {
		return nil, err
	}
	ctx, err := driver.Make(device)
	if err != nil {
		return nil, err
	}
	m := &vram{ctx: ctx}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.free())
		}
	}()
	if m.pushed, err = ctx.Enter(); err != nil {
		return nil, err
	}
	if m.at, err = ctx.Alloc(bytes); err != nil {
		return nil, err
	}
	if other {
		m.host = make([]byte, bytes)
	}
	return m, ctx.SyncMemops(m.at)
}

func (m *vram) kind() transport.Mem { return transport.VRAM }
func (m *vram) device() uint32      { return uint32(m.ctx.Device()) }
func (m *vram) addr() uint64        { return m.at }
func (m *vram) word(uint64) *uint64 { return nil }

// settle flushes for the ways of raw NIXL, which has no flush: kvlease's own step has done it. A device that can flush nothing is refused
// where it would have to (core.Devices).
func (m *vram) settle() error {
	if !m.ctx.Features().FlushHost {
		return nil
	}
	_, err := m.ctx.Flush()
	return err
}

func (m *vram) put(at uint64, b []byte) error { return m.ctx.CopyIn(m.at+at, b) }
func (m *vram) get(at uint64, b []byte) error { return m.ctx.CopyOut(b, m.at+at) }

func (m *vram) copy(to, from, n uint64) error { return m.ctx.CopyOut(m.host[to:to+n], m.at+from) }

func (m *vram) free() (err error) {
	if m.at != 0 {
		err = m.ctx.Free(m.at)
	}
	if m.pushed {
		err = errors.Join(err, m.ctx.Leave())
	}
	err = errors.Join(err, m.ctx.Release())
	m.at, m.pushed, m.host = 0, false, nil
	return err
}
