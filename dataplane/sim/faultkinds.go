package sim

import (
	"fmt"
	"time"
)

// shared has a second engine with the parameters of a lease when the first one seems to die.
func (d *drawer) shared(i int, p, r string, at time.Duration) {
	req := fmt.Sprintf("w%d", i)
	d.add(Action{At: max(at-d.lease/2, 0), Engine: p, Do: Grant, Req: req, Blocks: 2, For: 2 * d.lease})
	for _, by := range []string{r, d.reader()} {
		d.add(Action{At: max(at-d.lease/2, 0) + 50*time.Millisecond + d.leases(0.2), Engine: by, Do: Track, Req: req, Peer: p})
	}
}

// longest is what a read may take in all: one that fails lands on behind its error, and the transport must have given up when
// quarantine_error_wait is over.
const longest = 24 * time.Second

// missed has ranks of an owner not hear of a use of a slot at all, and a reader come late to the next one.
func (d *drawer) missed(i int) {
	p, r, at := d.delta(), d.reader(), d.at()
	lost, req := fmt.Sprintf("m%d", i), fmt.Sprintf("n%d", i)
	d.add(Action{At: at, Engine: p, Do: LoseDelta, Rank: pick(d, d.rank(p), AllRanks), N: 1 + d.int(2)})
	d.add(Action{At: at + time.Millisecond, Engine: p, Do: Expect, Req: lost})
	d.add(Action{At: at + 2*time.Millisecond, Engine: p, Do: Cancel, Req: lost})
	pass := d.s.engine(p).Pass
	d.add(Action{At: at + 2*pass + 5*time.Millisecond, Engine: p, Do: Grant, Req: req, Blocks: 2, For: d.leases(0.1) + 10*time.Millisecond})
	over := at + d.lease/3 + d.leases(0.5)
	d.add(Action{At: over, Engine: r, Do: Track, Req: req, Peer: p})
	d.add(Action{At: over + time.Millisecond, Engine: r, Do: Read, Req: req, All: true})
}

// outlived has a read take longer than its time-out, and its reader read something else then, where it finds room.
func (d *drawer) outlived(i int) {
	p, r, at := d.owner(), d.reader(), d.at()
	e := d.s.engine(r)
	if e.ReadTimeout == 0 || e.ReadTimeout > 10*time.Second {
		return
	}
	slow, next := fmt.Sprintf("s%d", i), fmt.Sprintf("t%d", i)
	link := d.s.Link
	link.DescTime = min(d.lease/4, longest/8)
	d.add(Action{At: at, Engine: p, Do: Grant, Req: slow, Blocks: 4})
	d.add(Action{At: at, Engine: p, Do: Grant, Req: next, Blocks: 4})
	for _, req := range []string{slow, next} {
		d.add(Action{At: at + 2*time.Millisecond, Engine: r, Do: Track, Req: req, Peer: p})
	}
	at += 10 * time.Millisecond
	d.add(Action{At: at, Engine: r, Peer: p, Do: SetLink, Link: &link, For: 2*e.Pass + 10*time.Millisecond})
	d.add(Action{At: at, Engine: r, Do: Read, Req: slow, All: true})
	d.add(Action{At: at + e.ReadTimeout + 5*e.Pass + d.leases(0.1), Engine: r, Do: Read, Req: next, All: true})
}

// faultKinds are the kinds of faults, each with what it adds to a schedule.
var faultKinds = []struct {
	name string
	draw func(d *drawer)
}{
	{"loss", func(d *drawer) { d.s.Link.Loss = pick(d, 0.02, 0.2, 0.6) }},
	{"dup", func(d *drawer) {
		d.s.Link.Dup, d.s.Link.Spread = pick(d, 0.05, 0.4), pick(d, time.Millisecond, d.lease/2)
	}},
	{"reorder", func(d *drawer) {
		d.s.Link.Reorder, d.s.Link.Spread = pick(d, 0.1, 0.5), pick(d, time.Millisecond, d.lease/4)
	}},
	{"reads", func(d *drawer) {
		d.s.Link.ReadFail, d.s.Link.Late = pick(d, 0, 0.05, 0.3), pick(d, time.Millisecond, time.Second, 8*time.Second)
		d.s.Link.Torn = pick(d, 0, 0.5)
		for range 1 + d.int(6) {
			d.add(Action{At: d.at(), Engine: d.reader(), Rank: AllRanks, Do: FailRead, N: 1 + d.int(4), For: d.leases(1)})
			d.add(Action{At: d.at(), Engine: d.reader(), Rank: AllRanks, Do: HoldRead, For: d.leases(pick(d, 0.5, 3)) + 10*time.Millisecond})
			slow := d.s.Link // what is posted now takes longer than its time-out, what comes after it does not
			slow.DescTime = min(d.lease/time.Duration(pick(d, 6, 20)), longest/12)
			d.add(Action{At: d.at(), Engine: d.reader(), Peer: d.owner(), Do: SetLink, Link: &slow, For: d.leases(0.3) + 10*time.Millisecond})
		}
		for i := range 2 + d.int(3) {
			d.outlived(i)
		}
	}},
	{"partition", func(d *drawer) {
		for range 1 + d.int(3) {
			d.add(Action{At: d.at(), Engine: d.reader(), Peer: d.owner(), Do: Partition, For: d.leases(pick(d, 0.3, 1, 2)) + time.Millisecond})
		}
	}},
	{"reset", func(d *drawer) {
		for range 1 + d.int(5) {
			d.add(Action{At: d.at(), Engine: d.reader(), Peer: d.owner(), Do: Reset})
		}
	}},
	{"stop", func(d *drawer) {
		for range 1 + d.int(4) {
			e := d.any()
			d.add(Action{At: d.at(), Engine: e, Do: Stop, Rank: d.rank(e), For: d.leases(pick(d, 0.2, 1, 2)) + time.Millisecond})
		}
	}},
	{"stall", func(d *drawer) {
		for range 1 + d.int(4) {
			e := d.any()
			d.add(Action{At: d.at(), Engine: e, Do: Stall, Rank: d.rank(e), For: d.leases(pick(d, 0.2, 1, 2)) + time.Millisecond})
		}
	}},
	{"pass", func(d *drawer) {}},
	{"clock", func(d *drawer) {
		for range d.int(3) {
			e := d.any()
			d.add(Action{At: d.at(), Engine: e, Do: Suspend, For: d.leases(1) + time.Millisecond})
			d.add(Action{At: d.at(), Engine: e, Do: Clock, For: d.leases(100)})
		}
	}},
	{"kill", func(d *drawer) {
		for range 1 + d.int(2) {
			e, at := d.any(), d.at()
			d.add(Action{At: at, Engine: e, Do: Kill, Rank: AllRanks})
			id := ""
			if d.chance(2) {
				id = e + "b"
			}
			if !d.chance(4) {
				d.add(Action{At: at + d.leases(1) + 50*time.Millisecond, Engine: e, Do: Start, ID: id})
			}
		}
	}},
	{"rank", func(d *drawer) {
		e := d.any()
		n := int(max(d.s.engine(e).TP, 1) * max(d.s.engine(e).PP, 1))
		d.add(Action{At: d.at(), Engine: e, Do: LoseRank, Rank: d.int(n)})
	}},
	{"twin", func(d *drawer) { // an engine comes back under the id of another that lives
		e, at := d.any(), d.at()
		d.add(Action{At: at, Engine: e, Do: Kill, Rank: AllRanks})
		d.add(Action{At: at + d.leases(0.2) + 50*time.Millisecond, Engine: e, Do: Start, ID: pick(d, d.of(e[:1])...)})
	}},
	{"host", func(d *drawer) { d.add(Action{At: d.at(), Engine: d.any(), Do: Kill, Rank: HostOnly}) }},
	{"delta", func(d *drawer) {
		for i := range 2 + d.int(6) {
			d.missed(i)
		}
		if d.chance(2) {
			loss := pick(d, 0.02, 0.2)
			for i := range d.s.Engines {
				if e := &d.s.Engines[i]; e.Carrier == "delta" {
					e.CarrierLoss = loss
				}
			}
		}
		for range 4 + d.int(30) {
			e := d.any()
			d.add(Action{
				At: d.at(), Engine: e, Do: pick(d, LoseDelta, LoseDelta, LoseDelta, DoubleDelta, SwapDelta), Rank: d.rank(e), ToHost: d.chance(3), N: 1 + d.int(3),
			})
		}
	}},
	{"poison", func(d *drawer) {
		e, at := d.any(), d.at()
		rank := d.rank(e)
		if d.s.engine(e).Host && d.chance(3) {
			rank = HostOnly
		}
		if d.chance(2) { // while it reads
			d.add(Action{At: max(at-d.leases(0.3), 0), Engine: e, Rank: AllRanks, Do: HoldRead, For: d.leases(1) + 10*time.Millisecond})
		}
		d.add(Action{At: at, Engine: e, Do: Poison, Rank: rank})
	}},
	{"register", func(d *drawer) {
		for range 1 + d.int(2) {
			e, at := d.any(), d.at()
			d.add(Action{At: at, Engine: e, Do: Unregister, Rank: AllRanks})
			d.add(Action{At: at + d.leases(0.5) + time.Millisecond, Engine: e, Do: Register, Rank: AllRanks})
		}
	}},
	{"handshake", func(d *drawer) {
		for range 1 + d.int(3) {
			d.add(Action{At: d.at() / 2, Engine: d.owner(), Do: Handshake, How: pick(d, Refuse, Never, Slow, Other), For: d.leases(1)})
		}
	}},
	{"wire", func(d *drawer) {
		for i := range 1 + d.int(4) {
			r, p, at := d.reader(), d.owner(), d.at()
			d.shared(i, p, r, at)
			if d.chance(2) { // each takes the other for dead
				d.add(Action{At: at, Engine: p, Do: Handshake, How: Refuse, For: 2 * time.Second})
			}
			d.add(Action{At: at, Engine: r, Peer: p, Do: WireCut})
		}
	}},
	{"messages", func(d *drawer) {
		for range 1 + d.int(6) {
			d.add(Action{
				At: d.at(), Engine: d.reader(), Peer: d.owner(), Do: pick(d, Lose, Lose, Double, Hold), Rank: -1, ToRank: -1, N: 1 + d.int(5), For: d.leases(1),
			})
		}
	}},
	{"raw", func(d *drawer) { // of peers that do not know better
		for range 1 + d.int(8) {
			req := fmt.Sprintf("r%d", d.int(40))
			a := Action{At: d.at(), Engine: d.reader(), Peer: d.owner(), Do: pick(d, Heartbeat, Completion, Bytes), Rank: d.int(2), ToRank: d.int(2) - 1, Reqs: []string{req}}
			switch a.Do {
			case Completion:
				a.Readers = 1 + d.int(3)
			case Bytes:
				a.Reqs, a.Data = nil, pick(d, "HB:", "x", "\xff", "\xffK\x01\x02", ":1", "HB:,,,", "PUSH_REG:\x80", req+":0", req+":99999")
			}
			d.add(a)
		}
	}},
	{"drain", func(d *drawer) { d.add(Action{At: d.at(), Engine: d.any(), Do: Drain}) }},
	{"forget", func(d *drawer) {
		for range 1 + d.int(3) {
			r, p, at := d.reader(), d.owner(), d.at()
			d.add(Action{At: at, Engine: r, Peer: p, Do: RemoveEngine})
			d.add(Action{At: at + d.leases(0.5), Engine: r, Peer: p, Do: AddEngine})
		}
	}},
	{"stock", func(d *drawer) {}},
}
