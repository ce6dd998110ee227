package core

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// slow is a transport whose loads take their time.
type slow struct {
	transport.Transport
	lab  *lab
	took time.Duration
}

func (s *slow) Load(blob []byte) (transport.Peer, error) {
	s.lab.advance(s.took)
	return s.Transport.Load(blob)
}

func TestTheLongestLoadIsTold(t *testing.T) {
	l := &lab{t: t, now: clock.Instant(time.Hour), hub: newLab(t, `{}`).hub, size: loopbackConfig}
	d := l.node("D2", `{}`)
	s := &slow{Transport: d.core.agent.Transport, lab: l}
	d.core.agent.Transport = s
	for i, took := range []time.Duration{3 * time.Millisecond, 70 * time.Millisecond, time.Millisecond} {
		s.took = took
		l.connect(d, l.node([]string{"A", "B", "C"}[i], `{}`))
		for range 20 {
			l.advance(time.Millisecond)
			l.stepOne(d)
		}
	}
	if n := d.stat("load_max_ns"); n != uint64(70*time.Millisecond) {
		t.Errorf("the longest load took %v", time.Duration(n))
	}
	d.core.ResetPump()
	if n := d.stat("load_max_ns"); n != 0 {
		t.Errorf("%v after a new start", time.Duration(n))
	}
}
