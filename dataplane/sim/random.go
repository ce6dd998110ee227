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
		if d.chance(6) {
			e.Slots = uint32(3 + d.int(6)) // tables that fill up
		}
		if d.chance(6) {
			e.Notifs = uint32(1 + d.int(2)) // what has arrived waits for later steps
		}
		if d.chance(3) {
			e.ExpectMax = pick(d, d.lease/6, d.lease/2)
		}
		e.StockOff = d.chance(8)
		if h := mix64(d.seed ^ mix64(^uint64(i))); h&1 != 0 { // beside what is drawn, which stays as it was
			e.Posting = time.Duration(1+h>>1%8) * time.Microsecond
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

// delta is an owner whose ranks are on other machines, if there is one.
func (d *drawer) delta() string {
	var all []string
	for _, id := range d.of("P") {
		if d.s.engine(id).Carrier == "delta" {
			all = append(all, id)
		}
	}
	if all == nil {
		return d.owner()
	}
	return pick(d, all...)
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

// id is a request's id on the wire: most are the request's name, some are held by another, some are what a format may stumble over.
func (d *drawer) id(i int) string {
	switch {
	case i > 0 && d.chance(8):
		return fmt.Sprintf("r%d", d.int(i)) // perhaps one that is held
	case d.chance(8):
		return fmt.Sprintf(pick(d, "x,%d", "%d,y,z", "a,b,c,%d", "HB:%d", "u:%d:1", "%0120d", "%0900d,e"), i)
	}
	return ""
}

// traffic is what engines do when all is well: requests that are granted, tracked and read, or given up, in all orders.
func (d *drawer) traffic() {
	both := d.chance(2) // who decodes keeps blocks for the next turn, and who prefills reads them
	for i := range 30 + d.int(40) {
		p, r := d.owner(), d.reader()
		turn := both && d.chance(3)
		if turn {
			p, r = r, p
		}
		req := fmt.Sprintf("r%d", i)
		at := d.at()
		g := Action{At: at, Engine: p, Do: Grant, Req: req, Blocks: uint32(1 + d.int(6)), ID: d.id(i)}
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
		switch n := d.int(6); {
		case n == 1 || turn && n > 1:
			g.For, g.Fixed = d.leases(3)+100*time.Millisecond, true
		case n == 0:
			g.For = d.leases(2) + 100*time.Millisecond
		}
		d.add(g)
		d.reading(req, p, r, at)
		if !turn && d.chance(5) { // a second reader with the same parameters, or the same one twice
			d.reading(req, p, d.reader(), at+d.leases(0.5))
		}
	}
	if d.chance(8) {
		d.long()
	}
	for range d.int(8) {
		d.add(Action{At: d.at(), Engine: d.owner(), Do: Pressure, Blocks: uint32(1 + d.int(20))})
	}
}

// long is a read of more runs than one record holds.
func (d *drawer) long() {
	p, r, at := d.owner(), d.reader(), d.at()
	for _, id := range []string{p, r} {
		d.s.engine(id).Blocks = 400
	}
	d.add(Action{At: at, Engine: p, Do: Grant, Req: "long", Blocks: 300})
	d.add(Action{At: at + d.leases(0.1), Engine: r, Do: Track, Req: "long", Peer: p})
	d.add(Action{At: at + d.leases(0.3), Engine: r, Do: Read, Req: "long", All: true})
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
