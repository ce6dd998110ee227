package cnixl

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestNetworksThatWereDownAreNamedWhereNoneWasUp(t *testing.T) {
	for _, tc := range []struct {
		name string
		nics []nic
		want []string
	}{
		{"a machine without any", nil, nil},
		{"one that is up", []nic{{"eth0", true}}, nil},
		{"one that is up beside a bridge that is not", []nic{{"docker0", false}, {"eth0", true}}, nil},
		{"an RDMA port beside interfaces that are down", []nic{{"eth0", false}, {"mlx5_0", true}}, nil},
		{"all down", []nic{{"eth0", false}, {"mlx5_0", false}}, []string{"eth0", "mlx5_0"}},
	} {
		if got := allDown(tc.nics); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestAPortOfAnRDMANICIsUpWhereItIsActive(t *testing.T) {
	sys := t.TempDir()
	for name, state := range map[string]string{"mlx5_0": "1: DOWN\n", "mlx5_1": "4: ACTIVE\n"} {
		dir := filepath.Join(sys, "class/infiniband", name, "ports/1")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "state"), []byte(state), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var ports []nic
	for _, n := range nics(sys) {
		if n.name == "mlx5_0" || n.name == "mlx5_1" {
			ports = append(ports, n)
		}
	}
	if want := []nic{{"mlx5_0", false}, {"mlx5_1", true}}; !slices.Equal(ports, want) {
		t.Errorf("%v, want %v", ports, want)
	}
}
