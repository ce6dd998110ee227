// Package deathwire tells two engines of the death of each other's process at once.
//
// A reader keeps a TCP connection, its wire, open to the listener of each owner. The kernel closes it when the process
// dies, however it dies, and the other end reads the end of the stream a millisecond later. Nothing else counts: a host
// that loses power, or a network that fails, closes nothing, and there the lease decides.
//
// What a wire says is believed by an owner only if one of its ranks has heard the wire's nonce from the reader over the
// transport, and then only after a grace in which the same reader may come back. So whoever can connect can end nothing.
package deathwire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kvlease/kvlease/dataplane/siphash"
)

// Kind is what a frame says.
type Kind uint8

const (
	Hello   Kind = 1 // reader to owner, first: who I am
	Welcome Kind = 2 // owner to reader: who I am, and that the wire is kept; with the hello's nonce
	Leaving Kind = 3 // either: this process goes on purpose: the end of a reader's wire ends nothing then, an owner's serves until its end

	// Farewell is the last word of either on a wire whose end will be no death: the life of its engine that the wire is of is over, or
	// an owner that drains holds nothing any more. At the end of the wire all that is held by it or for it ends as at its death. It
	// is said to who has Farewells in its flags, and by an owner whose life is over in place of the welcome.
	Farewell Kind = 4
)

// framesMax is how many frames an end takes after hello and welcome: who goes on purpose says so when it drains, and when it lets a wire
// go. Who says more is none of ours, and costs us no more than its connection.
const framesMax = 4

// Farewells in the flags of a hello or a welcome says that its sender understands a farewell. Others see the wire fall without a word,
// and take it for a death. Who knows no flags passes over them.
const Farewells = 1

// Frame is all that is ever sent on a wire. Little-endian: "KVLW", version u8, kind u8, flags u16, engine hash u64,
// boot epoch u64, nonce 16 bytes.
type Frame struct {
	Kind   Kind
	Flags  uint16 // of Hello and Welcome: Farewells; else 0
	Engine uint64 // wire.EngineHash of the sender's engine id
	Epoch  uint64 // the sender's boot epoch, not 0
	Nonce  [16]byte
}

// FrameLen is the length of every frame.
const FrameLen = 40

// Version is the version of the frames that we write and read.
const Version = 1

const magic = "KVLW" // its first byte is not ZMTP's, which shares the port

// ErrFrame is wrapped by every error about a frame's content.
var ErrFrame = errors.New("deathwire: malformed frame")

// Append encodes a frame.
func (f *Frame) Append(dst []byte) []byte {
	dst = append(append(dst, magic...), Version, byte(f.Kind))
	dst = binary.LittleEndian.AppendUint16(dst, f.Flags)
	dst = binary.LittleEndian.AppendUint64(dst, f.Engine)
	dst = binary.LittleEndian.AppendUint64(dst, f.Epoch)
	return append(dst, f.Nonce[:]...)
}

// Parse reads a frame. No flag is wrong.
func Parse(b []byte) (Frame, error) {
	if len(b) != FrameLen || string(b[:4]) != magic {
		return Frame{}, fmt.Errorf("%w: %.8q", ErrFrame, b[:min(len(b), 8)])
	}
	f := Frame{
		Kind: Kind(b[5]), Flags: binary.LittleEndian.Uint16(b[6:]),
		Engine: binary.LittleEndian.Uint64(b[8:]), Epoch: binary.LittleEndian.Uint64(b[16:]),
	}
	copy(f.Nonce[:], b[24:])
	switch {
	case b[4] != Version:
		return Frame{}, fmt.Errorf("%w: version %d, want %d", ErrFrame, b[4], Version)
	case f.Kind < Hello || f.Kind > Farewell:
		return Frame{}, fmt.Errorf("%w: kind %d", ErrFrame, b[5])
	case f.Epoch == 0:
		return Frame{}, fmt.Errorf("%w: epoch 0", ErrFrame)
	}
	return f, nil
}

// nonceTag keeps nonces apart from lease keys, which are made with the same secret of 8 bytes: with it every text is longer.
const nonceTag = "kvlease death wire "

// Nonce is what a reader with this boot secret says to an owner, on its wire and in the hello of each of its ranks: host
// and ranks know it without a message between them.
func Nonce(secret [2]uint64, owner string) (n [16]byte) {
	text := append([]byte(nonceTag+"0"), owner...)
	binary.LittleEndian.PutUint64(n[:], siphash.Sum64(secret[0], secret[1], text))
	text[len(nonceTag)] = '1'
	binary.LittleEndian.PutUint64(n[8:], siphash.Sum64(secret[0], secret[1], text))
	return n
}
