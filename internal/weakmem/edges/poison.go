package edges

import wm "github.com/kvlease/kvlease/internal/weakmem"

// States of a slot's word.
const (
	free = iota
	granted
	ended
	nextFree // of the next use
)

// poisonScenes: a context breaks. Its ends are told by the last step or by kvl_poll's report from the slots, never by both, never
// by neither. Whoever breaks it may be a third thread: kvl_fence_all.
func poisonScenes() []Scene {
	breaks := wm.Thread{Name: "breaks", Body: func(t *wm.T) { t.Store("poisoned", 1, wm.SeqCst) }}
	return []Scene{{
		Name: "step and report",
		What: "an end is told once, by the step or by the report",
		Sites: []Site{
			{"S1", "Core.stepAt: stepping stored", wm.SeqCst, wm.Release},
			{"S1", "Core.stepAt: poisoned looked at", wm.SeqCst, wm.Acquire},
			{"S2", "step_runs: fence", wm.SeqCst, wm.Plain},
		},
		Shortcuts: []Shortcut{{"a step not waited for", ""}, {"the ring not taken once more", "the last step's ends are told again"}},
		build: func(b *build) wm.Program {
			return wm.Program{
				Init: map[string]uint64{"state": granted},
				Threads: []wm.Thread{
					{Name: "core", Body: func(t *wm.T) {
						t.Store("stepping", 1, b.at(0))
						if t.Load("poisoned", b.at(1)) == 0 {
							t.Store("state", ended, wm.Release)
							t.Store("state", nextFree, wm.Release) // its event has found room
							t.Store("head", 1, wm.Release)
						}
						t.Store("stepping", 0, wm.Release)
					}},
					breaks,
					{Name: "poll", Body: func(t *wm.T) {
						told, taken := uint64(0), uint64(0)
						take := func() {
							if taken == 0 && t.Load("head", wm.Acquire) != 0 {
								taken++
								told++
							}
						}
						take()
						t.Await("poisoned", wm.Acquire, nonzero) // polls until then find nothing or the end
						fence(t, b.at(2))
						if !b.takes("a step not waited for") {
							// Polls while a step runs report nothing. One load that sees 0 decides.
							t.Await("stepping", wm.SeqCst, func(v uint64) bool { return v == 0 })
						}
						if !b.takes("the ring not taken once more") {
							take()
						}
						for seen := t.Load("state", wm.SeqCst); seen == granted || seen == ended; {
							was, ok := t.CompareAndSwap("state", seen, nextFree, wm.SeqCst, wm.Relaxed)
							if ok {
								told++
								break
							}
							seen = was
						}
						t.Note("told", told)
						t.Note("taken", taken)
					}},
				},
				Final: func(f *wm.Final) error {
					inRing := f.Words["head"] - f.Notes["taken"] // for a poll that will never look at the ring again
					if f.Notes["told"] != 1 || inRing != 0 {
						return errf("told %d times, %d left in the ring", f.Notes["told"], inRing)
					}
					return nil
				},
			}
		},
	}, {
		Name: "grant and report",
		What: "a grant that comes while the context breaks is refused, or its end is told, and the report tells what was granted",
		Sites: []Site{
			{"G1", "kvl_grant: state stored", wm.SeqCst, wm.Release},
			{"G1", "kvl_grant: state stored, what is in the slot", wm.SeqCst, wm.Relaxed},
			{"G1", "kvl_grant: poisoned looked at", wm.SeqCst, wm.Acquire},
			{"G2", "kvl_fence: poisoned stored", wm.Release, wm.Relaxed},
			{"G2", "step_runs: fence", wm.SeqCst, wm.Plain},
			{"G2", "scan: state looked at", wm.Acquire, wm.Relaxed},
		},
		Shortcuts: []Shortcut{
			{"a grant that does not look again", "for poisoned once it stands"},
			{"a grant taken back without the state word", "it may have been told"},
		},
		build: func(b *build) wm.Program {
			store := b.at(0)
			if b.site == 1 {
				store = wm.Relaxed
			}
			poison := wm.Thread{Name: "breaks", Body: func(t *wm.T) { t.Store("poisoned", 1, b.at(3)) }}
			return wm.Program{Threads: []wm.Thread{
				{Name: "host", Body: func(t *wm.T) {
					t.Store("user", 7, wm.Relaxed)
					t.Store("state", granted, store)
					stands := uint64(1)
					if !b.takes("a grant that does not look again") && t.Load("poisoned", b.at(2)) != 0 {
						if b.takes("a grant taken back without the state word") {
							t.Store("state", nextFree, wm.SeqCst)
							stands = 0
						} else if _, ok := t.CompareAndSwap("state", granted, nextFree, wm.SeqCst, wm.Relaxed); ok {
							stands = 0
						}
					}
					t.Note("stands", stands)
				}},
				poison,
				{Name: "poll", Body: func(t *wm.T) {
					t.Await("poisoned", wm.Acquire, nonzero)
					fence(t, b.at(4))
					if t.Load("state", b.at(5)) == granted {
						user := t.Load("user", wm.Relaxed)
						if _, ok := t.CompareAndSwap("state", granted, nextFree, wm.SeqCst, wm.Relaxed); ok {
							t.Assert(user == 7, "the end of a grant is told with what stood in the slot before")
							t.Note("told", 1)
						}
					}
				}},
			}, Final: func(f *wm.Final) error {
				if f.Notes["stands"] != f.Notes["told"] {
					return errf("granted: %d, its end told: %d", f.Notes["stands"], f.Notes["told"])
				}
				return nil
			}}
		},
	}, {
		Name: "rows of a broken host",
		What: "blocks whose end a broken host tells are given out again behind the closing of their row on every rank",
		Sites: []Site{
			{"B1", "Group.Poison", wm.Release, wm.Relaxed},
			{"B2", "due (kvl_poll), pollPoisoned", wm.Acquire, wm.Relaxed},
		},
		Shortcuts: []Shortcut{
			{"one rank's word for all", ""},
			{"told taken for closed", "a rank that has been told may stand still"},
		},
		build: func(b *build) wm.Program {
			rank := func(n uint64) wm.Thread {
				return wm.Thread{Name: word("rank", n), Body: func(t *wm.T) {
					t.Store(word("row", n), 1, wm.Relaxed)
					t.Store(word("head", n), 1, wm.Release) // of its stream: P1
				}}
			}
			return wm.Program{Threads: []wm.Thread{
				rank(0), rank(1),
				{Name: "core", Body: func(t *wm.T) {
					if !b.takes("told taken for closed") {
						t.Await("head0", wm.Acquire, nonzero)
						if !b.takes("one rank's word for all") {
							t.Await("head1", wm.Acquire, nonzero)
						}
					}
					t.Store("closed", 1, b.at(0))
				}},
				{Name: "poll", Body: func(t *wm.T) {
					if t.Load("closed", b.at(1)) != 0 { // its end is told
						t.Assert(t.Load("row0", wm.Relaxed) == 1 && t.Load("row1", wm.Relaxed) == 1, "a row is open")
					}
				}},
			}}
		},
	}}
}
