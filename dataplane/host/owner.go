package host

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	leases "github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Grant is what the owner says when a prefill has finished.
type Grant struct {
	ID       []byte
	Blocks   uint32 // over all groups
	Tokens   uint32
	TTL      time.Duration // 0: the configured duration
	Fixed    bool          // no heartbeat renews it; TTL must be said, and the parameters must name the end
	Expected record.Handle // from Expect, or 0
	Event    uint64        // a device's event behind the last write into the blocks; 0: they are written
	User     uint64
}

func validID(id []byte) bool { return len(id) > 0 && len(id) <= record.IDMax }

// Expect says that a request has started to run here: messages about it that come early are kept.
func (h *Host) Expect(id []byte) (record.Handle, error) {
	if !validID(id) {
		return 0, ErrInvalid
	}
	if err := h.newWork(); err != nil {
		return 0, err
	}
	slot, use, ok := h.leases.take()
	if !ok {
		return 0, h.full(&h.mem.Control.RefusedTable)
	}
	rec := h.ring.Reserve(record.TagExpect, record.ExpectLen+len(id))
	if rec == nil {
		h.leases.back(slot)
		return 0, h.full(&h.mem.Control.RefusedRing)
	}
	lease := record.NewHandle(slot, use)
	record.PutExpect(rec, record.Expect{Lease: lease, IDLen: uint32(len(id))}, id)
	atomic.StoreUint64(&h.mem.Slots[slot].State, record.State(use, record.Expected))
	h.mem.Slots[slot].User = h.ring.Position() // until the grant: see grantSleep
	h.publish(record.TagExpect, record.Listens)
	return lease, nil
}

// Grant holds the blocks of a finished request under a lease. On an error nothing has changed and the blocks stay the engine's.
func (h *Host) Grant(g Grant, now clock.Instant) (record.Handle, error) {
	if !validID(g.ID) || g.TTL < 0 || g.Fixed && g.TTL == 0 {
		return 0, ErrInvalid
	}
	if err := h.newWork(); err != nil {
		return 0, err
	}
	_, secret, ok := h.mem.Control.ReadEra()
	if !ok {
		return 0, ErrBusy
	}
	slot, use := g.Expected.Slot(), g.Expected.Use()
	if g.Expected != 0 && slot >= uint32(len(h.mem.Slots)) {
		return 0, ErrInvalid
	}
	rec := h.ring.Reserve(record.TagGrant, record.GrantLen+len(g.ID))
	if rec == nil {
		return 0, h.full(&h.mem.Control.RefusedRing)
	}
	sleep := h.grantSleep(g.Expected)
	if g.Expected == 0 || !h.claim(&g) {
		sleep = h.grantSleep(0)
		if slot, use, ok = h.leases.take(); !ok {
			h.ring.Discard()
			return 0, h.full(&h.mem.Control.RefusedTable)
		}
		h.fill(slot, &g)
		atomic.StoreUint64(&h.mem.Slots[slot].State, record.State(use, record.Granted))
	}
	lease, flags := record.NewHandle(slot, use), uint32(0)
	if g.Fixed {
		flags = record.GrantFixed
	}
	record.PutGrant(rec, record.Grant{
		Lease: lease, Key: leases.Key(secret, slot, use), User: g.User, TTLNs: uint64(g.TTL), SaidNs: uint64(now),
		ReadyEvent: g.Event, Blocks: g.Blocks, Tokens: g.Tokens, Flags: flags, IDLen: uint32(len(g.ID)),
	}, g.ID)
	h.publish(record.TagGrant, sleep)
	return lease, nil
}

// grantSleep is the lightest sleep that a grant ends. A step takes submissions before messages, so where leases and messages meet in one
// context the record waits for none. A host context has to tell its ranks before a message comes to them: at once, or they know the
// expectation, since the pump that sleeps now has taken it, and keep the message. To be asked before the slot is claimed.
func (h *Host) grantSleep(expected record.Handle) uint32 {
	if h.ranks > 0 && (expected == 0 || h.ring.Taken() < h.mem.Slots[expected.Slot()].User) {
		return record.Dozes
	}
	return record.Listens
}

// claim turns an expectation into a grant. It reports false if the expectation has lapsed or was cancelled: the core
// forgets it by the same compare-and-swap, and the loser of the two takes the other way.
func (h *Host) claim(g *Grant) bool {
	word, was := &h.mem.Slots[g.Expected.Slot()].State, record.State(g.Expected.Use(), record.Expected)
	if atomic.LoadUint64(word) != was {
		return false
	}
	h.fill(g.Expected.Slot(), g)
	return atomic.CompareAndSwapUint64(word, was, record.State(g.Expected.Use(), record.Granted))
}

// fill puts what the report of a broken core needs into the slot before its state says Granted: no step may ever see the
// record. Until the core knows better a reader that does not check the fence may get the parameters (L12).
func (h *Host) fill(slot uint32, g *Grant) {
	s := &h.mem.Slots[slot]
	s.User, s.Blocks = g.User, g.Blocks
	flags := uint32(record.Unchecked)
	if g.Event != 0 {
		flags |= record.Unready
	}
	atomic.StoreUint32(&s.Flags, flags)
}

// Ready reports whether the parameters of a lease may leave: not while a device may be writing its blocks.
func (h *Host) Ready(lease record.Handle) bool {
	return atomic.LoadUint32(&h.mem.Slots[lease.Slot()].Flags)&record.Unready == 0
}

// Cancel ends an expectation or a grant whose parameters never left. Said twice it does nothing more.
func (h *Host) Cancel(lease record.Handle) error {
	return h.sayOnce(&h.leases, record.TagCancel, record.SaidCancel, lease, record.Expected, record.Granted)
}

// Revoke takes a lease back; carried out at once if every reader checks the fence, else its deadline decides.
func (h *Host) Revoke(lease record.Handle) error {
	return h.sayOnce(&h.leases, record.TagRevoke, record.SaidRevoke, lease, record.Expected, record.Granted)
}

// Pressure asks for about blocks blocks back from readers that check the fence.
func (h *Host) Pressure(blocks uint32) error {
	if err := h.newWork(); err != nil {
		return err
	}
	rec := h.ring.Reserve(record.TagPressure, 8)
	if rec == nil {
		return h.full(&h.mem.Control.RefusedRing)
	}
	binary.LittleEndian.PutUint64(rec, uint64(blocks))
	h.publish(record.TagPressure, record.Dozes)
	return nil
}
