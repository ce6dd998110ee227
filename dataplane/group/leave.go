package group

import (
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// Leave tells the ranks that this host closes, as far as they take it: the end of a stream without that is a crash. No step follows.
func (g *Group) Leave() {
	for i := range g.ranks {
		g.leave(&g.ranks[i])
	}
}

func (g *Group) leave(r *rank) {
	defer func() { _ = recover() }() // what broke may be its very stream
	if r.carrier.State() != stream.Attached || !r.carrier.Fits(record.HostLeavesLen) {
		return
	}
	record.PutHostLeaves(r.carrier.Reserve(record.TagHostLeaves, record.HostLeavesLen))
	r.carrier.Publish()
}
