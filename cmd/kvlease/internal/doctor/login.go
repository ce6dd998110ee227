package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kvlease/kvlease/cuda/fabric/rdma"
)

// configFolders are where systemd looks for its configuration, the first one first (systemd, logind.conf(5)).
var configFolders = []string{"etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd"}

// removeIPC looks at whether logind removes what an engine's user has in /dev/shm once that user's last session ends. It leaves users of the system
// alone (systemd, src/login/logind-user.c), and one who lingers is never over.
func removeIPC(_ context.Context, s *System) []Result {
	const name = "RemoveIPC"
	switch _, err := os.Stat(filepath.Join(s.Root, "run/systemd/seats")); {
	case errors.Is(err, fs.ErrNotExist):
		return one(name, Pass, "no logind is running here") // a container's /dev/shm is its own
	case err != nil:
		return unread(name, err)
	}
	status, err := s.proc("status")
	if err != nil {
		return unread(name, err)
	}
	uids := strings.Fields(field(status, "Uid"))
	if len(uids) == 0 {
		return unread(name, fmt.Errorf("the process's status has no Uid"))
	}
	uid, err := strconv.Atoi(uids[0])
	if err != nil {
		return unread(name, err)
	}
	most := s.systemUIDMax()
	set := s.logindSays("RemoveIPC")
	switch {
	case slices.Contains([]string{"no", "n", "false", "f", "off", "0"}, strings.ToLower(set)):
		return one(name, Pass, set)
	case uid <= most:
		return one(name, Pass, fmt.Sprintf("on, and user %d is one of the system (to %d), whose memory stays", uid, most))
	case s.lingers(uid):
		return one(name, Pass, fmt.Sprintf("on, and user %d lingers", uid))
	}
	return ill(name, Warn, fmt.Sprintf("on, and user %d is none of the system (to %d)", uid, most),
		"when the user's last session ends, logind removes what the user has in /dev/shm: stats pages, UCX's segments, the socket where ranks meet their host",
		"run engines as a system user (useradd --system), or loginctl enable-linger %d, or RemoveIPC=no in /etc/systemd/logind.conf and systemctl restart systemd-logind", uid)
}

// logindSays is the value of a setting of logind, empty if none is said: the first main file's, then those of the drop-ins by their names, of which one in
// a folder further up stands for those of the same name below it.
func (s *System) logindSays(key string) (value string) {
	for _, dir := range configFolders {
		if text := rdma.Text(s.Root, dir, "logind.conf"); text != "" {
			value = lastOf(text, key, value)
			break
		}
	}
	dropIns := map[string]string{}
	for _, dir := range slices.Backward(configFolders) {
		files, _ := filepath.Glob(filepath.Join(s.Root, dir, "logind.conf.d", "*.conf"))
		for _, f := range files {
			dropIns[filepath.Base(f)] = f
		}
	}
	names := make([]string, 0, len(dropIns))
	for n := range dropIns {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		value = lastOf(rdma.Text(dropIns[n]), key, value)
	}
	return value
}

// lastOf is the last value of a key in a file, or what it was before; an empty one is the default again.
func lastOf(text, key, before string) string {
	for line := range strings.Lines(text) {
		if name, v, ok := strings.Cut(line, "="); ok && strings.TrimSpace(name) == key {
			before = strings.TrimSpace(v)
		}
	}
	return before
}

// systemUIDMax is the last user of the system: what login.defs says, else 999 as systemd has it.
func (s *System) systemUIDMax() int {
	for line := range strings.Lines(rdma.Text(s.Root, "etc/login.defs")) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "SYS_UID_MAX" {
			if n, err := strconv.Atoi(f[1]); err == nil {
				return n
			}
		}
	}
	return 999
}

// lingers tells whether the user's manager stays when sessions end. The files have the names of users.
func (s *System) lingers(uid int) bool {
	for line := range strings.Lines(rdma.Text(s.Root, "etc/passwd")) {
		if f := strings.Split(line, ":"); len(f) > 2 && f[2] == strconv.Itoa(uid) {
			_, err := os.Stat(filepath.Join(s.Root, "var/lib/systemd/linger", f[0]))
			return err == nil
		}
	}
	return false
}
