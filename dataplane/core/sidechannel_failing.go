package core

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/log"
)

// failingMax bounds the engines that kvl_stats tells by name.
const failingMax = 16

// failing tells of each engine that cannot be asked or used what is wrong with it, and for how long; the oldest first. One line
// each, for people.
func (s *sideChannel) failing() []string {
	type trouble struct {
		since time.Time
		text  string
	}
	var all []trouble
	for _, e := range s.client.Engines(nil) {
		if e.Err != nil {
			all = append(all, trouble{e.Failing, fmt.Sprintf("engine %q: %.400s (%d in a row)", e.ID, e.Err.Error(), e.Failures)})
		}
	}
	s.mu.Lock()
	for _, p := range s.peers {
		if p.unfit != nil {
			all = append(all, trouble{p.unfitAt, fmt.Sprintf("engine %q at %s: %.400s", p.id, p.addr, p.unfit.Error())})
		}
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b trouble) int { return a.since.Compare(b.since) })
	out := make([]string, 0, min(len(all), failingMax))
	for _, t := range all[:min(len(all), failingMax)] {
		out = append(out, fmt.Sprintf("%s, for %.0f s", t.text, time.Since(t.since).Seconds()))
	}
	return out
}

// unsure reports that it is too early for a line about a handshake that failed: the engine was met before, and its wire has still to say
// whether it is closed, sleeps or has died, which says more. The results' goroutine.
func (s *sideChannel) unsure(p *sidePeer, r handshake.Result) bool {
	return s.owners != nil && p.epoch != 0 && (s.owners.InGrace(p.engine) || time.Since(r.Failing) < s.cfg.wordWait())
}

// misfit ends what is tracked at an engine that does not fit this one. Nothing better will be heard until it is another, so nobody
// waits for it; a minute later it is asked again.
func (s *sideChannel) misfit(p *sidePeer, why error) {
	s.say(log.HandshakeMisfit, p, 0, why.Error())
	s.mu.Lock()
	p.misfit = true
	s.mu.Unlock()
	s.n.misfits.Add(1)
	s.sink.EngineOver(p.engine, heartbeat.Misfits)
}

// say says something about a peer.
func (s *sideChannel) say(k log.Kind, p *sidePeer, a uint64, text string) {
	s.log.Put(k, s.now(), log.Entry{Engine: p.id, Hash: p.hash, A: a, Text: text})
}

// idOf is the id of the peer with this hash, "": there is none.
func (s *sideChannel) idOf(hash uint64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		if p.hash == hash {
			return p.id
		}
	}
	return ""
}

// dropMisfits ends what was tracked at engines since they were found not to fit.
func (s *sideChannel) dropMisfits() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		if p.misfit && p.wanted && s.watch.of(p.engine)&seenTracked != 0 {
			s.sink.EngineOver(p.engine, heartbeat.Misfits)
		}
	}
}
