package demo

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/wire"
)

func TestTheRouterKeepsWhatItDoesNotKnowAndTurnsTheRequestAround(t *testing.T) {
	ttl := 86400.123456789
	given := wire.Params{
		DoRemotePrefill: true, EngineID: "P", RequestID: `r "1" <é>`, Host: "localhost", Port: 5600, TPSize: 2, DCPSize: 1, PPSize: 1,
		NumTokens: 48, Groups: [][]uint32{{0, 7, 1<<32 - 1}}, TransferMode: "pull", Native: true, ExpiryTime: &ttl,
		Lease: wire.ParamsLease{Version: 1, Epoch: 1<<64 - 1, Slot: 1<<23 - 2, Generation: 1 << 31, Key: 1<<63 + 1},
	}
	for _, tc := range []struct {
		name, host string
		toP        bool
	}{
		{"to D, under the host that the router knows", "10.1.2.3", false},
		{"to D, host as it was", "", false},
		{"the next turn, to P", "127.0.0.1", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, err := routed(wire.AppendParams(nil, &given), tc.host, tc.toP)
			if err != nil {
				t.Fatal(err)
			}
			var got wire.Params
			if err := wire.ParseParams(out, &got); err != nil {
				t.Fatalf("%s: %v", out, err)
			}
			want := given
			want.DoRemotePrefill, want.DoRemoteDecode = !tc.toP, tc.toP
			if tc.host != "" {
				want.Host = tc.host
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("parameters (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheRouterRefusesWhatIsNoObject(t *testing.T) {
	for _, text := range []string{``, `[]`, `null`, `{"remote_port":`} {
		if out, err := routed(json.RawMessage(text), "", false); err == nil {
			t.Errorf("%q became %s", text, out)
		}
	}
}
