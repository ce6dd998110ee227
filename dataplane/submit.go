package dataplane

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/record"
)

// direct is the plane as the sink of its own host's records.
type direct Plane

func (p *direct) Expect(e *record.Expect, id []byte, now clock.Instant) {
	p.Leases.Expect(e.Lease, id, now)
}

func (p *direct) Grant(g *record.Grant, id []byte, now clock.Instant) {
	(*Plane)(p).drained(g.SaidNs, now)
	if p.Leases.Grant(g, id, now) == lease.Applied && g.ReadyEvent != 0 {
		p.awaited.await(g.Lease, g.ReadyEvent)
	}
}

func (p *direct) Cancel(h record.Handle, now clock.Instant) { p.Leases.Cancel(h, now) }
func (p *direct) Revoke(h record.Handle, now clock.Instant) { p.Leases.Revoke(h, now) }
func (p *direct) Pressure(blocks uint32, now clock.Instant) { p.Leases.Pressure(blocks, now) }

func (p *direct) Track(t *record.TrackReq, remote, local []byte, now clock.Instant) {
	(*Plane)(p).drained(t.SaidNs, now)
	p.Tracker.Track(t, remote, local, now)
}

func (p *direct) Untrack(h record.Handle, now clock.Instant) { p.Tracker.Untrack(h, now) }

func (p *direct) Reject(t *record.TrackReq, remote []byte, now clock.Instant) {
	p.Tracker.Reject(t, remote, now)
}

func (p *direct) ReadPart(r *record.Read, runs []record.Run, now clock.Instant) {
	p.Tracker.ReadPart(r, runs, now)
}
