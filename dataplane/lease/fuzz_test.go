package lease

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

// FuzzTable drives a small table with whatever bytes say: keys right and wrong, handles of other uses, ids that are not
// known, time that jumps. Nothing may panic, and in the end nothing may be left.
func FuzzTable(f *testing.F) {
	f.Add([]byte("\x00a\x05a\x0a\x0b\x0c"))
	f.Add([]byte("\x01a\x04a\x06a\x02a\x0d\x07\x08\x09\x0e\x0f\x03\x0a"))
	var every []byte
	for i := range byte(64) {
		every = append(every, i, i*7)
	}
	f.Add(every)
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 400 {
			return
		}
		r := newRig(t, 3, func(c *Config) { c.Duration, c.Readers, c.LongIDs, c.StockLinger = 6*time.Second, 2, 1, time.Second })
		next := func() byte {
			if len(in) == 0 {
				return 0
			}
			b := in[0]
			in = in[1:]
			return b
		}
		long := make([]byte, 120)
		id := func() []byte {
			if b := next(); b >= 0xF0 {
				long[0] = b
				return long
			} else {
				return []byte{'a' + b%5}
			}
		}
		handle := func() record.Handle {
			b := next()
			s := uint32(b % 4)
			use := uint32(b / 64)
			if s < 3 && b&32 == 0 {
				use = stateUse(r.mem.Slots[s].State)
			}
			return record.NewHandle(s, use)
		}
		entry := func() Entry {
			h := handle()
			e := r.entry(h)
			if next()%8 == 7 {
				e.Key = binary.LittleEndian.Uint64(append(make([]byte, 7), next()))
			}
			return e
		}
		reader := func() Reader {
			b := next()
			return Reader{Engine: uint64(b % 3), Epoch: uint64(b / 128), Rank: uint32(b % 5)}
		}
		granted, told := 0, 0
		drain := func() {
			for {
				e, ok := r.t.NextEnd()
				if !ok {
					return
				}
				if !e.Lapsed {
					told++
				}
				r.t.PopEnd()
			}
		}
		grant := func(h record.Handle) {
			g := record.Grant{Lease: h, Blocks: uint32(next()), TTLNs: uint64(next()) << 26, Flags: uint32(next() & 1)}
			if o := r.t.Grant(&g, id(), r.now); o == Applied || o == Ended {
				granted++
			}
		}
		for len(in) > 0 {
			switch op := next(); op % 16 {
			case 0:
				if h, ok := r.take(record.Granted); ok {
					grant(h)
				}
			case 1:
				if h, ok := r.take(record.Expected); ok {
					r.t.Expect(h, id(), r.now)
				}
			case 2:
				h := handle() // the host grants an expectation, if it is one
				if s := int(h.Slot()); s < len(r.mem.Slots) && r.mem.Slots[s].State == record.State(h.Use(), record.Expected) {
					r.mem.Slots[s].State = record.State(h.Use(), record.Granted)
					grant(h)
				}
			case 3:
				h := handle() // a record that fits no slot: a free slot would take any later use
				if s := int(h.Slot()); s >= len(r.t.hot) || r.t.hot[s].phase() != phaseFree {
					r.t.Expect(h, id(), r.now)
				}
			case 4:
				r.t.RenewIDs([][]byte{id(), id()}, agentD, r.now, nil)
			case 5:
				r.t.RenewIDs([][]byte{id()}, agentD, r.now, nil)
			case 6:
				r.t.CompleteID(id(), []byte{next() % 4}, uint32(next()%4), r.now)
			case 7:
				r.t.Renew(entry(), reader(), r.now)
			case 8:
				r.t.Complete(entry(), reader(), uint16(next()%4), r.now)
			case 9:
				r.t.Release(entry(), reader(), r.now)
			case 10:
				gap := time.Duration(next()) * 50 * time.Millisecond
				r.now = r.now.Add(gap)
				r.arrived += uint64(next() % 8)
				r.applied = min(r.arrived, r.applied+uint64(next()%8))
				r.t.Sweep(r.now, gap, r.arrived, r.applied)
			case 11:
				drain()
			case 12:
				r.t.Revoke(handle(), r.now)
			case 13:
				r.t.Cancel(handle(), r.now)
			case 14:
				r.t.Pressure(uint32(next()), r.now)
			case 15:
				r.t.EngineGone(uint64(next()%3), uint64(next()%2), r.now)
			}
			r.checkAccounts()
		}
		r.t.FenceAll()
		for s := range r.mem.Slots { // records that the host had said and not sent
			k := &r.t.hot[s]
			if k.phase() == phaseExpected {
				r.t.Cancel(record.NewHandle(uint32(s), stateUse(r.mem.Slots[s].State)), r.now)
			}
		}
		r.t.EndSome(record.FreedClosed, r.now)
		drain()
		if granted != told {
			t.Errorf("%d grants, %d ends", granted, told)
		}
		for s := range r.t.hot {
			r.t.forget(&r.t.hot[s]) // kept for uses that never came
		}
		r.wantEmpty()
	})
}
