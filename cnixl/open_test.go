package cnixl

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/dataplane/transport"
)

func TestAFailureWhileOpeningIsNamedAndLeavesNothing(t *testing.T) {
	s := newScript(t)
	for _, call := range []string{
		"create_configured_agent", "get_plugin_params", "create_backend", "create_notif_map", "create_xfer_dlist", "create_opt_args",
		"opt_args_set_has_notif",
	} {
		s.do("fail %s 1 -2", call)
		if _, err := Open(Config{Agent: "one", Path: s.path}); !errors.Is(err, transport.ErrUnavailable) || !strings.Contains(err.Error(), s.path) {
			t.Errorf("%s fails: %v, want ErrUnavailable with the file", call, err)
		}
	}
	for range 3 * 64 { // more than there are places for agents
		s.do("fail create_backend 1 -2")
		if _, err := Open(Config{Agent: "one", Path: s.path}); !errors.Is(err, transport.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	s.open(Config{Agent: "one"})
	if _, err := Open(Config{Agent: "one", Path: s.path}); !errors.Is(err, transport.ErrUnavailable) {
		t.Errorf("second agent of a name: %v", err)
	}
}

func TestAConfigurationThatCannotBeIsRefused(t *testing.T) {
	s := newScript(t)
	for _, cfg := range []Config{
		{Agent: ""}, {Agent: strings.Repeat("n", 256)}, {Agent: "a\x00b"}, {Agent: "a", PeersMax: 8191}, {Agent: "a", PeersMax: -1},
		{Agent: "a", ReadsMax: -1}, {Agent: "a", ReadsMax: 1 << 21}, {Agent: "a", RegionsMax: -1},
	} {
		cfg.Path = s.path
		if a, err := Open(cfg); !errors.Is(err, transport.ErrInvalid) || a != nil {
			t.Errorf("%+v: %v, want ErrInvalid", cfg, err)
		}
	}
}

func TestASymbolThatIsMissingIsNamed(t *testing.T) {
	path, err := built.Path()
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, symbol := range Symbols() {
		old := append(append([]byte{0}, symbol...), 0)
		renamed := bytes.Clone(old)
		renamed[len(renamed)-2] ^= 1
		file := filepath.Join(dir, "without_"+symbol+".so")
		if err := os.WriteFile(file, bytes.ReplaceAll(whole, old, renamed), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := Open(Config{Agent: "a", Path: file})
		if !errors.Is(err, transport.ErrUnavailable) || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), symbol) || !strings.Contains(err.Error(), "NIXL unknown") { // shows C72.1
			t.Errorf("without %s: %v, want ErrUnavailable with file and symbol", symbol, err)
		}
	}
}

// The loader would map what is not there, and the process would end by SIGBUS.
func TestALibraryThatWasCutShortIsUnavailable(t *testing.T) {
	whole, err := os.ReadFile(newScript(t).path)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cut.so")
	for _, cut := range []int{0, 1, 63, 64, 200, 4096, 8192} { // the last two of its code and data
		if err := os.WriteFile(file, whole[:cut], 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := Open(Config{Agent: "a", Path: file})
		if !errors.Is(err, transport.ErrUnavailable) || !strings.Contains(err.Error(), file) || cut >= 4096 && !strings.Contains(err.Error(), "cut short: fetch it again") {
			t.Errorf("its first %d bytes: %v, want ErrUnavailable that names the file", cut, err)
		}
	}
}

func TestAStubIsUnavailable(t *testing.T) {
	s := newScript(t)
	s.do("stub 1")
	if _, err := Open(Config{Agent: "a", Path: s.path}); !errors.Is(err, transport.ErrUnavailable) || !strings.Contains(err.Error(), "stub") {
		t.Errorf("%v, want ErrUnavailable that speaks of a stub", err)
	}
}
