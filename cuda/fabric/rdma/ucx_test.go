package rdma

import (
	"os"
	"path/filepath"
	"testing"
)

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

func TestWhatAUserHasToldUCXIsFoundWhereUCXLooks(t *testing.T) {
	process := t.TempDir()
	for name, text := range map[string]string{
		"root/etc/ucx/ucx.conf":           "\ufeffUCX_TLS=rc ; as the guide says\nUCX_NET_DEVICES=mlx5_0:1\n# UCX_MAX_RMA_RAILS=8\n  ;UCX_MAX_RMA_RAILS=7\n",
		"root/users/me/ucx.conf":          "[Section]\n UCX_NET_DEVICES = mlx5_1:1 \n",
		"root/opt/ucx/ucx.conf":           "UCX_NET_DEVICES : mlx5_2:1",
		"cwd/ucx.conf":                    "UCX_IB_GPU_DIRECT_RDMA=yes\n # not yet\n no\n",
		"root/nowhere/at/ucx.conf":        "UCX_MAX_RMA_RAILS=9\n",
		"root/venv/site/etc/ucx/ucx.conf": "UCX_MAX_RMA_RAILS=2\nUCX_TLS=rc,cuda\nUCX_NET_DEVICES=mlx5_9:1\n",
		"maps":                            "7f0-7f1 r-xp 00000000 08:01 7 /usr/lib/libucsomething.so\n7f1-7f2 r-xp 00000000 08:01 9 /venv/site/nixl.libs/libucs-14c218c5.so.0.0.0\n",
	} {
		name = filepath.Join(process, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"HOME": "/users/me"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	for _, tc := range []struct {
		set        map[string]string
		name, want string
		is         bool
	}{
		{nil, "UCX_TLS", "rc,cuda", true}, // beside the library: later than /etc/ucx, sooner than HOME
		{nil, "UCX_NET_DEVICES", "mlx5_1:1", true},
		{map[string]string{"UCX_CONFIG_DIR": "/opt/ucx"}, "UCX_NET_DEVICES", "mlx5_2:1", true},
		{map[string]string{"UCX_NET_DEVICES": ""}, "UCX_NET_DEVICES", "", true},
		{nil, "UCX_IB_GPU_DIRECT_RDMA", "no", true},
		{nil, "UCX_MAX_RMA_RAILS", "2", true},
		{nil, "UCX_IB_SL", "", false},
	} {
		env = map[string]string{"HOME": "/users/me"}
		for name, v := range tc.set {
			env[name] = v
		}
		if got, is := Told(lookup, process)(tc.name); got != tc.want || is != tc.is {
			t.Errorf("%v: %s is %q, %v; want %q, %v", tc.set, tc.name, got, is, tc.want, tc.is)
		}
	}
	if err := os.Remove(filepath.Join(process, "maps")); err != nil {
		t.Fatal(err)
	}
	if v, _ := Told(lookup, process)("UCX_TLS"); v != "rc" {
		t.Errorf("without a UCX that is loaded UCX_TLS is %q", v)
	}
	if _, is := Told(lookup, filepath.Join(process, "gone"))("UCX_TLS"); is {
		t.Error("a process that is not there has told something")
	}
}
