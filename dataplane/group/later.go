package group

import (
	"math/bits"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
)

// A reader's death and a rejection stand in no table that a full state tells. One that a stream has no room for, or that comes while the
// rank hears nothing, waits here; oldest first. What a stream has taken and then lost is not said again: to a stock owner each
// rejection counts. Then, as past laterMax, the leases' deadlines decide.

// laterMax bounds what waits: 76 KiB.
const laterMax = 64

type later struct {
	need  uint64 // ranks that have still to be told
	death bool
	dead  record.ReaderDead
	req   record.TrackReq
	id    [record.IDMax]byte
}

// laters is a ring of them.
type laters struct {
	all  [laterMax]later
	head int
	n    int
}

// keep gives the place of a word that some ranks could not be told; nil: there is no such rank, or no room, which untold counts.
func (g *Group) keep(need uint64, untold *uint64) *later {
	q := &g.later
	switch {
	case need == 0:
		return nil
	case q.n == laterMax:
		*untold += uint64(bits.OnesCount64(need))
		g.cfg.Log.Put(log.RankUntold, g.now, log.Entry{A: uint64(bits.OnesCount64(need))})
		return nil
	}
	k := &q.all[(q.head+q.n)%laterMax]
	k.need = need
	q.n++
	for set := need; set != 0; set &= set - 1 {
		g.ranks[lowest(set)].laterN++
	}
	return k
}

// hearsOf reports that a rank can be told of the requests of any engine now.
func (r *rank) hearsOf() bool { return r.hears() && (r.full.at == fullNone || r.full.at > fullEngines) }

// sayReject and sayDeath tell a rank at once if it hears and there is room.
func (g *Group) sayReject(r *rank, req *record.TrackReq, remote []byte) bool {
	n := record.TrackLen + len(remote)
	if r.laterN > 0 || !r.hearsOf() || !r.carrier.Fits(n) {
		return false
	}
	if rec := g.room(r, record.TagReject, n); rec != nil {
		record.PutTrack(rec, *req, remote, nil)
		return true
	}
	return false
}

func (g *Group) sayDeath(r *rank, d record.ReaderDead) bool {
	if r.laterN > 0 || !r.hearsOf() || !r.carrier.Fits(record.ReaderDeadLen) {
		return false
	}
	if rec := g.room(r, record.TagReaderDead, record.ReaderDeadLen); rec != nil {
		record.PutReaderDead(rec, d)
		return true
	}
	return false
}

// tellLater tells a rank what has waited for it, as far as there is room now.
func (g *Group) tellLater(r *rank) {
	if r.laterN == 0 || !r.hearsOf() {
		return
	}
	left := r.laterN
	r.laterN = 0 // nothing stands before these
	for i := range g.later.n {
		k := &g.later.all[(g.later.head+i)%laterMax]
		if k.need&r.bit == 0 {
			continue
		}
		told := false
		if k.death {
			told = g.sayDeath(r, k.dead)
		} else {
			told = g.sayReject(r, &k.req, k.id[:k.req.RemoteLen])
		}
		if !told {
			break
		}
		k.need &^= r.bit
		left--
	}
	r.laterN = left
}

// dropLater forgets what every rank has been told, and what waits for ranks that are lost.
func (g *Group) dropLater() {
	for g.later.n > 0 && g.later.all[g.later.head].need&^(g.dead|g.lost) == 0 {
		g.later.head = (g.later.head + 1) % laterMax
		g.later.n--
	}
}
