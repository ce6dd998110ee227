package host

import (
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// poisonReport tells the ends of a context whose core broke, from the slot records: the core says nothing any more.
type poisonReport struct {
	said bool   // EvPoisoned
	next uint32 // slot to look at
	late bool   // the second walk, for leases of readers that do not check the fence
	told []bool // by slot
}

// pollPoisoned fills out behind what the completion ring still held: EvPoisoned once, then the end of each lease whose
// readers check the fence, and one lease duration later the ends of the others (L12). The rows of a host context are its ranks'
// own: all its ends wait until each rank has said that its rows are closed, or is gone, and one duration more (L10, L12).
func (h *Host) pollPoisoned(out []record.Event, now clock.Instant) int {
	r, ctl := &h.poison, h.mem.Control
	n := 0
	if !r.said && len(out) > 0 {
		r.said = true
		r.told = make([]bool, len(h.mem.Slots))
		out[0] = record.Event{Kind: record.EvPoisoned, TimeNs: uint64(now)}
		n++
	}
	waited := now.Sub(clock.Instant(ctl.PoisonNs)) >= time.Duration(ctl.DurationNs)
	if h.ranks > 0 {
		// B2: acquire; pairs with B1 in Group.Poison. Blocks are given out again only behind the closing of their rows.
		waited = waited && atomic.LoadUint32(&ctl.RowsClosed) != 0
	}
	for n < len(out) {
		if r.next == uint32(len(h.mem.Slots)) {
			if r.late || !waited {
				return n
			}
			r.late, r.next = true, 0
			continue
		}
		slot := r.next
		r.next++
		s := &h.mem.Slots[slot]
		state := atomic.LoadUint64(&s.State)
		base := uint32(state) & record.Mask
		if r.told[slot] || base != record.Granted && base != record.Ended {
			continue
		}
		reason := uint16(record.FreedPoisoned)
		if base == record.Ended {
			reason = s.Reason
		} else if !waited && (h.ranks > 0 || atomic.LoadUint32(&s.Flags)&record.Unchecked != 0) {
			continue
		}
		r.told[slot] = true
		out[n] = record.Event{
			Kind: record.EvFreed, Status: int32(reason), Handle: uint64(record.NewHandle(slot, uint32(state>>32))),
			User: s.User, Value0: uint64(s.Blocks), TimeNs: uint64(now), Reasons: h.reasons(reason),
		}
		n++
	}
	return n
}

// reasons is one reason of every rank, four bits each.
func (h *Host) reasons(reason uint16) (all uint64) {
	for rank := range min(max(h.ranks, 1), 16) {
		all |= uint64(reason) << (4 * rank)
	}
	return all
}
