package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/internal/require"
)

func TestWhatCannotBeToldIsAFailure(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		require.Skip(t, "/dev/full", err.Error())
	}
	defer full.Close()
	for _, args := range [][]string{
		{"doctor", "--no-load"}, {"doctor", "--no-load", "--json"}, {"version"}, {"version", "--json"}, {"sim", "--case", "list"}, {"bench", "--help"}, {"--help"},
	} {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), envTool+"=1")
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = full, &said
		if err := cmd.Run(); cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if code := cmd.ProcessState.ExitCode(); code != exitFailed || strings.Count(said.String(), "no space left") != 1 {
			t.Errorf("%q: code %d, %q", args, code, said.String())
		}
	}
}

func TestAPictureIsNotWrittenIntoAPipeThatNobodyReads(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "demo.svg")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writable(pipe); err == nil || !strings.Contains(err.Error(), "name another file by --svg") {
		t.Errorf("%v", err)
	}
}
