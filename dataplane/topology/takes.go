package topology

import "fmt"

// Take is what a rank of the reader takes from one rank of the owner, in heads.
type Take struct {
	Rank        uint32 // of the owner
	Here, There uint32 // first head, counted from the first one that the reader's and the owner's rank hold
	Heads       uint32
	OfHere      uint32 // heads that the reader's rank holds: a piece of its blocks has so many equal parts
	OfThere     uint32 // the same of the owner's rank
	Whole       bool   // what every rank has (MLA) is taken from this one: one rank of each stage
}

// Takes gives what rank r of the reader takes, in the order of Reach, which may hold more ranks: of those that hold the same
// heads one is read from, and readers spread over them by their rank. For each stage of the owner the takes
// together fill every head of rank r once; which layers a stage has is not known here.
//
// kvHeads is the number of KV heads of the model; 0: not told. Then the heads count as no fewer than ranks, and are cut
// into as many parts as the larger side has ranks.
func Takes(reader, owner Shape, r, kvHeads uint32) ([]Take, error) {
	if err := check(reader, owner, r, reader, "reader"); err != nil {
		return nil, err
	}
	if kvHeads == 0 {
		kvHeads = max(reader.TP, owner.TP)
	}
	for _, side := range []struct {
		name string
		tp   uint32
	}{{"reader", reader.TP}, {"owner", owner.TP}} {
		if max(kvHeads, side.tp)%min(kvHeads, side.tp) != 0 {
			return nil, fmt.Errorf("%w: %d KV heads and TP %d of the %s do not divide each other: choose a TP that divides the heads, or a multiple of them",
				ErrTopology, kvHeads, side.tp, side.name)
		}
	}
	first, held := heads(reader.TP, r%reader.TP, kvHeads)
	from, n := slice(reader, owner, r)
	copies := min(n, max(owner.TP/kvHeads, 1)) // ranks of the slice that hold the same heads lie side by side
	var out []Take
	for stage := range owner.PP {
		whole := len(out) + int(r%(n/copies))
		for tp := from + r%copies; tp < from+n; tp += copies {
			at, has := heads(owner.TP, tp, kvHeads)
			lo, hi := max(first, at), min(first+held, at+has)
			out = append(out, Take{
				Rank: stage*owner.TP + tp, Here: lo - first, There: lo - at, Heads: hi - lo, OfHere: held, OfThere: has,
				Whole: len(out) == whole,
			})
		}
	}
	return out, nil
}

// heads gives the heads that rank tp of TP ranks holds: held of them from first on.
func heads(ranks, tp, kvHeads uint32) (first, held uint32) {
	if kvHeads >= ranks {
		held = kvHeads / ranks
		return tp * held, held
	}
	return tp / (ranks / kvHeads), 1
}
