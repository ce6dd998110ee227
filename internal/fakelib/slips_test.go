package fakelib_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/cnixl/fake"
	"github.com/kvlease/kvlease/cuda/fakecuda"
	"github.com/kvlease/kvlease/cuda/fakenvml"
	"github.com/kvlease/kvlease/internal/require"
)

// fakes are all that scripts are written for.
var fakes = []struct {
	variable, call string
	build          func(dir, name string) (string, error)
	control        func(path, command string) (int, error)
}{
	{"KVL_FAKE_NIXL", "register_mem", fake.Build, fake.Control},
	{"KVL_FAKE_CUDA", "cuMemAlloc", fakecuda.Build, fakecuda.Control},
	{"KVL_FAKE_NVML", "DeviceGetName", func(dir, name string) (string, error) { return fakenvml.Build(dir, name) }, fakenvml.Control},
}

// envLibrary makes this program one that gives a fake a command, and with it its script of the environment.
const envLibrary = "KVLEASE_FAKELIB_TEST"

func TestMain(m *testing.M) {
	path := os.Getenv(envLibrary)
	if path == "" {
		os.Exit(m.Run())
	}
	for _, f := range fakes {
		if os.Getenv(f.variable) == "" {
			continue
		}
		if _, err := f.control(path, os.Getenv("COMMAND")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(0)
}

// TestAScriptNamesCallsThatThereAre: the fault of another name never comes, and the test that waits for it passes as if it had.
func TestAScriptNamesCallsThatThereAre(t *testing.T) {
	for _, f := range fakes {
		path, err := f.build(t.TempDir(), "fake.so")
		require.Compiled(t, err)
		commands := []string{"fail %s 1 3", "count %s", "gate %s 0", "slow %s 1"}
		switch f.variable {
		case "KVL_FAKE_CUDA":
			commands = append(commands, "missing %s", "dies 0 %s 1 719")
		case "KVL_FAKE_NIXL":
			commands = commands[:3]
		case "KVL_FAKE_NVML":
			commands = append(commands[:2], commands[3])
		}
		for _, command := range commands {
			for _, slip := range []bool{false, true} {
				name := f.call
				if slip {
					name += "o"
				}
				line := fmt.Sprintf(command, name)
				for _, way := range []string{f.variable, "COMMAND"} {
					cmd := exec.Command(os.Args[0])
					cmd.Env = append(os.Environ(), envLibrary+"="+path, f.variable+"= ", "COMMAND=", way+"="+line)
					said, err := cmd.CombinedOutput()
					if !slip {
						if err != nil || len(said) > 0 {
							t.Errorf("%s: %q: %v, %s", way, line, err, said)
						}
						continue
					}
					if want := `this fake has no call "` + name + `"; it has:`; err == nil || !strings.Contains(string(said), want) ||
						!strings.Contains(string(said), " "+f.call) || !strings.Contains(string(said), line) {
						t.Errorf("%s: %q: %v, %s", way, line, err, said)
					}
				}
			}
		}
	}
}
