package core

import (
	"net"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/watch"
)

// An engine that answers no handshake was idle, as one that nobody has asked; one that does not fit, too.
func TestThePageSaysHowHandshakesStand(t *testing.T) {
	noLeaks(t)
	l := newSideLab(t)
	q := l.node("Q", `{"compatibility_hash":"another"}`)
	p, d := l.node("P", `{"compatibility_hash":"our-model"}`), l.node("D", `{"compatibility_hash":"our-model"}`)
	l.name(d, p)
	l.name(d, q)
	gone := l.nameAt(d, "gone", l.host, deadPort(t))
	byHand := l.nameAt(d, "by hand", "", 0)
	asked := map[string]watch.Asked{}
	l.until("all were asked", func() bool {
		for _, r := range shown(t, d.core).Remotes {
			asked[r.ID] = r.Asked
		}
		return asked["gone"].Fails > 0 && asked["Q"].Fails > 0 && asked["P"].State == "ready"
	}, p, q, d)
	now := Now()
	for id, want := range map[string]watch.Asked{
		"P": {State: "ready"}, "Q": {State: "incompatible", Why: "incompatible"}, "gone": {State: "failed", Why: "unreachable"}, "by hand": {},
	} {
		got := asked[id]
		if failed := want.Why != ""; got.Fails > 0 != failed || got.Since > 0 != failed || got.Since > now || now.Sub(got.Since) > time.Minute && failed {
			t.Errorf("%s: %+v at %d", id, got, now)
		}
		if id == "gone" && got.State != "ready" && got.State != "incompatible" { // it may just be asked again
			got.State = want.State
		}
		if got.Fails, got.Since = 0, 0; got != want {
			t.Errorf("%s: %+v, want %+v", id, got, want)
		}
	}
	if d.view(gone).State != heartbeat.Idle || d.view(byHand).State != heartbeat.Idle {
		t.Errorf("to a step one is %v and the other %v", d.view(gone).State, d.view(byHand).State)
	}
}

// deadPort is a port at which nobody listens.
func deadPort(t *testing.T) int {
	t.Helper()
	here, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	return here.Addr().(*net.TCPAddr).Port
}
