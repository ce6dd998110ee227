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

// TestFilesThatCannotBeWrittenAreKnownBeforeTheWork, which takes minutes, and by name, with what helps.
func TestFilesThatCannotBeWrittenAreKnownBeforeTheWork(t *testing.T) {
	dir := t.TempDir()
	pipe, trace := filepath.Join(dir, "pipe"), shortTrace(t)
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"prefill", "decode"} {
		if err := os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/false"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, command := range []string{
		"demo --examples " + dir + " --svg", "bench --svg", "trace --svg", "sim --case C26 --svg", "sim --seed 1 --svg", "sim --seed 1 --out",
		"sim --trace " + trace + " --svg", "sim --trace " + trace + " --json", "attach 127.0.0.1:1 --request r --blocks 0 --out",
	} {
		for path, why := range map[string]string{
			pipe:                            "nobody reads this pipe; start its reader first, or name another file by --",
			dir:                             "is a directory; name another file by --",
			filepath.Join(dir, "none", "x"): "no such file or directory; make its folder first, or name another file by --",
		} {
			code, stdout, stderr := invoke(t, "", append(strings.Fields(command), path)...)
			if code != exitFailed || stdout != "" || !strings.HasPrefix(stderr, "kvlease: "+path+" cannot be written: "+why) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("%s %s: code %d, %q, %q", command, path, code, stdout, stderr)
			}
		}
	}
	code, stdout, stderr := invoke(t, "", "soak", "--out", "/proc/self/fdinfo")
	if code != exitFailed || stdout != "" || !strings.HasPrefix(stderr, "kvlease: /proc/self/fdinfo/soak-") || !strings.HasSuffix(stderr, "name another folder by --out\n") {
		t.Errorf("soak: code %d, %q, %q", code, stdout, stderr)
	}
}

func TestAFullDiskIsAFailureWithNameAndRemedy(t *testing.T) {
	const full = "/dev/full"
	if _, err := os.Stat(full); err != nil {
		require.Skip(t, full, err.Error())
	}
	trace := shortTrace(t)
	for _, command := range []string{
		"sim --case C26 --svg", "sim --seed 1 --svg", "sim --seed 1 --out", "sim --trace " + trace + " --svg", "sim --trace " + trace + " --json",
	} {
		code, stdout, stderr := invoke(t, "", append(strings.Fields(command), full)...)
		if code != exitFailed || stdout == "" || !strings.Contains(stderr, full+" cannot be written: no space left on device; make room there, or name another file by --") {
			t.Errorf("%s: code %d, %q, %q", command, code, stdout, stderr)
		}
	}
	if st, err := os.Stat(full); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("%s is no device any more: %v, %v", full, st, err)
	}
}

func TestAPictureGoesIntoAPipeWhole(t *testing.T) {
	dir := t.TempDir()
	pipe, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "file")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	got := make(chan []byte)
	for _, path := range []string{file, pipe} {
		if path == pipe {
			go func() {
				var text bytes.Buffer
				for b := make([]byte, 1<<16); !bytes.Contains(text.Bytes(), []byte("</svg>")); {
					n, err := reader.Read(b) // nothing before the writer has come
					if text.Write(b[:n]); err != nil && text.Len() > 0 {
						break
					}
				}
				got <- text.Bytes()
			}()
		}
		if code, _, stderr := invoke(t, "", "sim", "--case", "C26", "--svg", path); code != exitOK {
			t.Fatalf("%s: code %d, %q", path, code, stderr)
		}
	}
	want, err := os.ReadFile(file)
	if text := <-got; err != nil || !bytes.Equal(bytes.TrimSpace(text), bytes.TrimSpace(want)) {
		t.Errorf("%d bytes have come, want %d, %v", len(text), len(want), err)
	}
}
