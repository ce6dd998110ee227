package sim

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kvlease/kvlease/dataplane/record"
)

// Expectation is what has to be so in a run: one fact, at one kind of time.
type Expectation struct {
	// When. At: then. By: then, and not yet at After if that is said. Until: from From until then, all the time. Never: at no
	// time from From until then.
	At    *time.Duration `yaml:"at,omitempty"`
	By    *time.Duration `yaml:"by,omitempty"`
	After *time.Duration `yaml:"after,omitempty"`
	Until *time.Duration `yaml:"until,omitempty"`
	Never *time.Duration `yaml:"never,omitempty"`
	From  *time.Duration `yaml:"from,omitempty"`

	Engine string `yaml:"engine,omitempty"`
	Peer   string `yaml:"peer,omitempty"`

	// What of leases: all that are named.
	Held   names `yaml:"held,omitempty,flow"`   // granted, and the engine has not heard of an end
	Freed  names `yaml:"freed,omitempty,flow"`  // the engine has heard of the end
	Reason names `yaml:"reason,omitempty,flow"` // of Freed: one of these

	// What of requests at Engine: all that are named.
	Tracked names `yaml:"tracked,omitempty,flow"` // it beats for them
	Read    names `yaml:"read,omitempty,flow"`    // their reads have an outcome
	Outcome names `yaml:"outcome,omitempty,flow"` // of Read: one of these; bad is any but ok, none is no outcome yet
	Aside   names `yaml:"aside,omitempty,flow"`   // failed, and the blocks are set aside
	Back    names `yaml:"back,omitempty,flow"`    // failed, and the blocks are the engine's again
	Gone    names `yaml:"gone,omitempty,flow"`    // told that the lease is gone
	AtRisk  names `yaml:"at_risk,omitempty,flow"`

	// What is counted at Engine, from Since on.
	Counter string         `yaml:"counter,omitempty"` // a counter or gauge, see Counters
	Event   string         `yaml:"event,omitempty"`   // events of this kind that the engine polled, about Req if that is said
	Sent    string         `yaml:"sent,omitempty"`    // messages of this kind to Peer
	Refused string         `yaml:"refused,omitempty"` // actions of this kind that were refused, about Req if that is said
	Req     string         `yaml:"req,omitempty"`
	Since   *time.Duration `yaml:"since,omitempty"`
	Is      *int64         `yaml:"is,omitempty"`
	Least   *int64         `yaml:"least,omitempty"`
	Most    *int64         `yaml:"most,omitempty"`

	Shows []string `yaml:"shows,omitempty,flow"` // right lines of docs/faults.yaml
	Note  string   `yaml:"note,omitempty"`

	line int
}

// Line is where the expectation stands in its file.
func (x *Expectation) Line() int { return x.line }

const (
	outcomeBad  = "bad"
	outcomeNone = "none"
)

var eventNames = [...]string{
	record.EvFreed: "freed", record.EvReadDone: "read_done", record.EvReadFailed: "read_failed", record.EvBlocksBack: "blocks_back",
	record.EvLeaseGone: "lease_gone", record.EvAtRisk: "at_risk", record.EvEngineUp: "engine_up", record.EvEngineDown: "engine_down",
	record.EvPoisoned: "poisoned", record.EvExpectLapsed: "expect_lapsed", record.EvRankUp: "rank_up", record.EvRankDown: "rank_down",
	record.EvHostDown: "host_down", record.EvEngineDrains: "engine_drains",
}

func nameOf(list []string, n int) string {
	if n < 0 || n >= len(list) || list[n] == "" {
		return fmt.Sprint(n)
	}
	return list[n]
}

func known(list []string, more ...string) (out []string) {
	for _, n := range list {
		if n != "" {
			out = append(out, n)
		}
	}
	return append(out, more...)
}

// fact is one of the things that an expectation can be about.
type fact struct {
	key    string
	of     func(x *Expectation) bool
	engine bool // needs Engine
}

var facts = []fact{
	{"held", func(x *Expectation) bool { return x.Held != nil }, false},
	{"freed", func(x *Expectation) bool { return x.Freed != nil }, false},
	{"tracked", func(x *Expectation) bool { return x.Tracked != nil }, true},
	{"read", func(x *Expectation) bool { return x.Read != nil }, true},
	{"aside", func(x *Expectation) bool { return x.Aside != nil }, true},
	{"back", func(x *Expectation) bool { return x.Back != nil }, true},
	{"gone", func(x *Expectation) bool { return x.Gone != nil }, true},
	{"at_risk", func(x *Expectation) bool { return x.AtRisk != nil }, true},
	{"counter", func(x *Expectation) bool { return x.Counter != "" }, true},
	{"event", func(x *Expectation) bool { return x.Event != "" }, true},
	{"sent", func(x *Expectation) bool { return x.Sent != "" }, true},
	{"refused", func(x *Expectation) bool { return x.Refused != "" }, true},
}

// about gives the fact of an expectation: exactly one.
func (x *Expectation) about() (f fact, err error) {
	n := 0
	for _, k := range facts {
		if k.of(x) {
			f = k
			n++
		}
	}
	if n != 1 {
		var all []string
		for _, k := range facts {
			all = append(all, k.key)
		}
		return f, fmt.Errorf("an expectation is about one thing, this one is about %d: say one of %s", n, strings.Join(all, ", "))
	}
	return f, nil
}

func (x *Expectation) counts() bool {
	return x.Counter != "" || x.logged()
}

// logged reports that the log tells, and not the world.
func (x *Expectation) logged() bool { return x.Event != "" || x.Sent != "" || x.Refused != "" }

// check says what is wrong with an expectation.
func (x *Expectation) check(c *Case) error {
	f, err := x.about()
	if err != nil {
		return err
	}
	when := 0
	for _, t := range []*time.Duration{x.At, x.By, x.Until, x.Never} {
		if t != nil {
			when++
		}
	}
	var ids []string
	for _, e := range c.Engines {
		ids = append(ids, e.ID)
	}
	limit := 0
	for _, n := range []*int64{x.Is, x.Least, x.Most} {
		if n != nil {
			limit++
		}
	}
	switch {
	case when != 1:
		return fmt.Errorf("%s holds at one kind of time, this one has %d: say one of at, by, until, never", f.key, when)
	case x.After != nil && x.By == nil:
		return fmt.Errorf("after stands beside by only: it does not hold after that time, and does by the other")
	case x.After != nil && *x.After >= *x.By:
		return fmt.Errorf("after %v is not before by %v", *x.After, *x.By)
	case x.From != nil && x.Until == nil && x.Never == nil:
		return fmt.Errorf("from stands beside until or never only")
	case x.end() > c.Span:
		return fmt.Errorf("%v is behind the span, %v: make the span longer", x.end(), c.Span)
	case f.engine && x.Engine == "":
		return fmt.Errorf("%s at which engine? say engine: %s", f.key, strings.Join(ids, " or "))
	case x.Engine != "" && !slices.Contains(ids, x.Engine):
		return fmt.Errorf("there is no engine %q%s", x.Engine, instead(x.Engine, ids))
	case x.Peer != "" && !slices.Contains(ids, x.Peer):
		return fmt.Errorf("there is no engine %q%s", x.Peer, instead(x.Peer, ids))
	case x.Reason != nil && x.Freed == nil:
		return fmt.Errorf("reason stands beside freed only")
	case x.Outcome != nil && x.Read == nil:
		return fmt.Errorf("outcome stands beside read only")
	case x.Read != nil && x.Outcome == nil:
		return fmt.Errorf("with which outcome? say one of %s", strings.Join(known(readNames[:], outcomeBad, outcomeNone), ", "))
	case x.counts() && (limit == 0 || x.Is != nil && limit > 1):
		return fmt.Errorf("%s how often? say is, or least, or most, or the last two", f.key)
	case !x.counts() && limit > 0:
		return fmt.Errorf("is, least and most stand beside counter, event, sent and refused only")
	case x.Since != nil && !x.counts():
		return fmt.Errorf("since stands beside counter, event, sent and refused only")
	case x.Counter != "" && !slices.Contains(Counters(), x.Counter):
		return fmt.Errorf("there is no counter %q%s", x.Counter, instead(x.Counter, Counters()))
	case x.Refused != "" && !slices.Contains(verbNames(), x.Refused):
		return fmt.Errorf("%q is no action%s", x.Refused, instead(x.Refused, verbNames()))
	case x.Sent != "" && !slices.Contains(sentNames(), x.Sent):
		return fmt.Errorf("no message is called %q%s", x.Sent, instead(x.Sent, sentNames()))
	case x.Event != "" && !slices.Contains(eventNames[:], x.Event):
		return fmt.Errorf("there is no event %q%s", x.Event, instead(x.Event, known(eventNames[:])))
	}
	for _, r := range x.Reason {
		if !slices.Contains(known(freedNames[:]), r) {
			return fmt.Errorf("nothing is freed for the reason %q%s", r, instead(r, known(freedNames[:])))
		}
	}
	for _, o := range x.Outcome {
		if all := known(readNames[:], outcomeBad, outcomeNone); !slices.Contains(all, o) {
			return fmt.Errorf("no read has the outcome %q%s", o, instead(o, all))
		}
	}
	if err := x.checkCounter(c); err != nil {
		return err
	}
	return x.checkNames(c)
}

// checkCounter sees to it that the engine has the counter at all: another's is 0 whatever happens.
func (x *Expectation) checkCounter(c *Case) error {
	e := c.engine(x.Engine)
	switch {
	case x.Counter == "" || x.Counter == freeBlocks:
		return nil
	case e.Stock:
		return fmt.Errorf("engine %s is a stock one, which has no counter but %s", e.ID, freeBlocks)
	case strings.HasPrefix(x.Counter, hostPrefix) && !e.Host:
		return fmt.Errorf("engine %s has no host: its counters have no %s before them", e.ID, hostPrefix)
	}
	return nil
}

// checkNames sees to it that something of the names happens in the case at all.
func (x *Expectation) checkNames(c *Case) error {
	leases, tracks := map[string]bool{}, map[string]bool{}
	for _, a := range c.Actions {
		switch a.Do {
		case Expect, Grant:
			leases[a.Req] = true
		case Track:
			tracks[a.Engine+" "+a.request()] = true
		}
	}
	for _, list := range []names{x.Held, x.Freed} {
		for _, r := range list {
			if !leases[r] {
				return fmt.Errorf("nobody grants %q%s", r, instead(r, sortedKeys(leases)))
			}
		}
	}
	for _, list := range []names{x.Tracked, x.Read, x.Aside, x.Back, x.Gone, x.AtRisk} {
		for _, r := range list {
			if !tracks[x.Engine+" "+r] {
				return fmt.Errorf("engine %s tracks no %q: names are those of as, or of req where that is not said", x.Engine, r)
			}
		}
	}
	return nil
}

// end is the latest time that an expectation speaks of.
func (x *Expectation) end() time.Duration {
	for _, t := range []*time.Duration{x.At, x.By, x.Until, x.Never} {
		if t != nil {
			return *t
		}
	}
	return 0
}

// String is the expectation as it stands in a file, without what it shows.
func (x *Expectation) String() string {
	y := *x
	y.Shows, y.Note = nil, ""
	text, err := yaml.Marshal(nodeOf(reflect.ValueOf(y), 1))
	if err != nil {
		panic(err) // plain values only
	}
	return strings.Trim(string(text), "{}\n")
}
