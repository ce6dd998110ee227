package sim

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// arrivals is a transport at which so many messages wait.
type arrivals struct {
	transport.Transport
	n, left int
}

func (a *arrivals) Poll(in *transport.Inbox) (n int) {
	for ; a.n > 0 && in.Put([]byte("D"), []byte("?")); n++ {
		a.n--
	}
	a.left = a.n
	return n
}

func (a *arrivals) Backlog() int { return a.left }

// A second look waits for all that had arrived by then, so a plane that is not told of it would look too early, and its checker, which
// stands at the same place, would not notice.
func TestThePlaneHearsOfAllThatHasArrivedAlsoWhereItsInboxIsFull(t *testing.T) {
	done := false
	_, err := Run(plain(), Options{Probes: []Probe{{At: 10 * time.Second, Look: func(w *World) {
		done = true
		from := &arrivals{n: 3}
		tap := &tap{Transport: from, r: w.byID["Q"].life.ranks[0]}
		in := transport.NewInbox(1, 100)
		if n, left := tap.Poll(in), tap.Backlog(); n != 1 || left != 2 {
			t.Errorf("%d taken and %d left of 3, want 1 and 2", n, left)
		}
		from.n += 3
		in.Reset()
		if n, left := tap.Poll(in), tap.Backlog(); n != 1 || left != 4 {
			t.Errorf("%d taken and %d left of 5, want 1 and 4", n, left)
		}
	}}}})
	if err != nil || !done {
		t.Fatalf("%v, and the probe was carried out: %v", err, done)
	}
}

// The owner takes one message a pass, and two ranks and another engine send it more. The heartbeat that it takes while the second look
// waits for what had arrived gives a deadline that passes before the wait is over, so the two looks at that one come late (L8).
func TestALeaseThatIsRenewedWhileItsSecondLookWaitsHasTwoLooksBehindIt(t *testing.T) {
	wantRight(t, "case", parsedCase(t, `
span: 210s
engines:
  - {id: P, host: true, pass: 6s, notifs: 1}
  - {id: D, host: true, known: [P]}
  - {id: E, host: true, tp: 2, known: [P]}
actions:
  - {at: 7s, engine: P, do: grant, req: a, blocks: 6}
  - {at: 8s, engine: E, do: track, req: a, peer: P}
  - {at: 12s, engine: P, do: grant, req: b, blocks: 4}
  - {at: 12s, engine: D, do: track, req: b, peer: P}
  - {at: 38s, engine: D, do: lose_rank}
expect:
  - {at: 209s, engine: P, counter: lease_due_saved, least: 1}
  - {at: 209s, held: b}
`))
}
