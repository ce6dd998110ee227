package dataplane

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// receive applies what has arrived, at most notifs_step_max; the transport keeps the rest.
func (p *Plane) receive(now clock.Instant) {
	p.inbox.Reset()
	n := p.tr.Poll(p.inbox)
	p.applied += uint64(n)
	p.arrived = p.applied + uint64(p.tr.Backlog())
	p.Counters.NotifsReceived += uint64(n)
	p.Counters.NotifsTooLong = p.inbox.TooLong
	for {
		agent, body, ok := p.inbox.Next()
		if !ok {
			return
		}
		if len(body) > 0 && body[0] == wire.NativeMagic {
			p.native(body, now)
		} else {
			p.stock(agent, body, now)
		}
	}
}

// native applies a message of a peer that speaks kvlease. Entries with a wrong key are counted by the table.
func (p *Plane) native(body []byte, now clock.Instant) {
	head, entries, st := wire.ParseNative(body)
	switch st {
	case wire.OK:
	case wire.BadVersion, wire.BadKind, wire.BadFlags:
		p.Counters.UnknownKinds++
		return
	default:
		p.Counters.MalformedNative++
		return
	}
	reader := lease.Reader{Engine: head.Engine, Epoch: head.Epoch, Rank: head.Rank}
	switch head.Kind {
	case wire.Renew:
		p.Counters.BatchesReceived++
		p.Counters.BeatsReceived += uint64(head.Count)
		for at := 0; at < int(head.Count); at += batch {
			n := min(batch, int(head.Count)-at)
			for i := range n {
				p.entries[i] = entry(entries, at+i)
			}
			p.Leases.RenewEntries(p.entries[:n], reader, now, p.outcomes[:n])
			p.countNamed(n)
		}
	case wire.Complete:
		p.Counters.CompletesReceived += uint64(head.Count)
		for i := range int(head.Count) {
			p.Leases.Complete(entry(entries, i), reader, head.Readers, now)
		}
	case wire.Release:
		p.Counters.ReleasesReceived += uint64(head.Count)
		for i := range int(head.Count) {
			p.Leases.Release(entry(entries, i), reader, now)
		}
	case wire.Hello:
		p.Counters.HellosReceived++
	case wire.Leaving:
		p.Counters.LeavingsReceived++
	}
}

func entry(entries []byte, i int) lease.Entry {
	slot, generation, key := wire.Entry(entries, i)
	return lease.Entry{Slot: slot, Generation: generation, Key: key}
}

// countNamed counts the outcomes of a batch that named a lease or an expected request.
func (p *Plane) countNamed(n int) {
	for _, out := range p.outcomes[:n] {
		if named(out) {
			p.Counters.BeatsApplied++
		}
	}
}

// rejoined looks for ids with commas, whose elements were listed one by one: runs of two and three neighbours. Most are
// no id, and nothing is counted of those.
func (p *Plane) rejoined(msg *wire.Stock, now clock.Instant) {
	ids := wire.NewIDs(msg.Body, wire.RunMax)
	for {
		id, alone, ok := ids.Next()
		if !ok {
			return
		}
		if !alone && named(p.Leases.TryID(id, now)) {
			p.Counters.BeatsApplied++
		}
	}
}

func named(out lease.Outcome) bool { return out == lease.Applied || out == lease.Kept }

// stock applies a message of vLLM's connector.
func (p *Plane) stock(agent, body []byte, now clock.Instant) {
	p.Counters.StockReceived++
	if !p.cfg.StockPeers {
		p.Counters.StockIgnored++
		return
	}
	msg, st := wire.ParseStock(body)
	if st != wire.OK {
		p.Counters.MalformedStock++
		return
	}
	switch msg.Kind {
	case wire.PushReg:
		p.Counters.PushRegs++
	case wire.Completion:
		p.Counters.CompletesReceived++
		p.Leases.CompleteID(msg.ID, agent, uint32(msg.N), now)
	case wire.Heartbeat:
		p.heartbeat(&msg, agent, now)
	}
}

// heartbeat extends every lease that can be read in a stock heartbeat. If none can, and the message is at the same time
// the completion of an id that starts with "HB:" (S05), it is that.
func (p *Plane) heartbeat(msg *wire.Stock, agent []byte, now clock.Instant) {
	p.Counters.BatchesReceived++
	before := p.Counters.BeatsApplied
	ids := wire.NewIDs(msg.Body, 1)
	for {
		n := ids.Fill(p.ids[:])
		if n == 0 {
			break
		}
		p.Counters.BeatsReceived += uint64(n)
		p.Leases.RenewIDs(p.ids[:n], now, p.outcomes[:n])
		p.countNamed(n)
	}
	clear(p.ids[:]) // they point into the inbox
	if p.Leases.CommaIDs() > 0 {
		p.rejoined(msg, now)
	}
	if p.Counters.BeatsApplied == before && len(msg.ID) > 0 {
		p.Leases.CompleteID(msg.ID, agent, uint32(msg.N), now)
	}
}
