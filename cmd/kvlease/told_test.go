package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

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
