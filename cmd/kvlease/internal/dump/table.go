package dump

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/watch"
)

// Limits of reading a table that changes meanwhile.
const (
	chunkSlots = 1024 // read together
	triesMax   = 8    // of a slot that changes between two looks
	indexChunk = 1 << 16
)

// table is the lease table of a context in another process. A host context has slots only.
type table struct {
	pid  int
	peek func(pid int, parts ...part) error
	now  clock.Instant

	control, slots, rows, hot, granted, index, longIDs watch.Table

	used, torn int // slots that were ever used; those that changed with every look
}

// openTable checks that what the page says fits what this program knows, before anything is read: the numbers are a peer's.
func openTable(pid int, s *watch.Snapshot) (*table, error) {
	t := &table{pid: pid, peek: peek, now: s.Stepped.Add(s.Age)}
	for i := range s.Tables {
		if at := t.place(s.Tables[i].Name); at != nil {
			*at = s.Tables[i]
		}
	}
	const mostBytes = 1 << 33
	for _, k := range []struct {
		t      *watch.Table
		stride int
		count  uint64 // at most
		needed bool
	}{
		{&t.control, record.CtlLen, 1, true},
		{&t.slots, record.SlotLen, lease.LeasesMax, true},
		{&t.rows, record.RowLen, t.slots.Count, t.hot.Addr != 0},
		{&t.hot, lease.HotLen, t.slots.Count, false},
		{&t.granted, 8, t.slots.Count, t.hot.Addr != 0},
		{&t.index, lease.IndexLen, 2*t.slots.Count + 4096, false},
		{&t.longIDs, 1, mostBytes, false},
	} {
		switch {
		case k.t.Addr == 0 && !k.needed:
		case k.t.Addr == 0:
			return nil, fmt.Errorf("its stats page does not say where its leases lie")
		case k.t.Stride != uint64(k.stride) || k.t.Count > k.count || k.t.Addr+k.t.Stride*k.t.Count < k.t.Addr:
			return nil, fmt.Errorf("%w: %s has %d entries of %d bytes, this program knows %d bytes: use the tool of the same release", watch.ErrVersion, k.t.Name, k.t.Count, k.t.Stride, k.stride)
		}
	}
	for _, beside := range []*watch.Table{&t.rows, &t.hot, &t.granted} {
		if beside.Addr != 0 && beside.Count < t.slots.Count {
			return nil, fmt.Errorf("%w: %d %s for %d slots", watch.ErrVersion, beside.Count, beside.Name, t.slots.Count)
		}
	}
	control := make([]byte, record.CtlLen)
	if err := t.peek(pid, part{t.control.Addr, control}); err != nil {
		return nil, err
	}
	switch c := record.AsControl(control); {
	case c.Magic != record.ControlMagic:
		return nil, errMoved
	case c.Version != record.LayoutVersion:
		return nil, fmt.Errorf("%w: layout %d of its memory, this program knows %d: use the tool of the same release", watch.ErrVersion, c.Version, record.LayoutVersion)
	}
	return t, nil
}

func (t *table) place(name string) *watch.Table {
	switch name {
	case "control":
		return &t.control
	case "slots":
		return &t.slots
	case "rows":
		return &t.rows
	case "hot":
		return &t.hot
	case "granted":
		return &t.granted
	case "index":
		return &t.index
	case "long_ids":
		return &t.longIDs
	}
	return nil
}

// entry is one slot with what lies beside it, as one look found them.
type entry struct {
	slot    *record.Slot
	row     []byte
	hot     []byte
	granted []byte
}

// window is some slots in a row, and the state words that a second look found.
type window struct {
	slots, rows, hot, granted []byte
	view                      []record.Slot
	again                     []byte
}

func newWindow(n int) *window {
	w := &window{slots: make([]byte, n*record.SlotLen), rows: make([]byte, n*record.RowLen), hot: make([]byte, n*lease.HotLen), granted: make([]byte, n*8), again: make([]byte, n*record.SlotLen)}
	w.view = record.Slots(w.slots)
	return w
}

func at(k watch.Table, i uint64) uint64 { return k.Addr + i*k.Stride }

// look reads n slots from first on, and then their state words once more.
func (t *table) look(w *window, first uint64, n int) error {
	parts := []part{{at(t.slots, first), w.slots[:n*record.SlotLen]}}
	if t.hot.Addr != 0 {
		parts = append(parts, part{at(t.rows, first), w.rows[:n*record.RowLen]}, part{at(t.hot, first), w.hot[:n*lease.HotLen]}, part{at(t.granted, first), w.granted[:n*8]})
	}
	if err := t.peek(t.pid, parts...); err != nil {
		return err
	}
	return t.peek(t.pid, part{at(t.slots, first), w.again[:n*record.SlotLen]})
}

// stood reports that slot i was of the same use and in the same state in both looks.
func (w *window) stood(i int) bool {
	return binary.LittleEndian.Uint64(w.again[i*record.SlotLen:]) == w.view[i].State
}

func (t *table) entry(w *window, i int) entry {
	e := entry{slot: &w.view[i]}
	if t.hot.Addr != 0 {
		e.row, e.hot, e.granted = w.rows[i*record.RowLen:][:record.RowLen], w.hot[i*lease.HotLen:][:lease.HotLen], w.granted[i*8:][:8]
	}
	return e
}

// each gives every slot in use, and whether it changed with every look. Slots are used for the first time in their order, so the first
// thousand that never were end the table.
func (t *table) each(take func(number uint32, e entry, torn bool) error) error {
	w, one := newWindow(chunkSlots), newWindow(1)
	for first := uint64(0); first < t.slots.Count; first += chunkSlots {
		n := int(min(chunkSlots, t.slots.Count-first))
		if err := t.look(w, first, n); err != nil {
			return err
		}
		before := t.used
		for i := range n {
			number := first + uint64(i)
			from, k := w, i
			torn := !w.stood(i)
			for try := 0; torn && try < triesMax; try++ {
				if err := t.look(one, number, 1); err != nil {
					return err
				}
				from, k, torn = one, 0, !one.stood(0)
			}
			e := t.entry(from, k)
			if e.slot.State != 0 {
				t.used = int(number) + 1
			}
			if torn {
				t.torn++
			}
			if uint32(e.slot.State)&record.Mask == record.Free {
				continue
			}
			if err := take(uint32(number), e, torn); err != nil {
				return err
			}
		}
		if t.used == before {
			break
		}
	}
	return nil
}

// leases are all slots in use.
func (t *table) leases() (list []Lease, err error) {
	stock := false
	err = t.each(func(number uint32, e entry, torn bool) error {
		l := t.lease(number, e)
		l.Torn = torn
		if l.idLen > lease.InlineMax {
			if err := t.longID(number, e.slot, &l); err != nil {
				return err
			}
		}
		stock = stock || l.stock
		list = append(list, l)
		return nil
	})
	if err == nil && stock {
		err = t.stockEnds(list)
	}
	for i := range list {
		list[i].settle(t.now)
	}
	return list, err
}

// lease says how a slot stands.
func (t *table) lease(number uint32, e entry) Lease {
	s := e.slot
	l := Lease{Slot: number, Use: uint32(s.State >> 32), Blocks: s.Blocks, User: hex(s.User), idLen: int(s.IDLen)}
	switch uint32(s.State) & record.Mask {
	case record.Expected:
		l.State, l.Blocks, l.User = "expected", 0, ""
	case record.Lapsed:
		l.State, l.Blocks, l.User = "lapsed", 0, ""
	case record.Granted:
		l.State = "held"
	case record.Ended:
		l.State = "ended"
		if int(s.Reason) < len(record.FreedNames) {
			l.Reason = record.FreedNames[s.Reason]
		}
	default:
		l.State = fmt.Sprintf("state %d", uint32(s.State)&record.Mask)
	}
	if n := l.idLen; n <= lease.InlineMax {
		l.ID = string(s.ID[:n])
	}
	if uint32(s.State)&record.SaidCancel != 0 {
		l.Marks = append(l.Marks, "cancel said")
	}
	if uint32(s.State)&record.SaidRevoke != 0 {
		l.Marks = append(l.Marks, "revoke said")
	}
	if e.hot == nil {
		return l
	}
	seen := lease.SeeHot(e.hot)
	granted := clock.Instant(binary.LittleEndian.Uint64(e.granted))
	switch {
	case l.State == "held" && !seen.Held:
		l.State = "submitted" // its record is on its way to the step: what else is here may be of the use before
		if !seen.Expected {
			l.ID, l.idLen = "", 0
		}
		return l
	case l.State == "expected" && !seen.Expected:
		l.State, l.ID, l.idLen = "submitted", "", 0
		return l
	case l.State == "held":
		l.age = t.now.Sub(granted)
		l.Beats = uint32(binary.LittleEndian.Uint64(e.row[16:]) >> 32)
	case l.State == "ended":
		l.age = time.Duration(granted)
		return l
	case l.State == "lapsed":
		return l
	}
	l.deadline, l.lookedAt, l.stock, l.account = seen.Deadline, seen.LookedAt, seen.Stock, int(seen.Account)
	for _, m := range []struct {
		is   bool
		text string
	}{
		{seen.Native && seen.Stock, "native and stock"},
		{seen.Fixed, "fixed"},
		{seen.Shared, "shared"},
		{seen.Unchecked && !seen.Stock, "unchecked"},
		{seen.RevokeWaits, "revoke waits"},
	} {
		if m.is {
			l.Marks = append(l.Marks, m.text)
		}
	}
	if seen.Lingering {
		l.State = "lingers"
	}
	return l
}

// longID reads an id that does not fit into its slot, unless the slot has another use by then.
func (t *table) longID(number uint32, s *record.Slot, l *Lease) error {
	place := uint64(binary.LittleEndian.Uint32(s.ID[:]))
	if t.longIDs.Addr == 0 || l.idLen > record.IDMax || (place+1)*record.IDMax > t.longIDs.Count {
		return nil // the slot has another use by now
	}
	id, state := make([]byte, l.idLen), make([]byte, 8)
	if err := t.peek(t.pid, part{t.longIDs.Addr + place*record.IDMax, id}); err != nil {
		return err
	}
	if err := t.peek(t.pid, part{at(t.slots, uint64(number)), state}); err != nil {
		return err
	}
	if binary.LittleEndian.Uint64(state) != s.State {
		l.Torn = true
		return nil
	}
	l.ID = string(id)
	return nil
}

// stockEnds adds what the heartbeats of stock readers gave: those ends lie in the index of ids.
func (t *table) stockEnds(list []Lease) error {
	if t.index.Addr == 0 {
		return nil
	}
	ends := map[uint32]clock.Instant{}
	buf := make([]byte, indexChunk*lease.IndexLen)
	for first := uint64(0); first < t.index.Count; first += indexChunk {
		n := min(indexChunk, t.index.Count-first)
		part := part{at(t.index, first), buf[:n*lease.IndexLen]}
		if err := t.peek(t.pid, part); err != nil {
			return err
		}
		for ; len(part.to) > 0; part.to = part.to[lease.IndexLen:] {
			if slot, end, ok := lease.SeeIndex(part.to[:lease.IndexLen]); ok && end != 0 {
				ends[slot] = end
			}
		}
	}
	for i := range list {
		if l := &list[i]; l.stock {
			if end := ends[l.Slot]; end > l.deadline {
				l.deadline = end
			}
		}
	}
	return nil
}
