package dump

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/pages"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/internal/jsons"
)

// Lease is a slot of the lease table that is in use.
type Lease struct {
	Slot  uint32 `json:"slot"`
	Use   uint32 `json:"use"`
	State string `json:"state"` // submitted, expected, held, due, lingers, lapsed, ended

	ID     string `json:"id,omitempty"`
	IDHash string `json:"id_hash,omitempty"`
	User   string `json:"user,omitempty"` // the engine's own number, in hex digits

	Reader     string             `json:"reader,omitempty"`
	ReaderHash string             `json:"reader_hash,omitempty"`
	SlackNs    *int64             `json:"slack_ns,omitempty"` // until the deadline; absent: it has passed, or is not known
	AgeNs      *int64             `json:"age_ns,omitempty"`   // since the grant; of an ended one how long it was held
	Blocks     uint32             `json:"blocks"`
	Beats      uint32             `json:"beats"`
	Reason     string             `json:"reason,omitempty"` // of an end that the engine has still to be told
	Marks      jsons.List[string] `json:"marks"`
	Torn       bool               `json:"torn,omitempty"` // it changed with every look: its parts may be of different moments

	idLen    int
	age      time.Duration
	deadline clock.Instant
	lookedAt bool
	stock    bool
	account  int
}

func hex(v uint64) string { return fmt.Sprintf("%x", v) }

// settle makes times of instants.
func (l *Lease) settle(now clock.Instant) {
	if l.age > 0 {
		ns := int64(l.age)
		l.AgeNs = &ns
	}
	switch left := int64(l.deadline.Sub(now)); {
	case l.State == "held" && (l.lookedAt || l.deadline != 0 && left < 0):
		l.State = "due" // it ends unless a heartbeat comes at once
	case l.State == "held" || l.State == "expected":
		if l.deadline != 0 {
			l.SlackNs = &left
		}
	}
}

// read names the reader that a lease counts for.
func (l *Lease) read(readers map[int]*watch.Reader, names *pages.Names) {
	r := readers[l.account]
	if r == nil || l.State == "submitted" || l.State == "ended" {
		return
	}
	l.Reader, l.ReaderHash = names.Reader(r), wire.HashText(r.Hash)
}

// hash adds that of the id, and may take the id away. Of an id that could not be read there is none.
func (l *Lease) hash(only bool) {
	if l.ID != "" {
		l.IDHash = wire.HashText(wire.EngineHash([]byte(l.ID)))
	}
	if only {
		l.ID = ""
	}
}

// rank is the order of what asks for a look: nearest to its end first, what holds nothing last.
func (l *Lease) rank() int {
	switch l.State {
	case "due", "lingers":
		return 0
	case "held":
		return 1
	case "ended":
		return 2
	case "submitted":
		return 3
	}
	return 4
}

func sortLeases(list []Lease) {
	slices.SortStableFunc(list, func(a, b Lease) int {
		if c := cmp.Compare(a.rank(), b.rank()); c != 0 {
			return c
		}
		switch {
		case a.SlackNs != nil && b.SlackNs != nil:
			return cmp.Compare(*a.SlackNs, *b.SlackNs)
		case a.SlackNs != nil:
			return -1
		case b.SlackNs != nil:
			return 1
		}
		return cmp.Compare(a.Slot, b.Slot)
	})
}
