package loopback

import "github.com/kvlease/kvlease/dataplane/transport"

// queue holds the notifications for one agent, oldest first, in a byte ring of fixed size.
type queue struct {
	bytes   []byte
	items   []item
	first   int // index of the oldest item
	n       int // items waiting
	visible int // the first of them that have arrived
	held    bool
	head    int // where the next item's bytes go
	used    int // bytes between the oldest item and head, with what the wrap skipped
}

type item struct{ at, nameLen, bodyLen, skipped int }

func newQueue(items, bytes int) queue {
	return queue{bytes: make([]byte, bytes), items: make([]item, items)}
}

// push copies a notification in, or reports false if there is no room.
func (q *queue) push(name, body []byte) bool {
	size := len(name) + len(body)
	if q.n == len(q.items) {
		return false
	}
	at, skipped := q.head, 0
	if at+size > len(q.bytes) { // never wraps: the rest of the ring stays empty
		at, skipped = 0, len(q.bytes)-at
	}
	if q.used+skipped+size > len(q.bytes) {
		return false
	}
	copy(q.bytes[at:], name)
	copy(q.bytes[at+len(name):], body)
	q.items[(q.first+q.n)%len(q.items)] = item{at, len(name), len(body), skipped}
	q.head = at + size
	q.used += skipped + size
	q.n++
	if !q.held {
		q.visible = q.n
	}
	return true
}

// take moves what has arrived into in and reports how many notifications that were.
func (q *queue) take(in *transport.Inbox) int {
	moved := 0
	for q.visible > 0 { // at most len(items)
		it := q.items[q.first]
		body := it.at + it.nameLen
		tooLong := in.TooLong
		if !in.Put(q.bytes[it.at:body], q.bytes[body:body+it.bodyLen]) {
			return moved
		}
		if in.TooLong == tooLong {
			moved++
		}
		q.first = (q.first + 1) % len(q.items)
		q.n--
		q.visible--
		q.used -= it.skipped + it.nameLen + it.bodyLen
		if q.n == 0 {
			q.head, q.used = 0, 0
		}
	}
	return moved
}

func (q *queue) hold(hold bool) {
	q.held = hold
	if !hold {
		q.visible = q.n
	}
}

func (q *queue) deliver(n int) int {
	n = min(n, q.n-q.visible)
	q.visible += n
	return n
}
