package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvlease/kvlease/cuda/fabric/rdma"
)

// cgroups gives the folders that limit a process in what a controller counts, its own first and the root last. Both versions may be
// mounted at once: a controller is in one of them, which v1 tells.
//
// In a container the process's path may not be below what is mounted there; then the mount is all that can be seen. Paths and mounts are those that
// this process sees, of another process, too: the kernel tells a path as whoever asks sees it, and where that one's container has mounted something nobody
// outside can look (cgroup_namespaces(7)).
func (s *System) cgroups(controller string) (dirs []string, v1 bool, err error) {
	paths, err := s.proc("cgroup")
	if err != nil {
		return nil, false, err
	}
	mounts, err := rdma.File(s.Proc, "self", "mountinfo")
	if err != nil {
		return nil, false, err
	}
	dirs, v1 = findCgroups(paths, string(mounts), controller)
	if len(dirs) == 0 {
		return nil, false, fmt.Errorf("no cgroup of the controller %s is mounted", controller)
	}
	for i, dir := range dirs {
		if below, ok := strings.CutPrefix(dir, "/sys/"); ok {
			dirs[i] = filepath.Join(s.Sys, below)
		}
	}
	return dirs, v1, nil
}

// each gives what a file of each cgroup holds to take. One without the file has no such limit: the root, and whoever is not handed the controller. It
// fails, behind all the others, where the process's own cgroup is not there, and where a file cannot be read or taken.
func each(dirs []string, file string, take func(dir, text string) error) error {
	_, unseen := os.Stat(dirs[0])
	for _, dir := range dirs {
		text, err := rdma.File(dir, file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			if err = take(dir, strings.TrimSpace(string(text))); err != nil {
				err = fmt.Errorf("%s: %w", filepath.Join(dir, file), err)
			}
		}
		unseen = cmp.Or(unseen, err)
	}
	return unseen
}

// findCgroups does it with the texts of /proc/PID/cgroup and mountinfo.
func findCgroups(paths, mounts, controller string) (dirs []string, v1 bool) {
	var unified string
	for line := range strings.Lines(paths) { // hierarchy:controllers:path
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		names, path, ok := strings.Cut(rest, ":")
		switch {
		case !ok:
		case names == "":
			unified = path
		case slices.Contains(strings.Split(names, ","), controller):
			return folders(mounts, "cgroup", controller, path), true // if it is not mounted here, v2 does not have it either
		}
	}
	return folders(mounts, "cgroup2", "", unified), false
}

// folders finds the mount of a hierarchy and walks from a path in it up to the mount.
func folders(mounts, kind, controller, path string) (dirs []string) {
	for line := range strings.Lines(mounts) {
		// id parent major:minor root mountpoint options [fields] - type source options
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 || g[0] != kind || !filepath.IsAbs(f[4]) || controller != "" && !slices.Contains(strings.Split(g[2], ","), controller) {
			continue
		}
		mount := filepath.Clean(f[4])
		inside, ok := strings.CutPrefix(path, strings.TrimSuffix(f[3], "/"))
		if !ok || slices.Contains(strings.Split(inside, "/"), "..") {
			inside = ""
		}
		const deepest = 256 // the kernel allows any depth; nobody uses it
		for dir := filepath.Join(mount, inside); len(dirs) < deepest; dir = filepath.Dir(dir) {
			dirs = append(dirs, dir)
			if dir == mount {
				break
			}
		}
		return dirs
	}
	return nil
}
