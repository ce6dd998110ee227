package core

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// A registration can succeed and the NIC have nothing: a transport with several ways is content with one of them. So before any peer is told
// of the memory, a second small agent of this process reads a page of each region as a peer would (transport.Twins).

const (
	proofPage  = 4096 // bytes; the end of a region, which is what a window that is too small leaves out
	proofPause = 200 * time.Microsecond
)

// proofMax is for all pages: one takes microseconds, a connection milliseconds. Tests make it small.
var proofMax = 10 * time.Second

// proof is a twin at work.
type proof struct {
	r       *registration
	twin    transport.Twin
	peer    transport.Peer
	landing []byte // a page for each read that may be open
	held    Held   // nil: the regions are host memory
	end     time.Time
	pipe    [2]int
	hidden  []int // regions that this process may not read yet

	reads []proofRead // open ones
	xfers []transport.Xfer
	out   []transport.Status
	idle  []int // pages of landing
}

type proofRead struct {
	region int // of the registration; behind the last: the board
	page   int
	before []byte // what the region had when the read was posted; nil: nobody could tell
}

// errUnproven is why nothing was read.
var errUnproven = errors.New("none was read back")

// prove reads a page of each region and of the board by a twin of the transport. An error refuses the registration: a page could not be
// read, or was another one. Why there was no twin, or none that shows anything of the network, goes to the log.
func (c *Core) prove(r *registration, blob []byte) error {
	began := c.clock()
	p, err := c.readBack(r, blob)
	n := len(r.regions)
	switch {
	case errors.Is(err, errUnproven):
		n = 0
	case err != nil:
		return err
	case p.twin.Near:
		n, err = 0, fmt.Errorf("a page of each was read back over %s, which lets that be shared memory", p.twin.Way)
	case len(p.hidden) > 0:
		n -= len(p.hidden)
		err = fmt.Errorf("this process may not read %s yet, and a transport in software would die of it", r.name(p.hidden[0]))
	}
	r.proven, r.unproven = n, len(r.regions)-n
	if n > 0 {
		c.log.side().Put(log.MemoryProven, c.clock(), log.Entry{A: uint64(n), B: uint64(c.clock().Sub(began)), Text: p.twin.Way})
	}
	if err != nil {
		c.log.side().Put(log.MemoryUnproven, c.clock(), log.Entry{A: uint64(r.unproven), Text: err.Error()})
	}
	return nil
}

// twins numbers the twins of this process, whose names nobody else sees.
var twins atomic.Uint64

func (c *Core) readBack(r *registration, blob []byte) (*proof, error) {
	hanging := strays.close(1) // they have had their time
	if c.cfg.SelfRead == "off" {
		return nil, fmt.Errorf("%w: self_read is off", errUnproven)
	}
	from, ok := r.tr.(transport.Twins)
	if !ok {
		return nil, fmt.Errorf("%w: transport %s has no second agent", errUnproven, r.tr.Name())
	}
	if hanging >= straysMax {
		return nil, c.noTwinLeft(hanging)
	}
	p := &proof{r: r, held: c.held, end: time.Now().Add(proofMax)}
	if err := p.open(from); err != nil {
		return nil, fmt.Errorf("%w: a second agent: %w", errUnproven, err)
	}
	defer func() { r.strayed = strays.take(p) }()
	if err := p.connect(blob); err != nil {
		return p, err
	}
	return p, p.run()
}

func (p *proof) open(from transport.Twins) (err error) {
	if p.landing, err = pages(transport.TwinReads * proofPage); err != nil {
		return err
	}
	if err = unix.Pipe2(p.pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		_ = unix.Munmap(p.landing)
		return err
	}
	if p.twin, err = from.Twin(fmt.Sprintf("kvl~%d.%d", unix.Getpid(), twins.Add(1))); err != nil {
		p.free()
		return err
	}
	for page := range transport.TwinReads {
		p.idle = append(p.idle, page)
	}
	return nil
}

func (p *proof) free() {
	_ = unix.Munmap(p.landing)
	_ = unix.Close(p.pipe[0])
	_ = unix.Close(p.pipe[1])
}

// connect: without a connection nothing is known of the memory, and peers of this machine may have other ways.
func (p *proof) connect(blob []byte) error {
	err := p.twin.Register([]transport.Region{{Addr: record.Addr(p.landing), Bytes: uint64(len(p.landing))}})
	for err == nil {
		p.peer, err = p.twin.Load(blob)
		switch {
		case err == nil:
			return nil
		case err != transport.ErrFull || !time.Now().Before(p.end):
		case p.r.cut.Load():
			return errCut
		default: // another agent of this process loads
			err = nil
			time.Sleep(time.Millisecond)
		}
	}
	return fmt.Errorf("%w: a second agent does not reach it over %s: %w", errUnproven, p.twin.Way, err)
}

// run reads them all, TwinReads at once.
func (p *proof) run() error {
	for next, all := 0, len(p.r.regions)+1; next < all || len(p.reads) > 0; {
		for ; next < all && len(p.idle) > 0; next++ {
			if err := p.post(next); err != nil {
				return err
			}
		}
		switch ended, err := p.look(); {
		case err != nil:
			return err
		case p.r.cut.Load():
			return errCut
		case len(p.reads) > 0 && !time.Now().Before(p.end): // also if some end now and then
			return p.refused(p.reads[0].region, fmt.Sprintf("it had not ended after %v", proofMax))
		case !ended:
			time.Sleep(proofPause)
		}
	}
	return nil
}

// region is that of a number: of the cache, and behind it the board.
func (r *registration) region(n int) Region {
	if n < len(r.regions) {
		return r.regions[n]
	}
	return Region{Addr: record.Addr(r.mem.Board), Bytes: uint64(len(r.mem.Board)), Name: "the board"}
}

// name is what a region is called in texts.
func (r *registration) name(n int) string {
	of := r.region(n)
	if n == len(r.regions) {
		return of.Name
	}
	return fmt.Sprintf("region %d (%.60q, %d bytes at %#x)", n, of.Name, of.Bytes, of.Addr)
}

// lastPage is what is read of a region.
func lastPage(of Region) (addr, bytes uint64) {
	bytes = min(of.Bytes, proofPage)
	return of.Addr + of.Bytes - bytes, bytes
}

func (p *proof) post(n int) error {
	of := p.r.region(n)
	addr, bytes := lastPage(of)
	page := p.idle[len(p.idle)-1]
	read := proofRead{region: n, page: page, before: make([]byte, bytes)}
	switch err := p.own(read.before, of); {
	case errors.Is(err, unix.EFAULT):
		p.hidden = append(p.hidden, n)
		return nil
	case err != nil:
		read.before = nil
	}
	x, err := p.twin.PostRead(&transport.ReadSpec{Peer: p.peer, RemoteMem: of.Mem, Descs: []transport.Desc{{
		Local: record.Addr(p.landing) + uint64(page)*proofPage, Remote: addr, Len: bytes, RemoteDevice: of.Device,
	}}})
	if err != nil {
		return p.refused(n, err.Error())
	}
	p.idle = p.idle[:len(p.idle)-1]
	p.reads, p.xfers, p.out = append(p.reads, read), append(p.xfers, x), append(p.out, transport.Pending)
	return nil
}

// look takes the reads that have ended; false: none has.
func (p *proof) look() (ended bool, err error) {
	p.twin.PollReads(p.xfers, p.out, int64(proofPause/4))
	for i := len(p.reads) - 1; i >= 0; i-- {
		if p.out[i] == transport.Pending {
			continue
		}
		ended = true
		if e := p.take(p.reads[i], p.out[i]); e != nil {
			err = e
		}
		_ = p.twin.Release(p.xfers[i])
		p.idle = append(p.idle, p.reads[i].page)
		p.reads, p.xfers, p.out = slices.Delete(p.reads, i, i+1), slices.Delete(p.xfers, i, i+1), slices.Delete(p.out, i, i+1)
	}
	return ended, err
}

// take judges a read that has ended. A page that its engine writes meanwhile is not compared.
func (p *proof) take(read proofRead, st transport.Status) error {
	if st != transport.Done {
		return p.refused(read.region, "the transport failed the read")
	}
	if read.before == nil {
		return nil
	}
	after := make([]byte, len(read.before))
	got := p.landing[read.page*proofPage:][:len(after)]
	if p.own(after, p.r.region(read.region)) != nil || !bytes.Equal(read.before, after) || bytes.Equal(got, after) {
		return nil
	}
	return p.refused(read.region, "it brought other bytes than there are: was the memory mapped anew while it was registered?")
}

const (
	proofFix = "kvlease doctor shows what the ways need, UCX_TLS and UCX_NET_DEVICES name them; with self_read off it is registered all the same"
	// proofDeviceFix: without a module of UCX's for CUDA, or peer memory, an address registers and no NIC has it.
	proofDeviceFix = "see doctor's lines of the device, GPU memory to NICs and UCX (its module cuda); "
)

// refused names a region, the way and what helps.
func (p *proof) refused(n int, why string) error {
	fix := proofFix
	if p.r.region(n).Mem == transport.VRAM {
		if p.held != nil && p.held.NoNIC() {
			return fmt.Errorf("%w: a second agent of this process tried the last page of %s over %s, and %s; this process has no NIC, and its peers another way",
				errUnproven, p.r.name(n), p.twin.Way, why)
		}
		fix = proofDeviceFix + fix
	}
	return fmt.Errorf("%w: %s is registered, and peers could not read it: a second agent of this process tried its last page over %s, and %s. Remedy: %s",
		ErrTransport, p.r.name(n), p.twin.Way, why, fix)
}

// closeLooks is how often a twin is looked at, a millisecond apart, before it is kept.
const closeLooks = 100

// closeProofs ends twins within so many looks at all of them, and gives those that have a read open still, which may write into their pages.
func closeProofs(list []*proof, looks int) []*proof {
	for n := 1; ; n++ {
		if list = slices.DeleteFunc(list, (*proof).close); len(list) == 0 || n == looks {
			return list
		}
		time.Sleep(time.Millisecond)
	}
}

// close ends the twin. false: a read of it is open still. What it brings is not compared: its memory may be freed by then, its device given up.
func (p *proof) close() bool {
	for i := range p.reads {
		p.reads[i].before = nil
	}
	for len(p.reads) > 0 {
		if ended, _ := p.look(); !ended {
			return false
		}
	}
	if p.peer != 0 {
		if p.twin.Drop(p.peer) != nil {
			return false
		}
		p.peer = 0
	}
	if p.twin.Close() != nil {
		return false
	}
	p.free()
	return true
}

// straysMax bounds the twins of this process that have a read open and can therefore not go: each keeps the descriptors and the memory of an
// agent. A twin more would tell no more than these do.
const straysMax = 8

// straying are twins that had reads open when they were last looked at, of contexts that are closed, too: their reads may land at any time.
type straying struct {
	mu   sync.Mutex
	list []*proof
}

var strays straying

// take ends a twin, or keeps it: true.
func (s *straying) take(p *proof) (kept bool) {
	left := closeProofs([]*proof{p}, closeLooks)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, left...)
	return len(left) > 0
}

// close ends those that can be ended within so many looks, a millisecond apart, and reports how many are left.
func (s *straying) close(looks int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = closeProofs(s.list, looks)
	return len(s.list)
}

// noTwinLeft is what is said where no more twins are opened.
func (c *Core) noTwinLeft(n int) error {
	why := fmt.Sprintf("no second agent is opened any more, since reads of %d have not ended", n)
	if c.held != nil && c.held.NoNIC() {
		return fmt.Errorf("%w: %s; this process has no NIC, and its peers another way", errUnproven, why)
	}
	return fmt.Errorf("%w: peers could not read it, it seems: %s, each after %v. Remedy: start the process anew; %s", ErrTransport, why, proofMax, proofFix)
}

// own copies what this process sees in the last page of a region: through the driver, or through a pipe, since the kernel answers EFAULT
// where this process may not read.
func (p *proof) own(dst []byte, of Region) error {
	addr, _ := lastPage(of)
	if of.Mem == transport.VRAM {
		if p.held == nil {
			return errUnproven
		}
		return p.held.Read(dst, of.Device, addr)
	}
	n, _, errno := unix.Syscall(unix.SYS_WRITE, uintptr(p.pipe[1]), uintptr(addr), uintptr(len(dst)))
	if errno != 0 {
		return errno
	}
	_, err := unix.Read(p.pipe[0], dst)
	if err == nil && int(n) != len(dst) { // the page ends where nothing may be read
		err = unix.EFAULT
	}
	return err
}
