// The Go core as a C shared library, libkvlease-core.so. libkvlease.so opens it in kvl_open; nobody links it.
package main

// #cgo CFLAGS: -fno-omit-frame-pointer
// #include <stdint.h>
// #include <stdlib.h>
// #include "../include/kvlease.h"
// #include "../src/layout.h"
import "C"

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	_ "github.com/kvlease/kvlease/cmd/libkvlease/sites"
	"github.com/kvlease/kvlease/cnixl"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/ringbuf"
)

func main() {}

var transports = map[string]core.OpenTransport{
	"nixl": func(cfg *core.Config, agent string) (transport.Transport, error) {
		return cnixl.Open(cnixl.Config{
			Path: cfg.NixlPath, Folders: wheelFolders(), Agent: agent, PeersMax: cfg.PeersMax(), ReadsMax: 1 << 14, Settings: cfg.Settings,
		})
	},
	"loopback": core.Loopback(loopback.NewHub()), // joins the loopback contexts of this process
}

// wheelFolders are where the unpacked wheel of make deps may lie: beside this library, or above it in a build tree.
func wheelFolders() []string {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(maps)) {
		if at := strings.IndexByte(line, '/'); at >= 0 && strings.HasSuffix(strings.TrimSpace(line), "/libkvlease-core.so") {
			dir := filepath.Dir(strings.TrimSpace(line[at:]))
			return []string{dir, filepath.Dir(dir)}
		}
	}
	return nil
}

// cores by handle, which is the context's number: an integer, since Go pointers must not cross. Trace sites in C name it.
var cores struct {
	sync.RWMutex
	list []*core.Core
}

func put(c *core.Core) int64 {
	cores.Lock()
	defer cores.Unlock()
	n := int(c.Number())
	cores.list = append(cores.list, make([]*core.Core, max(n-len(cores.list), 0))...)
	cores.list[n-1] = c
	return int64(n)
}

func get(h int64) *core.Core {
	cores.RLock()
	defer cores.RUnlock()
	if h < 1 || h > int64(len(cores.list)) {
		return nil
	}
	return cores.list[h-1]
}

func drop(h int64) {
	cores.Lock()
	defer cores.Unlock()
	cores.list[h-1] = nil
	collector().Collect()
}

// statuses is the one table of errors and what C calls them; a test walks it both ways.
var statuses = []struct {
	err error
	st  C.int32_t
}{
	{core.ErrFull, C.KVL_ERR_FULL},
	{core.ErrConfig, C.KVL_ERR_CONFIG},
	{core.ErrPoisoned, C.KVL_ERR_POISONED},
	{core.ErrUnavailable, C.KVL_ERR_UNAVAILABLE},
	{core.ErrStale, C.KVL_ERR_STALE},
	{core.ErrBusy, C.KVL_ERR_BUSY},
	{core.ErrClosed, C.KVL_ERR_CLOSED},
	{core.ErrTimeout, C.KVL_ERR_TIMEOUT},
	{core.ErrSpace, C.KVL_ERR_SPACE},
	{core.ErrTransport, C.KVL_ERR_TRANSPORT},
	{core.ErrState, C.KVL_ERR_INVALID},
	{core.ErrInvalid, C.KVL_ERR_INVALID},
}

func status(err error) C.int32_t {
	if err == nil {
		return C.KVL_OK
	}
	for i := range statuses {
		if errors.Is(err, statuses[i].err) {
			return statuses[i].st
		}
	}
	return C.KVL_ERR_TRANSPORT
}

// tuneRuntime makes the Go runtime a quiet guest: no collection by growth, a limit at which it collects whatever
// happens; the core collects off the step.
func tuneRuntime(cfg *core.Config) {
	setThreads(cfg.Threads)
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(int64(cfg.CoreMemoryMax))
	collector()
}

// threadsSaid is done when the first context has said how many threads run Go at once.
var threadsSaid sync.Once

// setThreads does what the first context says, unless the user has said it in the environment. The runtime itself sees only what the
// process was started with: nothing that C could set before it loads the library.
func setThreads(n int) {
	threadsSaid.Do(func() {
		name := C.CString("GOMAXPROCS")
		defer C.free(unsafe.Pointer(name))
		if user := C.getenv(name); user != nil {
			n, _ = strconv.Atoi(C.GoString(user)) // of what is no number the runtime makes its own
		}
		runtime.GOMAXPROCS(n) // n < 1 changes nothing
	})
}

// collector lives as long as the process: the library is never unloaded.
var collector = sync.OnceValue(core.StartCollector)

// memoryOf views the memory that the C library has mapped.
func memoryOf(a *C.kvl_core_args_t, s core.Sizes) *record.Memory {
	mem := &record.Memory{
		Control: (*record.Control)(unsafe.Pointer(a.control)),
		Slots:   unsafe.Slice((*record.Slot)(unsafe.Pointer(a.slots)), s.Leases),
		Tracks:  unsafe.Slice((*record.Track)(unsafe.Pointer(a.tracks)), s.Tracks),
		Board:   unsafe.Slice((*byte)(unsafe.Pointer(a.board)), s.BoardBytes),
		Landing: unsafe.Slice((*byte)(unsafe.Pointer(a.landing)), s.LandingBytes),
		Events:  unsafe.Slice((*byte)(unsafe.Pointer(a.events)), ringbuf.Bytes(uint32(s.EventsBytes))),
		Secret:  [2]uint64{uint64(a.secret[0]), uint64(a.secret[1])},
		Epoch:   uint64(a.epoch),
		Base:    uint64(a.base),
	}
	rings := unsafe.Slice(a.rings, s.Producers)
	overflows := unsafe.Slice(a.overflows, s.Producers)
	for i := range s.Producers {
		mem.Rings = append(mem.Rings, unsafe.Slice((*byte)(unsafe.Pointer(rings[i])), ringbuf.Bytes(uint32(s.RingBytes))))
		mem.Overflows = append(mem.Overflows, unsafe.Slice((*byte)(unsafe.Pointer(overflows[i])), ringbuf.Bytes(uint32(s.OverflowBytes))))
	}
	return mem
}
