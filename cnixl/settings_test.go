package cnixl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/dataplane/transport"
)

func TestSettingsOfUCXAreParametersOfTheBackend(t *testing.T) {
	for _, tc := range []struct {
		name            string
		settings        []transport.Setting
		set             string // a variable of the environment
		engine, devices string
		err             error
	}{
		{"none", nil, "", "", "", nil},
		{"one port", []transport.Setting{{Name: "UCX_NET_DEVICES", Value: "mlx5_5:1"}, {Name: "UCX_IB_GPU_DIRECT_RDMA", Value: "yes"}}, "", "NET_DEVICES=mlx5_5:1,IB_GPU_DIRECT_RDMA=yes", "", nil},
		{"a second port", []transport.Setting{{Name: "UCX_NET_DEVICES", Value: "mlx4_0:2"}}, "", "NET_DEVICES=mlx4_0:2", "", nil},
		{"several", []transport.Setting{{Name: "UCX_NET_DEVICES", Value: "mlx5_4:1,mlx5_5:1"}, {Name: "UCX_MAX_RMA_RAILS", Value: "4"}}, "", "MAX_RMA_RAILS=4", "mlx5_4, mlx5_5", nil},
		{"several, and the user has said it", []transport.Setting{{Name: "UCX_NET_DEVICES", Value: "mlx5_4:1,mlx5_5:1"}}, "UCX_NET_DEVICES", "", "", nil},
		{"second ports among several", []transport.Setting{{Name: "UCX_NET_DEVICES", Value: "mlx4_0:1,mlx4_0:2"}}, "", "", "", transport.ErrInvalid},
		{"all but one", []transport.Setting{{Name: "UCX_NET_DEVICES", Value: "^mlx5_4:1"}}, "", "NET_DEVICES=^mlx5_4:1", "", nil},
		{"all but several", []transport.Setting{{Name: "UCX_NET_DEVICES", Value: "^mlx5_4:1,mlx5_5:1"}}, "", "", "^mlx5_4, mlx5_5", nil},
		{"a ^ amid a list", []transport.Setting{{Name: "UCX_NET_DEVICES", Value: "mlx5_4:1,^mlx5_5:1"}}, "", "", "", transport.ErrInvalid},
		{"a list of something else", []transport.Setting{{Name: "UCX_TLS", Value: "rc,cuda"}}, "", "", "", transport.ErrInvalid},
		{"no variable of UCX's", []transport.Setting{{Name: "LD_PRELOAD", Value: "x"}}, "", "", "", transport.ErrInvalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			engine, devices, err := backendParams(tc.settings, func(name string) bool { return name == tc.set })
			if len(tc.settings) == 1 && (*Agent)(nil).Carries(tc.settings[0]) != (tc.err == nil) {
				t.Errorf("%q is carried, or not, against what Open says", tc.settings)
			}
			if engine != tc.engine || devices != tc.devices || !errors.Is(err, tc.err) {
				t.Errorf("%q, %q, %v; want %q, %q, %v", engine, devices, err, tc.engine, tc.devices, tc.err)
			}
		})
	}
}

func TestAnAgentIsMadeWithItsSettings(t *testing.T) {
	s := newScript(t)
	s.open(Config{Agent: "plain"})
	if s.do("engine plain TCP_CONN_NB=y") != 1 || s.do("devices plain -") != 1 {
		t.Error("an agent without settings has parameters")
	}
	several := []transport.Setting{{Name: "UCX_NET_DEVICES", Value: "mlx5_4:1,mlx5_5:1"}, {Name: "UCX_MAX_RMA_RAILS", Value: "4"}}
	told := s.open(Config{Agent: "told", Settings: several})
	if s.do("engine told TCP_CONN_NB=y,MAX_RMA_RAILS=4") != 1 || s.do("devices told mlx5_4,mlx5_5") != 1 {
		t.Error("the backend was made without the settings")
	}
	twin, err := told.Twin("twin") // has the ways of its agent, past shared memory
	if err != nil {
		t.Fatal(err)
	}
	if s.do("engine twin TCP_CONN_NB=y,MAX_RMA_RAILS=4,TLS=^sm") != 1 || s.do("devices twin mlx5_4,mlx5_5") != 1 {
		t.Error("the twin has other settings")
	}
	if err := twin.Close(); err != nil {
		t.Error(err)
	}
	s.do("fail params_add 1 -1")
	if _, err := Open(Config{Agent: "refused", Path: s.path, Settings: several}); !errors.Is(err, transport.ErrUnavailable) {
		t.Errorf("a NIXL that takes no parameters: %v", err)
	}
}

func TestWhatLocksMemoryIsWhatTheAgentWasTold(t *testing.T) {
	settings := []transport.Setting{{Name: "UCX_NET_DEVICES", Value: "mlx5_5:1"}}
	unset := func(string) (string, bool) { return "", false }
	if got := named(settings, unset); got != "mlx5_5:1" {
		t.Errorf("%q", got)
	}
	if got := named(settings, func(string) (string, bool) { return "all", true }); got != "all" {
		t.Errorf("%q, and the user has said all", got)
	}
	if got := named(nil, unset); got != "" {
		t.Errorf("%q of nothing", got)
	}
}

// What the real library makes of it: a transport or devices that are not there leave UCX nothing, unless the environment says otherwise.
func TestRealNIXLTakesSettingsUnlessTheEnvironmentHasThem(t *testing.T) {
	none := []transport.Setting{{Name: "UCX_TLS", Value: "none-such"}}
	devices := []transport.Setting{{Name: "UCX_NET_DEVICES", Value: "none0:1,none1:1"}}
	for _, tc := range []struct {
		name     string
		settings []transport.Setting
		env      []string
		opens    bool
	}{
		{"a transport that is not there", none, nil, false},
		{"and the environment names another", none, []string{"UCX_TLS=tcp"}, true},
		{"devices that are not there", devices, []string{"UCX_TLS=tcp"}, false},
		{"all but devices that are not there", []transport.Setting{{Name: "UCX_NET_DEVICES", Value: "^none0:1,none1:1"}}, []string{"UCX_TLS=tcp"}, true},
		{"and the environment names all", devices, []string{"UCX_TLS=tcp", "UCX_NET_DEVICES=all"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !alone(t, tc.env...) {
				return
			}
			haveNIXL(t)
			a, err := Open(Config{Agent: "told", Folders: []string{".."}, Settings: tc.settings})
			if tc.opens {
				if err != nil {
					t.Fatal(err)
				}
				if err := a.Close(); err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, transport.ErrUnavailable) || !strings.Contains(err.Error(), tc.settings[0].Value) {
				t.Errorf("%v: it was not told", err)
			}
		})
	}
}

func TestWhatAUserSaysOfConnectingStays(t *testing.T) {
	s := newScript(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ucx.conf"), []byte("UCX_TCP_CONN_NB=n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("UCX_CONFIG_DIR", dir)
	s.open(Config{Agent: "file"})
	t.Setenv("UCX_CONFIG_DIR", "")
	t.Setenv("UCX_TCP_CONN_NB", "n")
	s.open(Config{Agent: "variable"})
	for _, agent := range []string{"file", "variable"} {
		if s.do("engine %s -", agent) != 1 {
			t.Errorf("what the %s says does not stay", agent)
		}
	}
}
