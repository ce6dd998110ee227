package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/cuda/devices"
	"github.com/kvlease/kvlease/cuda/fabric/machine"
)

func TestLinksAreThoseThatUCXMayUse(t *testing.T) {
	root := t.TempDir()
	shape, err := machine.Load("eight-by-eight")
	if err != nil {
		t.Fatal(err)
	}
	if err := shape.Build(root); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "sys/bus/pci/devices/0000:aa:00.0/current_link_width"), []byte("4\n"), 0o644); err != nil { // mlx5_9, in a slot for less
		t.Fatal(err)
	}
	m := devices.Machine{Sys: root + "/sys", Proc: root + "/proc", Dev: root + "/dev"}
	for _, tc := range []struct {
		name string
		gpus []string
		env  map[string]string
		want []string
	}{
		{"a GPU and its NIC", []string{"0000:52:00.0"}, nil, []string{"GPU 0000:52:00.0 63.0", "mlx5_2 50.0"}},
		{"twice the same GPU", []string{"0000:52:00.0", "0000:52:00.0"}, nil, []string{"GPU 0000:52:00.0 63.0", "mlx5_2 50.0"}},
		{"a GPU that sysfs does not show", []string{"0000:53:00.0"}, map[string]string{"UCX_TLS": "tcp"}, []string{"GPU 0000:53:00.0 0.00"}},
		{"the user's own choice", []string{"0000:52:00.0"}, map[string]string{"UCX_NET_DEVICES": "mlx5_8:1,mlx5_9:1"}, []string{"GPU 0000:52:00.0 63.0", "mlx5_8 25.0", "mlx5_9 7.88"}},
		{"no way over NICs", []string{"0000:52:00.0"}, map[string]string{"UCX_TLS": "tcp,cuda_copy"}, []string{"GPU 0000:52:00.0 63.0"}},
		{"host memory over two NICs", nil, map[string]string{"UCX_NET_DEVICES": "mlx5_0:1,mlx5_7:1"}, []string{"mlx5_0 50.0", "mlx5_7 50.0"}},
		{"host memory over sockets", nil, map[string]string{"UCX_TLS": "tcp"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, l := range links(m, tc.gpus, func(name string) (string, bool) { v, set := tc.env[name]; return v, set }) {
				got = append(got, fmt.Sprintf("%s %s", l.Name, short(l.GBs)))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("links (-want +got):\n%s", diff)
			}
		})
	}
	if got := len(links(m, nil, func(string) (string, bool) { return "", false })); got != 10 {
		t.Errorf("%d links of a user who has said nothing, want all NICs", got)
	}
}
