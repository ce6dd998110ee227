package heartbeat

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/internal/free"
	"github.com/kvlease/kvlease/dataplane/siphash"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// remote is one lease of another engine: what several local requests with the same remote id share. It lives while a request
// uses it, and after that while its owner has still to be told.
type remote struct {
	hash       uint64
	key, epoch uint64
	slot, gen  uint32
	engine     uint32
	serial     uint32 // of the use of this place: results of row reads that come too late name another one
	users      uint32 // local requests
	firstUser  uint32
	place      place
	native     bool
	read       bool // a local request has the data: the message is a completion, else a release
	gone       bool // the lease is over, or nothing can be known of it: no heartbeat, no read
	stale      bool // gone by a fence read: other ranks may still hold it, so the release is sent all the same
	lost       bool // its engine is no more, or was not reached for too long
	why        Over // lost
	fixed      bool // no heartbeat renews it: it ends at a point in time
	byClock    bool // gone, as far as our clock tells: its owner may still hold it
	unsendable bool // there was no room for its id, or the stock format cannot carry it: no message names it
	indexed    bool
	links             // strangers, aside or owed of its engine
	chunk, at  uint32 // in a dense list
	deadline   clock.Instant
	ends       uint64 // links to which the stock completion has gone, or leaves with a READ
	age        links  // strangers, or owed, of all engines, oldest first

	// Native: what the rows have shown.
	sent  uint32   // heartbeats sent
	risks uint32   // ranks whose row does not move: reported with the first of an episode
	row   rowState // of the first rank, the others behind it

	// Fixed: its end.
	expires clock.RemoteInstant // by its owner's clock; 0: not said
	end     clock.Instant       // for certain, if it was converted elsewhere; 0: it was not

	// Stock: the guard's chain.
	arrival    clock.Instant
	lastBeat   clock.Instant
	beaten     bool
	unproven   bool
	breaksSeen uint32

	idLen uint16
	id    [idInline]byte // idLen > idInline: the first four bytes are the place in the long pool
}

const (
	idInline   = 96
	serialMask = 1<<25 - 1
)

// place says which list of its engine holds a remote.
type place uint8

const (
	nowhere   place = iota
	inNative        // dense lists: named in every heartbeat
	inStock         //
	inFixed         // dense as well; its end is a point in time
	inStrange       // its epoch is not the one of the engine that we know: waits for the next handshake
	inAside         // tracked, but no heartbeat names it: its lease is gone, or its id fits no message
	inOwed          // nobody uses it any more; its owner has still to be told
)

// remotes is the table of them: a pool and an open-addressed index by engine and identity.
type remotes struct {
	all    []remote
	free   free.Places
	table  []uint32 // index + 1; 0: empty
	mask   uint64
	k0, k1 uint64

	rows rowPool

	long     []byte // pool of ids longer than idInline, wire.IDMax each
	longFree free.Places

	scratch [wire.IDMax + 32]byte
}

func newRemotes(n, long, rows int, seed uint64) remotes {
	size := uint64(1)
	for size < 2*uint64(n) {
		size *= 2
	}
	return remotes{
		rows: newRowPool(rows),
		all:  make([]remote, n), free: free.New(n), table: make([]uint32, size), mask: size - 1,
		k0: seed ^ 0x6b766c6561736500, k1: seed*0x9e3779b97f4a7c15 + 1,
		long: make([]byte, long*wire.IDMax), longFree: free.New(long),
	}
}

// identity is what makes two requests share a remote.
type identity struct {
	engine     uint32
	native     bool
	slot, gen  uint32
	epoch, key uint64
	id         []byte
}

func (r *remotes) hashOf(v *identity) uint64 {
	b := append(r.scratch[:0], v.id...)
	b = append(b, byte(v.engine), byte(v.engine>>8), byte(v.engine>>16), byte(v.engine>>24))
	if v.native {
		b = append(b, 1, byte(v.slot), byte(v.slot>>8), byte(v.slot>>16), byte(v.slot>>24),
			byte(v.gen), byte(v.gen>>8), byte(v.gen>>16), byte(v.gen>>24))
	}
	return siphash.Sum64(r.k0, r.k1^v.epoch, b)
}

func (r *remotes) same(m *remote, v *identity) bool {
	if m.engine != v.engine || m.native != v.native || int(m.idLen) != len(v.id) ||
		m.native && (m.slot != v.slot || m.gen != v.gen || m.epoch != v.epoch || m.key != v.key) {
		return false
	}
	return string(r.idOf(m)) == string(v.id)
}

// find gives the remote of that identity, or none.
func (r *remotes) find(v *identity, hash uint64) uint32 {
	for p := hash & r.mask; ; p = (p + 1) & r.mask {
		e := r.table[p]
		if e == 0 {
			return none
		}
		if m := &r.all[e-1]; m.hash == hash && r.same(m, v) {
			return e - 1
		}
	}
}

// take makes a remote of that identity and puts it into the index. longFull: there was no room for its long id, which is
// kept empty; the remote is not in the index then. The caller has seen to a free one.
func (r *remotes) take(v *identity, hash uint64) (i uint32, longFull bool) {
	i = r.free.Take()
	m := &r.all[i]
	*m = remote{
		serial: (m.serial + 1) & serialMask, hash: hash, engine: v.engine,
		native: v.native, slot: v.slot, gen: v.gen, epoch: v.epoch, key: v.key,
		firstUser: none, links: links{none, none}, age: links{none, none},
	}
	if !r.setID(m, v.id) {
		return i, true
	}
	p := hash & r.mask
	for r.table[p] != 0 {
		p = (p + 1) & r.mask
	}
	r.table[p] = i + 1
	m.indexed = true
	return i, false
}

// unindex takes a remote out of the index, so that the next request of that identity gets a new one.
func (r *remotes) unindex(i uint32) {
	m := &r.all[i]
	if !m.indexed {
		return
	}
	m.indexed = false
	p := m.hash & r.mask
	for r.table[p] != i+1 {
		p = (p + 1) & r.mask
	}
	for q := (p + 1) & r.mask; r.table[q] != 0; q = (q + 1) & r.mask { // close the gap, so that no search stops short
		home := r.all[r.table[q]-1].hash & r.mask
		if (q-home)&r.mask >= (q-p)&r.mask {
			r.table[p] = r.table[q]
			p = q
		}
	}
	r.table[p] = 0
}

func (r *remotes) drop(i uint32) {
	r.unindex(i)
	m := &r.all[i]
	r.clearID(m)
	r.giveRowStates(m)
	m.place = nowhere
	r.free.Give(i)
}

func (r *remotes) setID(m *remote, id []byte) bool {
	if len(id) > idInline {
		l := r.longFree.Take()
		if l == none {
			return false
		}
		copy(r.long[int(l)*wire.IDMax:], id)
		m.id[0], m.id[1], m.id[2], m.id[3] = byte(l), byte(l>>8), byte(l>>16), byte(l>>24)
	} else {
		copy(m.id[:], id)
	}
	m.idLen = uint16(len(id))
	return true
}

func (m *remote) longPlace() uint32 {
	return uint32(m.id[0]) | uint32(m.id[1])<<8 | uint32(m.id[2])<<16 | uint32(m.id[3])<<24
}

func (r *remotes) clearID(m *remote) {
	if m.idLen > idInline {
		r.longFree.Give(m.longPlace())
	}
	m.idLen = 0
}

func (r *remotes) idOf(m *remote) []byte {
	if m.idLen > idInline {
		at := int(m.longPlace()) * wire.IDMax
		return r.long[at : at+int(m.idLen)]
	}
	return m.id[:m.idLen]
}

func (m *remote) ofEngine() *links { return &m.links }
func (m *remote) ofAge() *links    { return &m.age }

func (r *remotes) push(l *list, i uint32)   { push(l, r.all, i, (*remote).ofEngine) }
func (r *remotes) unlink(l *list, i uint32) { unlink(l, r.all, i, (*remote).ofEngine) }

// pushAge and unlinkAge keep the remotes of one kind by age.
func (r *remotes) pushAge(l *list, i uint32)   { push(l, r.all, i, (*remote).ofAge) }
func (r *remotes) unlinkAge(l *list, i uint32) { unlink(l, r.all, i, (*remote).ofAge) }
