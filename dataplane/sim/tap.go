package sim

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// tap is the transport that the parts of a plane hold: that of the present era, or nobody's. The checker hears of what the plane
// takes, when it takes it.
type tap struct {
	transport.Transport
	r    *rankCtx
	in   *transport.Inbox
	left []tapped // for which the plane had no room
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
			return n
		}
		t.r.view.heard(t.left[0].agent, t.left[0].body)
		t.left = t.left[1:]
		n++
	}
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
	return n
}

// Backlog is part of transport.Transport.
func (t *tap) Backlog() int { return len(t.left) + t.Transport.Backlog() }
