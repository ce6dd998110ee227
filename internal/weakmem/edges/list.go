package edges

import wm "github.com/kvlease/kvlease/internal/weakmem"

const none = 99 // no slot

// In the order of the sites below.
const (
	siteF1 = iota
	siteF2
	siteF1Back
)

// listScenes: slots come back from one pusher. One taker takes the whole list; or several do, and put back what they do not keep.
func listScenes() []Scene {
	push := Site{"F1", "record.PushFree", wm.Release, wm.Relaxed}
	take := Site{"F2", "record.TakeFree, take_slot, take_list", wm.Acquire, wm.Relaxed}
	return []Scene{{
		Name:  "free list, one taker",
		What:  "a slot is taken once for each time it was given back, and what was written into it before is seen",
		Sites: []Site{siteF1: push, siteF2: take},
		Shortcuts: []Shortcut{
			{"the head stored, not swapped", "what was pushed meanwhile is lost"},
		},
		build: func(b *build) wm.Program {
			return wm.Program{
				Init: map[string]uint64{"free": none},
				Threads: []wm.Thread{
					{Name: "core", Body: func(t *wm.T) {
						use := map[uint64]uint64{}
						give := func(slot uint64) {
							use[slot]++
							t.Write(word("slot", slot), use[slot])
							pushFree(t, slot, b.at(siteF1))
						}
						give(0)
						give(1)
						give(2)
						// Slot 0 has ended again; its record came through a ring.
						t.Await("ended0", wm.Acquire, nonzero)
						give(0)
					}},
					{Name: "host", Body: func(t *wm.T) {
						taken, uses := 0, map[uint64]uint64{}
						for range 3 {
							for _, slot := range takeSlots(t, b) {
								taken++
								uses[slot]++
								use := t.Read(word("slot", slot))
								t.Assert(use == uses[slot], "use %d of slot %d is taken as its %d", use, slot, uses[slot])
								t.Write(word("slot", slot), use) // the host writes, too
								if slot == 0 && use == 1 {
									t.Store("ended0", 1, wm.Release)
								}
							}
						}
						t.Note("taken", uint64(taken))
					}},
				},
				Final: func(f *wm.Final) error { return nothingLost(f, 4-int(f.Notes["taken"])) },
			}
		},
	}, {
		Name:  "free list, two takers that put back",
		What:  "as above, and a list put back is whole",
		Sites: []Site{siteF1: push, siteF2: take, siteF1Back: {"F1", "take_list", wm.Release, wm.Relaxed}},
		Shortcuts: []Shortcut{
			{"one slot taken by compare-and-swap", "ABA: the next link may be old"},
			{"the rest stored, not put back by compare-and-swap", "what was given back meanwhile is lost"},
		},
		Long: true,
		build: func(b *build) wm.Program {
			taker := func(name string) wm.Thread {
				return wm.Thread{Name: name, Body: func(t *wm.T) {
					if slot := takeList(t, b); slot != none {
						t.Write(word("slot", slot), 1+t.Read(word("slot", slot)))
						t.Note(name, 1)
						if slot == 0 {
							t.Store("ended0", 1, wm.Release)
						}
					}
				}}
			}
			return wm.Program{
				Init: map[string]uint64{"free": none},
				Threads: []wm.Thread{
					{Name: "core", Body: func(t *wm.T) {
						for slot := range uint64(3) {
							t.Write(word("slot", slot), 1)
							pushFree(t, slot, b.at(siteF1))
						}
						if t.Load("ended0", wm.Acquire) != 0 { // its record came through a ring
							pushFree(t, 0, b.at(siteF1))
							t.Note("again", 1)
						}
					}},
					taker("one"), taker("two"),
				},
				Final: func(f *wm.Final) error {
					return nothingLost(f, 3+int(f.Notes["again"])-int(f.Notes["one"])-int(f.Notes["two"]))
				},
			}
		},
	}}
}

// pushFree is record.PushFree.
func pushFree(t *wm.T, slot uint64, order wm.Order) {
	for {
		old := t.Load("free", wm.Relaxed)
		t.Write(word("next", slot), old)
		if _, ok := t.CompareAndSwap("free", old, slot, order, wm.Relaxed); ok {
			return
		}
	}
}

// takeSlots is record.TakeFree and the walk along the links, or one of the shortcuts.
func takeSlots(t *wm.T, b *build) (slots []uint64) {
	if b.takes("the head stored, not swapped") {
		slot := t.Load("free", b.at(siteF2))
		t.Store("free", none, wm.Relaxed)
		for ; slot != none; slot = t.Read(word("next", slot)) {
			slots = append(slots, slot)
		}
		return slots
	}
	for slot := t.Swap("free", none, b.at(siteF2)); slot != none; slot = t.Read(word("next", slot)) {
		slots = append(slots, slot)
	}
	return slots
}

// takeList is take_list of the C library with one slot kept, and the rest put back.
func takeList(t *wm.T, b *build) uint64 {
	if b.takes("one slot taken by compare-and-swap") {
		slot := t.Load("free", b.at(siteF2))
		if slot == none {
			return none
		}
		if _, ok := t.CompareAndSwap("free", slot, t.Read(word("next", slot)), b.at(siteF2), wm.Relaxed); !ok {
			return none
		}
		return slot
	}
	list := t.Swap("free", none, b.at(siteF2))
	if list == none {
		return none
	}
	rest := t.Read(word("next", list))
	t.Write(word("next", list), none)
	for rest != none {
		if b.takes("the rest stored, not put back by compare-and-swap") {
			t.Store("free", rest, b.at(siteF1Back))
			break
		}
		if _, ok := t.CompareAndSwap("free", none, rest, b.at(siteF1Back), wm.Relaxed); ok {
			break
		}
		grown := t.Swap("free", none, b.at(siteF2))
		if grown == none {
			continue
		}
		last := grown
		for next := t.Read(word("next", last)); next != none; next = t.Read(word("next", last)) {
			last = next
		}
		t.Write(word("next", last), rest)
		rest = grown
	}
	return list
}

// nothingLost checks that the list at the end holds as many slots as it must.
func nothingLost(f *wm.Final, want int) error {
	left := 0
	for slot := f.Words["free"]; slot != none; slot = f.Words[word("next", slot)] {
		if left++; left > 8 {
			return errf("the free list runs in a circle")
		}
	}
	if left != want {
		return errf("%d slots are left in the list, want %d", left, want)
	}
	return nil
}
