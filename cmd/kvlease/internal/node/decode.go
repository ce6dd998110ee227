package node

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// queued is one request of the decode side, between its arrival and the end of its read.
type queued struct {
	id, remoteID  string
	track         record.Handle
	remote, local []uint32 // local is set while it is read, and while a failed read may still write there
	reading, over bool
}

var readNames = map[int32]string{
	record.ReadOK: "ok", record.ReadStale: "stale", record.ReadUnproven: "unproven", record.ReadFailed: "failed",
	record.ReadTimeout: "timeout", record.ReadCancelled: "cancelled", record.ReadLost: "lost",
}

// addEngine introduces a peer: by its side channel, from which the library fetches the handshake itself, or with a map that
// has come another way.
func (n *Node) addEngine(c *jsonl.Command) (jsonl.Report, error) {
	if (c.Handshake == "") == (c.Host == "") {
		return jsonl.Report{}, errors.New("engine needs either \"handshake\" or \"host\" and \"port\"")
	}
	m, err := hex.DecodeString(c.Handshake)
	if err != nil {
		return jsonl.Report{}, fmt.Errorf("the handshake is not hex: %w", err)
	}
	return jsonl.Report{}, n.engine.addPeer(c, m)
}

func (n *Node) forgetEngine(c *jsonl.Command) (jsonl.Report, error) {
	h, ok := n.engine.peers[c.EngineID]
	if !ok {
		return jsonl.Report{}, fmt.Errorf("engine %q was not introduced", c.EngineID)
	}
	delete(n.engine.peers, c.EngineID)
	return jsonl.Report{}, n.engine.core.RemoveEngine(h)
}

func (n *Node) track(c *jsonl.Command) (jsonl.Report, error) {
	if n.findQueued(c.ID) != nil {
		return jsonl.Report{}, fmt.Errorf("%s is here already", c.ID)
	}
	var params wire.Params
	if err := wire.ParseParams(c.Params, &params); err != nil {
		return jsonl.Report{}, err
	}
	if len(params.Groups) != 1 || len(params.Groups[0]) > jsonl.BlocksMax {
		return jsonl.Report{}, fmt.Errorf("this engine takes one group of at most %d blocks", jsonl.BlocksMax)
	}
	n.users++
	track, err := n.engine.track(&params, c.ID, n.users)
	if err != nil {
		return jsonl.Report{}, err
	}
	n.queue[track] = &queued{id: c.ID, remoteID: params.RequestID, track: track, remote: params.Groups[0]}
	return jsonl.Report{}, nil
}

func (n *Node) findQueued(id string) *queued {
	for _, q := range n.queue {
		if q.id == id && !q.over {
			return q
		}
	}
	return nil
}

func (n *Node) read(c *jsonl.Command) (jsonl.Report, error) {
	q := n.findQueued(c.ID)
	switch {
	case q == nil:
		return jsonl.Report{}, fmt.Errorf("%s is not tracked", c.ID)
	case q.reading:
		return jsonl.Report{}, fmt.Errorf("%s is being read already", c.ID)
	case len(q.remote) > len(n.free):
		return jsonl.Report{}, fmt.Errorf("%s needs %d blocks, %d are free", c.ID, len(q.remote), len(n.free))
	}
	cut := len(n.free) - len(q.remote)
	q.local = append([]uint32(nil), n.free[cut:]...)
	n.free = n.free[:cut]
	var err error
	if n.engine.memory != nil {
		err = n.engine.memory.store.Clear(q.local)
	}
	if err == nil {
		err = n.engine.read(q.track, q.local, q.remote)
	}
	if errors.Is(err, host.ErrStale) { // the lease is known to be over: no read, no event
		n.after = append(n.after, jsonl.Report{Ev: "read_failed", ID: q.id, Status: "stale", BlocksHeld: new(bool), HandedOut: n.given()})
		n.forget(q)
		return jsonl.Report{}, nil
	}
	if err != nil {
		n.free, q.local = append(n.free, q.local...), nil
		return jsonl.Report{}, err
	}
	q.reading = true
	return jsonl.Report{Local: q.local}, nil
}

func (n *Node) reject(c *jsonl.Command) (jsonl.Report, error) {
	var params wire.Params
	if err := wire.ParseParams(c.Params, &params); err != nil {
		return jsonl.Report{}, err
	}
	return jsonl.Report{}, n.engine.reject(&params)
}

func (n *Node) untrack(c *jsonl.Command) (jsonl.Report, error) {
	q := n.findQueued(c.ID)
	if q == nil {
		return jsonl.Report{}, fmt.Errorf("%s is not tracked", c.ID)
	}
	if err := n.engine.host.Untrack(q.track); err != nil {
		return jsonl.Report{}, err
	}
	if !q.reading { // with a read in flight the end comes by event
		n.forget(q)
	}
	return jsonl.Report{}, nil
}

// forget gives a request's local blocks back.
func (n *Node) forget(q *queued) {
	n.free = append(n.free, q.local...)
	delete(n.queue, q.track)
}

func (n *Node) given() *uint64 {
	v := n.handedOut
	return &v
}

// onTrack takes the events about one request of the decode side.
func (n *Node) onTrack(e *record.Event) {
	q, ok := n.queue[record.Handle(e.Handle)]
	if !ok {
		return // untracked meanwhile
	}
	r := jsonl.Report{ID: q.id, TimeNS: e.TimeNs}
	switch e.Kind {
	case record.EvReadDone: // proven: all of it was read while the lease stood; only now may the model see it
		n.handedOut++
		r.Ev, r.Status, r.Bytes, r.TookMS, r.HandedOut = "read_done", "ok", e.Value0, float64(e.Value1)/1e6, n.given()
		if n.engine.memory != nil { // else the ranks are asked to check theirs
			r.BadBytes, _, r.Error = n.engine.memory.looked(q.remoteID, q.local)
		}
		r.Local = q.local
		n.forget(q)
	case record.EvReadFailed: // not to be used; how much of it had come, and how much of that is another's, is shown only
		blocksHeld := e.Flags&record.FlagBlocksHeld != 0
		r.Ev, r.Status, r.BlocksHeld, r.HandedOut = "read_failed", readNames[e.Status], &blocksHeld, n.given()
		if blocksHeld {
			q.over = true // a transfer may still write there: the blocks come back by event
			break
		}
		if n.engine.memory != nil {
			r.BadBytes, r.Landed, r.Error = n.engine.memory.looked(q.remoteID, q.local)
		}
		n.forget(q)
	case record.EvBlocksBack: // whatever was on its way has come; what that is, is shown only
		r.Ev = "blocks_back"
		if n.engine.memory != nil {
			r.BadBytes, _, r.Error = n.engine.memory.looked(q.remoteID, q.local)
		}
		n.forget(q)
	case record.EvLeaseGone: // an engine recomputes and untracks; this one waits for the command
		r.Ev = "lease_gone"
	case record.EvAtRisk:
		r.Ev, r.LeftMS = "at_risk", float64(e.Value0)/1e6
	}
	n.say(r)
}
