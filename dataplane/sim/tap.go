package sim

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// tap is the transport that the parts of a plane hold: that of the present era, or nobody's. The checker hears of what the plane
// takes, when it takes it.
type tap struct {
	transport.Transport
	r     *rankCtx
	in    *transport.Inbox
	left  []tapped // for which the plane had no room
	taken uint64   // messages that the plane took
}

type tapped struct {
	agent, body []byte
	at          clock.Instant // of the step that found it there
}

// Poll is part of transport.Transport.
func (t *tap) Poll(in *transport.Inbox) (n int) {
	if t.in == nil {
		t.in = transport.NewInbox(1024, 1<<17)
	}
	t.r.view.sync(t.r.now())
	for len(t.left) > 0 {
		if !in.Put(t.left[0].agent, t.left[0].body) {
			break
		}
		t.r.view.heard(t.left[0].agent, t.left[0].body)
		t.left = t.left[1:]
		n++
	}
	// Also where some are left, as any transport does: what has arrived by a second look is waited for, whether or not it was taken (L8).
	t.in.Reset()
	t.Transport.Poll(t.in)
	for agent, body, ok := t.in.Next(); ok; agent, body, ok = t.in.Next() {
		if len(t.left) > 0 || !in.Put(agent, body) {
			t.left = append(t.left, tapped{append([]byte(nil), agent...), append([]byte(nil), body...), t.r.now()})
			continue
		}
		t.r.view.heard(agent, body)
		n++
	}
	t.taken += uint64(n)
	return n
}

// PostRead is part of transport.Transport.
func (t *tap) PostRead(s *transport.ReadSpec) (transport.Xfer, error) {
	s.Took = t.r.life.place.spec.Posting * time.Duration(len(s.Descs))
	return t.Transport.PostRead(s)
}

// arrived counts the messages that are known to have arrived.
func (t *tap) arrived() uint64 { return t.taken + uint64(t.Backlog()) }

// Backlog is part of transport.Transport.
func (t *tap) Backlog() int { return len(t.left) + t.Transport.Backlog() }
