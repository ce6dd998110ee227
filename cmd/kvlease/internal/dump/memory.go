package dump

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Errors of reading a process's memory. Each says what to do about it.
var (
	errRefused = errors.New("its memory may not be read")
	errGone    = errors.New("it has ended")
	errMoved   = errors.New("its memory is not where its stats page says")
)

// part is a piece of another process's memory, and where it goes.
type part struct {
	addr uint64
	to   []byte
}

// peek reads parts of a process's memory by one call of the kernel: the process takes no notice, and may stand still.
func peek(pid int, parts ...part) error {
	local, remote := make([]unix.Iovec, 0, len(parts)), make([]unix.RemoteIovec, 0, len(parts))
	want := 0
	for _, p := range parts {
		if len(p.to) == 0 {
			continue
		}
		at := unix.Iovec{Base: &p.to[0]}
		at.SetLen(len(p.to))
		local, remote = append(local, at), append(remote, unix.RemoteIovec{Base: uintptr(p.addr), Len: len(p.to)})
		want += len(p.to)
	}
	if want == 0 {
		return nil
	}
	n, err := unix.ProcessVMReadv(pid, local, remote, 0)
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: %s", errRefused, whyRefused(pid))
	case errors.Is(err, unix.ESRCH):
		return errGone
	case errors.Is(err, unix.EFAULT) || err == nil && n < want:
		return errMoved
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w: this kernel has no process_vm_readv, or a filter of system calls (seccomp) keeps it from us", errRefused)
	}
	return err
}

// ptraceScope is the setting of the Yama module, which forbids even a process of the same user.
const ptraceScope = "/proc/sys/kernel/yama/ptrace_scope"

// whyRefused says what is missing, and how to get it.
func whyRefused(pid int) string {
	const remedy = "run as root, or give this program CAP_SYS_PTRACE (setcap cap_sys_ptrace+ep kvlease)"
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d", pid), &st) == nil && int(st.Uid) != os.Geteuid() {
		return fmt.Sprintf("it belongs to user %d: %s", st.Uid, remedy)
	}
	if scope, err := os.ReadFile(ptraceScope); err == nil && strings.TrimSpace(string(scope)) != "0" {
		return fmt.Sprintf("kernel.yama.ptrace_scope is %s: %s, or sysctl kernel.yama.ptrace_scope=0", strings.TrimSpace(string(scope)), remedy)
	}
	return "another process of the same user may not look either, since it has given up being dumpable, has more capabilities, or lives in another user namespace: " + remedy
}
