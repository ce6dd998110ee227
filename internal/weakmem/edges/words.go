package edges

import wm "github.com/kvlease/kvlease/internal/weakmem"

// wordScenes: single words that carry others.
func wordScenes() []Scene {
	return []Scene{{
		Name: "era",
		What: "epoch and secret of one era are read together, or not at all",
		Sites: []Site{
			{"E1", "Control.BeginEra: the words stored", wm.Release, wm.Relaxed},
			{"E1", "Control.BeginEra: era made even", wm.Release, wm.Relaxed},
			{"E2", "kvl_era_read, Control.ReadEra: era loaded", wm.Acquire, wm.Relaxed},
			{"E2", "kvl_era_read: fence before it is loaded again", wm.Acquire, wm.Plain},
		},
		Shortcuts: []Shortcut{
			{"an odd era taken", ""}, {"era not loaded again", ""}, {"era made odd behind the words", ""},
		},
		build: era,
	}, {
		Name: "registry",
		What: "a step that meets a handle sees the engine that it names",
		Sites: []Site{
			{"R1", "registry.begin", wm.Release, wm.Relaxed},
			{"R2", "Tracker.engineOf", wm.Acquire, wm.Relaxed},
		},
		Shortcuts: []Shortcut{{"the use not compared", "the place's next engine is taken for it"}},
		build:     registry,
	}, {
		Name: "inbox of the death wire",
		What: "an entry is read whole, and not while it is written",
		Sites: []Site{
			{"I1", "inbox.put: head", wm.Release, wm.Relaxed},
			{"I1", "inbox.take: head", wm.Acquire, wm.Relaxed},
			{"I2", "inbox.take: tail", wm.Release, wm.Relaxed},
			{"I2", "inbox.put: tail", wm.Acquire, wm.Relaxed},
		},
		Shortcuts: []Shortcut{{"one more than there is room for", ""}},
		build:     inbox,
	}, {
		Name: "agent",
		What: "a call that finds an agent open finds its tables made",
		Sites: []Site{
			{"A1", "kvlx_open", wm.Release, wm.Relaxed},
			{"A2", "kvlx_agent", wm.Acquire, wm.Relaxed},
		},
		build: func(b *build) wm.Program {
			return wm.Program{Threads: []wm.Thread{
				{Name: "open", Body: func(t *wm.T) { t.Write("tables", 1); t.Store("open", 1, b.at(0)) }},
				{Name: "call", Body: func(t *wm.T) {
					if t.Load("open", b.at(1)) != 0 {
						t.Assert(t.Read("tables") == 1, "no tables")
					}
				}},
			}}
		},
	}, {
		Name: "state word of an expectation",
		What: "an expectation is granted or lapses, never both, and a bit said about it is said once",
		Shortcuts: []Shortcut{
			{"granted by a store", ""}, {"lapsed by a store", ""}, {"a bit said by a store", ""},
		},
		build: expectation,
	}, {
		Name:      "fence word",
		What:      "a word of a row only grows, whoever raises it",
		Shortcuts: []Shortcut{{"stored, not raised", ""}, {"looked at, then stored", ""}},
		build:     raise,
	}}
}

func era(b *build) wm.Program {
	return wm.Program{Threads: []wm.Thread{
		{Name: "core", Body: func(t *wm.T) {
			for e := range uint64(2) {
				if !b.takes("era made odd behind the words") {
					t.Add("era", 1, wm.Relaxed)
				}
				t.Store("epoch", e+1, b.at(0))
				t.Store("secret", e+1, b.at(0))
				if b.takes("era made odd behind the words") {
					t.Add("era", 1, wm.Relaxed)
				}
				t.Add("era", 1, b.at(1))
			}
		}},
		{Name: "hook", Body: func(t *wm.T) {
			before := t.Load("era", b.at(2))
			epoch, secret := t.Load("epoch", wm.Relaxed), t.Load("secret", wm.Relaxed)
			fence(t, b.at(3))
			ok := before&1 == 0 || b.takes("an odd era taken")
			if ok && !b.takes("era not loaded again") {
				ok = t.Load("era", wm.Relaxed) == before
			}
			t.Assert(!ok || epoch == secret, "epoch %d with secret %d", epoch, secret)
			t.Assert(!ok || epoch == before/2, "epoch %d in era %d", epoch, before)
		}},
	}}
}

func registry(b *build) wm.Program {
	return wm.Program{Threads: []wm.Thread{
		{Name: "adds", Body: func(t *wm.T) {
			t.Write("seat", 1)
			t.Store("use", 1*2+1, b.at(0))
			t.Await("gone", wm.Acquire, nonzero) // under the registry's lock: the step has let go of it
			t.Store("use", 2*2, wm.Relaxed)
			t.Write("seat", 2)
			t.Store("use", 2*2+1, b.at(0))
		}},
		{Name: "step", Body: func(t *wm.T) {
			met := func(handle uint64) bool {
				use := t.Load("use", b.at(1))
				if use&1 == 0 || use/2 != handle && !b.takes("the use not compared") {
					return false
				}
				engine := t.Read("seat")
				t.Assert(engine == handle, "handle %d names engine %d", handle, engine)
				return true
			}
			if met(1) {
				t.Store("gone", 1, wm.Release)
				met(2)
			} else if met(2) {
				t.Assert(false, "the second before the first")
			}
		}},
	}}
}

func inbox(b *build) wm.Program {
	const places = 2
	return wm.Program{Threads: []wm.Thread{
		{Name: "put", Body: func(t *wm.T) {
			head, room := uint64(0), uint64(places)
			if b.takes("one more than there is room for") {
				room++
			}
			for n := range uint64(4) {
				if head-t.Load("tail", b.at(3)) == room {
					continue // dropped, and counted
				}
				t.Write(word("entry", head%places), n+1)
				head++
				t.Store("head", head, b.at(0))
			}
		}},
		{Name: "take", Body: func(t *wm.T) {
			last := uint64(0)
			for tail := uint64(0); tail < 3; tail++ {
				t.Await("head", b.at(1), func(head uint64) bool { return head != tail })
				got := t.Read(word("entry", tail%places))
				t.Assert(got > last, "entry %d behind %d", got, last)
				last = got
				t.Store("tail", tail+1, b.at(2))
			}
		}},
	}}
}

// Of an expectation: states, and a bit said by the host.
const (
	expected = iota
	isGranted
	lapsed
	saidBit = 8
)

func expectation(b *build) wm.Program {
	decide := func(name, what string, state uint64) wm.Thread {
		return wm.Thread{Name: name, Body: func(t *wm.T) {
			if b.takes(what + " by a store") {
				if t.Load("state", wm.Relaxed) == expected {
					t.Store("state", state, wm.Relaxed)
					t.Note(what, 1)
				}
			} else if _, ok := t.CompareAndSwap("state", expected, state, wm.Relaxed, wm.Relaxed); ok {
				t.Note(what, 1)
			}
		}}
	}
	say := func(name string) wm.Thread {
		return wm.Thread{Name: name, Body: func(t *wm.T) {
			for seen := t.Load("state", wm.Relaxed); seen&saidBit == 0 && seen != lapsed; {
				if b.takes("a bit said by a store") {
					t.Store("state", seen|saidBit, wm.Relaxed)
					t.Note(name, 1)
					return
				}
				was, ok := t.CompareAndSwap("state", seen, seen|saidBit, wm.Relaxed, wm.Relaxed)
				if ok {
					t.Note(name, 1)
					return
				}
				seen = was
			}
		}}
	}
	return wm.Program{Threads: []wm.Thread{
		decide("host", "granted", isGranted), decide("core", "lapsed", lapsed), say("one"), say("two"),
	}, Final: func(f *wm.Final) error {
		if f.Notes["granted"]+f.Notes["lapsed"] > 1 {
			return errf("granted and lapsed")
		}
		if f.Notes["one"]+f.Notes["two"] > 1 {
			return errf("said twice")
		}
		if f.Notes["granted"] == 1 && f.Words["state"]&^saidBit != isGranted {
			return errf("a grant is lost: state %d", f.Words["state"])
		}
		return nil
	}}
}

func raise(b *build) wm.Program {
	raise := func(t *wm.T, v uint64) {
		if b.takes("stored, not raised") {
			t.Store("fence", v, wm.Relaxed)
			return
		}
		for old := t.Load("fence", wm.Relaxed); old < v; {
			if b.takes("looked at, then stored") {
				t.Store("fence", v, wm.Relaxed)
				return
			}
			was, ok := t.CompareAndSwap("fence", old, v, wm.Relaxed, wm.Relaxed)
			if ok {
				return
			}
			old = was
		}
	}
	return wm.Program{Threads: []wm.Thread{
		{Name: "core", Body: func(t *wm.T) { raise(t, 1); raise(t, 2) }},
		{Name: "fences all", Body: func(t *wm.T) { raise(t, 9) }},
		{Name: "reader", Body: func(t *wm.T) {
			first := t.Load("fence", wm.Relaxed)
			second := t.Load("fence", wm.Relaxed)
			t.Assert(second >= first, "%d behind %d", second, first)
		}},
	}, Final: func(f *wm.Final) error {
		if f.Words["fence"] != 9 {
			return errf("a closed row is open: %d", f.Words["fence"])
		}
		return nil
	}}
}
