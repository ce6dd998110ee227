package doctor

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/internal/require"
)

// mounted runs f with a tmpfs of these options, on a thread with mounts of its own, which ends with it.
func mounted(t *testing.T, options string, flags uintptr, f func(dir string)) {
	t.Helper()
	dir, over := t.TempDir(), make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread's mounts are nobody else's
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", dir, "tmpfs", flags, options))
		}
		if err == nil {
			f(dir)
		}
		over <- err
	}()
	if err := <-over; err != nil {
		require.Skip(t, "root", "mounts of its own: "+err.Error())
	}
}

func TestAFileIsTriedAsTheKernelTakesIt(t *testing.T) {
	for _, tc := range []struct {
		name, options string
		flags         uintptr
		want          error
	}{
		{"room", "size=32m", 0, nil},
		{"room, and nothing of it may be run", "size=32m", unix.MS_NOEXEC, nil}, // nothing there is
		{"no limit", "size=0", 0, nil},
		{"too little room", "size=1m", 0, unix.ENOSPC},
		{"no inode for a file", "size=32m,nr_inodes=1", 0, unix.ENOSPC},
		{"only read", "size=32m", unix.MS_RDONLY, unix.EROFS},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mounted(t, tc.options, tc.flags, func(dir string) {
				free, total, err := room(dir)
				if err != nil || (total == 0) != (tc.name == "no limit") {
					t.Errorf("%d free of %d, %v", free, total, err)
				}
				if err := tryFile(dir, shmTried); !errors.Is(err, tc.want) {
					t.Errorf("%v, want %v", err, tc.want)
				}
				after, _, err := room(dir)
				left, _ := os.ReadDir(dir)
				if err != nil || after != free || len(left) != 0 {
					t.Errorf("%d bytes are free after it, %d before; files %v, %v", after, free, left, err)
				}
			})
		})
	}
}
