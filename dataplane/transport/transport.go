// Package transport is the small interface between the plane and whatever moves bytes: NIXL, the in-process loopback,
// the simulator. Every implementation passes the contract suite of package transporttest.
package transport

import (
	"errors"
	"fmt"
	"time"
)

// Peer names a loaded remote agent. 0 is none. A Peer is never used for another agent again.
type Peer uint32

// Xfer names a posted read until Release. 0 is none.
type Xfer uint64

// Status is where a posted read stands. All but Pending are ends, and after Failed and FailedHere the transport may still write
// into the local memory for a while: quarantine is the reader's work, not the transport's.
type Status uint8

const (
	Pending    Status = iota
	Done              // every byte has landed
	Failed            // the transport reported an error for this transfer
	FailedHere        // the same, for a reason of this side: it says nothing of the peer
)

// Mem is the kind of memory of a region or a descriptor.
type Mem uint8

const (
	DRAM Mem = iota
	VRAM
)

// Region is memory that the transport may touch: local regions are registered, remote ones come in a peer's metadata.
type Region struct {
	Addr, Bytes uint64
	Device      uint32
	Mem         Mem
}

// Desc is one contiguous piece of a read.
type Desc struct {
	Local, Remote             uint64 // addresses
	Len                       uint64 // bytes
	LocalDevice, RemoteDevice uint32
}

// ReadSpec is one read from one peer. Notif, if not empty, leaves with the end of the read (stock completions);
// it leaves only when the reader polls.
//
// Timed asks how long the post takes. Took is the answer: the processor time of the thread that posts, since on a busy machine the rest
// is other threads' turns. A transport whose posts do no work of their length leaves it 0.
type ReadSpec struct {
	Peer                Peer
	LocalMem, RemoteMem Mem
	Descs               []Desc
	Notif               []byte
	Timed               bool
	Took                time.Duration // set by PostRead
}

// Errors of a transport. ErrPeer after a Send or PostRead means that the connection is gone and Drop + Load is the probe for life. Any other
// error of the two is of what was asked, or of this side's memory and device, and says nothing of the peer, but for ErrRange, which is an
// ErrInvalid: a peer's map names what its metadata does not have. Its connection stands.
var (
	ErrUnavailable = errors.New("transport: unavailable")
	ErrPeer        = errors.New("transport: peer unreachable")
	ErrInvalid     = errors.New("transport: invalid argument")
	ErrRange       = fmt.Errorf("transport: not in what the peer has registered: %w", ErrInvalid)
	ErrClosed      = errors.New("transport: closed")
	ErrFull        = errors.New("transport: no room")
	ErrUntaken     = errors.New("transport: peers have not taken what they asked for")
	ErrStuck       = errors.New("transport: some of the memory was registered and does not come back: it may be unmapped only after Close")
)

// Transport moves notifications and reads for one agent.
//
// Threads: Send, Poll, PostRead, PollReads and Release belong to the stepping thread. Register, Metadata, Load, Drop and
// Abandon may come from another thread at the same time. Close comes last.
// Memory: Send, Poll, PostRead, PollReads and Release make no Go allocation. Nothing registered may be Go memory, except with loopback.
type Transport interface {
	// Name is "nixl", "loopback", "sim".
	Name() string
	// Agent is the name under which peers see our notifications.
	Agent() string
	// Register makes regions readable by peers and usable as read targets: all of them or none. ErrStuck: some, until Close.
	Register(regions []Region) error
	// Unregister is the opposite; it may not be called while a read of ours is in flight.
	Unregister(regions []Region) error
	// Metadata is the blob that peers load. Valid after Register.
	Metadata() ([]byte, error)
	// Load makes a remote agent reachable. The same blob may be loaded again after Drop. May take 60 ms. ErrFull: not now, nothing
	// was tried; call again in a later step.
	Load(blob []byte) (Peer, error)
	// Drop forgets a remote agent. ErrInvalid while a read from it has not ended and been released.
	Drop(Peer) error
	// Abandon is Drop although reads from the agent are open, for a connection that must be made anew under a read that does
	// not end. They go on and may land at any time; PollReads and Release go on for their handles. The same blob may be loaded
	// again at once, as another Peer. Only Done is an end of such a read: Failed may say no more than that it was abandoned.
	Abandon(Peer) error
	// Send posts one notification. nil says nothing about its arrival. ErrPeer: disconnected; ErrInvalid: unknown peer, or no message that
	// can be sent.
	Send(p Peer, msg []byte) error
	// Poll moves what has arrived into in, as much as fits, and reports how many notifications that were. The rest waits.
	Poll(in *Inbox) int
	// Backlog is the number of notifications that had arrived by the last Poll and did not fit into its inbox.
	Backlog() int
	// PostRead starts a read. On error nothing was started.
	PostRead(spec *ReadSpec) (Xfer, error)
	// PollReads fills out[i] with the status of xfers[i]. If none has ended it looks again for at most spinNs nanoseconds.
	PollReads(xfers []Xfer, out []Status, spinNs int64)
	// Release gives back an ended read's handle. ErrInvalid for one that is still pending.
	Release(Xfer) error
	// FastFence reports whether a peer's rows are answered without its software (RDMA), so that short spins suffice.
	FastFence() bool
	// Close ends the agent. ErrInvalid: a read of ours is in flight; ErrUntaken: peers have still to take what they read from
	// us. Both times nothing has changed, peers are served on, and Close may be called again.
	Close() error
}

// Twin is a second, small agent of this process, for a short time.
type Twin struct {
	Transport        // with room for 64 reads from one peer
	Way       string // in words: how its reads reach the first agent
	// Near: they may take a way that no peer on another machine has. Then they show that the agent answers, and nothing of the network.
	Near bool
}

// TwinReads is how many reads of a twin may be open.
const TwinReads = 64

// Twins is a transport that can open a second agent beside itself, which loads the first one's metadata and reads what it has registered as a
// peer does.
type Twins interface {
	// Twin takes what an agent takes and is closed as one. ErrUnavailable says why there can be none.
	Twin(agent string) (Twin, error)
}
