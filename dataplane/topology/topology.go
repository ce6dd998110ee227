// Package topology says which ranks of an owner a reader's rank talks to, and which heads it takes from each.
//
// An engine has PP stages of TP ranks; a rank's number is pp x TP + tp. Stages hold layers, ranks hold KV heads: with H heads
// rank tp of TP holds H/TP of them, or, where there are fewer heads than ranks, TP/H neighbours hold the same one.
package topology

import (
	"errors"
	"fmt"
)

// ErrTopology is wrapped by every error: sizes that do not divide each other.
var ErrTopology = errors.New("topology")

// RanksMax is the most ranks of an engine, all stages together.
const RanksMax = 64

// Shape is the size of an engine.
type Shape struct{ TP, PP uint32 }

// Ranks is the number of all ranks.
func (s Shape) Ranks() uint32 { return s.TP * s.PP }

func (s Shape) check(whose string) error {
	if s.TP == 0 || s.PP == 0 || s.TP > RanksMax || s.PP > RanksMax || s.Ranks() > RanksMax {
		return fmt.Errorf("%w: the %s has TP %d x PP %d ranks, want 1 to %d", ErrTopology, whose, s.TP, s.PP, RanksMax)
	}
	return nil
}

// check looks at both sizes and at a rank of one of them.
func check(reader, owner Shape, rank uint32, of Shape, whose string) error {
	if err := reader.check("reader"); err != nil {
		return err
	}
	if err := owner.check("owner"); err != nil {
		return err
	}
	if max(reader.TP, owner.TP)%min(reader.TP, owner.TP) != 0 {
		return fmt.Errorf("%w: TP %d of the reader and TP %d of the owner do not divide each other: run one of them with a TP that is a multiple of the other's",
			ErrTopology, reader.TP, owner.TP)
	}
	if rank >= of.Ranks() {
		return fmt.Errorf("%w: rank %d of the %s, which has %d (TP %d x PP %d)", ErrTopology, rank, whose, of.Ranks(), of.TP, of.PP)
	}
	return nil
}

// slice is the part of the other side's TP ranks that rank tp belongs to: n ranks from first on.
func slice(own, other Shape, rank uint32) (first, n uint32) {
	tp := rank % own.TP
	if other.TP >= own.TP {
		n = other.TP / own.TP
		return tp * n, n
	}
	return tp / (own.TP / other.TP), 1
}

// Reach gives the owner's ranks that rank r of the reader talks to: its slice of each stage's TP ranks, in rising order.
// Heartbeats and completions go to all of them, also to those from which nothing is read.
func Reach(reader, owner Shape, r uint32) ([]uint32, error) {
	if err := check(reader, owner, r, reader, "reader"); err != nil {
		return nil, err
	}
	first, n := slice(reader, owner, r)
	out := make([]uint32, 0, n*owner.PP)
	for stage := range owner.PP {
		for tp := first; tp < first+n; tp++ {
			out = append(out, stage*owner.TP+tp)
		}
	}
	return out, nil
}

// Readers is n of a completion: how many ranks of the reader report to rank o of the owner.
func Readers(reader, owner Shape, o uint32) (uint32, error) {
	if err := check(reader, owner, o, owner, "owner"); err != nil {
		return 0, err
	}
	_, n := slice(owner, reader, o)
	return n * reader.PP, nil
}
