package lease

import (
	"bytes"

	"github.com/kvlease/kvlease/dataplane/wire"
)

// From says by which agent the messages are sent that follow: an engine of ours that nothing is known of but the hash of its id is named
// by it.
func (t *Table) From(agent []byte) { t.from = agent }

// idOf finds the id of an engine of ours in the name of its agent, ID.EPOCH or ID.RANK.EPOCH: it is the part before a point that has the hash.
// nil: the name says something else.
func idOf(agent []byte, engine uint64) []byte {
	for range 2 {
		i := bytes.LastIndexByte(agent, '.')
		if i <= 0 || i > AgentMax {
			return nil
		}
		if agent = agent[:i]; wire.EngineHash(agent) == engine {
			return agent
		}
	}
	return nil
}
