package bench

import (
	"fmt"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// memory is one side's KV blocks, and on D as much again to copy from.
type memory interface {
	kind() transport.Mem
	device() uint32
	addr() uint64
	put(at uint64, b []byte) error // from the host
	get(at uint64, b []byte) error
	copy(to, from, n uint64) error // what a transfer is compared with; from counts in the other half
	settle() error                 // what a transport has written is seen by get and by the device from now on
	word(at uint64) *uint64        // to look at while a read lands; nil: the host cannot
	free() error
}

// memories opens each kind, with room for bytes, and as much again to copy from if other.
var memories = map[string]func(bytes uint64, other bool, device int) (memory, error){"dram": openDRAM, "vram": openVRAM}

// Memories names the kinds that are built in.
func Memories() string {
	var names []string
	for name := range memories {
		names = append(names, name)
	}
	sort.Strings(names)
	return strings.Join(names, ", ")
}

// openMemory opens one kind by its name.
func openMemory(kind string, bytes uint64, other bool, device int) (memory, error) {
	open := memories[kind]
	if open == nil {
		return nil, fmt.Errorf("no memory %q: %s", kind, Memories())
	}
	return open(bytes, other, device)
}

// dram is host memory: mapped and touched before anything is timed, and never Go's, since NIXL registers it.
type dram struct{ own, other []byte }

func openDRAM(bytes uint64, other bool, _ int) (memory, error) {
	m := &dram{}
	for _, part := range []struct {
		to   *[]byte
		want bool
	}{{&m.own, true}, {&m.other, other}} {
		if !part.want {
			continue
		}
		mem, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
		if err != nil {
			_ = m.free()
			return nil, fmt.Errorf("%d bytes of host memory: %w", bytes, err)
		}
		*part.to = mem
	}
	for at := 0; at < len(m.other); at += unix.Getpagesize() {
		m.other[at] = 1 // else all of it is one page of zeros
	}
	return m, nil
}

func (m *dram) kind() transport.Mem { return transport.DRAM }
func (m *dram) device() uint32      { return 0 }
func (m *dram) addr() uint64        { return address(m.own) }
func (m *dram) word(at uint64) *uint64 {
	return wordAt(m.own, at)
}

func (m *dram) settle() error { return nil }

func (m *dram) put(at uint64, b []byte) error {
	copy(m.own[at:], b)
	return nil
}

func (m *dram) get(at uint64, b []byte) error {
	copy(b, m.own[at:])
	return nil
}

func (m *dram) copy(to, from, n uint64) error {
	copy(m.own[to:to+n], m.other[from:from+n])
	return nil
}

func (m *dram) free() (err error) {
	for _, mem := range [][]byte{m.own, m.other} {
		if mem != nil {
			err = unix.Munmap(mem)
		}
	}
	m.own, m.other = nil, nil
	return err
}
