package core

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sort"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

const regionsMax = 4096 // as the handshake map bounds them

// Register makes the KV cache, the board and the landing rows known to the transport: all of it or nothing. From then on
// OwnHandshake answers. After Unregister it makes another agent, board and era first: for peers another engine.
//
// What takes its time (the devices, the transport, the look whether peers can read) happens on the caller's thread without the lock:
// steps go on. Close cuts it off: ErrClosed.
func (c *Core) Register(regions []Region) error {
	r, err := c.beginRegistration(regions)
	if err != nil {
		return err
	}
	defer c.endRegistration(r)
	stop := c.watchRegistration(r)
	defer stop()
	if err := c.hold(r); err != nil {
		return err
	}
	defer c.letGoUnless(r)
	leave, err := c.enterHere()
	if err != nil {
		return err
	}
	defer leave()
	n, err := c.toTransport(r)
	if err == nil {
		err = c.complete(r)
	}
	if err != nil {
		if undone := c.undo(r, n); r.strayed || undone != nil || errors.Is(err, transport.ErrStuck) {
			c.forsake()
		}
	}
	return err
}

// complete looks whether peers can read what the transport has, and lets them know of it.
func (c *Core) complete(r *registration) error {
	blob, err := r.tr.Metadata()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTransport, err)
	}
	if err := c.prove(r, blob); err != nil {
		return err
	}
	return c.keep(r, blob)
}

// keep is the end of a registration: steps and peers know of it from here on.
func (c *Core) keep(r *registration, blob []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(r, blob); err != nil {
		return err
	}
	r.kept, c.met = true, true
	c.proven, c.unproven = r.proven, r.unproven
	c.sayHeld()
	return nil
}

// begin hands the memory to steps and makes the map that peers ask for. Under the lock.
func (c *Core) begin(r *registration, blob []byte) error {
	switch {
	case r.cut.Load():
		return errCut
	case atomic.LoadUint32(&c.mem.Control.Poisoned) != 0: // meanwhile
		return ErrPoisoned
	}
	if n := len(wire.AppendHandshake(nil, c.describe(r.regions, blob))); n > wire.HandshakeMax { // no peer would take it
		return fmt.Errorf("%w: the handshake map of %d regions has %d bytes, at most %d: give them shorter names", ErrInvalid, len(r.regions), n, wire.HandshakeMax)
	}
	if err := c.reads.SetLocal(layoutOf(r.regions)); err != nil {
		return fmt.Errorf("%w: %w", ErrTransport, err)
	}
	_ = c.tracker.SetLocal(layoutOf(r.regions)) // an engine known already that does not fit is not read from
	c.setReach(heartbeat.ReachAll)
	if c.held != nil && c.agent.early { // UCX takes the way to a peer's device memory from the context that is current when it is loaded
		c.agent.early = false
		if err := c.offStep(c.tracker.LoadAgain); err != nil {
			return err
		}
	}
	if c.ranked != nil { // the map needs the era, which the host tells
		c.regions, c.registered, c.ranked.blob = r.regions, r.list, blob
		c.enterEra()
		c.Wake() // the next step tells the host
		return nil
	}
	c.handshake = wire.AppendHandshake(nil, c.describe(r.regions, blob))
	if err := c.publish(); err != nil {
		c.handshake = nil
		c.setReach(heartbeat.ReachMessages)
		return err
	}
	c.regions, c.registered = r.regions, r.list
	return nil
}

// oneDevice gives all regions the number under which peers ask for them, since a map has one for all of them: that of the device memory, else
// device_id. Transports compare it for host memory, too, where it means nothing else.
func oneDevice(regions []Region, deviceID uint32) ([]Region, error) {
	first := slices.IndexFunc(regions, func(r Region) bool { return r.Mem == transport.VRAM })
	if first >= 0 {
		deviceID = regions[first].Device
	}
	all := slices.Clone(regions)
	for i := range all {
		switch r := &all[i]; {
		case r.Mem != transport.VRAM:
			r.Device = deviceID
		case r.Device != deviceID:
			return nil, fmt.Errorf("%w: regions %d (%q) and %d (%q) are on devices %d and %d, and peers are told one for all: open a context for each device",
				ErrInvalid, first, all[first].Name, i, r.Name, deviceID, r.Device)
		}
	}
	return all, nil
}

// extent is what the blocks of a region take, in bytes; false: more than there are addresses.
func (r *Region) extent() (bytes uint64, fits bool) {
	hi, span := bits.Mul64(uint64(max(r.Blocks, 1)-1), r.BlockStride)
	bytes, carry := bits.Add64(span, r.BlockLen, 0)
	return bytes, hi|carry == 0
}

// checkRegions names the first region that cannot be what it says.
func checkRegions(regions []Region) error {
	if len(regions) == 0 || len(regions) > regionsMax {
		return fmt.Errorf("%w: %d regions, allowed: 1 to %d", ErrInvalid, len(regions), regionsMax)
	}
	order := make([]int, len(regions))
	for i, r := range regions {
		order[i] = i
		extent, fits := r.extent()
		var what string
		switch {
		case r.Addr == 0:
			what = "addr is 0"
		case r.Mem != transport.DRAM && r.Mem != transport.VRAM:
			what = fmt.Sprintf("mem is %d, allowed: KVL_MEM_DRAM, KVL_MEM_VRAM", r.Mem)
		case r.Blocks == 0:
			what = "blocks is 0"
		case r.BlockLen == 0 || r.BlockStride < r.BlockLen || r.BlockStride >= 1<<40:
			what = fmt.Sprintf("block_len %d and block_stride %d: the length must be positive and the stride at least as long", r.BlockLen, r.BlockStride)
		case r.Group < -1 || r.Group >= read.GroupsMax:
			what = fmt.Sprintf("group is %d, allowed: -1 (all) to %d", r.Group, read.GroupsMax-1)
		case r.Parts > read.BlockPartsMax || r.BlockLen%uint64(max(r.Parts, 1)) != 0:
			what = fmt.Sprintf("parts is %d, allowed: 0 to %d that divide block_len %d", r.Parts, read.BlockPartsMax, r.BlockLen)
		case !fits:
			what = fmt.Sprintf("%d blocks of block_stride %d pass the end of the address space", r.Blocks, r.BlockStride)
		case r.Bytes < extent:
			what = fmt.Sprintf("bytes is %d, %d blocks need %d", r.Bytes, r.Blocks, extent)
		case r.Addr+r.Bytes < r.Addr:
			what = "addr + bytes passes the end of the address space"
		}
		if what != "" {
			return fmt.Errorf("%w: region %d (%q): %s", ErrInvalid, i, r.Name, what)
		}
	}
	key := func(r Region) uint64 { return uint64(r.Mem)<<32 | uint64(r.Device) }
	sort.Slice(order, func(i, j int) bool {
		a, b := regions[order[i]], regions[order[j]]
		if key(a) != key(b) {
			return key(a) < key(b)
		}
		return a.Addr < b.Addr
	})
	for i := 1; i < len(order); i++ {
		a, b := regions[order[i-1]], regions[order[i]]
		if key(a) == key(b) && a.Addr+a.Bytes > b.Addr {
			return fmt.Errorf("%w: regions %d (%q) and %d (%q) overlap: one block would be registered twice", ErrInvalid, order[i-1], a.Name, order[i], b.Name)
		}
	}
	return nil
}

// checkHost looks at what is said to be host memory. Whose it is comes first: a device's addresses may be mapped without any right.
func (c *Core) checkHost(regions []Region) error {
	if c.hostCheck != nil {
		if err := c.hostCheck(regions); err != nil {
			return err
		}
	}
	return checkMapped(regions)
}

// checkMapped names the first region of host memory of which a part is not there. Transports that answer reads in software take any
// address, and this process would die when a peer reads it; at the end of the address space they may not return.
func checkMapped(regions []Region) error {
	page := uint64(unix.Getpagesize())
	for i, r := range regions {
		if r.Mem != transport.DRAM {
			continue
		}
		first := r.Addr &^ (page - 1)
		_, _, errno := unix.Syscall(unix.SYS_MSYNC, uintptr(first), uintptr(r.Addr+r.Bytes-first), unix.MS_ASYNC) // looks at mappings only
		if errno == unix.ENOMEM {
			return fmt.Errorf("%w: region %d (%q): %d bytes at %#x are not all mapped in this process", ErrInvalid, i, r.Name, r.Bytes, r.Addr)
		}
	}
	return nil
}

func layoutOf(regions []Region) *read.Layout {
	l := &read.Layout{}
	for _, r := range regions {
		l.Regions = append(l.Regions, read.Region{
			Addr: r.Addr, BlockLen: r.BlockLen, BlockStride: r.BlockStride, Blocks: r.Blocks, Group: r.Group, Device: r.Device, Mem: r.Mem,
			Parts: max(r.Parts, 1), Replicated: r.Replicated, Name: r.Name,
		})
	}
	return l
}

// describe is what peers are told: vLLM's map with our key.
func (c *Core) describe(regions []Region, blob []byte) *wire.Handshake {
	h := &wire.Handshake{
		EngineID: c.cfg.EngineID, AgentMetadata: blob, DeviceID: regions[0].Device, // of all (oneDevice)
		Layout: c.cfg.KVCacheLayout, BlockSize: uint64(c.cfg.BlockSize), AttnBackend: c.cfg.AttnName,
		PhysicalPerLogical: 1, DCPSize: 1, PCPSize: 1, Native: true,
		Lease: wire.HandshakeLease{
			Version: wire.LeaseVersion, Epoch: c.mem.Epoch, Base: c.mem.Base, Board: record.Addr(c.mem.Board),
			Slots: uint32(len(c.mem.Slots)), Duration: c.cfg.Duration, Agent: c.tr.Agent(),
			Rank: uint32(c.cfg.Rank()), TP: uint32(c.cfg.TPSize), PP: uint32(c.cfg.PPSize), KVHeads: uint32(c.cfg.KVHeads),
		},
	}
	for _, r := range regions {
		h.BaseAddrs = append(h.BaseAddrs, r.Addr)
		h.BlockLens = append(h.BlockLens, r.BlockLen)
		h.BlockStrides = append(h.BlockStrides, r.BlockStride)
		h.RegionNumBlocks = append(h.RegionNumBlocks, uint64(r.Blocks))
		h.RegionGroupIDs = append(h.RegionGroupIDs, int64(r.Group))
		h.RegionNames = append(h.RegionNames, r.Name)
		h.RegionMemTypes = append(h.RegionMemTypes, r.Mem)
		h.NumBlocks = max(h.NumBlocks, uint64(r.Blocks))
		h.Lease.Parts = append(h.Lease.Parts, max(r.Parts, 1))
		h.Lease.Replicated = append(h.Lease.Replicated, r.Replicated)
	}
	return h
}

// unregisterLooks is how often Unregister looks, a millisecond apart, for transfers of ours that are about to end: rows are read
// all the time.
const unregisterLooks = 100

// Unregister fences, ends every lease, destroys the agent, and only then lets the host unmap: a peer's late read cannot
// be seen from here, and software RMA answers without looking at registrations. As a reader it gives up what it tracks, tells
// the owners, and reports it lost: there is no agent to beat with. ErrBusy: a read of ours is in flight, or a registration; nothing has changed.
// The context steps on, and Register makes it another engine.
func (c *Core) Unregister() error {
	for range unregisterLooks {
		over, err := c.look(func() bool { return c.registered == nil || c.reads.Open() == 0 })
		if errors.Is(err, ErrClosed) {
			return err
		}
		if over || err != nil { // a poisoned context is looked at once
			break
		}
		time.Sleep(time.Millisecond)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.registering != nil {
		return fmt.Errorf("%w: memory is being registered", ErrBusy)
	}
	if c.registered == nil {
		return fmt.Errorf("%w: nothing is registered", ErrState)
	}
	if n := c.reads.Open(); n > 0 {
		return fmt.Errorf("%w: %d transfers of ours have not ended", ErrBusy, n)
	}
	c.sleep()
	c.endAll()
	defer c.Wake() // the next step tells the host
	err := c.leave()
	c.slept = err == nil
	c.showBetween()
	return err
}

// forsake destroys the agent of memory that was refused while a twin's read of it is open, or that the transport does not take back: software would
// answer a read of it when the host has freed the memory, and the process would die. A broken context's goes, too. Nobody has met the agent, so the era and its leases stand; what is
// tracked at engines that it has loaded is given up. The next registration makes another one.
func (c *Core) forsake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.offStep(c.tracker.GiveUp)
	if c.dropAgent() == nil { // else it stays, with the peers that it has loaded, and is destroyed by Close
		_ = c.offStep(c.tracker.Part)
	}
}

// sleep takes the reader's side off the agent.
func (c *Core) sleep() error { return c.offStep(c.tracker.Sleep) }

// offStep does what is a part of a step in its place: a panic in it poisons. A poisoned plane is left alone. Under the lock.
func (c *Core) offStep(do func(now clock.Instant)) (err error) {
	atomic.StoreUint32(&c.mem.Control.Stepping, 1)
	defer atomic.StoreUint32(&c.mem.Control.Stepping, 0)
	if atomic.LoadUint32(&c.mem.Control.Poisoned) != 0 {
		return ErrPoisoned
	}
	defer c.failSafe(&err)
	defer c.exit(c.held, c.enter())
	c.now = max(c.now, c.clock())
	do(c.now)
	return nil
}
