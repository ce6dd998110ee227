package wire

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// StockKind is what a message of vLLM's own says.
type StockKind uint8

const (
	Heartbeat  StockKind = iota + 1 // HB:<id>,<id>,...
	Completion                      // <id>:<n>
	PushReg                         // PUSH_REG:<msgpack map>; pull owners ignore it
)

const (
	heartbeatPrefix = "HB:"
	pushRegPrefix   = "PUSH_REG:"
	countLen        = len(":65535")
)

// RunMax is the most neighbouring elements of a heartbeat that are tried as one id with commas.
const RunMax = 3

// Stock is a message of vLLM's own. Its slices lie in the message.
type Stock struct {
	Kind StockKind
	// Body: Heartbeat: the list after the prefix (IDs walks it); PushReg: the map.
	Body []byte
	// ID and N: Completion: the request and the number of readers that will report to this rank.
	// Heartbeat: not empty if the whole message is also the completion of an id like "HB:job-1" (S05). The bytes cannot
	// tell the two apart, so the receiver looks at what it holds: a leased element makes it a heartbeat, else a leased ID
	// makes it a completion.
	ID []byte
	N  uint16
}

// ParseStock reads a message that is not native. It walks the message a fixed number of times and allocates nothing.
func ParseStock(msg []byte) (Stock, Status) {
	switch {
	case len(msg) == 0:
		return Stock{}, Empty
	case len(msg) > ParseMax:
		return Stock{}, TooLong
	case !utf8.Valid(msg):
		// A msgpack map is no text, and a completion of an id that starts with PUSH_REG: is.
		if bytes.HasPrefix(msg, []byte(pushRegPrefix)) {
			return Stock{Kind: PushReg, Body: msg[len(pushRegPrefix):]}, OK
		}
		return Stock{}, BadUTF8
	}
	id, n, st := splitCompletion(msg)
	if bytes.HasPrefix(msg, []byte(heartbeatPrefix)) {
		body := msg[len(heartbeatPrefix):]
		if len(body) == 0 {
			return Stock{}, Empty
		}
		return Stock{Kind: Heartbeat, Body: body, ID: id, N: n}, OK
	}
	if st != OK {
		return Stock{}, st
	}
	return Stock{Kind: Completion, ID: id, N: n}, OK
}

// splitCompletion splits <id>:<n> at the last colon.
func splitCompletion(msg []byte) (id []byte, n uint16, st Status) {
	tail := max(len(msg)-countLen, 0) // a heartbeat of 4 MiB is not searched for its last colon
	colon := bytes.LastIndexByte(msg[tail:], ':')
	switch {
	case colon >= 0:
		colon += tail
	case bytes.IndexByte(msg, ':') < 0:
		return nil, 0, BadColon
	default:
		return nil, 0, BadCount
	}
	id, digits := msg[:colon], msg[colon+1:]
	if len(digits) == 0 || digits[0] == '0' {
		return nil, 0, BadCount
	}
	v := uint32(0)
	for _, d := range digits {
		if d < '0' || d > '9' {
			return nil, 0, BadCount
		}
		v = v*10 + uint32(d-'0')
	}
	if v > 65535 {
		return nil, 0, BadCount
	}
	if len(id) == 0 || len(id) > IDMax {
		return nil, 0, BadID
	}
	return id, uint16(v), OK
}

// IDs walks the ids that can be read in a heartbeat's body. It is a value: copy it to stop and go on later.
type IDs struct {
	body   []byte
	start  int         // of the present element; past the body: over
	ends   [RunMax]int // ends[k]: where the run of k+1 elements from start ends, as far as known
	known  int         // of ends, so that each comma is looked for once
	run    int         // next run to give, 0 the element alone
	runMax int
}

// NewIDs walks body: each element, and each run of up to runMax (1..RunMax) neighbours rejoined with their commas.
// A receiver that holds no id with a comma passes 1 and saves two look-ups in three.
func NewIDs(body []byte, runMax int) IDs {
	return IDs{body: body, runMax: min(max(runMax, 1), RunMax)}
}

// Next gives the next id, which lies in the body; ok is false at the end. Empty ids and ids longer than IDMax are passed
// over. alone says that it is one element and not a run.
func (w *IDs) Next() (id []byte, alone, ok bool) {
	for w.start <= len(w.body) {
		k := w.run
		if k == w.runMax || k > 0 && w.ends[k-1] == len(w.body) {
			w.start = w.ends[0] + 1
			copy(w.ends[:], w.ends[1:w.known])
			w.known, w.run = w.known-1, 0
			continue
		}
		if k == w.known {
			from := w.start
			if k > 0 {
				from = w.ends[k-1] + 1
			}
			w.ends[k] = w.endOf(from)
			w.known++
		}
		w.run++
		id = w.body[w.start:w.ends[k]]
		if len(id) > 0 && len(id) <= IDMax {
			return id, k == 0, true
		}
	}
	return nil, false, false
}

// Fill looks at as many elements as out has room for, without runs, and puts those that can be ids into it; more says that there are others.
// What is passed over counts, too: a message may be nothing but commas. It costs about a third of Next per id, and look-ups of a batch can
// overlap. Not to be mixed with Next on one walk.
func (w *IDs) Fill(out [][]byte) (n int, more bool) {
	body, start := w.body, w.start
	for looked := 0; looked < len(out) && start <= len(body); looked++ {
		id := body[start:]
		if i := bytes.IndexByte(id, ','); i >= 0 {
			id = id[:i:i]
		}
		start += len(id) + 1
		if len(id) > 0 && len(id) <= IDMax {
			out[n] = id
			n++
		}
	}
	w.start = start
	return n, start <= len(body)
}

// endOf is where the element that starts at from ends.
func (w *IDs) endOf(from int) int {
	if i := bytes.IndexByte(w.body[from:], ','); i >= 0 {
		return from + i
	}
	return len(w.body)
}

// AppendHeartbeatID adds an id to a heartbeat for a stock peer; with an empty dst it starts one. The first id always
// fits; another one that would make the message longer than bytesMax is answered Full. Unsendable: the id is empty, too
// long, not UTF-8 or has a comma, for which the format has no escape. In both cases dst comes back as it was.
func AppendHeartbeatID(dst []byte, bytesMax int, id []byte) ([]byte, Status) {
	if !sendable(id) || bytes.IndexByte(id, ',') >= 0 {
		return dst, Unsendable
	}
	if len(dst) == 0 {
		return append(append(dst, heartbeatPrefix...), id...), OK
	}
	if len(dst)+1+len(id) > bytesMax {
		return dst, Full
	}
	return append(append(dst, ','), id...), OK
}

// AppendCompletion makes the completion of id for a stock peer; readers is the number of our ranks that report to that
// peer rank. Unsendable: as above, or the peer would take it for a heartbeat or a registration. Then dst comes back as it was.
func AppendCompletion(dst, id []byte, readers uint16) ([]byte, Status) {
	if !sendable(id) || readers == 0 {
		return dst, Unsendable
	}
	from := len(dst)
	dst = append(append(dst, id...), ':')
	if bytes.HasPrefix(dst[from:], []byte(heartbeatPrefix)) || bytes.HasPrefix(dst[from:], []byte(pushRegPrefix)) {
		return dst[:from], Unsendable
	}
	return strconv.AppendUint(dst, uint64(readers), 10), OK
}

func sendable(id []byte) bool { return len(id) > 0 && len(id) <= IDMax && utf8.Valid(id) }
