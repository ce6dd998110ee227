package tracing

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/internal/await"
	"github.com/kvlease/kvlease/internal/child"
	"github.com/kvlease/kvlease/internal/require"
)

// target starts this test program, or a copy of it, as a process that can be traced.
func target(t *testing.T, program string) (cmd *exec.Cmd, in io.WriteCloser, out *bufio.Reader) {
	t.Helper()
	cmd = exec.Command(program)
	cmd.Env = append(os.Environ(), targetEnv+"=1")
	in, pipe := child.Pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	out = bufio.NewReader(pipe)
	if line, err := out.ReadString('\n'); line != "ready\n" { // it runs this program's code by now
		t.Fatalf("%q, %v", line, err)
	}
	return cmd, in, out
}

// A probe stays at its place in a file, whatever is written there: a new version of the library would run into it in the midst of other code.
func TestALibraryThatIsWrittenIntoIsLeftAndFoundAgain(t *testing.T) {
	needProbe(t)
	text, err := os.ReadFile("/proc/self/exe")
	program := filepath.Join(t.TempDir(), "kvlease-copy")
	if err = errors.Join(err, os.WriteFile(program, text, 0o755)); err != nil {
		t.Fatal(err)
	}
	r := start(t, Config{Library: program})
	attached := func() (is bool) {
		cmd, in, out := target(t, program)
		fmt.Fprintln(in)
		line, err := out.ReadString('\n')
		in.Close()
		if err = errors.Join(err, cmd.Wait()); err != nil {
			t.Fatal(err)
		}
		return line == "true\n"
	}
	if !attached() {
		t.Error("nobody is attached to the library")
	}
	if err := os.WriteFile(program, text[:len(text)/2], 0o755); err != nil {
		t.Fatal(err)
	}
	r.until(func(out string) bool { return strings.Contains(out, program+" was written into") })
	if err := os.WriteFile(program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the whole library is traced again", attached)
	if strings.Contains(r.out.String(), "is another file by now") {
		t.Error("nobody has replaced it yet")
	}
	if err := errors.Join(os.WriteFile(program+".new", text, 0o755), os.Rename(program+".new", program)); err != nil {
		t.Fatal(err)
	}
	r.until(func(out string) bool { return strings.Contains(out, program+" is another file by now, or gone") })
	if attached() {
		t.Error("the new file is traced: it is not the very one")
	}
	r.end()
}

// Copies of a library come and go with what runs from them, and each is a probe, a descriptor, and the disk's space.
func TestAFileThatNobodyCanMapAnyMoreIsGivenBack(t *testing.T) {
	needProbe(t)
	if os.Geteuid() != 0 {
		require.Skip(t, "root", "whether nobody maps it is known if all processes can be looked at")
	}
	program := filepath.Join(t.TempDir(), "kvlease-copy")
	text, err := os.ReadFile("/proc/self/exe")
	if err = errors.Join(err, os.WriteFile(program, text, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd, in, out := target(t, program)
	r := start(t, Config{JSON: true})
	held := func() bool {
		list, _ := os.ReadDir("/proc/self/fd")
		return slices.ContainsFunc(list, func(e os.DirEntry) bool {
			to, _ := os.Readlink("/proc/self/fd/" + e.Name())
			return strings.HasPrefix(to, program)
		})
	}
	attached := func() bool {
		fmt.Fprintln(in)
		line, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return line == "true\n"
	}
	await.True(t, "the copy is traced", attached)
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	n := strings.Count(r.out.String(), "\n")
	r.until(func(out string) bool { return strings.Count(out, "\n") > n+30 }) // a look for processes or more: it prints twenty times a second
	if !held() || !attached() {
		t.Error("a process still has it mapped")
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	await.True(t, "its file is given back", func() bool { return !held() })
	if got := parse(t, r.end()); !slices.Contains(got.Files, program) {
		t.Errorf("it was traced, and is not among %q", got.Files)
	}
}
