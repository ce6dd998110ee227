// Package handshake fetches and serves the metadata of engines over vLLM's side channel: a client that keeps asking
// until it knows an engine, and a server that tells who we are.
//
// It does the network work of the handshake, outside the step. What a step sees is a queue of results (Client.Next) that
// never blocks. Nothing that a peer sends or fails to send ends either side, and peers that are dead delay nobody.
package handshake

import (
	"errors"
	"fmt"

	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/dataplane/zmtp"
)

// Rank is one rank of an engine, as a request names it.
type Rank struct{ PP, Transfer uint32 }

func (r Rank) String() string { return fmt.Sprintf("pp %d rank %d", r.PP, r.Transfer) }

// RanksMax is the most ranks that are asked or served.
const RanksMax = 1024

var (
	// ErrIncompatible: the peer's blocks are not ours. It stays so until one of the two is another build or model.
	ErrIncompatible = errors.New("handshake: incompatible peer")
	// ErrWrongEngine: something else answers at that address, mostly the engine that came after a restart.
	ErrWrongEngine = errors.New("handshake: peer is not the expected engine")
	// ErrMetadata: the reply has the wrong form; the error around it says where.
	ErrMetadata = errors.New("handshake: malformed metadata")
	// ErrRanks: the peer has other ranks than those asked for.
	ErrRanks = errors.New("handshake: wrong ranks")
	// ErrInternal: a panic of ours, caught.
	ErrInternal = errors.New("handshake: internal error")

	ErrInvalid = errors.New("handshake: invalid")        // an argument that cannot be
	ErrFull    = errors.New("handshake: full")           // no room for one more engine or rank
	ErrUnknown = errors.New("handshake: unknown engine") // not wanted, or forgotten
	ErrClosed  = errors.New("handshake: closed")
)

// Unregistered is what a peer that hangs up behind a request most likely lacks, for people: a server of this package does so for ranks
// that it does not serve (yet).
const Unregistered = "an engine of ours hangs up until that rank's memory is registered (kvl_register), and while it sleeps"

// Class is why an attempt failed, for counters and decisions.
type Class uint8

const (
	None         Class = iota // it did not fail
	Unreachable               // no connection
	Silent                    // connected or not, no whole answer in time
	HungUp                    // the peer closed the connection; behind a request see Unregistered
	NotZMTP                   // it speaks something else, or breaks ZeroMQ's protocol
	Incompatible              // ErrIncompatible
	WrongEngine               // ErrWrongEngine
	Metadata                  // ErrMetadata
	WrongRanks                // ErrRanks
	Internal                  // ErrInternal
	classesN
)

// Classes is the number of classes, for an array of counters.
const Classes = int(classesN)

var classNames = [Classes]string{
	"none", "unreachable", "silent", "hung_up", "not_zmtp", "incompatible", "wrong_engine", "metadata", "wrong_ranks", "internal",
}

// String is the class's name in metrics and logs.
func (c Class) String() string {
	if int(c) < Classes {
		return classNames[c]
	}
	return fmt.Sprintf("class %d", uint8(c))
}

// ClassOf finds the class of an error of this package or of package zmtp.
func ClassOf(err error) Class {
	if err == nil {
		return None
	}
	for _, v := range []struct {
		is    error
		class Class
	}{
		{ErrInternal, Internal}, {ErrRanks, WrongRanks}, {ErrIncompatible, Incompatible}, {ErrWrongEngine, WrongEngine}, {ErrMetadata, Metadata},
		{zmtp.ErrSilent, Silent}, {zmtp.ErrUnreachable, Unreachable}, {zmtp.ErrHungUp, HungUp},
	} {
		if errors.Is(err, v.is) {
			return v.class
		}
	}
	return NotZMTP
}

// Map is the metadata of one rank.
type Map struct {
	Rank      Rank
	Hash      string // compatibility_hash of the payload
	Raw       []byte // the metadata map as it came
	Handshake *wire.Handshake
}
