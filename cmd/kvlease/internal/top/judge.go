package top

import (
	"fmt"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/pages"
	"github.com/kvlease/kvlease/internal/plural"
)

// judge finds how everything of a context stands, once its numbers are there.
func (e *Engine) judge() {
	e.State = e.state()
	for i := range e.Peers {
		e.Peers[i].judge(e)
	}
	sortPeers(e.Peers)
	e.Beat, e.Slack = nil, nil
	for i := range e.Peers {
		p := &e.Peers[i]
		if p.Leases == 0 || e.gone() {
			continue
		}
		if p.Beat != nil && (e.Beat == nil || *p.Beat > *e.Beat) {
			e.Beat = p.Beat
		}
		if p.Slack != nil && (e.Slack == nil || *p.Slack < *e.Slack) {
			e.Slack = p.Slack
		}
	}
	e.Level, e.Trouble = Fine, []string{}
	for _, t := range []struct {
		is    bool
		level Level
		text  string
	}{
		{e.State == Missing, Alarm, e.why},
		{e.State == Dead && e.busy(), Alarm, "its process has ended; these are its last numbers"},
		{e.State == Dead && !e.busy(), Note, "its process has ended; it held nothing and wanted nothing"},
		{e.State == Broken, Alarm, "poisoned: every row is closed, and all leases end"},
		{e.State == Stopped, Alarm, "its process is stopped by a signal"},
		{e.State == Still, Alarm, fmt.Sprintf("no step for %s", spanText(e.Age))},
		{e.State == Still && e.Untaken > 0, Note, pages.Untaken(e.Role, e.Untaken)},
		{e.State == Cut, Alarm, "no engine that it knows could be reached for one lease duration"},
		{e.RanksLost > 0 && !e.gone(), Alarm, plural.Counted(e.RanksLost, "rank is lost", "ranks are lost") + ": the engine has to be started again"},
		{e.hostless && !e.gone(), Alarm, "its host is lost: nothing new comes, and this process has to be ended"},
		{e.misfit && !e.gone(), Alarm, "its host has another kv_lease_duration: this rank takes nothing"},
		{e.bare && !e.asleep() && e.Age <= e.stillAfter() && e.Leases+e.Tracked > 0 && !e.gone(), Warn, "no memory is registered: nobody can read from it, and it reads nothing"},
		{e.asleep() && e.Leases > 0 && !e.gone(), Warn, "it was put to sleep, and has been given leases since: nobody can read them"},
		{e.State == Drains, Note, "it takes nothing new"},
		{e.Abandoned > 0, Warn, plural.Counted(e.Abandoned, "transfer", "transfers") + " may never end, and the blocks stay aside"},
		{e.Quarantine > 0, Warn, plural.Counted(e.Quarantine, "read is over whose blocks stay aside", "reads are over whose blocks stay aside")},
		{e.Late > 0, Note, plural.Counted(e.Late, "late stock read", "late stock reads") + ": it may have read blocks of another request"},
		{e.Stale > 0, Note, plural.Counted(e.Stale, "stale read was", "stale reads were") + " kept out"},
		{e.LogLost > 0, Note, plural.Counted(e.LogLost, "record of its log is", "records of its log are") + " lost: nobody takes them, or too seldom"},
		{e.Unproven > 0, Note, plural.Counted(e.Unproven, "read", "reads") + " could not be proven"},
	} {
		if t.is {
			e.Level, e.Trouble = max(e.Level, t.level), append(e.Trouble, t.text)
		}
	}
	if e.gone() {
		return // its peers have their own lines
	}
	for i := range e.Peers {
		p := &e.Peers[i]
		e.Level = max(e.Level, p.Level)
		if p.Level >= Warn && len(e.Trouble) < 8 {
			e.Trouble = append(e.Trouble, p.words())
		}
	}
}

// stillAfter is how long a context that has something to do may not step: its stall_gap unless that is set, and a pass may take a second.
func (e *Engine) stillAfter() time.Duration {
	return max(time.Second, e.Interval) + 250*time.Millisecond
}

// busy says whether it holds something, or wants something, or was told to. One that sleeps can do nothing about requests, and has given
// them up.
func (e *Engine) busy() bool {
	if e.asleep() {
		return e.Leases > 0
	}
	if e.calm { // what its host has said is no more than good to know
		return e.Leases+e.Expected+e.Tracked+e.Reads > 0
	}
	return e.Leases+e.Expected+e.Tracked+e.Reads+e.Untaken > 0
}

// calmRanks notes of which ranks the host holds and wants nothing: nobody waits for them. Of one whose host is elsewhere that is not known.
func calmRanks(list []*Engine) {
	wants := map[string]bool{}
	for _, e := range list {
		if e.Role == "host" && e.alive {
			wants[e.Hash] = wants[e.Hash] || e.Leases+e.Expected+e.Tracked+e.Reads > 0
		}
	}
	for _, e := range list {
		wanted, known := wants[e.Hash]
		e.calm = e.Role == "rank" && known && !wanted
	}
}

// asleep says that it was put to sleep: its memory, of a host that of all its ranks that live, was given up on purpose.
func (e *Engine) asleep() bool {
	if e.Role == "host" {
		return e.bare && e.slept > 0 && e.slept+int(e.RanksLost) >= e.Ranks
	}
	return e.bare && e.slept > 0
}

// gone says that what is known of it is over.
func (e *Engine) gone() bool { return e.State == Dead || e.State == Missing }

func (e *Engine) state() State {
	switch {
	case e.why != "":
		return Missing
	case !e.alive:
		return Dead
	case e.poisoned:
		return Broken
	case e.stopped:
		return Stopped
	case e.Age > e.stillAfter() && e.busy():
		return Still
	case e.sick && e.Age <= e.stillAfter(): // else it says how things stood at its last step, perhaps hours ago
		return Cut
	case e.draining:
		return Drains
	case e.asleep():
		return Sleeps
	case e.Age > e.stillAfter():
		return Idle
	}
	return Fit
}

// judge of a peer. What is left to a reader's leases is the least that its renewals found, or what is left since it was heard last:
// so the number falls while a reader is silent.
func (p *Peer) judge(e *Engine) {
	p.Slack, p.Level = nil, Fine
	if e.gone() {
		return // nobody waits for these leases any more
	}
	if p.Kind == Reads {
		p.judgeOwner(e)
		return
	}
	if p.Leases == 0 {
		p.State = "-"
		return
	}
	p.Slack = p.least
	left, known := time.Duration(0), false
	switch {
	case p.unnamed && p.Oldest != nil:
		left, known = e.Duration-*p.Oldest, true
	case p.Beat != nil:
		left, known = e.Extension-*p.Beat, true
		if p.Oldest != nil { // the first term of a young lease is longer
			left = max(left, e.Duration-*p.Oldest)
		}
	}
	// Far below zero, and without a renewal lately, they are held by something else: a fixed life, or a longer first term.
	if known && (left > -e.Extension-time.Second || p.least != nil) && (p.Slack == nil || left < *p.Slack) {
		p.Slack = &left
	}
	switch {
	case p.unnamed:
		p.State = "unnamed"
	case e.Age > e.stillAfter(): // what it sends waits for a step of ours
		p.State = unheard
	case p.Beat != nil && *p.Beat > 2*e.Interval:
		p.State, p.Level = "silent", Warn
	default:
		p.State = "beats"
	}
	if p.Slack != nil && !p.unnamed {
		switch {
		case *p.Slack < e.Interval:
			p.Level = Alarm
		case *p.Slack < 2*e.Interval:
			p.Level = max(p.Level, Warn)
		}
	} else if p.unnamed && p.Slack != nil && *p.Slack < e.Interval {
		p.Level = Warn // nobody has come for them
	}
}

// unheard is the state of a reader whose owner makes no steps: nothing tells whether it beats.
const unheard = "unheard"

// States of an engine that is read from, beside those of the connection: what a step takes for one that nobody has asked.
const (
	asking  = "asking"  // no handshake yet
	failing = "failing" // handshakes fail
	unfit   = "unfit"   // it has answered, and does not fit
	byHost  = "by host" // of a rank, whose host asks for it: its page does not know how that stands
)

func (p *Peer) judgeOwner(e *Engine) {
	if e.asleep() {
		return // it is not its peers that are away, and what it tracked it has given up
	}
	rests := e.Age > e.stillAfter() // the state of the connection is that of the last step, and handshakes go on without one
	if p.State == "idle" || p.State == "connected" && rests {
		switch {
		case p.AskFails > 0 && p.AskWhy == "incompatible":
			p.State = unfit
		case p.AskFails > 0:
			p.State = failing
		case p.State == "idle" && (p.Asked == "queued" || p.Asked == "fetching"):
			p.State = asking
		case p.State == "idle" && e.ofRank:
			p.State = byHost
		}
	}
	fails := p.Missed && p.State == "connected" && !rests // its other ranks are heard, or its heartbeats are, and reads end badly
	p.partly = fails && p.Leases+p.Reads == 0
	switch {
	case p.Leases+p.Reads == 0:
		if fails {
			p.Level = Warn
		} else if p.State != "connected" && p.State != "idle" && p.State != asking && p.State != byHost {
			if p.Level = Note; p.Missed || e.State == Cut { // what it is asked for is lost at once, so that nothing stays tracked there
				p.Level = Warn
			}
		}
	case p.State == "broken":
		p.Level = Alarm
	case p.State != "connected":
		p.Level = Warn
	case p.Fails > 0, p.Heard != nil && *p.Heard > 4*e.Interval, p.Beat != nil && *p.Beat > 2*e.Interval:
		p.Level = Warn
	case fails:
		p.Level, p.partly = Warn, true
	}
}

// words say what is wrong with a peer.
func (p *Peer) words() string {
	leases, owner := plural.Counted(p.Leases, "lease", "leases"), p.Name
	if p.Leases > 0 {
		owner += ", which has blocks of " + plural.Counted(p.Leases, "tracked request", "tracked requests") + ","
	}
	switch {
	case p.Kind == Reads && p.State == unfit:
		return fmt.Sprintf("%s does not fit this engine: handshake_misfit in its log", owner)
	case p.Kind == Reads && p.State == failing:
		return fmt.Sprintf("%s cannot be asked: %s", owner, p.asked())
	case p.Kind == Reads && p.State == byHost:
		return fmt.Sprintf("%s is not connected: the host of this rank asks it", owner)
	case p.Kind == Reads && p.State != "connected" && p.AskFails > 0:
		return fmt.Sprintf("%s is %s and cannot be asked: %s", owner, p.State, p.asked())
	case p.Kind == Reads && p.State != "connected":
		return fmt.Sprintf("%s is %s", owner, p.State)
	case p.Kind == Reads && p.Fails > 0:
		return fmt.Sprintf("%s fails", owner)
	case p.Kind == Reads && p.partly:
		return fmt.Sprintf("%s fails: a rank of it is not heard, or reads from it bring nothing", owner)
	case p.Kind == Reads:
		return fmt.Sprintf("%s has not been heard lately", owner)
	case p.unnamed:
		return fmt.Sprintf("nobody has come for %s", leases)
	case p.Slack != nil && p.State == unheard && *p.Slack < 0:
		return fmt.Sprintf("%s cannot be heard without a step, and the deadline of %s has passed", p.Name, leases)
	case p.Slack != nil && p.State == unheard:
		return fmt.Sprintf("%s cannot be heard without a step: %s left to %s", p.Name, spanText(*p.Slack), leases)
	case p.Slack != nil && *p.Slack < 0:
		return fmt.Sprintf("%s has let %s run out", p.Name, leases)
	case p.Slack != nil:
		return fmt.Sprintf("%s: %s left to %s", p.Name, spanText(*p.Slack), leases)
	}
	return fmt.Sprintf("%s is silent", p.Name)
}

// asked says how often asking an engine for its maps has failed, and why.
func (p *Peer) asked() string {
	s := plural.Counted(p.AskFails, "handshake has failed", "handshakes have failed")
	if p.AskSince != nil {
		s += " in " + spanText(*p.AskSince)
	}
	return s + " (" + p.AskWhy + ")"
}
