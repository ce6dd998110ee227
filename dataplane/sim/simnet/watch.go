package simnet

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Sent is a notification that is being posted. It is valid during the call.
type Sent struct {
	From, To string
	Body     []byte
	Attached bool // rides on a read
}

// Fate is what becomes of a notification beside what its link does to it.
type Fate struct {
	Lose   bool
	Delay  time.Duration
	Copies int
}

// Posted is a read that is being posted. It is valid during the call.
type Posted struct {
	From, To string
	Spec     *transport.ReadSpec
}

// ReadFate is what becomes of a read beside what its link does to it.
type ReadFate struct {
	Fail  bool    // it reports an error while its pieces go on
	After float64 // when this part of its pieces has landed, 0 to 1
	Delay time.Duration
}

// Write is one piece of a read that has just been copied. It is valid during the call.
type Write struct {
	At                   clock.Instant
	Reader, Owner        string
	Local, Remote, Bytes uint64
	Late                 bool // of a read that had been reported failed
}

// Intercept sets a function that decides about each notification. nil: none.
func (n *Net) Intercept(f func(*Sent) Fate) { n.intercept = f }

// InterceptReads sets a function that decides about each read. nil: none.
func (n *Net) InterceptReads(f func(*Posted) ReadFate) { n.interceptRead = f }

// OnWrite sets a function that sees every piece that lands. nil: none.
func (n *Net) OnWrite(f func(*Write)) { n.onWrite = f }

// EventKind says what an Event is.
type EventKind uint8

const (
	EvSent    EventKind = iota // a notification was posted
	EvLost                     // one will not arrive
	EvArrived                  // one can be polled
	EvPosted                   // a read was posted
	EvLanded                   // its last byte is there
	EvFailed                   // it reports an error
	EvBroken                   // a connection is lost
)

// String is a word for the kind.
func (k EventKind) String() string {
	return [...]string{"sent", "lost", "arrived", "posted", "landed", "failed", "broken"}[k]
}

// Event is one thing that happened, for logs. It is valid during the call.
type Event struct {
	At       clock.Instant
	Kind     EventKind
	From, To string
	Bytes    int
}

// Watch sets a function that hears of everything. nil: none.
func (n *Net) Watch(f func(*Event)) { n.watch = f }

func (n *Net) tell(kind EventKind, c *conn, bytes int) {
	if n.watch == nil {
		return
	}
	n.event = Event{At: n.now, Kind: kind, From: n.text(c.from), To: n.toText(c), Bytes: bytes}
	n.watch(&n.event)
}

func (n *Net) text(agent int32) string { return n.named[n.agents[agent].name].text }

func (n *Net) toText(c *conn) string {
	if c.to == none {
		return ""
	}
	return n.text(c.to)
}

// MayWrite reports whether a read of this agent may still write into n bytes at addr, whatever became of its handle. Where
// there are only sizes nothing is written.
func (a *Agent) MayWrite(addr, n uint64) bool {
	for i := range a.net.reads.items {
		r := &a.net.reads.items[i]
		if !r.live || r.reader != a.index || r.phase == landed || r.phase == ended {
			continue
		}
		for k := int64(r.step) * int64(r.pieces) / int64(max(r.steps, 1)); k < int64(r.pieces); k++ {
			d, from, to := r.rangeOf(r.pieceAt(int32(k)))
			if d.Local+from < addr+n && addr < d.Local+to {
				return true
			}
		}
	}
	return false
}

// Queued is the number of notifications that have arrived at this agent and wait to be polled.
func (a *Agent) Queued() int { return a.queued }

// Open counts what is under way: notifications on their way or not polled, reads whose handle is not released or which may still
// land, and connections.
func (n *Net) Open() (notifs, reads, conns int) {
	return n.msgs.inUse(), n.reads.inUse(), n.conns.inUse()
}
