package stream

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	mfdNoexecSeal = 0x8 // MFD_NOEXEC_SEAL, since 6.3
	sealsWanted   = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
)

// newShared makes the memory between a host and a rank. Sealed against shrinking: a page that went away would end the reader by SIGBUS.
func newShared(ringBytes uint32) (fd int, mem []byte, err error) {
	n := linkBytes(ringBytes)
	fd, err = unix.MemfdCreate("kvlease", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|mfdNoexecSeal)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("kvlease", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return -1, nil, fmt.Errorf("memfd: %w", err)
	}
	fail := func(what string, err error) (int, []byte, error) {
		unix.Close(fd)
		return -1, nil, fmt.Errorf("%s of %d bytes: %w", what, n, err)
	}
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		return fail("memfd", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealsWanted|unix.F_SEAL_SEAL); err != nil {
		return fail("seals of a memfd", err)
	}
	if mem, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fail("map", err)
	}
	if err := formatLink(mem, ringBytes); err != nil {
		unix.Munmap(mem)
		return fail("rings", err)
	}
	return fd, mem, nil
}

// mapShared maps what the host has sent, if it is what it should be.
func mapShared(fd int, bytes uint64) ([]byte, error) {
	if bytes > linkBytesLimit {
		return nil, fmt.Errorf("%w: memory of %d bytes", ErrInvalid, bytes)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&sealsWanted != sealsWanted {
		return nil, fmt.Errorf("%w: the memory is not sealed (%v)", ErrInvalid, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Size != int64(bytes) || bytes < linkHeadBytes {
		return nil, fmt.Errorf("%w: memory of %d bytes, %d were said", ErrInvalid, st.Size, bytes)
	}
	mem, err := unix.Mmap(fd, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", bytes, err)
	}
	return mem, nil
}
