package deploy

import (
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/core/coretest"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// slow is a transport in which every look for messages takes longer than a step may.
type slow struct{ transport.Transport }

func (s slow) Poll(in *transport.Inbox) int {
	time.Sleep(80 * time.Millisecond)
	return s.Transport.Poll(in)
}

// slowEngine steps over such a transport, in this process, until the test ends.
func slowEngine(t *testing.T, dir, id string) {
	t.Helper()
	inner := core.Loopback(loopback.NewHub())
	c, _ := coretest.Open(t, fmt.Sprintf(`{"engine_id":%q,"transport":"loopback","stats_page":%q,"log":"off"}`, id, dir), func(cfg *core.Config, agent string) (transport.Transport, error) {
		tr, err := inner(cfg, agent)
		return slow{tr}, err
	})
	stop := make(chan struct{})
	var steps sync.WaitGroup
	steps.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				c.Step()
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		steps.Wait()
	})
}

// TestTroubleOfStepsAndRanksOverARealPrometheus: an engine whose steps are slow, one that is stopped again and again, an engine whose
// host stands still and that then loses a rank, and a rank with another duration than its host.
func TestTroubleOfStepsAndRanksOverARealPrometheus(t *testing.T) {
	s := watching(t)
	one := func(id string, lease time.Duration, args ...string) *engine {
		return newEngine(t, s.dir, id, lease, append([]string{"--role", "prefill"}, args...)...)
	}
	ranked := func(id, carrier string, lease time.Duration, context ...string) *engine {
		return one(id, lease, append([]string{"--tp", "2", "--carrier", carrier, "--context"}, context...)...)
	}
	slowEngine(t, s.dir, "slow")
	stalls := one("stalls", lease)
	stalls.ask("expect", map[string]any{"id": "next"}) // who has nothing to do does not stand still
	sockets := t.TempDir()
	here, there := filepath.Join(sockets, "1"), filepath.Join(sockets, "2")
	host := ranked("ranks", here, lease, "host")
	ranked("ranks", here, lease, "rank", "--tp-rank", "0")
	lost := ranked("ranks", here, lease, "rank", "--tp-rank", "1")
	ranked("misfit", there, lease, "host")
	ranked("misfit", there, 2*lease, "rank", "--tp-rank", "0")
	for _, name := range []string{"slow", "stalls", "ranks", "misfit"} {
		s.answers(name+" is seen", `kvlease_up`, want{1, 1, name, "it lives"}, nil)
	}
	s.answers("both ranks are there", `kvlease_ranks_up`, want{2, 2, "ranks", "two"}, nil)
	s.answers("none has been lost", `kvlease_ranks_lost`, want{0, 0, "ranks", "both live"}, nil)
	for _, srv := range s.servers {
		if all := firing(t, srv); all["KvleaseRankLost ranks"] || all["KvleaseStalls stalls"] {
			t.Fatalf("%s: these fire before anything has happened: %v", srv.name, all)
		}
	}

	host.ask("grant", map[string]any{"id": "held", "blocks": []int{1, 2}, "tokens": 32})
	s.answers("the host holds a lease", `kvlease_leases_held`, want{1, 1, "ranks host", "it was granted"}, nil)
	host.stop()
	s.answers("a host that stands still", `ALERTS{alertname="KvleaseStandsStill",alertstate="firing"}`, want{1, 1, "ranks host", "it holds a lease"}, nil)
	host.cmd.Process.Signal(syscall.SIGCONT)

	lost.cmd.Process.Signal(syscall.SIGKILL)
	s.fires("slow steps, stalls, and ranks", func() {
		stalls.stop()
		time.Sleep(beatEvery + beatEvery/2)
		stalls.cmd.Process.Signal(syscall.SIGCONT)
		time.Sleep(beatEvery / 2)
	}, "KvleaseStepsSlow slow", "KvleaseStalls stalls", "KvleaseRankLost ranks", "KvleaseRankMisfit misfit", "KvleaseEngineDown ranks")
	s.answers("its host is not down, the rank is", `ALERTS{alertname="KvleaseEngineDown",alertstate="firing"}`, want{1, 1, "ranks rank", "its process is gone"}, nil)
	host.cmd.Process.Signal(syscall.SIGKILL)
	s.answers("the rank that lives has lost its host", `kvlease_host_lost`, want{1, 1, "ranks rank", "its process is gone"}, nil)
}
