package nvml

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cuda/fabric"
	"github.com/kvlease/kvlease/cuda/fabric/machine"
	"github.com/kvlease/kvlease/cuda/fakenvml"
	"github.com/kvlease/kvlease/internal/fakelib"
	"github.com/kvlease/kvlease/internal/require"
)

// envLook makes the test binary a process that looks at a machine with the library it names, and says what it found: a library can be
// used once in the life of a process.
const envLook = "KVLEASE_TEST_LOOK"

func TestMain(m *testing.M) {
	if library := os.Getenv(envLook); library != "" {
		a, err := Look(library, 0)
		fmt.Println("error:", err)
		for _, g := range a.GPUs {
			fmt.Println("gpu:", g.Index, g.Err, g.Untold)
		}
		os.Exit(0)
	}
	code := m.Run()
	built.Remove()
	os.Exit(code)
}

var built = fakelib.Once{Build: func(dir string) (string, error) { return fakenvml.Build(dir, "libfakenvml.so") }}

// lab is the fake that answers for the GPUs of a machine.
type lab struct {
	t       *testing.T
	library string
	watch   time.Duration
}

func newLab(t *testing.T, name string) *lab {
	t.Helper()
	library, err := built.Path()
	require.Compiled(t, err)
	m, err := machine.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, library: library}
	for _, line := range m.Script() {
		l.tell("%s", line)
	}
	t.Cleanup(func() { l.tell("reset") })
	return l
}

func (l *lab) tell(format string, args ...any) int {
	l.t.Helper()
	n, err := fakenvml.Control(l.library, fmt.Sprintf(format, args...))
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

// look expects GPUs to be found.
func (l *lab) look() fabric.Answer {
	l.t.Helper()
	a, err := Look(l.library, l.watch)
	if err != nil {
		l.t.Fatal(err)
	}
	return a
}

// lookElsewhere looks in a process of its own, with a library without some symbols, and gives what it said.
func lookElsewhere(t *testing.T, script string, without ...string) string {
	t.Helper()
	library, err := fakenvml.Build(t.TempDir(), "libfakenvml.so", without...)
	require.Compiled(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envLook+"="+library, "KVL_FAKE_NVML="+script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: a missing symbol has ended the process\n%s", err, out)
	}
	return string(out)
}

func contains(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s: no %q in %q", what, w, text)
		}
	}
}
