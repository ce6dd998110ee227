package node

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/record"
)

// held is one request of the prefill side.
type held struct {
	id     string
	lease  record.Handle
	blocks []uint32 // empty while the request is only expected
	ready  *unready // its answer, while a device writes its blocks
}

// unready is the answer to a grant whose blocks are not written yet.
type unready struct {
	answer jsonl.Report
	event  uint64
}

var reasons = map[int32]string{
	record.FreedCompleted: "completed", record.FreedReleased: "released", record.FreedRevoked: "revoked", record.FreedExpired: "expired",
	record.FreedPoisoned: "poisoned", record.FreedDuplicate: "duplicate", record.FreedClosed: "closed", record.FreedLost: "lost",
}

// blocksFree keeps the one rule of the prefill side: blocks under a lease are not the engine's to use.
func (n *Node) blocksFree(blocks []uint32) error {
	for _, b := range blocks {
		if b >= n.cfg.Blocks {
			return fmt.Errorf("block %d does not exist, there are %d", b, n.cfg.Blocks)
		}
		if id, taken := n.holder[b]; taken {
			return fmt.Errorf("block %d is under the lease of %s", b, id)
		}
	}
	return nil
}

func (n *Node) expect(c *jsonl.Command) (jsonl.Report, error) {
	if _, here := n.held[c.ID]; here {
		return jsonl.Report{}, fmt.Errorf("%s is here already", c.ID)
	}
	lease, err := n.engine.host.Expect([]byte(c.ID))
	if err != nil {
		return jsonl.Report{}, err
	}
	n.held[c.ID] = &held{id: c.ID, lease: lease}
	return jsonl.Report{}, nil
}

func (n *Node) grant(c *jsonl.Command) (jsonl.Report, error) {
	var expected record.Handle
	if h, here := n.held[c.ID]; here {
		if len(h.blocks) > 0 {
			return jsonl.Report{}, fmt.Errorf("%s holds a lease already", c.ID)
		}
		expected = h.lease
	}
	if err := n.blocksFree(c.Blocks); err != nil {
		return jsonl.Report{}, err
	}
	var event uint64
	if n.engine.memory != nil { // else the ranks have filled theirs
		var err error
		if event, err = n.engine.memory.store.Launch(c.ID, c.Blocks); err != nil {
			return jsonl.Report{}, err
		}
	}
	n.users++
	now := uint64(core.Now())
	lease, params, err := n.engine.grant(c.ID, c.Blocks, c.Tokens, expected, n.users, event, time.Duration(c.FixedS*1e9))
	if err != nil {
		n.written(event)
		return jsonl.Report{}, err
	}
	h := &held{id: c.ID, lease: lease, blocks: c.Blocks}
	n.held[c.ID], n.byLease[lease] = h, h
	for _, b := range c.Blocks {
		n.holder[b] = c.ID
	}
	answer := jsonl.Report{Params: params, TimeNS: now}
	if event == 0 {
		return answer, nil
	}
	answer.Re = c.N
	h.ready = &unready{answer: answer, event: event}
	n.unready = append(n.unready, h)
	return jsonl.Report{}, errLater
}

// errLater says that the answer to a command comes by itself.
var errLater = errors.New("later")

// written gives back the event of blocks that are written, or whose lease is over.
func (n *Node) written(event uint64) {
	if event != 0 {
		n.engine.memory.store.Done(event)
	}
}

// offer answers the grants whose blocks are written: only now may anybody hear of them.
func (n *Node) offer() {
	n.unready = slices.DeleteFunc(n.unready, func(h *held) bool {
		if h.ready == nil || !n.engine.host.Ready(h.lease) {
			return h.ready == nil
		}
		ok := true
		h.ready.answer.OK = &ok
		n.say(h.ready.answer)
		n.written(h.ready.event)
		h.ready = nil
		return true
	})
}

// neverReady answers a grant whose lease has ended before its blocks were written, with the device's reason if it has one.
func (n *Node) neverReady(h *held) {
	if h.ready == nil {
		return
	}
	ok, why := false, "its blocks were not written before its lease ended"
	if _, err := n.engine.memory.store.Fired(h.ready.event); err != nil {
		why += ": " + err.Error()
	}
	n.say(jsonl.Report{Re: h.ready.answer.Re, OK: &ok, Error: why})
	n.written(h.ready.event)
	h.ready = nil
}

func (n *Node) overwrite(c *jsonl.Command) (jsonl.Report, error) {
	if err := n.blocksFree(c.Blocks); err != nil {
		return jsonl.Report{}, err
	}
	return jsonl.Report{}, n.engine.memory.store.Fill(c.ID, c.Blocks)
}

func (n *Node) takeBack(c *jsonl.Command) (jsonl.Report, error) {
	h, here := n.held[c.ID]
	if !here {
		return jsonl.Report{}, fmt.Errorf("%s is not here", c.ID)
	}
	end := n.engine.host.Cancel
	if c.Cmd == "revoke" {
		end = n.engine.host.Revoke
	}
	if err := end(h.lease); err != nil {
		return jsonl.Report{}, err
	}
	if len(h.blocks) == 0 { // was only expected: no event will come
		delete(n.held, c.ID)
	}
	return jsonl.Report{}, nil
}

// onMemory is what a scheduler in another process has this rank do with its KV blocks.
func (n *Node) onMemory(c *jsonl.Command) (jsonl.Report, error) {
	for _, b := range c.Blocks {
		if b >= n.cfg.Blocks {
			return jsonl.Report{}, fmt.Errorf("block %d does not exist, there are %d", b, n.cfg.Blocks)
		}
	}
	m := n.engine.memory
	switch c.Cmd {
	case "fill":
		return jsonl.Report{}, m.store.Fill(c.ID, c.Blocks)
	case "clear":
		return jsonl.Report{}, m.store.Clear(c.Blocks)
	}
	bad, landed, why := m.looked(c.ID, c.Blocks)
	if why != "" {
		return jsonl.Report{}, errors.New(why)
	}
	return jsonl.Report{ID: c.ID, BadBytes: bad, Landed: landed, Bytes: uint64(len(c.Blocks)) * uint64(m.shape.Layers) * uint64(m.shape.BlockLen)}, nil
}

func (n *Node) ownHandshake(c *jsonl.Command) (jsonl.Report, error) {
	m, err := n.engine.core.OwnHandshake(c.Rank)
	return jsonl.Report{Handshake: hex.EncodeToString(m)}, err
}

// freed gives the blocks back to the engine: from here on they are its own again, not before.
func (n *Node) freed(e *record.Event) {
	h, ok := n.byLease[record.Handle(e.Handle)]
	if !ok {
		n.say(jsonl.Report{Ev: "error", Error: "freed event of a lease that nobody holds", TimeNS: e.TimeNs})
		return
	}
	n.neverReady(h)
	for _, b := range h.blocks {
		delete(n.holder, b)
	}
	delete(n.byLease, h.lease)
	delete(n.held, h.id)
	n.say(jsonl.Report{Ev: "freed", ID: h.id, Reason: reasons[e.Status], Reasons: n.reasonsOf(e), Blocks: uint32(len(h.blocks)), HeldMS: float64(e.Value1) / 1e6, TimeNS: e.TimeNs})
}

// reasonsOf tells why a lease ended on each rank.
func (n *Node) reasonsOf(e *record.Event) []string {
	if n.cfg.Context != "host" {
		return nil
	}
	var list []string
	for rank := range min(n.cfg.TP, 16) {
		list = append(list, reasons[int32(e.Reasons>>(4*rank)&15)])
	}
	return list
}

func (n *Node) expectLapsed(e *record.Event) {
	for id, h := range n.held {
		if len(h.blocks) == 0 && h.lease == record.Handle(e.Handle) {
			delete(n.held, id)
			n.say(jsonl.Report{Ev: "expect_lapsed", ID: id, TimeNS: e.TimeNs})
			return
		}
	}
}
