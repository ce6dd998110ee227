package lease

import (
	"strings"
	"testing"

	"github.com/kvlease/kvlease/dataplane/wire"
)

func TestTheNameOfAnAgentTellsTheEngineOnlyIfTheHashSaysSo(t *testing.T) {
	d, dotted := wire.EngineHash([]byte("D")), wire.EngineHash([]byte("pod.7"))
	long := strings.Repeat("x", AgentMax)
	for _, tc := range []struct {
		agent, want string
		engine      uint64
	}{
		{"D.0a1b2c3d4e5f6071", "D", d}, {"D.12.0a1b2c3d4e5f6071", "D", d}, {"pod.7.0a1b2c3d4e5f6071", "pod.7", dotted},
		{"pod.7.0.0a1b2c3d4e5f6071", "pod.7", dotted},
		{"", "", d}, {".", "", d}, {"D", "", d}, {"E.0a1b2c3d4e5f6071", "", d}, {"D.0.0.0a1b2c3d4e5f6071", "", d}, {"an agent", "", d},
		{long + ".1", long, wire.EngineHash([]byte(long))}, {long + "x.1", "", wire.EngineHash([]byte(long + "x"))},
	} {
		if got := idOf([]byte(tc.agent), tc.engine); string(got) != tc.want {
			t.Errorf("%q: %q, want %q", tc.agent, got, tc.want)
		}
	}
}
