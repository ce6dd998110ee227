package handshake

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/trace/tracetest"
	"github.com/kvlease/kvlease/dataplane/wire"
)

func TestTheStatesOfAnEngineRunThroughTheirSite(t *testing.T) {
	var rec tracetest.Recorder
	rec.AttachAll()
	inLab(t, Config{Sites: rec.Sites().For(4)}, func(l *lab) {
		l.peers["p:1"] = refuses
		if err := l.Want(9, Desc{ID: "P", Addr: "p:1", Ranks: allRanks(1, 1)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * ms)
		l.mu.Lock()
		l.peers["p:1"] = l.engine("P", 0)
		l.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
	})
	p := wire.EngineHash([]byte("P"))
	// The states here and in trace have the same numbers; the second attempt comes a second after the first.
	want := [][4]uint64{
		{4, p, trace.HandshakeQueued, 0}, {4, p, trace.HandshakeFetching, 0}, {4, p, trace.HandshakeFailed, 0},
		{4, p, trace.HandshakeQueued, uint64(time.Second)}, {4, p, trace.HandshakeFetching, 0}, {4, p, trace.HandshakeReady, 0},
	}
	if diff := cmp.Diff(want, tracetest.Of(rec.Take(), trace.HandshakeState)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, state := range map[string]int{
		"queued": trace.HandshakeQueued, "fetching": trace.HandshakeFetching, "ready": trace.HandshakeReady,
		"failed": trace.HandshakeFailed, "incompatible": trace.HandshakeIncompatible,
	} {
		if got := State(state).String(); got != name {
			t.Errorf("state %d is called %q, want %q", state, got, name)
		}
	}
}
