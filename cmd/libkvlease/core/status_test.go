package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Each decision that a caller can take has one error in Go and one status in C, however the error is wrapped.
func TestEachErrorHasItsStatusAndNoOther(t *testing.T) {
	want := map[error]int32{
		core.ErrFull: -1, core.ErrInvalid: -2, core.ErrState: -2, core.ErrStale: -3, core.ErrBusy: -4, core.ErrPoisoned: -6,
		transport.ErrUnavailable: -7, core.ErrClosed: -8, core.ErrConfig: -9, core.ErrTransport: -11, core.ErrSpace: -12, core.ErrTimeout: -14,
	}
	if len(want) != len(statuses) {
		t.Errorf("the table has %d rows, the test %d", len(statuses), len(want))
	}
	for err, st := range want {
		if got := int32(status(fmt.Errorf("region 3: %w", err))); got != st {
			t.Errorf("status of %q = %d, want %d", err, got, st)
		}
	}
	for i, row := range statuses {
		for j, other := range statuses {
			if i != j && errors.Is(row.err, other.err) {
				t.Errorf("rows %d and %d are the same error", i, j)
			}
		}
	}
	if got := int32(status(nil)); got != 0 {
		t.Errorf("status of no error = %d", got)
	}
}
