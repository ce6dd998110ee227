package lease

import (
	"testing"

	"github.com/kvlease/kvlease/dataplane/record"
)

func TestACompletionWhoseHashMeetsAnotherIdEndsNothing(t *testing.T) {
	r := newRig(t, 4)
	h := r.grant("held")
	// Two ids with one hash cannot be found, so the entry of the one is put where the other's hash looks for it.
	word := r.t.index.entries[r.t.index.find(r.t.tag([]byte("held")))].word
	if !r.t.index.insert(r.t.tag([]byte("other")), word) {
		t.Fatal("no room in the index")
	}
	r.want(r.done("other", "D", 1), Unknown)
	r.wantHeld(h)
	r.wantCount("unknown completions", r.c.UnknownDone, 1)
	r.want(r.beat("other"), Applied) // held for longer is safe
	r.want(r.done("held", "D", 1), Ended)
	r.wantEnded(record.FreedCompleted, h)
}
