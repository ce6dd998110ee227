package weakmem

import "fmt"

// Order is a memory order of C11.
type Order uint8

// Weakest first. Plain is no atomic access at all.
const (
	Plain Order = iota
	Relaxed
	Acquire
	Release
	AcqRel
	SeqCst
)

var orderNames = [...]string{"plain", "relaxed", "acquire", "release", "acq_rel", "seq_cst"}

func (o Order) String() string { return orderNames[o] }

func (o Order) acquires() bool { return o == Acquire || o == AcqRel || o == SeqCst }
func (o Order) releases() bool { return o == Release || o == AcqRel || o == SeqCst }

// Program is what Explore runs. All words start at 0 or at what Init says.
type Program struct {
	Name    string
	Init    map[string]uint64
	Threads []Thread
	// Final, if not nil, looks at each execution in which every thread has come to its end.
	Final func(*Final) error
}

// Thread is one of a program's. Body is run many times over, and must do the same whenever it reads the same.
type Thread struct {
	Name string
	Body func(*T)
}

// Final is the end of an execution.
type Final struct {
	// Words holds the last value of each atomic word in its order, and of each plain word.
	Words map[string]uint64
	// Notes holds what the threads have noted, by name.
	Notes map[string]uint64
}

type kind uint8

const (
	kRead kind = iota
	kWrite
	kUpdate // read-modify-write
	kFence
	kPlainRead
	kPlainWrite
	kFail // an assertion did not hold
	kEnd
)

// op is what a thread wants to do next.
type op struct {
	kind  kind
	order Order
	fails Order // of a compare-and-swap that fails
	loc   string
	// Of an update: what is stored for what was read; false: it fails and is a read only.
	next func(seen uint64) (uint64, bool)
	// Of a read or update that waits: which values it can go on with.
	until  func(uint64) bool
	asleep bool // and never to be woken is an error
	value  uint64
	text   string
}

// T is what a thread's body works with.
type T struct {
	history []uint64 // values that it has read so far; 0 for what reads nothing
	at      int
	next    op
	notes   map[string]uint64
}

type halt struct{}

func (t *T) do(o op) uint64 {
	if t.at < len(t.history) {
		t.at++
		return t.history[t.at-1]
	}
	t.next = o
	panic(halt{})
}

// Load is an atomic load.
func (t *T) Load(loc string, order Order) uint64 {
	return t.do(op{kind: kRead, loc: loc, order: order})
}

// Store is an atomic store.
func (t *T) Store(loc string, v uint64, order Order) {
	t.do(op{kind: kWrite, loc: loc, order: order, value: v})
}

// Swap stores v and gives what was there.
func (t *T) Swap(loc string, v uint64, order Order) uint64 {
	return t.do(op{kind: kUpdate, loc: loc, order: order, next: func(uint64) (uint64, bool) { return v, true }})
}

// Add adds d and gives the value before.
func (t *T) Add(loc string, d uint64, order Order) uint64 {
	return t.do(op{kind: kUpdate, loc: loc, order: order, next: func(seen uint64) (uint64, bool) { return seen + d, true }})
}

// CompareAndSwap stores v if old is there. It gives what was there; order is that of a success, fails that of a failure.
func (t *T) CompareAndSwap(loc string, old, v uint64, order, fails Order) (seen uint64, ok bool) {
	seen = t.do(op{kind: kUpdate, loc: loc, order: order, fails: fails,
		next: func(seen uint64) (uint64, bool) { return v, seen == old }})
	return seen, seen == old
}

// Fence is a fence of that order.
func (t *T) Fence(order Order) { t.do(op{kind: kFence, order: order}) }

// Await is a loop of loads that ends with one for which until holds. An execution in which it never ends is left out: what
// it does while it waits must change nothing.
func (t *T) Await(loc string, order Order, until func(uint64) bool) uint64 {
	return t.do(op{kind: kRead, loc: loc, order: order, until: until})
}

// Sleep is Await of a thread that somebody has to wake: if nobody ever does, the execution is bad. why says what was missed.
func (t *T) Sleep(loc string, order Order, until func(uint64) bool, why string) uint64 {
	return t.do(op{kind: kRead, loc: loc, order: order, until: until, asleep: true, text: why})
}

// Read is a plain load. That of a word which somebody writes at the same time is a race.
func (t *T) Read(loc string) uint64 { return t.do(op{kind: kPlainRead, loc: loc}) }

// Write is a plain store.
func (t *T) Write(loc string, v uint64) { t.do(op{kind: kPlainWrite, loc: loc, value: v}) }

// Assert makes the execution bad if ok does not hold.
func (t *T) Assert(ok bool, format string, args ...any) {
	if !ok {
		t.do(op{kind: kFail, text: fmt.Sprintf(format, args...)})
	}
}

// Note keeps a value for Final.
func (t *T) Note(name string, v uint64) {
	if t.notes == nil {
		t.notes = make(map[string]uint64)
	}
	t.notes[name] = v
}

// node is a thread after a history of values: what it wants next, and what came of it for each value.
type node struct {
	op    op
	path  []uint64
	notes map[string]uint64 // of a thread at its end
	after map[uint64]*node
}

func start(body func(*T), path []uint64) *node {
	t := &T{history: path}
	n := &node{path: path}
	func() {
		defer func() {
			switch r := recover(); r {
			case nil:
				t.next = op{kind: kEnd}
				n.notes = t.notes
			case halt{}:
			default:
				panic(r)
			}
		}()
		body(t)
	}()
	n.op = t.next
	return n
}

// then is the node after the operation gave v.
func (n *node) then(body func(*T), v uint64) *node {
	if m := n.after[v]; m != nil {
		return m
	}
	path := append(append(make([]uint64, 0, len(n.path)+1), n.path...), v)
	m := start(body, path)
	if n.after == nil {
		n.after = make(map[uint64]*node)
	}
	n.after[v] = m
	return m
}
