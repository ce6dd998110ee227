package cnixl

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// NIXL's metadata blob, as far as it is walked before NIXL may see it:
//
//	"nixlSerDes|" "Agent"str "Conns"u64 { "t"str "c"str }*Conns ""str("MemSection") "nixlSecElms"u64
//	{ "bknd"str "nixlDList"str("nixlSDList") "t"u32 "n"u64 { ""str }*n }*nixlSecElms
//
// A field is its tag, the length as u64, the bytes, "|"; numbers are fields of 8 or 4 bytes; all little-endian.
//
// Why at all: NIXL 1.5.1 connects before it reads the memory section. When the section is cut, the connection stays under the
// agent's name without an agent, every later load of that name fails, and nothing in the API removes it. Load goes on under an
// alias then, but each damaged answer in a handshake would cost a connection that NIXL keeps for the life of our agent.
const (
	blobStart   = "nixlSerDes|"
	blobDescMin = 24 // address, length, device
)

// walker reads fields. The first trouble sticks.
type walker struct {
	rest    []byte
	cut     bool // a field is longer than what is left
	strange bool // a tag that this walk does not know: a newer NIXL may
}

func (w *walker) field(tag string) []byte {
	if w.cut || w.strange {
		return nil
	}
	if !bytes.HasPrefix(w.rest, []byte(tag)) {
		w.cut = len(w.rest) < len(tag)
		w.strange = !w.cut
		return nil
	}
	w.rest = w.rest[len(tag):]
	if len(w.rest) < 8 {
		w.cut = true
		return nil
	}
	n := binary.LittleEndian.Uint64(w.rest)
	w.rest = w.rest[8:]
	if n >= uint64(len(w.rest)) || w.rest[n] != '|' {
		w.cut = true
		return nil
	}
	f := w.rest[:n]
	w.rest = w.rest[n+1:]
	return f
}

// number reads a count whose items take at least bytesMin each, so that a loop over it ends with the blob.
func (w *walker) number(tag string, bytesMin int) uint64 {
	f := w.field(tag)
	if len(f) != 8 {
		w.strange = w.strange || !w.cut
		return 0
	}
	n := binary.LittleEndian.Uint64(f)
	if n > uint64(len(w.rest)/bytesMin) {
		w.cut = true
		return 0
	}
	return n
}

// checkBlob gives the agent's name. It refuses metadata that is no metadata, is cut, or is of an agent that cannot be named
// here. What it does not know it leaves to NIXL.
func checkBlob(blob []byte, own string) (string, error) {
	bad := func(what string) (string, error) {
		return "", fmt.Errorf("metadata of %d bytes: %s: %w", len(blob), what, transport.ErrInvalid)
	}
	if !bytes.HasPrefix(blob, []byte(blobStart)) {
		return bad("not of NIXL")
	}
	w := walker{rest: blob[len(blobStart):]}
	name := string(w.field("Agent"))
	switch {
	case w.cut || w.strange:
		return bad("no agent name")
	case name == "" || len(name) > nameMax || strings.IndexByte(name, 0) >= 0:
		return bad(fmt.Sprintf("agent name of %d bytes, want 1 to %d without a zero byte", len(name), nameMax))
	case name == own:
		return bad("of this agent itself")
	}
	for range w.number("Conns", 2*10) {
		if t, c := w.field("t"), w.field("c"); !w.cut && !w.strange && (len(t) == 0 || len(c) == 0) {
			return bad("empty connection")
		}
	}
	if section := w.field(""); !w.cut && !w.strange && string(section) != "MemSection" {
		w.strange = true
	}
	for range w.number("nixlSecElms", 4*10) {
		w.field("bknd")
		if kind := w.field("nixlDList"); string(kind) != "nixlSDList" {
			w.strange = w.strange || !w.cut
		}
		w.field("t")
		for range w.number("n", 9+blobDescMin) {
			if d := w.field(""); !w.cut && !w.strange && len(d) < blobDescMin {
				return bad(fmt.Sprintf("descriptor of %d bytes", len(d)))
			}
			if w.cut || w.strange {
				break
			}
		}
		if w.cut || w.strange {
			break
		}
	}
	if w.cut {
		return bad("cut off")
	}
	return name, nil
}

// renamed is a checked blob under another name. Nothing in it but the name of its field ties it to the agent: peers are told
// ours with each message, and a connection goes by the address.
func renamed(blob []byte, from, to string) []byte {
	rest := blob[len(blobStart)+len("Agent")+8+len(from):]
	b := append(make([]byte, 0, len(blob)+len(to)-len(from)), blobStart+"Agent"...)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(to)))
	return append(append(b, to...), rest...)
}
