package transport

// Inbox is a flat buffer of notifications: one crossing fills it, the plane walks it.
//
// Memory: all of it from NewInbox. A notification longer than the buffer is dropped and counted, since no peer of ours
// and no stock peer sends one and nothing that a peer sends may grow memory.
type Inbox struct {
	buf     []byte
	entries []entry
	n, used int
	next    int
	// TooLong counts notifications that can never fit.
	TooLong uint64
}

type entry struct{ agent, agentLen, body, bodyLen int32 }

// NewInbox makes an inbox for at most notifs notifications with bytes bytes of names and bodies together.
func NewInbox(notifs, bytes int) *Inbox {
	return &Inbox{buf: make([]byte, bytes), entries: make([]entry, notifs)}
}

// Reset empties the inbox.
func (in *Inbox) Reset() { in.n, in.used, in.next = 0, 0, 0 }

// Put copies one notification in. It reports false if there is no room now; then the transport keeps it for later.
func (in *Inbox) Put(agent, body []byte) bool {
	if len(agent)+len(body) > len(in.buf) {
		in.TooLong++
		return true
	}
	if in.n == len(in.entries) || in.used+len(agent)+len(body) > len(in.buf) {
		return false
	}
	a := in.used
	b := a + copy(in.buf[a:], agent)
	end := b + copy(in.buf[b:], body)
	in.entries[in.n] = entry{int32(a), int32(b - a), int32(b), int32(end - b)}
	in.n++
	in.used = end
	return true
}

// Next gives the next notification not yet taken. The slices are valid until Reset.
func (in *Inbox) Next() (agent, body []byte, ok bool) {
	if in.next == in.n {
		return nil, nil, false
	}
	e := in.entries[in.next]
	in.next++
	return in.buf[e.agent : e.agent+e.agentLen], in.buf[e.body : e.body+e.bodyLen], true
}

// Len is the number of notifications not yet taken.
func (in *Inbox) Len() int { return in.n - in.next }

// Bytes is the size of the whole buffer: a longer notification never fits.
func (in *Inbox) Bytes() int { return len(in.buf) }

// Raw gives the free tail of the buffer and the number of free entries, for a shim that fills both in one crossing with AddRaw.
func (in *Inbox) Raw() (free []byte, entries int) { return in.buf[in.used:], len(in.entries) - in.n }

// AddRaw takes one notification that the shim has written at the start of the free tail: agent, then body.
func (in *Inbox) AddRaw(agentLen, bodyLen int) {
	a := in.used
	in.entries[in.n] = entry{int32(a), int32(agentLen), int32(a + agentLen), int32(bodyLen)}
	in.n++
	in.used += agentLen + bodyLen
}
