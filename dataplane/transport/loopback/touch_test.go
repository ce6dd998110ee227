package loopback_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// TestDeviceMemoryThatTheHostCannotTouchFailsItsRead: the process would die of the copy.
func TestDeviceMemoryThatTheHostCannotTouchFailsItsRead(t *testing.T) {
	for _, tc := range []struct {
		name string
		prot int
		want transport.Status
	}{
		{"as a GPU's", unix.PROT_NONE, transport.Failed},
		{"the host's by another name", unix.PROT_READ | unix.PROT_WRITE, transport.Done},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, loopback.Config{})
			mem, err := unix.Mmap(-1, 0, 8192, tc.prot, unix.MAP_PRIVATE|unix.MAP_ANON)
			w.must(err)
			defer unix.Munmap(mem)
			w.must(w.p.Register([]transport.Region{{Addr: at(mem), Bytes: 8192, Mem: transport.VRAM}}))
			w.must(w.d.Drop(w.toP))
			w.toP = w.load()
			spec := w.spec()
			spec.RemoteMem, spec.Descs[0].Remote, spec.Descs[0].Len = transport.VRAM, at(mem)+4096, 4096
			x, err := w.d.PostRead(spec)
			w.must(err)
			if got := w.status(x); got != tc.want {
				t.Errorf("status %d, want %d", got, tc.want)
			}
		})
	}
}
