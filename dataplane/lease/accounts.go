package lease

import (
	"hash/maphash"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/siphash"
)

// AccountsMax is how many readers are counted: nobody, all others together, and the rest each by itself.
const AccountsMax = 256

// Places of accounts.
const (
	NobodysAccount = 0 // leases that nobody has named yet
	OthersAccount  = 1 // those of all readers that have no account of their own
	firstAccount   = 2
)

// AgentMax is the longest name of an agent that is kept; NIXL's own bound is shorter.
const AgentMax = 256

// Account is what one reader holds: a boot of an engine of ours, or a stock agent. A lease belongs to the engine of ours that named it
// last, else to the first stock agent that did; every held lease is in exactly one account.
type Account struct {
	Number        uint64 // of this use of the place, from 1 on; 0: it was never used
	Native        bool
	Engine, Epoch uint64 // of a native one
	Leases        uint64
	Blocks        uint64
	Oldest        clock.Instant // grant of the oldest lease without a fixed life, as the last look at all slots saw it; 0: it saw none
	LastBeat      clock.Instant // last message of heartbeats that named a lease, or an expected request; 0: none
	LeastSlack    time.Duration // least time that a renewal found left, of this look and the one before; NoSlack: there was none
	Ended         [len(record.FreedNames)]uint64

	who   uint64        // key in accounts.index; 0: free
	early uint64        // slots without a lease that keep its word for one
	used  clock.Instant // last time it was looked up
	least [2]uint64     // units: least slack of this span and the one before
}

// NoSlack stands for the slack of a reader that has renewed nothing lately.
const NoSlack = time.Duration(1<<63 - 1)

const noUnits = ^uint64(0)

// accounts are all of them, with an index by who it is. Memory: all from newAccounts.
type accounts struct {
	all    [AccountsMax]Account
	names  [AccountsMax][]byte
	index  index // word: the place
	inUse  int   // places below it were used
	number uint64
	last   uint64 // whom lastAt is of; 0: of nobody
	lastAt uint8

	scan   int // next slot of the look at all of them
	oldest [AccountsMax]int64
	turned clock.Instant // when the spans of least were changed
}

func newAccounts() accounts {
	a := accounts{index: newIndex(AccountsMax), inUse: firstAccount}
	names := make([]byte, AccountsMax*AgentMax) // pages that nobody touches until so many agents come
	for i := range a.all {
		a.names[i] = names[i*AgentMax : i*AgentMax : (i+1)*AgentMax]
		a.all[i].least = [2]uint64{noUnits, noUnits}
		a.all[i].LeastSlack = NoSlack
	}
	for i := range firstAccount {
		a.all[i].Number = uint64(i + 1)
	}
	a.number = firstAccount
	return a
}

// party is who a message came from, and its account if that is known.
type party struct {
	who           uint64
	engine, epoch uint64
	agent         []byte // of a stock one
	id            []byte // of one of ours; nil: not known
	at            uint8  // NobodysAccount: not looked up, or none
}

func (t *Table) nativeParty(r Reader) party {
	p := party{who: t.who(r), engine: r.Engine, epoch: r.Epoch}
	p.at = t.accounts.find(p.who)
	return p
}

func (t *Table) stockParty(agent []byte) party {
	p := party{who: max(maphash.Bytes(t.seed, agent), 1), agent: agent}
	p.at = t.accounts.find(p.who)
	return p
}

// find gives the account of a reader, NobodysAccount if it has none.
func (a *accounts) find(who uint64) uint8 {
	if a.last == who {
		return a.lastAt
	}
	i := a.index.find(who)
	if i < 0 {
		return NobodysAccount
	}
	a.last, a.lastAt = who, uint8(a.index.entries[i].word)
	return a.lastAt
}

// open gives a reader that has named something an account: a place never used, else that of the reader without leases that was heard
// the longest ago, else the one of all others. So whoever floods us with names costs no memory, and no total is wrong.
func (a *accounts) open(p *party, now clock.Instant) uint8 {
	if at := a.find(p.who); at != NobodysAccount {
		return at
	}
	at := a.inUse
	var ended [len(record.FreedNames)]uint64 // under an earlier boot of it
	if at < AccountsMax {
		a.inUse++
	} else {
		for i := firstAccount; i < AccountsMax; i++ {
			if k := &a.all[i]; k.Leases+k.early == 0 && (at == AccountsMax || k.used < a.all[at].used) {
				at = i
			}
		}
		if at == AccountsMax {
			return OthersAccount
		}
		if k := &a.all[at]; k.Native && p.agent == nil && k.Engine == p.engine {
			ended, k.Ended = k.Ended, ended
		}
		a.close(uint8(at))
	}
	if !a.index.insert(p.who, uint64(at)) { // runs are longer than the table: as good as no room
		for r, n := range ended {
			a.all[OthersAccount].Ended[r] += n
		}
		return OthersAccount
	}
	a.number++
	k := &a.all[at]
	k.Number, k.who, k.used, k.Ended = a.number, p.who, now, ended
	k.Native, k.Engine, k.Epoch = p.agent == nil, p.engine, p.epoch
	name := p.agent
	if k.Native {
		name = p.id
	}
	a.names[at] = append(a.names[at][:0], name[:min(len(name), AgentMax)]...)
	a.last, a.lastAt = p.who, uint8(at)
	return uint8(at)
}

// close takes a place from a reader without leases. What has ended under it counts for another boot of its engine from now on, so that the
// sum over an engine does not go back while it has a place; else for the others.
func (a *accounts) close(at uint8) {
	k := &a.all[at]
	heir := &a.all[OthersAccount]
	if k.Native {
		for i := firstAccount; i < a.inUse; i++ {
			if other := &a.all[i]; i != int(at) && other.Native && other.Engine == k.Engine {
				heir = other
				break
			}
		}
	}
	if i := a.index.find(k.who); i >= 0 {
		a.index.remove(i)
	}
	for r, n := range k.Ended {
		heir.Ended[r] += n
	}
	a.last, a.oldest[at] = 0, 0
	*k = Account{least: [2]uint64{noUnits, noUnits}, LeastSlack: NoSlack}
	a.names[at] = a.names[at][:0]
}

// rekey puts all readers under the names that they have in a new era. Their leases have ended.
func (t *Table) rekey() {
	a := &t.accounts
	a.index.clear()
	a.last = 0
	for i := firstAccount; i < a.inUse; i++ {
		k := &a.all[i]
		if k.Native {
			k.who = t.who(Reader{Engine: k.Engine, Epoch: k.Epoch})
		}
		a.index.insert(k.who, uint64(i)) // it was there, and there are as many places
	}
}

// account is where a slot is counted, or will be.
func (h *hot) account() uint8     { return uint8(h.a >> accountShift) }
func (h *hot) setAccount(a uint8) { h.a = h.a&^(0xff<<accountShift) | uint64(a)<<accountShift }

// attribute counts a slot for the party that names it.
func (t *Table) attribute(s uint32, k *hot, p *party, now clock.Instant) {
	if p.at == NobodysAccount {
		if p.agent == nil {
			p.id = idOf(t.from, p.engine)
		}
		p.at = t.accounts.open(p, now)
	}
	if k.account() != p.at {
		t.assign(s, k, p.at)
	}
}

func (t *Table) assign(s uint32, k *hot, to uint8) {
	from := k.account()
	k.setAccount(to)
	a, b := &t.accounts.all[from], &t.accounts.all[to]
	if k.phase() == phaseHeld {
		blocks := uint64(t.mem.Slots[s].Blocks)
		a.Leases--
		a.Blocks -= blocks
		b.Leases++
		b.Blocks += blocks
		return
	}
	if from != NobodysAccount {
		a.early--
	}
	if to != NobodysAccount {
		b.early++
	}
}

// begun counts a lease that is held from now on.
func (t *Table) begun(k *hot, blocks uint32) {
	a := &t.accounts.all[k.account()]
	if k.account() != NobodysAccount {
		a.early-- // until now it was only kept
	}
	a.Leases++
	a.Blocks += uint64(blocks)
}

// over counts the end of one, and remembers it.
func (t *Table) over(s uint32, k *hot, use uint32, reason uint16, now clock.Instant) {
	slot, at := &t.mem.Slots[s], k.account()
	a := &t.accounts.all[at]
	a.Leases--
	a.Blocks -= uint64(slot.Blocks)
	a.Ended[reason&15%uint16(len(a.Ended))]++
	held := max(int64(now)-t.granted[s], 0)
	t.Times.Life.Observe(time.Duration(held))
	e := t.last.Next()
	e.AtNs, e.Lease, e.User, e.HeldNs, e.Blocks, e.Reason = uint64(now), record.NewHandle(s, use), slot.User, uint64(held), slot.Blocks, reason
	e.Reader, e.ReaderHash, e.ReaderEpoch = a.Number, a.Engine, a.Epoch
	id := t.long.id(slot)
	e.IDLen = uint16(len(id))
	if copy(e.ID[:], id) < len(id) {
		e.IDHash = siphash.Sum64(0, 0, id)
	}
	if reason == record.FreedExpired && now.Sub(a.LastBeat) > 2*t.cfg.Interval { // else it lives, and has given up this one
		t.diedAt(at, now)
	}
	k.setAccount(NobodysAccount)
}

// diedAt takes the time from the last heartbeat of a reader that is dead, or is taken for it, until blocks of its are free.
func (t *Table) diedAt(at uint8, now clock.Instant) {
	if a := &t.accounts.all[at]; at >= firstAccount && a.LastBeat != 0 {
		t.Times.DeathFree.Observe(now.Sub(a.LastBeat))
	}
}
