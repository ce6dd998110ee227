package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Faults are the kinds of faults that a random schedule may have; nil: a part of all, drawn by the seed.
type Faults []string

// FaultKinds lists all kinds.
func FaultKinds() []string {
	var names []string
	for _, k := range faultKinds {
		names = append(names, k.name)
	}
	return names
}

// ParseFaults reads a list with commas; "all" and "none" are lists, too. An empty text is nil.
func ParseFaults(text string) (Faults, error) {
	switch text {
	case "":
		return nil, nil
	case "all":
		return FaultKinds(), nil
	case "none":
		return Faults{}, nil
	}
	f := Faults(strings.Split(text, ","))
	for _, name := range f {
		if !slices.Contains(FaultKinds(), name) {
			return nil, fmt.Errorf("there is no kind of fault %q; there are: %s", name, strings.Join(FaultKinds(), ", "))
		}
	}
	return f, nil
}

// drawer draws a schedule. Each number is a hash of what it is for, so that a change of one part leaves the others alone.
type drawer struct {
	seed  uint64
	n     uint64
	s     *Schedule
	lease time.Duration
	on    map[string]bool
	names map[string]int
}

func (d *drawer) bits() uint64 {
	d.n++
	return mix64(d.seed ^ mix64(d.n))
}

func (d *drawer) int(n int) int     { return int(d.bits() % uint64(n)) }
func (d *drawer) chance(n int) bool { return d.int(n) == 0 } // one in n
func (d *drawer) unit() float64     { return float64(d.bits()>>11) / (1 << 53) }
func (d *drawer) leases(f float64) time.Duration {
	return (time.Duration(f * d.unit() * float64(d.lease))).Truncate(time.Millisecond)
}

func pick[T any](d *drawer, of ...T) T { return of[d.int(len(of))] }

// Random draws a schedule. The same seed and faults give the same.
func Random(seed uint64, faults Faults) Schedule {
	d := &drawer{seed: mix64(seed), on: map[string]bool{}, names: map[string]int{}}
	for _, k := range faultKinds {
		if faults == nil && d.chance(3) || slices.Contains(faults, k.name) {
			d.on[k.name] = true
		}
	}
	d.lease = time.Duration(pick(d, 3, 6, 12, 30)) * time.Second
	s := Schedule{Name: fmt.Sprintf("seed-%d", seed), Seed: seed, Span: 6 * d.lease}
	s.Link = Link{
		Delay: pick(d, 50*time.Microsecond, time.Millisecond, 20*time.Millisecond), Jitter: pick(d, 0, time.Millisecond, 30*time.Millisecond),
		ReadDelay: pick(d, 20*time.Microsecond, time.Millisecond), DescTime: pick(d, 10*time.Microsecond, 5*time.Millisecond, 60*time.Millisecond),
		RDMA: d.chance(2), Break: pick(d, 2*time.Second, 20*time.Second),
	}
	d.s = &s
	d.engines()
	d.traffic()
	for _, k := range faultKinds {
		if d.on[k.name] {
			k.draw(d)
		}
	}
	slices.SortStableFunc(s.Actions, func(a, b Action) int { return int(a.At - b.At) })
	return s
}

func (d *drawer) engines() {
	owners, readers := 1+d.int(2), 1+d.int(3)
	var known []string
	for i := range owners + readers {
		e := Engine{ID: fmt.Sprintf("P%d", i+1), Lease: d.lease, Blocks: 40, Slots: 32, Pass: time.Duration(pick(d, 5, 20, 20, 100)) * time.Millisecond}
		if i >= owners {
			e.ID = fmt.Sprintf("D%d", i-owners+1)
			e.Known = known
		} else {
			known = append(known, e.ID)
		}
		if e.Host = !d.chance(3); e.Host {
			e.TP = pick(d, uint32(1), 2, 2, 4)
			e.Carrier = pick(d, "process", "delta", "delta")
			if e.TP == 2 && i < owners && d.chance(4) {
				e.TP, e.PP = 1, 2
			}
		}
		e.AllPeersCheck = d.chance(3)
		if !d.chance(3) {
			e.ReadTimeout = pick(d, d.lease/3, d.lease/3, d.lease)
		}
		if d.chance(4) {
			e.BlocksTTL = 2 * d.lease
		}
		if d.chance(6) {
			e.Reads = uint32(4 + d.int(12))
		}
		d.s.Engines = append(d.s.Engines, e)
	}
	if d.on["pass"] {
		e := &d.s.Engines[d.int(len(d.s.Engines))]
		e.Pass = pick(d, d.lease/5, d.lease/5, 2*d.lease)
	}
	if d.on["clock"] {
		for i := range d.s.Engines {
			e := &d.s.Engines[i]
			e.Offset = time.Duration(d.int(20001)-10000) * time.Second
			e.Drift = d.int(201) - 100
			if e.Carrier == "delta" {
				e.Ranks = time.Duration(d.int(2001)-1000) * time.Second
			}
		}
	}
	if d.on["stock"] {
		e := &d.s.Engines[d.int(len(d.s.Engines))]
		*e = Engine{ID: e.ID, Stock: true, TP: e.TP, Lease: e.Lease, Pass: e.Pass, Blocks: e.Blocks, Known: e.Known}
		if e.TP > 2 {
			e.TP = 2
		}
	}
}

func (d *drawer) of(letter string) (all []string) {
	for i := range d.s.Engines {
		if e := &d.s.Engines[i]; strings.HasPrefix(e.ID, letter) {
			all = append(all, e.ID)
		}
	}
	return all
}

func (d *drawer) owner() string  { return pick(d, d.of("P")...) }
func (d *drawer) reader() string { return pick(d, d.of("D")...) }
func (d *drawer) any() string    { return d.s.Engines[d.int(len(d.s.Engines))].ID }

func (d *drawer) add(a Action) {
	if a.At < d.s.Span {
		d.s.Actions = append(d.s.Actions, a)
	}
}

// at is a time within the span, not before engines know each other.
func (d *drawer) at() time.Duration {
	return 200*time.Millisecond + (time.Duration(d.unit() * float64(d.s.Span-time.Second))).Truncate(time.Millisecond)
}

// rank is a rank of an engine, or all.
func (d *drawer) rank(id string) int {
	e := d.s.engine(id)
	if n := int(max(e.TP, 1) * max(e.PP, 1)); e.Host && !d.chance(4) {
		return d.int(n)
	}
	return AllRanks
}

// traffic is what engines do when all is well: requests that are granted, tracked and read, or given up, in all orders.
func (d *drawer) traffic() {
	for i := range 30 + d.int(40) {
		p, r := d.owner(), d.reader()
		req := fmt.Sprintf("r%d", i)
		at := d.at()
		g := Action{At: at, Engine: p, Do: Grant, Req: req, Blocks: uint32(1 + d.int(6))}
		if i > 0 && d.chance(8) {
			g.ID = fmt.Sprintf("r%d", d.int(i)) // perhaps one that is held
		}
		if d.chance(3) {
			before := d.leases(0.5)
			d.add(Action{At: max(at-before, 0), Engine: p, Do: Expect, Req: req, ID: g.ID})
			if d.chance(3) {
				d.add(Action{At: max(at-before/2, 0), Engine: p, Do: Cancel, Req: req})
				if d.chance(2) {
					continue
				}
			}
		}
		switch d.int(6) {
		case 0:
			g.For = d.leases(2) + 100*time.Millisecond
		case 1:
			g.For, g.Fixed = d.leases(3)+100*time.Millisecond, true
		}
		d.add(g)
		d.reading(req, p, r, at)
		if d.chance(6) { // a second reader with the same parameters, or the same one twice
			d.reading(req, p, d.reader(), at+d.leases(0.5))
		}
	}
	for range d.int(8) {
		d.add(Action{At: d.at(), Engine: d.owner(), Do: Pressure, Blocks: uint32(1 + d.int(20))})
	}
}

// reading is what becomes of a request at a reader.
func (d *drawer) reading(req, p, r string, at time.Duration) {
	handover := d.leases(pick(d, 0.02, 0.02, 0.3, 0.3, 1.2, 2.5))
	as := req
	if d.names[r+req]++; d.names[r+req] > 1 {
		as = fmt.Sprintf("%s-%d", req, d.names[r+req])
	}
	tracked := at + handover
	switch d.int(12) {
	case 0:
		d.add(Action{At: tracked, Engine: r, Do: Reject, Req: req, Peer: p})
		return
	case 1:
		return // the router sends it nowhere
	}
	d.add(Action{At: tracked, Engine: r, Do: Track, Req: req, As: as, Peer: p})
	wait := tracked + d.leases(pick(d, 0.05, 0.6, 1.5))
	if d.chance(8) {
		d.add(Action{At: wait, Engine: r, Do: Untrack, As: as})
		return
	}
	read := Action{At: wait, Engine: r, Do: Read, As: as, All: true}
	switch d.int(8) {
	case 0:
		read.From = 1
	case 1:
		read.All = false // nothing is left to read
	}
	d.add(read)
	soon := wait + time.Duration(d.unit()*float64(pick(d, 20*time.Millisecond, 300*time.Millisecond, 2*time.Second)))
	switch d.int(6) { // something comes between
	case 0:
		d.add(Action{At: soon, Engine: p, Do: Revoke, Req: req})
	case 1:
		d.add(Action{At: soon, Engine: p, Do: Cancel, Req: req})
	case 2:
		d.add(Action{At: soon, Engine: r, Do: Untrack, As: as})
	}
}

// longest is what a read may take in all: one that fails lands on behind its error, and the transport must have given up when
// quarantine_error_wait is over.
const longest = 24 * time.Second

// missed has ranks of an owner not hear of a use of a slot at all, and a reader come late to the next one.
func (d *drawer) missed(i int) {
	p, r, at := d.owner(), d.reader(), d.at()
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
		d.add(Action{At: d.at(), Engine: e, Do: LoseRank, Rank: d.int(4)})
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
		e := d.any()
		d.add(Action{At: d.at(), Engine: e, Do: Poison, Rank: d.rank(e)})
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
		for range 1 + d.int(4) {
			r, p, at := d.reader(), d.owner(), d.at()
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
