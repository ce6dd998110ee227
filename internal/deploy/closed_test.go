package deploy

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// missed are the alerts about engines that cannot be reached. A reader asks more and more seldom, in true time, while here time goes faster for
// rules: see TestHandshakesThatNobodyWaitsForAlarmNobody for the third one.
const missed = "KvleaseEngineUnreachable|KvleaseUnhealthy"

// TestAnOwnerThatIsClosedInOrderAlarmsNobody over a real Prometheus: D has read all that it wanted of P when P drains and leaves. D knows it
// on, asks for it in vain, and has no other engine; nobody is woken. Then an owner is killed of which D still wants something.
func TestAnOwnerThatIsClosedInOrderAlarmsNobody(t *testing.T) {
	s := newStage(t)
	for i := range 4 {
		id := fmt.Sprint("r", i)
		s.pair.request(id, 2)
		s.pair.read(id)
	}
	d := s.pair.d
	s.answers("nothing is left of them", `kvlease_leases_held`, want{0, 0, "P", "all were read"}, nil)
	s.pair.p.cmd.Process.Signal(syscall.SIGTERM)
	if bye := s.pair.p.await("P leaves", func(r *report) bool { return r.Ev == "bye" }); bye.Error != "" {
		t.Fatalf("P did not leave in order: %s", bye.Error)
	}
	long := 4 * lease.Seconds() // far longer than a lease duration and the longest wait of these alerts
	s.answers("D finds out", `kvlease_engines_failing_seconds_max`, want{long, 1e6, "D", "P is gone"}, nil)
	s.answers("D asks for it", `sum by (engine) (rate(kvlease_handshake_failures_total[1m]))`, want{1e-3, 100, "D", "nobody listens"}, nil)
	for _, srv := range s.servers {
		list, err := srv.ask(`max_over_time(ALERTS{alertname=~"` + missed + `", alertstate="firing"}[10m])`)
		if err != nil || len(list) > 0 {
			t.Errorf("%s: %v, and these have fired: %v", srv.name, err, list)
		}
	}

	s.pair.begin(t, s.dir, "P2")
	s.pair.connect(d)
	s.pair.request("wanted", 2)
	s.answers("P2 is in use", `kvlease_remote_requests_tracked`, want{1, 1, "D P2", "a request waits"}, nil)
	s.pair.p.cmd.Process.Signal(syscall.SIGKILL)
	var all []string
	for _, alert := range strings.Split(missed, "|") {
		all = append(all, alert+" D")
	}
	s.fires("the death of an owner that is wanted", nil, all...)
}
