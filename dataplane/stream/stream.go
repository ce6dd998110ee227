// Package stream carries records between a host context and one of its ranks, both ways.
//
// A carrier keeps order and may lose: a message that the engine dropped (delta), records for which the rank's ring had no
// room (shm, process), everything when a rank attaches. It then says so (Gap), and the host sends its full state for that rank
// again; what a rank has already done with it is reported once more. So no carrier keeps what it has sent, and a rank that
// stands still costs the others nothing.
//
// Between a loss and the Begin that heals it nothing reaches the rank: what it sees is always a run of records without a hole,
// each run but for a cut one beginning with the mark TagFull.
package stream

import (
	"errors"
	"fmt"
)

// State is where the other end stands.
type State uint8

const (
	Waiting  State = iota // nobody has attached yet
	Attached              //
	Lost                  // it was attached, and its process, or its end of the memory, is gone for good; Err says which is known
)

var stateNames = [...]string{"waiting", "attached", "lost"}

// String is the state's name in stats and errors.
func (s State) String() string { return stateNames[s] }

var (
	ErrInvalid = errors.New("stream: invalid")      // an argument, or bytes handed in, that cannot be
	ErrPath    = errors.New("stream: carrier_path") // the socket cannot be made or used; the text says why and what to do
	ErrTaken   = errors.New("stream: taken")        // that rank is attached, or was: a lost rank does not come back. Or that engine has a host
	ErrSpace   = errors.New("stream: no room")      // the caller's buffer is too small, or this end's is full
	ErrClosed  = errors.New("stream: closed")
	ErrGone    = errors.New("stream: other end gone")             // Err after Lost: its process ended, or closed the context
	ErrEnded   = fmt.Errorf("%w: its process has ended", ErrGone) // that is certain: it neither writes memory nor serves it
	ErrCorrupt = errors.New("stream: ring is corrupt")            // Err after Lost: the memory contradicts itself
)

// Carrier is one end of a stream.
//
// Threads: one, the context's step, for all but Err and Untaken. Close ends the use: no other call may be running, and later ones do nothing.
// Memory: all of it when the carrier is made, or when the other end attaches, then outside of the step. No call allocates.
type Carrier interface {
	// Reserve gives room for a record of n bytes, 8-byte aligned, not visible before Publish. nil: no room, or nobody is attached.
	// On the host's end the record is then lost, and so is all until the next Begin: Gap says so. On a rank's end nothing is
	// lost: keep it and try again.
	Reserve(tag uint32, n int) []byte
	// Fits reports whether Reserve would give room for a record of n bytes now. Asking loses nothing: a host asks before each
	// record, so that Gap speaks only of what was lost behind its back. n may be more than one record holds, then for several
	// with RecordBytes(n) in all: a full state is written while there is plenty, so that what happens meanwhile finds room, too.
	Fits(n int) bool
	// Publish makes all that was reserved visible, and wakes the other end if it sleeps.
	Publish()
	// Next gives the next record of the other end, a copy that is valid until the next call of Next. Whatever the other end does,
	// no call panics, and each ends.
	Next() (tag uint32, rec []byte, ok bool)
	// Release gives back what Next has handed out.
	Release()
	// Gap tells, on the host's end, that the rank needs the full state: after it attached, and after a loss in either direction.
	// It stays true until Begin. On a rank's end it is false.
	Gap() bool
	// Begin starts a full state on the host's end: it writes record.Full with FullStart, and Reserve works again. The caller goes
	// on with the state and ends it with FullEnd and the same number. false: nobody is attached, or no room yet; ask again.
	Begin() (incarnation uint64, ok bool)
	// State is where the other end stands. After Lost nothing new comes; what came before can still be read.
	State() State
	// Pending reports that Next would give something, or that State has changed since it was asked last: what a pump asks before
	// it sleeps.
	Pending() bool
	// Untaken is how many bytes of records of the other end have come and were not released. Any thread, but not beside Close.
	Untaken() uint64
	// Sleeping says to the other end whether this one sleeps on the descriptor that it was made with, and has to be woken.
	// Store before Pending is asked: the same edge as between a producer and the pump. An end that attaches or is lost wakes
	// in any case.
	Sleeping(bool)
	// Counters are of this end's life.
	Counters() Counters
	// Err is why nobody is attached (what the last attempt met), or why the other end is lost; else nil. Any thread.
	Err() error
	Close() error
}

// Delta is an end whose messages the engine carries.
type Delta interface {
	Carrier
	// Take writes the next message for the other end into buf and gives its length; 0: there is nothing to say. ErrSpace: buf
	// has less than MessageBytesMin bytes. Any thread, one at a time with Put.
	Take(buf []byte) (int, error)
	// Put takes a message of the other end; what is carried twice, late or out of order does no harm. ErrInvalid: no message of
	// that stream, nothing was changed. ErrTaken: of a rank, or a host, that was started again. ErrSpace: it was not taken since the
	// step is behind; put it again, or drop it.
	Put(msg []byte) error
	// Lose says that the process on the other end has ended, which only the engine can know: State is Lost from now on. Any thread.
	Lose()
}

// Counters are what an end has seen.
type Counters struct {
	Sent     uint64 // records reserved
	Received uint64 // records handed out
	Refused  uint64 // records for which there was no room, or nobody
	Fulls    uint64 // full states begun
	Gaps     uint64 // losses noticed; not the first state after the attach
	Wakes    uint64 // writes to the other end's descriptor
}

// Kinds of carriers: the values of the key carrier.
const (
	KindProcess = "process"
	KindShm     = "shm"
	KindDelta   = "delta"
)

// RanksMax is the most ranks of a host.
const RanksMax = 64

// Config says whose ends are made.
type Config struct {
	EngineID  string
	TP, PP    uint32 // shape; host and ranks must agree
	Rank      uint32 // of a rank's end
	WakeFd    int    // eventfd that ends this context's sleep; duplicated. -1: it never sleeps
	RingBytes uint32 // room for records each way and rank: a power of two, at least RingBytesMin
	Path      string // shm: the socket; empty: DefaultPath
}

// RingBytesMin is the least room each way.
const RingBytesMin = 16 << 10

func (c *Config) check() error {
	switch ranks := uint64(c.TP) * uint64(c.PP); {
	case c.EngineID == "":
		return fmt.Errorf("%w: engine_id is empty", ErrInvalid)
	case ranks == 0 || ranks > RanksMax:
		return fmt.Errorf("%w: %d x %d ranks, at most %d", ErrInvalid, c.TP, c.PP, RanksMax)
	case uint64(c.Rank) >= ranks:
		return fmt.Errorf("%w: rank %d of %d", ErrInvalid, c.Rank, ranks)
	case c.RingBytes < RingBytesMin || c.RingBytes > 1<<30 || c.RingBytes&(c.RingBytes-1) != 0:
		return fmt.Errorf("%w: ring of %d bytes: a power of two from %d to %d", ErrInvalid, c.RingBytes, RingBytesMin, 1<<30)
	}
	return nil
}

// Host is a host context's ends, one for each rank.
type Host struct {
	ends  []Carrier
	close func() error
}

// End is the end to a rank; for KindDelta it is a Delta.
func (h *Host) End(rank uint32) Carrier { return h.ends[rank] }

// Ranks is how many ends there are.
func (h *Host) Ranks() int { return len(h.ends) }

// Close closes all ends, and the socket.
func (h *Host) Close() error { return h.close() }

// RecordBytes is what a record of n bytes takes in a ring.
func RecordBytes(n int) int { return (n + 8 + 7) &^ 7 }
