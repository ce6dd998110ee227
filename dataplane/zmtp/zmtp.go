// Package zmtp speaks the part of ZeroMQ's wire protocol that the handshake needs: ZMTP 3.1 over TCP, the NULL mechanism,
// a REQ client and a ROUTER server.
//
// It is written by hand because a peer's bytes must never end the process that reads them: every length is checked
// against a limit before memory is taken for it, memory grows with the bytes that have arrived and not with those that
// were announced, every wait has a deadline, and a panic is caught in the goroutine that has it, which is always ours.
package zmtp

import (
	"errors"
	"time"
)

// What can be wrong with a peer. An error of this package wraps one of these, names the address, and says where in the
// conversation it happened.
var (
	// ErrUnreachable: no connection. Nobody listens there, the name has no address, or the network has no way.
	ErrUnreachable = errors.New("unreachable")
	// ErrSilent: connected, and no whole answer in time.
	ErrSilent = errors.New("no answer in time")
	// ErrHungUp: the peer closed the connection. A ROUTER does so when it is full or finds a request malformed.
	ErrHungUp = errors.New("connection closed by peer")
	// ErrNotZMTP: what listens there does not speak ZMTP 3.
	ErrNotZMTP = errors.New("not ZMTP 3")
	// ErrMechanism: the peer wants PLAIN, CURVE or the like; only NULL is spoken here.
	ErrMechanism = errors.New("security mechanism is not NULL")
	// ErrSocketType: the peer is a socket that does not go with ours.
	ErrSocketType = errors.New("wrong socket type")
	// ErrTooLong: a message, frame, command or number of them is past its limit.
	ErrTooLong = errors.New("too long")
	// ErrMalformed: bytes that mean nothing.
	ErrMalformed = errors.New("malformed")
	// ErrPeer: the peer sent an ERROR command; its text is in the message.
	ErrPeer = errors.New("peer reports an error")
	// ErrDeclined: a handler has no answer to a request that means something.
	ErrDeclined = errors.New("no answer to give")
	// ErrClosed: this end is closed.
	ErrClosed = errors.New("closed")
)

// Limits bound what a peer can cost. A field that is zero has its default.
type Limits struct {
	RequestBytesMax int           // all frames of a request together; 4 KiB
	ReplyBytesMax   int           // all frames of a reply together; 16 MiB
	FramesMax       int           // frames of a message, the envelope among them; 16
	CommandBytesMax int           // one command; 1 KiB
	CommandsMax     int           // commands between two messages; 64
	ConnectionsMax  int           // open at once in a server; 64
	Idle            time.Duration // server: from a reply to the first byte of the next request, commands do not count; 60 s
	// Request is the time for everything, 5 s. Client: from the call to the last byte of the reply, connect included.
	// Server: from accept to the end of the peer's READY, and from a request's first byte to the reply's last.
	Request time.Duration
}

func (l Limits) orDefaults() Limits {
	or := func(v *int, fallback int) {
		if *v <= 0 {
			*v = fallback
		}
	}
	or(&l.RequestBytesMax, 4<<10)
	or(&l.ReplyBytesMax, 16<<20)
	or(&l.FramesMax, 16)
	or(&l.CommandBytesMax, 1<<10)
	or(&l.CommandsMax, 64)
	or(&l.ConnectionsMax, 64)
	if l.Idle <= 0 {
		l.Idle = time.Minute
	}
	if l.Request <= 0 {
		l.Request = 5 * time.Second
	}
	return l
}
