package probe

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// firstPIDNamespace is the inode of the one that the kernel starts with.
const firstPIDNamespace = 0xEFFFFFFC

// pidNamespace is the one that this process is in; zeros for the first one.
func pidNamespace() (dev, ino uint64, err error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0, 0, fmt.Errorf("own pid namespace: %w", os.NewSyscallError("stat", err))
	}
	if st.Ino == firstPIDNamespace {
		return 0, 0, nil
	}
	return st.Dev, st.Ino, nil
}
