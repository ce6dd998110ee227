package doctor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// cgroups gives the folders that limit a process in what a controller counts, its own first and the root last. Both versions may be
// mounted at once: a controller is in one of them, which v1 tells.
//
// In a container the process's path may not be below what is mounted there; then the mount is all that can be seen.
func (s *System) cgroups(controller string) (dirs []string, v1 bool, err error) {
	paths, err := s.proc("cgroup")
	if err != nil {
		return nil, false, err
	}
	mounts, err := s.proc("mountinfo")
	if err != nil {
		return nil, false, err
	}
	var unified string
	for line := range strings.Lines(paths) { // hierarchy:controllers:path
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		names, path, ok := strings.Cut(rest, ":")
		switch {
		case !ok:
		case names == "":
			unified = path
		case slices.Contains(strings.Split(names, ","), controller):
			dirs = s.folders(mounts, "cgroup", controller, path)
			if len(dirs) > 0 {
				return dirs, true, nil
			}
		}
	}
	if dirs = s.folders(mounts, "cgroup2", "", unified); len(dirs) == 0 {
		return nil, false, fmt.Errorf("no cgroup of the controller %s is mounted", controller)
	}
	return dirs, false, nil
}

// folders finds the mount of a hierarchy and walks from a path in it up to the mount.
func (s *System) folders(mounts, kind, controller, path string) (dirs []string) {
	for line := range strings.Lines(mounts) {
		// id parent major:minor root mountpoint options [fields] - type source options
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 || g[0] != kind || controller != "" && !slices.Contains(strings.Split(g[2], ","), controller) {
			continue
		}
		mount := f[4]
		if below, ok := strings.CutPrefix(mount, "/sys/"); ok {
			mount = filepath.Join(s.Sys, below)
		}
		inside, ok := strings.CutPrefix(path, strings.TrimSuffix(f[3], "/"))
		if !ok || slices.Contains(strings.Split(inside, "/"), "..") {
			inside = ""
		}
		for dir := filepath.Join(mount, inside); len(dir) >= len(mount); dir = filepath.Dir(dir) {
			dirs = append(dirs, dir)
		}
		return dirs
	}
	return nil
}
