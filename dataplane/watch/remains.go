package watch

import (
	"github.com/kvlease/kvlease/dataplane/clock"
)

// Remains says how long the pages of dead processes are shown: for ten minutes. Files stay until the next context of their user opens,
// which may be never. A process that was seen alive is gone from when it was not any more, since one with nothing to do does not write
// its page; of others the last step tells.
//
// Threads: one at a time.
type Remains struct {
	now  func() clock.Instant
	died map[remainsKey]clock.Instant // 0: it lives
	seen map[remainsKey]bool          // since Begin
}

// remainsKey tells contexts apart that had one name after the other.
type remainsKey struct {
	path   string
	opened clock.Instant
}

// NewRemains has seen nobody.
func NewRemains() *Remains {
	return &Remains{now: now, died: map[remainsKey]clock.Instant{}, seen: map[remainsKey]bool{}}
}

// Begin begins a look at all pages, and forgets what the look before has not found.
func (r *Remains) Begin() {
	for key := range r.died {
		if !r.seen[key] {
			delete(r.died, key)
		}
	}
	clear(r.seen)
}

// Shown reports whether a page is still to be shown.
func (r *Remains) Shown(path string, s *Snapshot) bool {
	key := remainsKey{path, s.Opened}
	r.seen[key] = true
	if s.Alive {
		r.died[key] = 0
		return true
	}
	at, known := r.died[key]
	switch {
	case !known:
		at = s.Stepped
	case at == 0:
		at = r.now()
	}
	r.died[key] = at
	return r.now().Sub(at) <= deadKept
}
