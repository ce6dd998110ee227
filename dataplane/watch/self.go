package watch

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// identity is what tells a process from a later one of the same number.
type identity struct {
	pid, uid  int
	started   uint64 // clock ticks after boot
	namespace uint64 // in which the number is its
}

func self() (identity, error) {
	me := identity{pid: os.Getpid(), uid: os.Geteuid()}
	var ok bool
	if me.started, ok = Started(me.pid); !ok {
		return me, fmt.Errorf("/proc/%d/stat: not readable, the stats page needs it", me.pid)
	}
	me.namespace = ownNamespace()
	return me, nil
}

func ownNamespace() uint64 {
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &st) != nil {
		return 0
	}
	return st.Ino
}

// Started gives when a process was started, in clock ticks after boot; false: there is none of that number, or it has ended.
func Started(pid int) (ticks uint64, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The name in brackets may hold anything; behind it come the fields from the third on, and the 22nd is the start.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return 0, false
	}
	ticks, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return ticks, err == nil
}

// userOf gives the effective user of a process.
func userOf(pid int) (uid int, ok bool) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, false
	}
	for line := range bytes.Lines(status) {
		if rest, found := bytes.CutPrefix(line, []byte("Uid:")); found {
			if ids := bytes.Fields(rest); len(ids) > 1 {
				uid, err = strconv.Atoi(string(ids[1]))
				return uid, err == nil
			}
		}
	}
	return 0, false
}

// alive says whether the process of a page lives. In another namespace its number means nothing: its lock on the file tells.
func alive(pid int, started, namespace uint64, fd int) bool {
	if namespace != 0 && namespace == ownNamespace() {
		at, ok := Started(pid)
		return ok && at == started
	}
	if err := unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return true
	}
	unix.Flock(fd, unix.LOCK_UN)
	return false
}
