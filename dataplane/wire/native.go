package wire

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/siphash"
)

// Native v1: a 32-byte header, then entries of 16 bytes or the body of a hello. Little-endian.
const (
	NativeMagic   = 0xFF // first byte: never valid UTF-8, so no stock message starts with it
	NativeMark    = 0x4B // second byte
	NativeVersion = 1
	HeaderLen     = 32
	EntryLen      = 16
	HelloLen      = 32 // body of a hello
)

// Kind is what a native message says.
type Kind uint8

const (
	Hello    Kind = 1 // who speaks: duration, limits, nonce of the death wire
	Renew    Kind = 2 // a heartbeat for each entry
	Complete Kind = 3 // each entry has been read by this reader, one of Header.Readers
	Release  Kind = 4 // this reader never will read the entries
	Leaving  Kind = 5 // the engine goes on purpose: a death wire that closes now means nothing
)

// FlagsMust are the flags that change what the message means: a receiver that does not know one skips the message
// (BadFlags). Version 1 has none. The low byte may be ignored: it is the message's number (Header.Number).
const FlagsMust = 0xFF00

// Durations that a peer may claim. Outside, an interval made from them would flood or never beat.
const (
	DurationMin = 10 * time.Millisecond
	DurationMax = 24 * time.Hour
)

// Header is the first 32 bytes of a native message. It says who speaks: (Engine, Epoch, Rank) is the reader.
type Header struct {
	Kind    Kind
	Flags   uint16
	Readers uint16 // Complete: the ranks of the sender's engine that report to this rank of the owner; else 0
	Engine  uint64 // EngineHash of the sender's engine id
	Epoch   uint64 // the sender's boot epoch, not 0
	Rank    uint32
	Count   uint32 // entries; 0 for Hello and Leaving
}

// HelloBody follows the header of a Hello.
type HelloBody struct {
	Duration      time.Duration // of the sender's own leases
	BatchBytesMax uint64        // the longest message that the sender makes
	Nonce         [16]byte      // of its death wire; zero: it has none
}

// EngineHash names an engine in native messages and on the death wire: SipHash-2-4 of the engine id with a zero key.
// It is a name, not a secret; what a sender may do hangs on the keys in the entries.
func EngineHash(id []byte) uint64 { return siphash.Sum64(0, 0, id) }

// HashText is a hash as people and labels have it, sixteen digits; empty for 0, which stands for none.
func HashText(h uint64) string {
	if h == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", h)
}

// ParseNative reads a native message. body is the entries (Entry), or the body of a Hello (ParseHello); it lies in msg.
// On any other status than OK body is nil and h is not to be used, except BadKind, BadFlags and BadLength, where it tells
// who sent it.
func ParseNative(msg []byte) (h Header, body []byte, st Status) {
	switch {
	case len(msg) == 0:
		return h, nil, Empty
	case msg[0] != NativeMagic:
		return h, nil, NotNative
	case len(msg) > ParseMax:
		return h, nil, TooLong
	case len(msg) == 1 || msg[1] != NativeMark:
		return h, nil, BadMagic
	case len(msg) < HeaderLen:
		return h, nil, BadLength
	case msg[2] != NativeVersion:
		return h, nil, BadVersion
	}
	h = Header{
		Kind:    Kind(msg[3]),
		Flags:   binary.LittleEndian.Uint16(msg[4:]),
		Readers: binary.LittleEndian.Uint16(msg[6:]),
		Engine:  binary.LittleEndian.Uint64(msg[8:]),
		Epoch:   binary.LittleEndian.Uint64(msg[16:]),
		Rank:    binary.LittleEndian.Uint32(msg[24:]),
		Count:   binary.LittleEndian.Uint32(msg[28:]),
	}
	if h.Kind < Hello || h.Kind > Leaving {
		return h, nil, BadKind
	}
	if h.Flags&FlagsMust != 0 {
		return h, nil, BadFlags
	}
	body = msg[HeaderLen:]
	listed := h.Kind == Renew || h.Kind == Complete || h.Kind == Release
	want := uint64(h.Count) * EntryLen
	if h.Kind == Hello {
		want += HelloLen
	}
	switch {
	case uint64(len(body)) != want, !listed && h.Count != 0:
		return h, nil, BadLength
	case listed && h.Count == 0:
		return h, nil, Empty
	case h.Epoch == 0, h.Kind == Complete && h.Readers == 0:
		return h, nil, BadValue
	}
	return h, body, OK
}

// Entry reads entry i of Header.Count: the lease's slot, how often the slot was granted before, and the key of that use.
func Entry(entries []byte, i int) (slot, generation uint32, key uint64) {
	e := entries[i*EntryLen : i*EntryLen+EntryLen]
	return binary.LittleEndian.Uint32(e), binary.LittleEndian.Uint32(e[4:]), binary.LittleEndian.Uint64(e[8:])
}

// ParseHello reads the body of a Hello.
func ParseHello(body []byte) (HelloBody, Status) {
	var b HelloBody
	if len(body) != HelloLen {
		return b, BadLength
	}
	d := binary.LittleEndian.Uint64(body)
	if d < uint64(DurationMin) || d > uint64(DurationMax) {
		return b, BadValue
	}
	b.Duration = time.Duration(d)
	b.BatchBytesMax = binary.LittleEndian.Uint64(body[8:])
	copy(b.Nonce[:], body[16:])
	return b, OK
}

// AppendHeader starts a native message. With room in dst nothing is allocated. Count may be set later (SetCount).
func AppendHeader(dst []byte, h *Header) []byte {
	dst = append(dst, NativeMagic, NativeMark, NativeVersion, byte(h.Kind))
	dst = binary.LittleEndian.AppendUint16(dst, h.Flags)
	dst = binary.LittleEndian.AppendUint16(dst, h.Readers)
	dst = binary.LittleEndian.AppendUint64(dst, h.Engine)
	dst = binary.LittleEndian.AppendUint64(dst, h.Epoch)
	dst = binary.LittleEndian.AppendUint32(dst, h.Rank)
	return binary.LittleEndian.AppendUint32(dst, h.Count)
}

// AppendEntry adds one lease to a Renew, Complete or Release.
func AppendEntry(dst []byte, slot, generation uint32, key uint64) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, slot)
	dst = binary.LittleEndian.AppendUint32(dst, generation)
	return binary.LittleEndian.AppendUint64(dst, key)
}

// AppendHello makes a whole Hello; h.Kind, Readers and Count are taken as Hello, 0 and 0.
func AppendHello(dst []byte, h *Header, b *HelloBody) []byte {
	hello := *h
	hello.Kind, hello.Readers, hello.Count = Hello, 0, 0
	dst = AppendHeader(dst, &hello)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(b.Duration))
	dst = binary.LittleEndian.AppendUint64(dst, b.BatchBytesMax)
	return append(dst, b.Nonce[:]...)
}

// Number is that of the message among the sender's on its connection, modulo 256, for tools that look at both ends. Senders that
// do not count leave it 0, and nothing hangs on it.
func (h *Header) Number() uint8 { return uint8(h.Flags) }

// SetNumber writes it into a message that AppendHeader started.
func SetNumber(msg []byte, number uint8) { msg[4] = number }

// SetCount writes the number of entries into a message that AppendHeader started.
func SetCount(msg []byte, count uint32) { binary.LittleEndian.PutUint32(msg[28:HeaderLen], count) }
