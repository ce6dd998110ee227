// Package stream carries records between a host context and one of its ranks, both ways.
//
// A carrier keeps order and may lose: a message that the engine dropped (delta), records for which the rank's ring had no
// room (shm, process), everything when a rank attaches. It then says so (Gap), and the host sends its full state for that rank
// again; what a rank has already done with it is reported once more. So no carrier keeps what it has sent, and a rank that
// stands still costs the others nothing.
package stream

import "errors"

// State is where the other end stands.
type State uint8

const (
	Waiting  State = iota // nobody has attached yet
	Attached              //
	Lost                  // it was attached, and its process, or its end of the memory, is gone for good
)

var stateNames = [...]string{"waiting", "attached", "lost"}

// String is the state's name in stats and errors.
func (s State) String() string { return stateNames[s] }

var (
	ErrInvalid = errors.New("stream: invalid")      // an argument, or bytes handed in, that cannot be
	ErrPath    = errors.New("stream: carrier_path") // the socket cannot be made or used; the text says why and what to do
	ErrTaken   = errors.New("stream: rank taken")   // that rank is attached, or was: a lost rank does not come back
	ErrSpace   = errors.New("stream: no room")      // the caller's buffer is too small
)

// Carrier is one end of a stream.
//
// Threads: one, the context's step, for all but Close. What another thread or process does is only seen through Next and State.
// Memory: all of it when the carrier is made. No call allocates.
type Carrier interface {
	// Reserve gives room for a record of n bytes, not visible before Publish. nil: no room, or nobody is attached; the record
	// is then lost and Gap will say so on the host's end. On a rank's end nothing is lost: keep it and try again.
	Reserve(tag uint32, n int) []byte
	// Fits reports whether Reserve would give room for a record of n bytes now. Asking loses nothing: a host asks before each
	// record, so that Gap speaks only of what was lost behind its back.
	Fits(n int) bool
	// Publish makes all that was reserved visible, and wakes the other end if it sleeps.
	Publish()
	// Next gives the next record of the other end, valid until Release. Whatever its writer does to it, no call panics.
	Next() (tag uint32, rec []byte, ok bool)
	// Release gives back what Next has handed out.
	Release()
	// Gap tells once, on the host's end, that something was lost in either direction since it was asked last; true after the
	// first attach, too. It stays true while there is no room to send in.
	Gap() bool
	// State is where the other end stands. After Lost nothing comes any more; what came before can still be read.
	State() State
	// Pending reports that Next would give something: what a pump asks before it sleeps.
	Pending() bool
	// Sleeping says to the other end whether this one sleeps on the descriptor that it was made with, and has to be woken.
	// Store before Pending is asked: the same edge as between a producer and the pump.
	Sleeping(bool)
	Close() error
}
