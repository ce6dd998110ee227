package rdma

import "testing"

func TestNICsAreThoseThatUCXMayUse(t *testing.T) {
	nics := []string{"mlx5_0", "mlx5_1", "mlx5_10"}
	for _, tc := range []struct {
		tls, named string
		want       int
	}{
		{"", "", 3}, {"all", "all", 3}, {"tcp", "", 0}, {"tcp,sm,self", "", 0}, {"rc,sm,self", "", 3}, {"rc_x, cuda", "", 3}, {"^tcp", "", 3},
		{"ud_verbs", "mlx5_1:1", 1}, {"", "mlx5_1:1,mlx5_10:1", 2}, {"", "eth0", 0}, {"ib", "mlx5_1", 1}, {`\rc`, "mlx5_1:1,mlx5_1:2", 1},
		{"^ib", "", 0}, {"^rc", "", 3}, {"^rc,dc,ud", "", 0}, {"", "^mlx5_1:1", 2}, {"rc", "^mlx5_0:1,mlx5_10:1", 1}, {"", "^eth0", 3},
	} {
		got, takes := 0, Takes(tc.tls, tc.named)
		for _, nic := range nics {
			if takes(nic) {
				got++
			}
		}
		if got != tc.want {
			t.Errorf("UCX_TLS=%q UCX_NET_DEVICES=%q: %d NICs, want %d", tc.tls, tc.named, got, tc.want)
		}
	}
}
