package stream

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/record"

	"golang.org/x/sys/unix"
)

// deltaRingBytesMin holds any message: a full one, and the fill at the wrap.
const deltaRingBytesMin = 256 << 10

// deltaEnd is an end whose messages the engine carries in its own.
//
// Its two rings are its own memory; on their far side work Take and Put. Messages with records are numbered, from a host within an
// incarnation, which its full state begins, from a rank without. A rank applies a message only if it is the next: after a hole it
// takes nothing, and says so in all that it sends, until a newer incarnation begins. A host applies what comes, since each
// record stands for itself, and makes a new full state for what it has missed. A message without records tells the last number, so a hole at the end
// is found, too; it is sent while that number is not acknowledged.
//
// Threads: the step, and any for Take and Put, which keep each other out and are never waited for by the step.
type deltaEnd struct {
	end
	cfg  Config
	hash uint64
	self uint64

	missed atomic.Bool   // host: a message of the rank is lost
	needed atomic.Uint64 // host: the rank asks for a newer incarnation than this
	begun  atomic.Uint64 // host: the incarnation that the step began last
	holes  atomic.Uint64 // losses that Put has noticed

	mu     sync.Mutex
	closed bool
	near   *link // the step's side, until it is attached
	far    *link
	mem    []byte
	peer   uint64 // the other context; 0: not heard yet

	sending uint64 // host: incarnation of what is sent
	sent    uint64 // number of the last message with records
	acked   uint64
	owes    bool // the other end waits for an acknowledgement

	following uint64 // rank: incarnation that is taken
	next      uint64 // number that is expected
	need      uint64 // rank: incarnation that has a hole; 0: none
}

func newDelta(cfg Config, host bool) (*deltaEnd, error) {
	cfg.RingBytes = max(cfg.RingBytes, deltaRingBytesMin)
	d := &deltaEnd{end: end{host: host}, cfg: cfg, hash: engineHash(cfg.EngineID), next: 1}
	var seed [8]byte
	rand.Read(seed[:])
	d.self = binary.LittleEndian.Uint64(seed[:]) | 1
	mem, err := mapPages(linkBytes(cfg.RingBytes))
	if err != nil {
		return nil, err
	}
	d.mem = mem
	if err = formatLink(mem, cfg.RingBytes); err == nil {
		d.near, err = openLink(mem, true)
	}
	if err == nil {
		d.far, err = openLink(mem, false)
	}
	if err == nil {
		d.own, err = dupWake(cfg.WakeFd)
	}
	if err != nil {
		unix.Munmap(mem)
		return nil, err
	}
	return d, nil
}

func openDeltaHost(cfg Config) (*Host, error) {
	host := &Host{}
	host.close = func() error {
		for _, e := range host.ends {
			e.Close()
		}
		return nil
	}
	for rank := range cfg.TP * cfg.PP {
		cfg.Rank = rank
		d, err := newDelta(cfg, true)
		if err != nil {
			host.close()
			return nil, err
		}
		host.ends = append(host.ends, d)
	}
	return host, nil
}

// Gap is part of Carrier.
func (d *deltaEnd) Gap() bool {
	d.look()
	if d.host && d.seen == Attached && !d.gap && d.hole() {
		d.missed.Store(false)
		d.gap = true
		d.counters.Gaps++
	}
	return d.end.Gap()
}

// hole reports that Put has heard of one that the incarnation begun last does not heal.
func (d *deltaEnd) hole() bool {
	needed := d.needed.Load()
	return d.missed.Load() || needed != 0 && needed >= d.incarnation
}

// Begin is part of Carrier. What it follows in the ring need not be sent any more.
func (d *deltaEnd) Begin() (incarnation uint64, ok bool) {
	if incarnation, ok = d.end.Begin(); ok {
		d.begun.Store(incarnation)
		d.missed.Store(false) // what was lost until now is said again when the rank meets this state
	}
	return incarnation, ok
}

// Pending is part of Carrier.
func (d *deltaEnd) Pending() bool {
	return d.end.Pending() || d.host && d.seen == Attached && !d.gap && d.hole()
}

// Counters is part of Carrier.
func (d *deltaEnd) Counters() Counters {
	c := d.counters
	if !d.host {
		c.Gaps = d.holes.Load()
	}
	return c
}

// Close is part of Carrier.
func (d *deltaEnd) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.closed = true
		d.shut()
		d.near, d.far = nil, nil
		unix.Munmap(d.mem)
	}
	return nil
}

// Take is part of Delta.
func (d *deltaEnd) Take(buf []byte) (int, error) {
	if len(buf) < MessageBytesMin {
		return 0, fmt.Errorf("%w: a buffer of %d bytes, a message may take %d", ErrSpace, len(buf), MessageBytesMin)
	}
	buf = buf[:min(len(buf), MessageBytesMax)]
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, ErrClosed
	}
	if d.host && d.peer == 0 {
		return 0, nil // the rank speaks first
	}
	m := message{engine: d.hash, rank: d.cfg.Rank, from: d.self, to: d.peer}
	if d.host {
		m.flags |= msgFromHost
		d.skip()
	}
	n := d.fill(buf)
	if n > msgHeadBytes {
		d.sent++
		m.flags |= msgRecords
	}
	if d.sent > d.acked || d.peer == 0 {
		m.flags |= msgAsks
	}
	if d.need != 0 {
		m.flags |= msgNeed
	}
	if m.flags&^msgFromHost == 0 && !d.owes {
		return 0, nil
	}
	d.owes = false
	m.number, m.incarnation, m.ackedIn, m.acked = d.sent, d.sending, d.following, d.next-1
	if !d.host {
		m.incarnation = d.need
	}
	m.put(buf, n)
	return n, nil
}

// skip throws away what stands before the full state that was begun last: that says it all.
func (d *deltaEnd) skip() {
	begun := d.begun.Load()
	for d.sending < begun {
		tag, rec, ok := d.far.rx.Peek()
		if !ok || startsFull(tag, rec) == begun {
			break
		}
		d.far.rx.Next()
	}
}

// startsFull gives the incarnation that a record begins, else 0.
func startsFull(tag uint32, rec []byte) uint64 {
	if tag != record.TagFull {
		return 0
	}
	if f, ok := record.AsFull(rec); ok && f.Mark == record.FullStart {
		return f.Incarnation
	}
	return 0
}

// fill moves whole records into the message and gives its length. One that begins a full state begins a message.
func (d *deltaEnd) fill(buf []byte) int {
	n := msgHeadBytes
	for { // ends with the buffer
		tag, rec, ok := d.far.rx.Peek()
		if !ok || n+RecordBytes(len(rec)) > len(buf) {
			break
		}
		if f := startsFull(tag, rec); d.host && f != 0 {
			if n > msgHeadBytes {
				break
			}
			d.sending, d.sent, d.acked = f, 0, 0
		}
		d.far.rx.Next()
		n += putRecord(buf[n:], tag, rec)
	}
	d.far.rx.Release()
	return n
}

// Put is part of Delta.
func (d *deltaEnd) Put(msg []byte) error {
	m, err := parseMessage(msg)
	if err != nil {
		return err
	}
	if m.engine != d.hash || m.rank != d.cfg.Rank || m.has(msgFromHost) == d.host {
		return fmt.Errorf("%w: a message between other ends: rank %d, flags %#x", ErrInvalid, m.rank, m.flags)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	if err := d.greet(&m); err != nil {
		return err
	}
	if m.ackedIn == d.sending && m.acked <= d.sent {
		d.acked = max(d.acked, m.acked)
	}
	if d.host {
		err = d.putFromRank(&m)
	} else {
		err = d.putFromHost(&m)
	}
	if err == nil && m.has(msgAsks) {
		d.owes = true
	}
	return err
}

// Lose is part of Delta. What was put before can still be read.
func (d *deltaEnd) Lose() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	if d.peer == 0 {
		d.peer = d.self // nobody's
		d.attach(d.near)
	}
	d.lose(errEnded)
}

// greet checks that a message goes from the one context to the other, and attaches at the first.
func (d *deltaEnd) greet(m *message) error {
	switch {
	case State(d.state.Load()) == Lost:
		return fmt.Errorf("%w: the engine has said that the other end is gone: a new one needs a new end here, too", ErrTaken)
	case m.to != d.self && (m.to != 0 || !d.host):
		return fmt.Errorf("%w: the message is for another context of engine_id %q: its other end was attached to that", ErrTaken, d.cfg.EngineID)
	case d.peer == 0:
		d.peer = m.from
		d.attach(d.near)
	case d.peer != m.from:
		return fmt.Errorf("%w: rank %d of engine_id %q is attached, and this is another context: one that was started again needs a new other end, too",
			ErrTaken, d.cfg.Rank, d.cfg.EngineID)
	}
	return nil
}

// putFromRank takes what is not older than what was taken. Locked.
func (d *deltaEnd) putFromRank(m *message) error {
	if m.has(msgNeed) && m.incarnation <= d.sending && m.incarnation > d.needed.Load() {
		d.needed.Store(m.incarnation)
		d.rouse()
	}
	switch {
	case m.number < d.next:
		return nil
	case m.has(msgRecords):
		if !d.pass(m.records) {
			return d.full(m)
		}
	}
	if !m.has(msgRecords) || m.number > d.next {
		d.holes.Add(1)
		d.missed.Store(true)
	}
	d.next = m.number + 1
	d.rouse()
	return nil
}

// putFromHost takes the next message of the incarnation that is followed, or the first of a newer one. Locked.
func (d *deltaEnd) putFromHost(m *message) error {
	first := m.has(msgRecords) && m.number == 1 && m.incarnation > d.following && m.incarnation >= d.need
	next := m.has(msgRecords) && m.number == d.next && m.incarnation == d.following && d.need == 0
	switch {
	case first || next:
		if !d.pass(m.records) {
			return d.full(m)
		}
		if first {
			d.following, d.need = m.incarnation, 0
		}
		d.next = m.number + 1
		d.rouse()
	case m.incarnation > max(d.following, d.need), m.incarnation == d.following && d.need == 0 && m.number >= d.next:
		d.need = m.incarnation
		d.holes.Add(1)
	}
	return nil
}

func (d *deltaEnd) full(m *message) error {
	return fmt.Errorf("%w: message %d with %d bytes of records waits for a step", ErrSpace, m.number, len(m.records))
}

// pass puts all records into the ring to the step, or none.
func (d *deltaEnd) pass(records []byte) bool {
	for rest := records; len(rest) > 0; {
		tag, rec, behind, _ := cutRecord(rest) // whole: parseMessage
		room := d.far.tx.Reserve(tag, len(rec))
		if room == nil {
			d.far.tx.Discard()
			return false
		}
		copy(room, rec)
		rest = behind
	}
	d.far.tx.Publish()
	return true
}

// rouse wakes the step if it sleeps. Edge W1, see Publish: what it has to see is stored before asleep is loaded.
func (d *deltaEnd) rouse() {
	if atomic.CompareAndSwapUint32(d.far.other, 1, 0) {
		d.own.ring()
	}
}
