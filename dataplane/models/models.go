// Package models runs the models of the protocol: the *.pml here with spin, and the edges between threads with internal/weakmem.
//
// Each model holds as it is, and each of its broken variants (a -D) is refuted, by the assertion that is named for it.
package models

// Run is one run of spin.
type Run struct {
	Model    string // name.pml
	Variant  string // a define that breaks it; "": none
	Defines  []string
	Live     bool   // the model's liveness claim under weak fairness; else its assertions
	Violates string // a part of what pan prints of the violation; "": it holds
	What     string // for the table: what runs, or what is broken
	Rule     string // of a variant: what it violates
}

const (
	cycle    = "acceptance cycle"
	wrong    = "wrong data is accepted"
	neverEnd = "a lease is held for ever"
)

// Ideas says of each model what it is about, in the order of the table.
var Ideas = []struct{ Model, Idea string }{
	{"fence.pml", "The fencing argument: a slot's uses one behind the other, a word that is raised, waited for and published in three steps, NICs that read late and in pieces"},
	{"ranks.pml", "One slot over two ranks: lossy streams, full states, skipped uses, a rank that is cut off; slots and blocks given out again"},
	{"lease.pml", "The deadline: heartbeats and completions over a network that loses, repeats and reorders, an owner that stands still, an engine that dies"},
	{"share.pml", "Who may end a lease that two engines have parameters of, one of them perhaps a stock one"},
	{"quarantine.pml", "The reader's blocks: transfers that write late, fail while parts land, or never end"},
	{"restart.pml", "An owner rank that dies and comes back with another base, epoch and secret, and memory that is taken away"},
}

// Runs are all of them.
var Runs = []Run{
	{Model: "fence.pml", What: "three uses, two readers"},
	{Model: "fence.pml", Variant: "FENCE_AFTER_PUBLISH", What: "the word is raised after the end is published", Violates: "a[r]==(g+1)", Rule: wrong},
	{Model: "fence.pml", Variant: "NO_BARRIER", What: "the end is published while the raised word is still in the store buffer", Violates: "a[r]==(g+1)", Rule: wrong},
	{Model: "fence.pml", Variant: "FENCE_READ_EARLY", What: "the fence read is posted together with the data reads", Violates: "a[r]==(g+1)", Rule: wrong},
	{Model: "fence.pml", Variant: "COMPLETION_EARLY", What: "the completion is sent before the fence has been read", Violates: "endedBy[g]", Rule: "a good read looks stale, by its own completion"},
	{Model: "fence.pml", Variant: "G_FROM_1", What: "the reader counts uses from 1, the row from 0", Violates: "a[r]==(g+1)", Rule: wrong},
	{Model: "fence.pml", Variant: "NO_PRESET", What: "the landing memory keeps an earlier row, and a DONE brings nothing", Violates: "a[r]==(g+1)", Rule: wrong},
	{Model: "fence.pml", Variant: "NO_FENCE", What: "no fence is read", Violates: "a[r]==(g+1)", Rule: wrong},
	{Model: "fence.pml", Variant: "SLOW_TEAR", What: "a whole turn of the word's low byte (256 ends) between the bytes of one 8-byte read", Violates: "a[r]==(g+1)", Rule: wrong + ": the limit of the argument"},

	{Model: "ranks.pml", What: "two uses, two losses, one rank cut off"},
	{Model: "ranks.pml", Defines: []string{"USES=1"}, Live: true, What: "every lease is freed; one use, two losses"},
	{Model: "ranks.pml", Variant: "COUNTED", What: "words are counted up at each end, and a rank misses a use", Violates: "(a==(g+1))", Rule: wrong},
	{Model: "ranks.pml", Variant: "SLOT_EARLY", What: "slot and blocks are given out when the first rank has ended", Violates: "==(g+1))", Rule: wrong},
	{Model: "ranks.pml", Variant: "LOST_AS_GONE", What: "a lost stream counts as the end of the process at once", Violates: "==(g+1))", Rule: wrong},
	{Model: "ranks.pml", Variant: "GRANT_REOPENS", What: "a repeated grant stores its word whatever is there", Violates: "holds[", Rule: "a rank holds what was given out again"},
	{Model: "ranks.pml", Variant: "NO_FULL_STATE", Defines: []string{"USES=1"}, Live: true, What: "grants and cancels are not repeated after a loss", Violates: cycle, Rule: neverEnd},
	{Model: "ranks.pml", Variant: "END_TOLD_ONCE", Defines: []string{"USES=1"}, Live: true, What: "a rank does not tell an end once more", Violates: cycle, Rule: neverEnd},

	{Model: "lease.pml", What: "two uses"},
	{Model: "lease.pml", Defines: []string{"USES=1"}, Live: true, What: "every lease is freed"},
	{Model: "lease.pml", Variant: "COUNT_REPORTS", What: "completions are counted, not readers", Violates: "really==3", Rule: "freed before both ranks have read (L5)"},
	{Model: "lease.pml", Variant: "BEAT_SETS", What: "a heartbeat sets the deadline", Violates: "left<=2", Rule: "a heartbeat shortens a lease (L1)"},
	{Model: "lease.pml", Variant: "ONE_LOOK", What: "a lease expires at the first look", Violates: "fly[0]&&inTime", Rule: "expired with a heartbeat on its way (L8)"},
	{Model: "lease.pml", Variant: "NO_KEY", What: "messages name the slot and not its use", Violates: "really==3", Rule: "freed by messages of the use before (L2)"},
	{Model: "lease.pml", Variant: "NO_READ_TIMEOUT", Defines: []string{"USES=1"}, Live: true, What: "a reader beats for ever", Violates: cycle, Rule: neverEnd},

	{Model: "share.pml", What: "two engines of ours"},
	{Model: "share.pml", Defines: []string{"STOCK=1"}, What: "the second is a stock one"},
	{Model: "share.pml", Variant: "SUM_ENGINES", What: "readers of different engines are added", Violates: "really[0]==3", Rule: "freed before all ranks of one engine have read (L5)"},
	{Model: "share.pml", Variant: "IGNORE_SHARED", What: "a release ends a lease that another engine has named", Violates: "named==1", Rule: "L12"},
	{Model: "share.pml", Variant: "IGNORE_UNCHECKED", Defines: []string{"STOCK=1"}, What: "revoke and release end a lease that a stock engine has named", Violates: "stockNamed", Rule: "L12"},
	{Model: "share.pml", Variant: "LATE_REVIVES", What: "a late heartbeat brings a freed lease back", Violates: "granted", Rule: "L2"},

	{Model: "quarantine.pml", What: "two reads, one block"},
	{Model: "quarantine.pml", Live: true, What: "every read has an outcome, and its block comes back unless its transfer never ends"},
	{Model: "quarantine.pml", Variant: "QUARANTINE_AT_TIMEOUT", What: "the block is given back at the time-out", Violates: "owner[block[r]]==r", Rule: "an old transfer writes into a block that was given out again"},
	{Model: "quarantine.pml", Variant: "ERROR_IS_END", What: "the block is given back at an error", Violates: "owner[block[r]]==r", Rule: "as above"},
	{Model: "quarantine.pml", Variant: "RELEASE_IS_END", What: "the block is given back when the request was released", Violates: "owner[block[r]]==r", Rule: "as above"},
	{Model: "quarantine.pml", Variant: "SHORT_WAIT", What: "the wait after an error is shorter than parts can land", Violates: "owner[block[r]]==r", Rule: "as above"},
	{Model: "quarantine.pml", Variant: "NO_TIMEOUT", Live: true, What: "reads have no time-out", Violates: cycle, Rule: "a read without an outcome"},

	{Model: "restart.pml", What: "two boots of two uses, two readers"},
	{Model: "restart.pml", Variant: "SAME_BASE", What: "words begin anew at the same base", Violates: "(x==", Rule: wrong},
	{Model: "restart.pml", Variant: "NO_KEY", What: "messages do not tell the boot", Violates: "finished", Rule: "a lease is ended by a message of the boot before"},
	{Model: "restart.pml", Variant: "AGENT_STAYS", What: "memory is taken away while the agent still answers reads", Violates: "mapped", Rule: "a late read meets memory that is gone"},
}

// Name is what the run is called in the table.
func (r *Run) Name() string {
	switch {
	case r.Variant != "":
		return r.Variant
	case r.Live:
		return "liveness"
	}
	return "safety"
}
