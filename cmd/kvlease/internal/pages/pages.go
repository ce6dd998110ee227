// Package pages finds the stats pages of a process, also of one in other namespaces than ours.
package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kvlease/kvlease/dataplane/watch"
)

// Of lists the pages that were made under a process's number, in its own view of the file system. Whether they are its own their heads
// tell: another process may have had the number before, or have it in another namespace.
func Of(pid int, dir string) ([]string, error) {
	return Numbered(filepath.Join(Root(pid), folder(dir)), InnerPID(pid))
}

// Numbered lists the pages in a folder that were made under a process number.
func Numbered(dir string, pid int) ([]string, error) {
	paths, err := watch.List(folder(dir))
	if err != nil {
		return nil, err
	}
	var own []string
	for _, path := range paths {
		if parts := strings.Split(filepath.Base(path), "."); len(parts) == 4 && parts[2] == strconv.Itoa(pid) {
			own = append(own, path)
		}
	}
	return own, nil
}

func folder(dir string) string {
	if dir == "" {
		return watch.DefaultDir
	}
	return dir
}

// Root is where a process's file system begins: / if it shares ours, or if we may not know.
func Root(pid int) string {
	root := fmt.Sprintf("/proc/%d/root", pid)
	if at, err := os.Readlink(root); err == nil && at != "/" {
		return root // it has gone into a folder of ours
	}
	if own, err := os.Readlink("/proc/self/ns/mnt"); err == nil {
		if its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid)); err == nil && its != own {
			return root
		}
	}
	return "/"
}

// InnerPID is the number that a process has in its own pid namespace.
func InnerPID(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err == nil {
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
				if f := strings.Fields(rest); len(f) > 0 {
					if v, err := strconv.Atoi(f[len(f)-1]); err == nil {
						return v
					}
				}
			}
		}
	}
	return pid
}

// States of a process.
const (
	Running = "running"
	Stopped = "stopped" // by a signal, or by a debugger
	Waits   = "waits for a disk"
	Gone    = "gone"
)

// ProcessState is how the kernel says that a process stands.
func ProcessState(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Gone
	}
	// Behind the name in brackets, which may hold anything.
	rest := strings.TrimSpace(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	switch rest[:min(1, len(rest))] {
	case "T", "t":
		return Stopped
	case "D":
		return Waits
	case "Z", "X":
		return Gone
	}
	return Running
}
