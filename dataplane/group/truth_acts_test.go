package group_test

import (
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// act does one random thing: what an engine says, or a fault.
func (m *truth) act() {
	d := m.readers[m.r.IntN(len(m.readers))]
	switch m.r.IntN(26) {
	case 0, 1, 2, 3:
		if len(m.free) == 0 {
			return
		}
		c := m.free[0]
		m.ids++
		id := fmt.Sprintf("r%d", m.ids)
		if m.r.IntN(6) == 0 && len(m.open) > 0 {
			id = string(m.open[m.r.IntN(len(m.open))].remote.ID) // perhaps a duplicate
		}
		g := host.Grant{ID: []byte(id), Blocks: chunk, User: uint64(m.ids)}
		if m.r.IntN(4) == 0 {
			g.TTL = time.Duration(1+m.r.IntN(8)) * time.Second
		}
		for _, r := range m.p.ranks {
			r.fill(uint64(m.ids), c*chunk, chunk)
		}
		if g.Fixed = m.r.IntN(5) == 0; g.Fixed {
			g.TTL = time.Duration(1+m.r.IntN(60)) * time.Second
		}
		h, err := m.p.host.Grant(g, m.l.now)
		if err != nil {
			return
		}
		m.free = m.free[1:]
		k := &truthLease{h: h, req: uint64(m.ids), chunk: c}
		k.remote = &host.Remote{ID: g.ID, Native: true, Epoch: m.p.era.Epoch, Key: lease.Key(m.p.era.Secret, h.Slot(), h.Use()), Slot: h.Slot(), Generation: h.Use()}
		if g.Fixed {
			k.remote.ExpiresNs = uint64(m.l.now.Add(g.TTL))
		}
		m.leases[h] = k
		m.open = append(m.open, k)
	case 4, 5, 6, 7: // often one that has been freed
		if len(m.open) == 0 {
			return
		}
		k := m.open[max(0, len(m.open)-1-m.r.IntN(12))]
		h, err := d.e.host.Track(d.peer, k.remote, nil, 9, m.l.now)
		if err == nil {
			d.reqs[h] = &truthReq{lease: k}
		}
	case 8, 9, 10, 11:
		if len(d.free) == 0 {
			return
		}
		for _, h := range d.handles() {
			q := d.reqs[h]
			if q.read || q.untrack {
				continue
			}
			c := d.free[0]
			if d.e.host.Read(h, runs(c*chunk, q.lease.chunk*chunk, chunk)) != nil {
				return
			}
			for _, r := range d.e.ranks {
				if !r.gone && !holds(r, c, d.marks[c]) {
					m.t.Fatalf("%s rank %d: something wrote to chunk %d while it was free", d.e.id, r.n, c)
				}
			}
			d.free = d.free[1:]
			q.read, q.chunk = true, c
			return
		}
	case 12:
		for _, h := range d.handles() {
			q := d.reqs[h]
			if !q.untrack && !q.outcome {
				if d.e.host.Untrack(h) == nil {
					q.untrack = true
					if !q.read {
						delete(d.reqs, h)
					}
				}
				return
			}
		}
	case 13:
		if len(m.open) > 0 {
			k := m.open[m.r.IntN(len(m.open))]
			if m.r.IntN(2) == 0 {
				_ = m.p.host.Revoke(k.h)
			} else {
				_ = m.p.host.Cancel(k.h)
			}
		}
	case 14:
		_ = m.p.host.Pressure(uint32(chunk * m.r.IntN(4)))
	case 15:
		if !m.quiet {
			r := m.anyRank(m.p)
			r.stopped = r.gone || !r.stopped && m.r.IntN(2) == 0
		}
	case 16:
		if !m.quiet {
			r := m.anyRank(d.e)
			r.stopped = r.gone || !r.stopped && m.r.IntN(2) == 0
		}
	case 17, 18:
		if !m.quiet {
			m.anyRank(d.e).agent.HoldReads(m.r.IntN(2) == 0)
		}
	case 19:
		if !m.quiet {
			m.anyRank(d.e).agent.LetReads(1 + m.r.IntN(3))
		}
	case 20:
		if !m.quiet {
			err := transport.ErrPeer
			if m.r.IntN(3) == 0 {
				err = transport.ErrFull
			}
			ops := []loopback.Op{loopback.OpSend, loopback.OpPostRead, loopback.OpRead}
			m.anyRank(d.e).agent.FailNext(ops[m.r.IntN(len(ops))], err)
		}
	case 21:
		if m.r.IntN(6) == 0 {
			m.p.group.EngineDied(wire.EngineHash([]byte(d.e.id)), d.e.era.Epoch)
		}
	case 22:
		if m.r.IntN(10) == 0 && !m.quiet {
			must(m.t, d.e.group.RemoveEngine(d.peer))
			h, err := d.e.group.AddEngine(group.EngineDesc{ID: m.p.id, TP: m.p.shape.TP, PP: m.p.shape.PP})
			must(m.t, err)
			must(m.t, d.e.group.LoadEngine(h, m.p.maps()))
			d.peer = h
		}
	case 24:
		if m.r.IntN(8) == 0 {
			m.knowClock(d)
		}
	case 25:
		if m.r.IntN(60) > 0 || !m.deadly {
			return
		}
		e := m.l.engines[m.r.IntN(len(m.l.engines))]
		if r := m.anyRank(e); !r.gone && len(e.ranks) > 1 {
			r.gone = true
			if r.plane.Leases.FenceAll(); e == m.p && m.r.IntN(2) == 0 { // a broken reader gives no blocks back
				r.stopped, r.broken = true, true
				break
			}
			r.close()
			if end, ok := e.hosts.End(r.n).(stream.Delta); ok {
				end.Lose() // as the engine says
			}
		}
	case 23:
		if m.quiet {
			return
		}
		if m.r.IntN(2) == 0 {
			m.anyRank(m.p).agent.LoseNext(m.r.IntN(3))
		} else {
			m.anyRank(d.e).agent.LandLate()
		}
	}
}
