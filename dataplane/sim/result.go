package sim

import (
	"fmt"
	"io"
	"time"
)

// Rule names what a violation breaks: L1 to L12, and those below.
type Rule string

// Rules beside those of a lease.
const (
	WrongData Rule = "data"   // data was accepted that is not what was granted
	OneEnd    Rule = "ends"   // something ended twice, or an end of nothing was told
	Aside     Rule = "aside"  // a block was given out while a transfer may write it
	Leak      Rule = "leak"   // something was left at the end
	Live      Rule = "live"   // when all faults were over, engines did not serve each other any more
	Broken    Rule = "broken" // a step panicked, or a call failed that may not
)

// Violation is a broken rule.
type Violation struct {
	Rule   Rule
	At     time.Duration
	Engine string
	Req    string
	What   string
}

func (v Violation) String() string {
	return fmt.Sprintf("%s at %v: engine %s, request %q: %s", v.Rule, v.At, v.Engine, v.Req, v.What)
}

// Kind is what an Entry of the log tells.
type Kind uint8

const (
	Acted    Kind = iota // an action was carried out; What: how it went, if it was refused
	Told                 // an event that the engine polled
	Sent                 // a notification left
	Arrived              // it arrived
	Vanished             // it will not
	Posted               // a read was posted
	Landed               // its last block landed
	Engines              // an engine's process, connection or side channel changed
	Broke                // a rule was broken
)

func (k Kind) String() string {
	return [...]string{"act", "event", "sent", "arrived", "vanished", "posted", "landed", "engine", "BROKEN"}[k]
}

// Entry is one line of a run's log.
type Entry struct {
	At     time.Duration
	Kind   Kind
	Engine string
	Rank   int    // -1: the engine as a whole
	Peer   string // the other engine, if one is concerned
	Req    string // "": none
	Event  uint16 // of Told: record.Ev*
	Status int    // of Told: reason or status
	What   string
}

// Log is what happened, in order.
type Log []Entry

// WriteTo writes a line per entry.
func (l Log) WriteTo(w io.Writer) (int64, error) {
	total := int64(0)
	for i := range l {
		n, err := fmt.Fprintln(w, l[i].String())
		if total += int64(n); err != nil {
			return total, err
		}
	}
	return total, nil
}

func (e *Entry) String() string {
	who := e.Engine
	if e.Rank >= 0 {
		who = fmt.Sprintf("%s.%d", e.Engine, e.Rank)
	}
	if e.Peer != "" {
		who += " > " + e.Peer
	}
	req := ""
	if e.Req != "" {
		req = " " + e.Req
	}
	return fmt.Sprintf("%12.6f %-8s %-12s%s: %s", e.At.Seconds(), e.Kind, who, req, e.What)
}

// Result is what came of a run.
type Result struct {
	Violations []Violation // the first of them is what broke; at most violationsMax are kept
	Done       int         // reads whose data was accepted
	Failed     [8]int      // reads that were not, by record.Read*
	Freed      [16]int     // leases that ended, by record.Freed*
	Granted    int
	Compared   int // blocks of accepted reads that were compared
	StockWrong int // reads of stock owners, or by stock readers, that were accepted wrong: nothing proves those
	Steps      int
	Log        Log // nil unless Options.Log
}

const violationsMax = 16

// OK reports that no rule was broken.
func (r *Result) OK() bool { return len(r.Violations) == 0 }

// add sums up runs.
func (r *Result) add(o *Result) {
	r.Done += o.Done
	r.Granted += o.Granted
	r.Compared += o.Compared
	r.StockWrong += o.StockWrong
	r.Steps += o.Steps
	for i := range r.Failed {
		r.Failed[i] += o.Failed[i]
	}
	for i := range r.Freed {
		r.Freed[i] += o.Freed[i]
	}
}
