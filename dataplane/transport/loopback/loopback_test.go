package loopback_test

import (
	"testing"

	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/transport/transporttest"
)

func TestTheContract(t *testing.T) {
	transporttest.Run(t, func(t *testing.T) transporttest.Pair {
		h := loopback.NewHub()
		a, err := h.New("decode-0", loopback.Config{ReadsMax: 20})
		if err != nil {
			t.Fatal(err)
		}
		b, err := h.New("prefill-0", loopback.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = a.Close(), b.Close() })
		return transporttest.Pair{
			A: a, B: b, ReadsMax: 20, Hold: a.HoldReads,
			KillB: func() { h.Kill("prefill-0") },
			CutA:  func() { h.Cut("decode-0", "prefill-0") },
		}
	})
}
