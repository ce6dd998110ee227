package cnixl

// #include <stdlib.h>
// #include "shim.h"
// #cgo noescape kvlx_send
// #cgo nocallback kvlx_send
// #cgo noescape kvlx_poll
// #cgo nocallback kvlx_poll
// #cgo noescape kvlx_post
// #cgo nocallback kvlx_post
// #cgo noescape kvlx_poll_reads
// #cgo nocallback kvlx_poll_reads
// #cgo noescape kvlx_release
// #cgo nocallback kvlx_release
import "C"

import (
	"fmt"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// Config is one NIXL agent. What is 0 gets its default.
type Config struct {
	// Agent is the name under which peers see this agent, 1 to 255 bytes without zero bytes.
	Agent string
	// Path names libnixl_capi.so or a folder with it; it must be there. Empty: the search goes on with KVLEASE_NIXL.
	Path string
	// Folders are where an unpacked wheel may lie: the folder itself, nixl or third_party/nixl below it.
	Folders []string

	PeersMax   int // loaded peers, default 1,024, at most 8,190; a Load past it is ErrFull
	ReadsMax   int // reads posted and not released, default 1,024; a PostRead past it is ErrFull
	RegionsMax int // registered regions, default 4,100: a cache's 4,096 and what a context has beside it; a Register past it is ErrFull

	// Settings of UCX for this agent alone, by parameters of NIXL's backend; a variable that is set in the environment counts in their place.
	Settings []transport.Setting

	// Inline turns NIXL's progress thread off: then peers are served only while this agent polls. For device memory with a
	// NIXL whose thread has no CUDA context, and for tests.
	Inline bool
	// Strict asks NIXL for one lock around every call in place of its read-write lock.
	Strict bool
}

// progressDelayUs is how long NIXL's progress thread sleeps at most. It wakes for UCX's descriptors before that; with 0
// it would burn a core.
const progressDelayUs = 100_000

// nameMax is the length of an agent's name, in bytes.
const nameMax = C.KVLX_NAME_MAX

// lensMax is the number of notifications that one crossing brings at most.
const lensMax = 4096

// Agent is one NIXL agent with a UCX backend.
//
// Threads: see transport.Transport. A Load or Register on another thread takes NIXL's exclusive lock, so a step's call
// can wait for it (a load took 1 to 60 ms).
// Memory: the tables come from Open. Send, Poll, PostRead, PollReads and Release make no Go allocation and no malloc of
// the shim's; NIXL makes its own, see README.md.
type Agent struct {
	handle   C.int32_t
	name     string
	library  Library
	opened   C.int32_t // of the library
	settings []transport.Setting
	fast     bool
	lens     []uint32 // pairs: name length, body length
	backlog  uint64
	inline   bool
	sets     []int // epoll descriptors of its transports
	locks    func() *lockable
	down     []string // NICs, where none was up as it was made
}

var _ transport.Transport = (*Agent)(nil)

// Open finds and loads NIXL and makes an agent. It spins about 0.4 s of one core the first time in a process, inside
// UCX; later agents take about 50 ms.
//
// ErrUnavailable names what is missing and where it was looked for.
func Open(cfg Config) (*Agent, error) {
	if err := cfg.checkName(); err != nil {
		return nil, err
	}
	handle, lib, err := openLibrary(search{path: cfg.Path, env: getenv("KVLEASE_NIXL"), maps: mappedFiles(), folders: cfg.Folders})
	if err != nil {
		return nil, err
	}
	return open(cfg, handle, lib)
}

func (cfg *Config) checkName() error {
	if cfg.Agent == "" || len(cfg.Agent) > nameMax || strings.IndexByte(cfg.Agent, 0) >= 0 {
		return fmt.Errorf("agent name of %d bytes, want 1 to %d without a zero byte: %w", len(cfg.Agent), nameMax, transport.ErrInvalid)
	}
	return nil
}

// open makes an agent of an opened library.
func open(cfg Config, handle C.int32_t, lib Library) (*Agent, error) {
	settings := cfg.Settings
	if _, told := toldUCX()(connectAside.Name); !told {
		settings = append([]transport.Setting{connectAside}, settings...)
	}
	engine, devices, err := backendParams(settings, func(name string) bool { return getenv(name) != "" })
	if err != nil {
		return nil, err
	}
	c := C.kvlx_config_t{progress_thread: 1, thread_sync: 2, progress_delay_us: progressDelayUs}
	if cfg.Inline {
		c.progress_thread = 0
	}
	if cfg.Strict {
		c.thread_sync = 1
	}
	for _, f := range []struct {
		name     string
		v        int
		def, max int
		to       *C.uint32_t
	}{
		{"PeersMax", cfg.PeersMax, 1024, 8190, &c.peers_max},
		{"ReadsMax", cfg.ReadsMax, 1024, 1 << 20, &c.reads_max},
		{"RegionsMax", cfg.RegionsMax, 4100, 1 << 20, &c.regions_max},
	} {
		if f.v == 0 {
			f.v = f.def
		}
		if f.v < 0 || f.v > f.max {
			return nil, fmt.Errorf("%s %d, want 1 to %d: %w", f.name, f.v, f.max, transport.ErrInvalid)
		}
		*f.to = C.uint32_t(f.v)
	}
	a := &Agent{
		name: cfg.Agent, library: lib, opened: handle, settings: cfg.Settings, fast: fastFence(getenv("UCX_TLS")), lens: make([]uint32, 2*lensMax), inline: cfg.Inline,
		locks: func() *lockable { return locksOfThisProcess(cfg.Settings) },
	}
	name := C.CString(cfg.Agent)
	defer C.free(unsafe.Pointer(name))
	for _, param := range []struct {
		text string
		to   **C.char
	}{{engine, &c.engine}, {devices, &c.devices}} {
		if param.text != "" {
			*param.to = C.CString(param.text)
			defer C.free(unsafe.Pointer(*param.to))
		}
	}
	text := (*C.char)(C.calloc(1, textMax))
	defer C.free(unsafe.Pointer(text))
	opening.Lock()
	defer opening.Unlock()
	a.down = allDown(nics("/sys"))
	before := pollSets()
	if st := C.kvlx_open(handle, name, &c, &a.handle, text, textMax); st != C.KVLX_OK {
		told := ""
		if len(cfg.Settings) > 0 {
			told = fmt.Sprintf("; it was told %q", cfg.Settings)
		}
		return nil, fmt.Errorf("NIXL %s at %s: %s%s%s: %w", lib.Version, lib.File, C.GoString(text), settingsFile(getenv), told, errorOf(st))
	}
	a.sets = ownSets(before)
	return a, nil
}

// Name is "nixl".
func (a *Agent) Name() string { return "nixl" }

// Agent is the name given to Open.
func (a *Agent) Agent() string { return a.name }

// Library tells which NIXL this is.
func (a *Agent) Library() Library { return a.library }

// FastFence reports whether UCX_TLS leaves only transports whose reads the peer's NIC answers.
func (a *Agent) FastFence() bool { return a.fast }

// Admits says before a registration in pieces whether the process may lock the whole. ErrUnavailable, as of Register.
func (a *Agent) Admits(regions []transport.Region) error {
	if host := hostBytes(regions); host > 0 { // else the machine need not be looked at
		return a.locks().check(host)
	}
	return nil
}

// Register makes regions readable by peers, all or none. One region is one registration in NIXL. ErrUnavailable: the process may not
// lock so much memory. ErrStuck: NIXL took some, refused the others, and does not give back what it took.
func (a *Agent) Register(regions []transport.Region) error {
	if len(regions) == 0 {
		return nil
	}
	if err := a.Admits(regions); err != nil {
		return err
	}
	st := C.kvlx_register(a.handle, regionsC(regions), C.size_t(len(regions)))
	onDevice := 0
	for _, r := range regions {
		if r.Mem == transport.VRAM {
			onDevice++
		}
	}
	switch {
	case st == C.KVLX_OK:
		return nil
	case onDevice > 0: // it tells no reason; this is the one that it refuses whole machines for
		return fmt.Errorf("register %d regions, %d of them device memory: %w; %s", len(regions), onDevice, errorOf(st), noWayToDevices)
	}
	return fmt.Errorf("register %d regions: %w", len(regions), errorOf(st))
}

const noWayToDevices = "NIXL takes such memory if its UCX has a way to it. Remedy: a UCX with its module for CUDA (kvlease doctor names the modules that were loaded), and in UCX_TLS, if it is set, cuda_copy"

// Unregister is the opposite. Software transports go on reading the memory for peers until the agent is closed, so it may be
// unmapped only after Close.
func (a *Agent) Unregister(regions []transport.Region) error {
	if len(regions) == 0 {
		return nil
	}
	if st := C.kvlx_unregister(a.handle, regionsC(regions), C.size_t(len(regions))); st != C.KVLX_OK {
		return fmt.Errorf("unregister %d regions: %w", len(regions), errorOf(st))
	}
	return nil
}

// Metadata is NIXL's own blob, the one that any NIXL agent loads.
func (a *Agent) Metadata() ([]byte, error) {
	blob := make([]byte, 4096)
	for range 8 { // it grows while another thread registers
		var n C.size_t
		if st := C.kvlx_metadata(a.handle, unsafe.Pointer(unsafe.SliceData(blob)), C.size_t(len(blob)), &n); st != C.KVLX_OK {
			return nil, fmt.Errorf("metadata of agent %s: %w", a.name, errorOf(st))
		}
		if int(n) <= len(blob) {
			return blob[:n], nil
		}
		blob = make([]byte, int(n)+4096)
	}
	return nil, fmt.Errorf("metadata of agent %s keeps growing: %w", a.name, transport.ErrFull)
}

// loading is held while an agent of this process connects to another one, in which NIXL and UCX spin for each other's locks. On
// cores that are busy the holder of such a lock loses its core, and everybody who loads spins: eight agents that load at once stood
// still for 0.7 s, all of them, and for up to 28 s when nothing else was going on (make soak).
var loading sync.Mutex

// burntMax is how many names a load tries that NIXL has burnt. Each try that meets one puts all later loads above it.
const burntMax = 4

// Load makes the agent of a metadata blob reachable. ErrInvalid: the blob is damaged, or its agent is loaded. ErrPeer: NIXL
// could not connect or did not understand the blob, which its C API does not tell apart. ErrFull: another agent of this process
// is at it.
//
// A load that failed may have burnt the agent's name in NIXL: the next one is made under another, which only this side knows.
func (a *Agent) Load(blob []byte) (transport.Peer, error) {
	if !loading.TryLock() {
		return 0, transport.ErrFull // as it is: nothing is allocated, since it is asked again in the next step
	}
	defer loading.Unlock()
	name, err := checkBlob(blob, a.name)
	if err != nil {
		return 0, err
	}
	var peer C.uint32_t
	for range burntMax {
		alias := C.kvlx_alias(a.handle, unsafe.Pointer(unsafe.StringData(name)), C.size_t(len(name)))
		if alias < 0 {
			return 0, fmt.Errorf("load agent %q: %w", name, errorOf(alias))
		}
		as := blob
		if alias > 0 {
			as = renamed(blob, name, fmt.Sprintf("%s~%d", name, alias))
		}
		switch st := C.kvlx_load(a.handle, unsafe.Pointer(unsafe.SliceData(as)), C.size_t(len(as)), C.uint32_t(len(name)), alias, &peer); st {
		case C.KVLX_OK:
			return transport.Peer(peer), nil
		case C.KVLX_BURNT:
		default:
			return 0, fmt.Errorf("load %d bytes of metadata: %w", len(as), errorOf(st))
		}
	}
	return 0, fmt.Errorf("load agent %q: NIXL takes none of %d names for it: %w", name, burntMax, transport.ErrPeer)
}

// Drop forgets a peer and its connection.
func (a *Agent) Drop(p transport.Peer) error { return errorOf(C.kvlx_drop(a.handle, C.uint32_t(p))) }

// Abandon forgets a peer under reads that are open. NIXL keeps it for them until the first Load after the last of them was
// released; meanwhile its agent is loaded under another name, which only this side knows.
func (a *Agent) Abandon(p transport.Peer) error {
	return errorOf(C.kvlx_abandon(a.handle, C.uint32_t(p)))
}

// Send posts one notification. After the first ErrPeer it answers so without asking NIXL, until Drop and Load. ErrInvalid: UCX takes no such
// message, or there is no such peer.
func (a *Agent) Send(p transport.Peer, msg []byte) error {
	return errorOf(C.kvlx_send(a.handle, C.uint32_t(p), unsafe.Pointer(unsafe.SliceData(msg)), C.size_t(len(msg))))
}

// Poll moves what has arrived into in: one crossing, unless in has room for more than 4,096 notifications.
func (a *Agent) Poll(in *transport.Inbox) int {
	total := 0
	for { // ends: every round but the last brings lensMax notifications into a finite inbox
		free, entries := in.Raw()
		room := min(entries, lensMax)
		var backlog, tooLong C.uint64_t
		n := C.kvlx_poll(a.handle, unsafe.Pointer(unsafe.SliceData(free)), C.size_t(len(free)), C.size_t(in.Bytes()),
			(*C.uint32_t)(unsafe.SliceData(a.lens)), C.uint32_t(room), &backlog, &tooLong)
		a.backlog = uint64(backlog)
		in.TooLong += uint64(tooLong)
		for i := range int(n) {
			in.AddRaw(int(a.lens[2*i]), int(a.lens[2*i+1]))
		}
		total += max(int(n), 0)
		if n < lensMax || backlog == 0 {
			return total
		}
	}
}

// Backlog is what the last Poll left behind.
func (a *Agent) Backlog() int { return int(a.backlog) }

// PostRead starts a read; the descriptors cross once and NIXL's lists are built in C. ErrInvalid: a range that is not
// registered here. ErrRange: one that is not in the peer's metadata.
//
// A post that NIXL refuses may have started some of its descriptors: then the handle of a Failed read is returned.
func (a *Agent) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	var x C.uint64_t
	var took C.int64_t
	var timed *C.int64_t
	if spec.Timed {
		timed = &took
	}
	st := C.kvlx_post(a.handle, C.uint32_t(spec.Peer), C.uint32_t(spec.LocalMem), C.uint32_t(spec.RemoteMem),
		descsC(spec.Descs), C.size_t(len(spec.Descs)),
		unsafe.Pointer(unsafe.SliceData(spec.Notif)), C.size_t(len(spec.Notif)), &x, timed)
	spec.Took = time.Duration(took)
	return transport.Xfer(x), errorOf(st)
}

// PollReads asks NIXL for every read in one crossing, again for at most spinNs if none has ended.
func (a *Agent) PollReads(xfers []transport.Xfer, out []transport.Status, spinNs int64) {
	if len(xfers) == 0 {
		return
	}
	_ = out[len(xfers)-1]
	C.kvlx_poll_reads(a.handle, (*C.uint64_t)(unsafe.SliceData(xfers)), (*C.uint8_t)(unsafe.SliceData(out)), C.size_t(len(xfers)), C.int64_t(spinNs))
}

// Release gives back the handle of an ended read. NIXL is asked first: it would release one in flight, whose bytes then land.
func (a *Agent) Release(x transport.Xfer) error {
	return errorOf(C.kvlx_release(a.handle, C.uint64_t(x)))
}

// progress lets an agent without a progress thread do its part. What arrives waits for the next Poll.
func (a *Agent) progress() {
	var backlog, tooLong C.uint64_t
	C.kvlx_poll(a.handle, nil, 0, C.SIZE_MAX, nil, 0, &backlog, &tooLong)
	a.backlog = uint64(backlog)
}

// Close destroys the agent: after it nothing of this process writes to registered memory. ErrInvalid while a read is in
// flight; ErrUntaken while a peer over TCP, one that stands still, does not take the answers to its reads, for which Close waits
// 0.2 s. Nothing has changed then, and peers are served on.
func (a *Agent) Close() error {
	st := C.kvlx_may_close(a.handle)
	if st == C.KVLX_OK {
		if err := a.settle(); err != nil {
			return err
		}
		st = C.kvlx_close(a.handle)
	}
	if st != C.KVLX_OK {
		return fmt.Errorf("close agent %s with a read in flight: %w", a.name, errorOf(st))
	}
	a.backlog, a.sets = 0, nil
	return nil
}

// Counters is what the shim has counted.
type Counters struct {
	SendsFailed  uint64 // sends and posts that NIXL refused
	StatusAgent  uint64 // looks at a read that got a status of the agent layer; the read stays pending
	NotifsBroken uint64 // notifications that NIXL listed and could not give
	PollsFailed  uint64 // polls that NIXL refused
	PostsPartly  uint64 // posts that NIXL refused, of which something may have begun
	MapsMerged   uint64 // polls that found the backlog's maps all in use
}

// Counters belongs to the stepping thread.
func (a *Agent) Counters() Counters {
	var c C.kvlx_counters_t
	C.kvlx_counters(a.handle, &c)
	return Counters{
		SendsFailed: uint64(c.sends_failed), StatusAgent: uint64(c.status_agent), NotifsBroken: uint64(c.notifs_broken),
		PollsFailed: uint64(c.polls_failed), PostsPartly: uint64(c.posts_partly), MapsMerged: uint64(c.maps_merged),
	}
}

// fastFence reads UCX_TLS: fast if rc or dc is named and nothing over which the peer's software answers reads (tcp, shared
// memory, ^lists). Unset means that UCX chooses, so it is slow. ud may stand beside them and is not enough: its reads are software.
func fastFence(tls string) bool {
	fast := false
	for name := range strings.SplitSeq(strings.TrimSpace(tls), ",") {
		switch name = strings.TrimPrefix(strings.TrimSpace(name), `\`); {
		case name == "ib", name == "rc", name == "dc", // with their _v, _x, _verbs, _mlx5
			strings.HasPrefix(name, "rc_"), strings.HasPrefix(name, "dc_"):
			fast = true
		case name == "ud", name == "self", name == "cuda", name == "gdr_copy",
			strings.HasPrefix(name, "ud_"), strings.HasPrefix(name, "cuda_"):
		default:
			return false
		}
	}
	return fast
}
