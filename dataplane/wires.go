package dataplane

import "github.com/kvlease/kvlease/dataplane/wire"

// Wires is told what readers say about their death wires. It is called within a step: no lock, no allocation.
type Wires interface {
	// Heard takes the nonce of a reader's wire.
	Heard(engine, epoch uint64, nonce [16]byte)
	// Left says that a reader goes on purpose.
	Left(engine, epoch uint64)
}

// SetWires says who is told. Before the first step.
func (p *Plane) SetWires(w Wires) { p.wires = w }

// hello takes a reader's hello.
func (p *Plane) hello(head *wire.Header, body []byte) {
	p.Counters.HellosReceived++
	b, st := wire.ParseHello(body)
	if st != wire.OK {
		p.Counters.MalformedNative++
		return
	}
	if p.wires != nil {
		p.wires.Heard(head.Engine, head.Epoch, b.Nonce)
	}
}

// leaving takes a reader's good-bye: its death is no news any more.
func (p *Plane) leaving(head *wire.Header) {
	p.Counters.LeavingsReceived++
	p.Leases.Leaving(head.Engine, head.Epoch)
	if p.wires != nil {
		p.wires.Left(head.Engine, head.Epoch)
	}
}
