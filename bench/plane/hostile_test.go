package plane

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// The steps that one message of 4 MiB from nobody that P knows takes, among 10,000 leases: the longest that is read, filled with what makes a
// reader of heartbeats work most. An op is one message; none needs more steps than one of commas.
func BenchmarkHostile4MiB(b *testing.B) {
	for _, tc := range []struct{ name, piece string }{
		{"commas", ","},
		{"ids of one byte", "x,"}, // each is looked up, and each run of neighbours as one id with commas
		{"ids of 50 bytes", requestID(1<<30) + ","},
		{"one id", "x"},
	} {
		b.Run(tc.name, func(b *testing.B) {
			hub := loopback.NewHub()
			p := open(b, hub, "P", `{"kv_lease_duration":3600}`)
			p.hold(10_000)
			m, err := p.core.OwnHandshake(0)
			must(b, err)
			var h wire.Handshake
			must(b, wire.ParseHandshake(m, &h))
			d, err := hub.New("vllm-agent", loopback.Config{NotifBytesMax: 8 << 20})
			must(b, err)
			peer, err := d.Load(h.AgentMetadata)
			must(b, err)
			msg := append([]byte("HB:"), bytes.Repeat([]byte(tc.piece), wire.ParseMax/len(tc.piece))...)[:wire.ParseMax]
			worst := time.Duration(0)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				must(b, d.Send(peer, msg))
				b.StartTimer()
				for range wire.ParseMax>>15 + 2 { // 32,768 elements a step
					p.now = p.now.Add(time.Millisecond)
					start := time.Now()
					must(b, p.core.Step())
					worst = max(worst, time.Since(start))
				}
			}
			b.ReportMetric(float64(worst), "ns/step-worst")
			var stats struct {
				NotifsReceived int `json:"notifs_received"`
				BeatsApplied   int `json:"beats_applied"`
			}
			must(b, json.Unmarshal(p.core.Stats(), &stats))
			if stats.NotifsReceived != b.N || stats.BeatsApplied != 0 || p.core.Held() != 10_000 {
				b.Fatalf("%d of %d messages received, %d beats applied, %d leases held", stats.NotifsReceived, b.N, stats.BeatsApplied, p.core.Held())
			}
		})
	}
}
