package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultDir is where pages lie unless the configuration says otherwise.
const DefaultDir = "/dev/shm"

const (
	prefix = "kvlease-stats."

	deadKept = 10 * time.Minute // what a dead process has left stays for that long
	deadMax  = 64               // of one user: the oldest go first
)

func fileName(uid, pid, n int) string { return fmt.Sprintf("%s%d.%d.%d", prefix, uid, pid, n) }

// ownName splits a file's name; false: it is none of ours.
func ownName(name string) (uid, pid, n int, ok bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, 0, 0, false
	}
	parts := strings.Split(rest, ".")
	if len(parts) != 3 {
		return 0, 0, 0, false
	}
	var v [3]int
	for i, p := range parts {
		x, err := strconv.ParseUint(p, 10, 31)
		if err != nil || strconv.FormatUint(x, 10) != p {
			return 0, 0, 0, false
		}
		v[i] = int(x)
	}
	return v[0], v[1], v[2], true
}

// List gives the paths of the pages in a folder, those of dead processes and of other users, too; dir empty: DefaultDir.
func List(dir string) ([]string, error) {
	if dir == "" {
		dir = DefaultDir
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("stats pages: %w", err)
	}
	type page struct {
		path    string
		numbers [3]int
	}
	var found []page
	for _, e := range list {
		if uid, pid, n, ok := ownName(e.Name()); ok && e.Type().IsRegular() {
			found = append(found, page{filepath.Join(dir, e.Name()), [3]int{uid, pid, n}})
		}
	}
	sort.Slice(found, func(i, j int) bool {
		a, b := found[i].numbers, found[j].numbers
		for k := range a {
			if a[k] != b[k] {
				return a[k] < b[k]
			}
		}
		return false
	})
	paths := make([]string, len(found))
	for i := range found {
		paths[i] = found[i].path
	}
	return paths, nil
}

// sweep removes pages of dead processes of this user, those older than deadKept and the oldest of more than deadMax.
func sweep(dir string, now time.Time) {
	paths, err := List(dir)
	if err != nil {
		return
	}
	type dead struct {
		path string
		idle time.Duration
	}
	var left []dead
	for _, path := range paths {
		idle := time.Duration(-1)
		gone := removeIf(path, func(h *Head, still time.Duration) bool {
			if h.Alive {
				return false
			}
			idle = still
			return still > deadKept
		}, now)
		if !gone && idle >= 0 {
			left = append(left, dead{path, idle})
		}
	}
	sort.Slice(left, func(i, j int) bool { return left[i].idle < left[j].idle })
	for _, d := range left[min(len(left), deadMax):] {
		removeIf(d.path, func(h *Head, _ time.Duration) bool { return !h.Alive }, now)
	}
}

// RemoveDead removes what a dead process of this user has left, for whoever ended it on purpose: nobody is to be alarmed by it for deadKept.
func RemoveDead(dir string, pid int) {
	paths, err := List(dir)
	if err != nil {
		return
	}
	for _, path := range paths {
		if _, owner, _, _ := ownName(filepath.Base(path)); owner == pid {
			removeIf(path, func(h *Head, _ time.Duration) bool { return !h.Alive }, time.Now())
		}
	}
}

// removeIf removes a page of this user if ok says so of its head and of the time since it was last written. Only a file that is what
// its name says: ours, regular, with our magic, and the numbers of its name inside.
func removeIf(path string, ok func(h *Head, idle time.Duration) bool, now time.Time) bool {
	p, err := Open(path)
	if err != nil {
		return false
	}
	defer p.Close()
	uid, pid, _, _ := ownName(filepath.Base(path))
	var st unix.Stat_t
	written, err := p.file.Stat()
	if err != nil || unix.Fstat(int(p.file.Fd()), &st) != nil || int(st.Uid) != os.Geteuid() || uid != os.Geteuid() || p.head.UID != uid || p.head.PID != pid {
		return false
	}
	h := p.head
	h.Alive = alive(h.PID, h.Started, p.namespace, int(p.file.Fd()))
	if !ok(&h, now.Sub(written.ModTime())) {
		return false
	}
	return unlinkOurs(path, int(p.file.Fd()))
}

// unlinkOurs removes a name if it still leads to the file that is open.
func unlinkOurs(path string, fd int) bool {
	var here, there unix.Stat_t
	if unix.Fstat(fd, &here) != nil || unix.Lstat(path, &there) != nil || here.Ino != there.Ino || here.Dev != there.Dev {
		return false
	}
	return unix.Unlink(path) == nil
}
