package simnet

import (
	"testing"

	"github.com/kvlease/kvlease/dataplane/internal/regions"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// What is accepted loads, and can be sent to.
func FuzzMetadata(f *testing.F) {
	f.Add(regions.Append(nil, magic, "P-0", 1, []transport.Region{
		{Addr: 0x1000, Bytes: 0x20}, {Addr: 0x3000, Bytes: 1, Device: 2, Mem: transport.VRAM},
	}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := regions.Parse(b, magic); err != nil {
			return
		}
		n := New(Config{})
		a, err := n.Agent("D", AgentConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if p, err := a.Load(b); err != nil || a.Send(p, nil) != nil {
			t.Errorf("it did not load: %v", err)
		}
	})
}
