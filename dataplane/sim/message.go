package sim

import (
	"fmt"

	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// message puts one into the network by hand.
func (w *World) message(p *place, a *Action) error {
	to := w.byID[a.Peer]
	if to.life == nil || to.life.dead {
		return fmt.Errorf("nobody is there")
	}
	for n, r := range to.life.ranks {
		if a.ToRank >= 0 && a.ToRank != n || r.agent == nil {
			continue
		}
		msgs, err := w.messages(p, r, a)
		if err != nil {
			return err
		}
		for range max(a.N, 1) {
			for _, m := range msgs {
				if err := w.sendRaw(p, r, max(a.Rank, 0), m); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (w *World) messages(p *place, r *rankCtx, a *Action) (msgs [][]byte, err error) {
	switch a.Do {
	case Bytes:
		return [][]byte{[]byte(a.Data)}, nil
	case Heartbeat:
		msg := []byte("HB:")
		for i, id := range a.Reqs {
			if i > 0 {
				msg = append(msg, ',')
			}
			msg = append(msg, w.idOf(id)...)
		}
		return [][]byte{msg}, nil
	case Completion:
		for _, id := range a.Reqs {
			msgs = append(msgs, fmt.Appendf(nil, "%s:%d", w.idOf(id), max(a.Readers, 1)))
		}
		return msgs, nil
	}
	l := p.life
	h := wire.Header{Engine: wire.EngineHash([]byte(l.id)), Epoch: l.era.epoch, Rank: uint32(max(a.Rank, 0)), Count: uint32(len(a.Reqs))}
	switch a.Do {
	case Renew:
		h.Kind = wire.Renew
	case Complete:
		h.Kind, h.Readers = wire.Complete, uint16(max(a.Readers, 1))
	case Release:
		h.Kind = wire.Release
	case Leaving:
		h.Kind, h.Count = wire.Leaving, 0
	}
	msg := wire.AppendHeader(nil, &h)
	if a.Do != Leaving {
		for _, name := range a.Reqs {
			g := w.grants[name]
			if g == nil {
				return nil, fmt.Errorf("no grant %q", name)
			}
			msg = wire.AppendEntry(msg, g.handle.Slot(), g.handle.Use(), lease.Key(r.secret, g.handle.Slot(), g.handle.Use()))
		}
	}
	return [][]byte{msg}, nil
}

// idOf is the id of a grant on the wire; a name that is none stands for itself.
func (w *World) idOf(name string) string {
	if g := w.grants[name]; g != nil {
		return g.id
	}
	return name
}

// sendRaw sends from an agent that only these messages have: of each place and rank one, so that a receiver tells them apart.
func (w *World) sendRaw(p *place, to *rankCtx, rank int, msg []byte) error {
	name := fmt.Sprintf("raw.%s.%d", p.spec.ID, rank)
	a := w.raw[name]
	if a == nil {
		var err error
		if a, err = w.net.Agent(name, simnet.AgentConfig{}); err != nil {
			return err
		}
		if w.raw == nil {
			w.raw = map[string]*simnet.Agent{}
		}
		w.raw[name] = a
		w.agents[name] = &agentOf{place: p, rank: rank}
	}
	blob, err := to.agent.Metadata()
	if err != nil {
		return err
	}
	peer, err := a.Load(blob)
	if err != nil {
		return err
	}
	defer a.Drop(peer)
	return a.Send(peer, msg)
}

// Kinds of notifications, as the log names them.
var (
	nativeNames = [...]string{wire.Hello: "hello", wire.Renew: "renew", wire.Complete: "complete", wire.Release: "release", wire.Leaving: "leaving"}
	stockNames  = [...]string{wire.Heartbeat: "heartbeat", wire.Completion: "completion", wire.PushReg: "registration"}
)

// sentNames lists them.
func sentNames() []string { return append(known(nativeNames[:]), known(stockNames[:])...) }

// messageText is a notification for the log.
func messageText(m *simnet.Sent) string {
	what := fmt.Sprintf("%d bytes", len(m.Body))
	if h, _, st := wire.ParseNative(m.Body); st == wire.OK {
		what = fmt.Sprintf("%s of rank %d, %d entries", nativeNames[h.Kind], h.Rank, h.Count)
	} else if s, st := wire.ParseStock(m.Body); st == wire.OK {
		what = stockNames[s.Kind] + fmt.Sprintf(" %.60q", m.Body)
	}
	if m.Attached {
		what += ", with a read"
	}
	return what
}
