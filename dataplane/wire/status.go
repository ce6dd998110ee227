// Package wire is what crosses between engines, byte for byte: the notifications (native v1 and vLLM's own), the
// handshake's metadata map and frames, and the transfer parameters. docs/protocol.md is the specification; a test reads
// its vectors.
//
// Nothing here trusts a byte. Every parser has a bound on what it looks at, makes nothing whose size a peer chose, never
// panics, and answers with a status or a named error; counting is the caller's. Notifications are parsed in a step and
// allocate nothing. Handshakes and parameters are parsed off the step; what they allocate is at most a small multiple of
// the bytes given.
package wire

// Limits of what is parsed. Longer is an error and nothing of it is looked at.
const (
	ParseMax     = 4 << 20 // bytes of a notification
	IDMax        = 1024    // bytes of a request id
	RequestMax   = 4 << 10 // bytes of a handshake request frame
	HandshakeMax = 1 << 20 // bytes of a metadata map or of the payload around it
	ParamsMax    = 4 << 20 // bytes of transfer parameters
	RegionsMax   = 4096    // regions of a metadata map
	GroupsMax    = 4096    // transfer groups of one request
	StringMax    = 4096    // bytes of any string in a metadata map or in parameters
	DepthMax     = 8       // levels of nesting that an unknown key may have
	SlotsMax     = 1 << 24 // rows of a peer's board
)

// Status is what a notification turned out to be. All but OK leave the receiver as it was; each has a counter.
type Status uint8

const (
	OK         Status = iota
	NotNative         // does not start with 0xFF: try ParseStock
	Empty             // no bytes, or a list with nothing in it
	TooLong           // more than ParseMax bytes
	BadMagic          // starts with 0xFF, but the second byte is not ours
	BadVersion        // a native version that we do not know
	BadKind           // a native kind that we do not know: skipped, as newer peers may send more
	BadFlags          // a flag that must be understood and is not
	BadLength         // the length does not fit the kind and the count; trailing bytes, too
	BadValue          // a field that no sender of ours writes: epoch 0, readers 0, a duration out of range
	BadUTF8           // text that is not strict UTF-8 (S01)
	BadColon          // text that is neither a heartbeat nor <id>:<n> (S02)
	BadCount          // n is not a decimal number 1..65535 (S03)
	BadID             // the id is empty or longer than IDMax
	Full              // building: it would not fit into this message; nothing was added
	Unsendable        // building: a stock peer could not read this id; nothing was added
	statusesN  = iota
)

var statusNames = [statusesN]string{
	"ok", "not_native", "empty", "too_long", "bad_magic", "bad_version", "bad_kind", "bad_flags", "bad_length", "bad_value",
	"bad_utf8", "bad_colon", "bad_count", "bad_id", "full", "unsendable",
}

// Statuses is the number of statuses, for an array of counters.
const Statuses = int(statusesN)

// String is the status's name in metrics and logs.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "unknown"
}
