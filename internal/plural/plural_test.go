package plural

import "testing"

func TestOneThingIsOneAndNoneAreMany(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 leases are", 1: "1 lease is", 2: "2 leases are"} {
		if got := Counted(n, "lease is", "leases are"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
