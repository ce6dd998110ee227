package dataplane

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// entriesStepMax bounds the requests named by the messages of one step: a message of 4 MiB can name two millions.
// Vllm's largest honest heartbeats name some ten thousand.
const entriesStepMax = 1 << 15

// message is the notification that is being applied. A long one goes on in the next step; its bytes stay in the inbox,
// which is only filled further, and emptied when its last message is done.
type message struct {
	open    bool
	native  bool
	head    wire.Header
	entries []byte
	at      int

	stock    wire.Stock
	agent    []byte
	ids      wire.IDs
	rejoined bool // ids walks runs of neighbours

	before uint64 // beats applied before it
	named  uint64 // beats received before it
	beats  bool   // it has heartbeats, and is not through
	number uint32 // native: in its flags; stock: counted here
	sender uint64 // stock: wire.EngineHash of the agent's name
}

// receive applies what has arrived, at most notifs_step_max messages and entriesStepMax entries; the rest waits.
func (p *Plane) receive(now clock.Instant) {
	if !p.msg.open && p.inbox.Len() == 0 {
		p.inbox.Reset()
	}
	// In each step, also behind a message that takes several: a second look must know of what has arrived by then (L8).
	n := uint64(p.tr.Poll(p.inbox))
	p.polled += n
	waiting := uint64(p.tr.Backlog())
	p.arrived = max(p.arrived, p.polled+waiting)
	if !p.msg.open && p.inbox.Len() == 0 && waiting == 0 {
		p.polled, p.applied = p.arrived, p.arrived // what was dropped unread, as too long, must not be waited for
	}
	p.Counters.NotifsReceived += n
	p.Counters.NotifsTooLong = p.inbox.TooLong
	for left := entriesStepMax; left > 0; {
		if !p.msg.open {
			agent, body, ok := p.inbox.Next()
			if !ok {
				return
			}
			left--
			p.start(agent, body)
		}
		if p.msg.open {
			left = p.goOn(left, now)
		}
		if !p.msg.open {
			p.applied++
			p.traceExtended() // nothing, if it was no heartbeat
		}
	}
	if p.msg.open || p.inbox.Len() > 0 {
		p.Counters.EntriesCut++
	}
}

// start looks at a notification. What is to be applied is left open in p.msg.
func (p *Plane) start(agent, body []byte) {
	if len(body) > 0 && body[0] == wire.NativeMagic {
		p.startNative(agent, body)
	} else {
		p.startStock(agent, body)
	}
}

// startNative takes a message of a peer that speaks kvlease. Entries with a wrong key are counted by the table.
func (p *Plane) startNative(agent, body []byte) {
	head, entries, st := wire.ParseNative(body)
	switch st {
	case wire.OK:
	case wire.BadVersion, wire.BadKind, wire.BadFlags:
		p.Counters.UnknownKinds++
		p.say(log.MessageUnknown, agent, uint64(len(body)))
		return
	default:
		p.Counters.MalformedNative++
		p.say(log.MessageMalformed, agent, uint64(len(body)))
		return
	}
	switch head.Kind {
	case wire.Hello:
		p.hello(&head, entries)
		return
	case wire.Leaving:
		p.leaving(&head)
		return
	case wire.Renew:
		p.Counters.BatchesReceived++
		p.Counters.BeatsReceived += uint64(head.Count)
	case wire.Complete:
		p.Counters.CompletesReceived += uint64(head.Count)
	case wire.Release:
		p.Counters.ReleasesReceived += uint64(head.Count)
	}
	p.Times.Entries.ObserveCount(int(head.Count))
	p.msg = message{open: true, native: true, agent: agent, head: head, entries: entries, before: p.Counters.BeatsApplied, number: uint32(head.Number()), beats: head.Kind == wire.Renew}
	p.traceSeen()
}

// startStock takes a message of vLLM's connector.
func (p *Plane) startStock(agent, body []byte) {
	p.Counters.StockReceived++
	if !p.cfg.StockPeers {
		p.Counters.StockIgnored++
		p.say(log.StockIgnored, agent, 0)
		return
	}
	msg, st := wire.ParseStock(body)
	switch {
	case st != wire.OK:
		p.Counters.MalformedStock++
		p.say(log.MessageMalformed, agent, uint64(len(body)))
		return
	case msg.Kind == wire.PushReg:
		p.Counters.PushRegs++
		p.say(log.PushRegistration, agent, 0)
		return
	case msg.Kind == wire.Completion:
		p.Counters.CompletesReceived++
	case msg.Kind == wire.Heartbeat:
		p.Counters.BatchesReceived++
	}
	p.msg = message{open: true, stock: msg, agent: agent, ids: wire.NewIDs(msg.Body, 1), before: p.Counters.BeatsApplied, named: p.Counters.BeatsReceived}
	if msg.Kind == wire.Heartbeat && p.cfg.Sites != nil {
		p.msg.beats, p.msg.sender = true, wire.EngineHash(agent)
		p.msg.number = p.numbers.next(p.msg.sender)
		p.traceSeen()
	}
}

// goOn applies at most about left entries of the open message and tells how many may still be applied in this step.
func (p *Plane) goOn(left int, now clock.Instant) int {
	switch m := &p.msg; {
	case m.native:
		return p.entriesOn(left, now)
	case m.stock.Kind == wire.Completion:
		p.Leases.CompleteID(m.stock.ID, m.agent, uint32(m.stock.N), now)
		m.open = false
		return left
	case m.rejoined:
		return p.rejoinOn(left, now)
	}
	return p.idsOn(left, now)
}

func (p *Plane) entriesOn(left int, now clock.Instant) int {
	m := &p.msg
	reader := lease.Reader{Engine: m.head.Engine, Epoch: m.head.Epoch, Rank: m.head.Rank}
	p.Leases.From(m.agent)
	for left > 0 && m.at < int(m.head.Count) {
		n := min(batch, int(m.head.Count)-m.at)
		for i := range n {
			slot, generation, key := wire.Entry(m.entries, m.at+i)
			p.entries[i] = lease.Entry{Slot: slot, Generation: generation, Key: key}
		}
		m.at += n
		left -= n
		switch m.head.Kind {
		case wire.Renew:
			p.Leases.RenewEntries(p.entries[:n], reader, now, p.outcomes[:n])
			p.countNamed(n)
		case wire.Complete:
			for i, e := range p.entries[:n] {
				p.outcomes[i] = p.Leases.Complete(e, reader, m.head.Readers, now)
			}
		case wire.Release:
			for i, e := range p.entries[:n] {
				p.outcomes[i] = p.Leases.Release(e, reader, now)
			}
		}
		p.sayKeys(n)
	}
	m.open = m.at < int(m.head.Count)
	return left
}

// say says something about a message.
func (p *Plane) say(k log.Kind, agent []byte, a uint64) {
	p.cfg.Log.Put(k, p.last, log.Entry{Agent: agent, A: a})
}

// sayKeys says of entries whose outcomes have just been written which had a wrong key.
func (p *Plane) sayKeys(n int) {
	for i, out := range p.outcomes[:n] {
		if out == lease.BadKey {
			p.cfg.Log.Put(log.KeyWrong, p.last, log.Entry{Hash: p.msg.head.Engine, A: uint64(p.entries[i].Slot)})
		}
	}
}

// idsOn extends the elements of a stock heartbeat. Elements that are no ids count as those that are.
func (p *Plane) idsOn(left int, now clock.Instant) int {
	for left > 0 {
		n, more := p.msg.ids.Fill(p.ids[:])
		left -= len(p.ids)
		p.Counters.BeatsReceived += uint64(n)
		p.Counters.BeatsApplied += uint64(p.Leases.RenewIDs(p.ids[:n], p.msg.agent, now, nil))
		if !more {
			p.idsEnd(now)
			break
		}
	}
	clear(p.ids[:]) // they point into the inbox
	return left
}

// idsEnd decides what follows the elements. Ids with commas were listed in pieces, so neighbours are looked up together
// while the table holds such ids.
func (p *Plane) idsEnd(now clock.Instant) {
	m := &p.msg
	if p.Leases.CommaIDs() > 0 {
		m.rejoined, m.ids = true, wire.NewIDs(m.stock.Body, wire.RunMax)
		return
	}
	p.heartbeatEnd(now)
}

// rejoinOn looks for ids with commas: runs of two and three neighbours. Most are no id, and nothing is counted of those.
func (p *Plane) rejoinOn(left int, now clock.Instant) int {
	for ; left > 0; left-- {
		id, alone, ok := p.msg.ids.Next()
		if !ok {
			p.heartbeatEnd(now)
			break
		}
		if !alone && named(p.Leases.TryID(id, p.msg.agent, now)) {
			p.Counters.BeatsApplied++
		}
	}
	return left
}

// heartbeatEnd closes a stock heartbeat. If it named nothing, and its bytes are at the same time the completion of an id
// that starts with "HB:" (S05), it is that.
func (p *Plane) heartbeatEnd(now clock.Instant) {
	m := &p.msg
	m.open = false
	p.Times.Entries.ObserveCount(int(p.Counters.BeatsReceived - m.named))
	if p.Counters.BeatsApplied == m.before && len(m.stock.ID) > 0 {
		p.Leases.CompleteID(m.stock.ID, m.agent, uint32(m.stock.N), now)
	}
}

// countNamed counts the outcomes of a batch that named a lease or an expected request.
func (p *Plane) countNamed(n int) {
	for _, out := range p.outcomes[:n] {
		if named(out) {
			p.Counters.BeatsApplied++
		}
	}
}

func named(out lease.Outcome) bool { return out == lease.Applied || out == lease.Kept }
