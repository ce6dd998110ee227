package sim

import (
	"fmt"

	"github.com/kvlease/kvlease/dataplane/record"
)

// eventText is an event for the log.
func eventText(ev *record.Event) string {
	names := [...]string{
		record.EvFreed: "freed", record.EvReadDone: "read done", record.EvReadFailed: "read failed", record.EvBlocksBack: "blocks back",
		record.EvLeaseGone: "lease gone", record.EvAtRisk: "at risk", record.EvEngineUp: "engine up", record.EvEngineDown: "engine down",
		record.EvPoisoned: "poisoned", record.EvExpectLapsed: "expectation lapsed", record.EvRankUp: "rank up", record.EvRankDown: "rank down",
		record.EvHostDown: "host down", record.EvEngineDrains: "engine drains",
	}
	what := fmt.Sprintf("event %d", ev.Kind)
	if int(ev.Kind) < len(names) && names[ev.Kind] != "" {
		what = names[ev.Kind]
	}
	switch ev.Kind {
	case record.EvFreed:
		what += ": " + freedNames[ev.Status&15]
		if ev.Reasons != uint64(ev.Status) {
			what += fmt.Sprintf(" (ranks %x)", ev.Reasons)
		}
	case record.EvReadFailed:
		what += ": " + readNames[ev.Status&7]
		if ev.Flags&record.FlagBlocksHeld != 0 {
			what += ", blocks held"
		}
	}
	return what
}

var freedNames = [16]string{
	record.FreedCompleted: "completed", record.FreedReleased: "released", record.FreedRevoked: "revoked", record.FreedExpired: "expired",
	record.FreedPoisoned: "poisoned", record.FreedDuplicate: "duplicate", record.FreedClosed: "closed", record.FreedLost: "lost",
}

var readNames = [8]string{
	record.ReadOK: "ok", record.ReadStale: "stale", record.ReadUnproven: "unproven", record.ReadFailed: "failed",
	record.ReadTimeout: "timeout", record.ReadCancelled: "cancelled", record.ReadLost: "lost",
}

// FreedNames and ReadNames are words for the counts of a Result.
func FreedNames() []string { return freedNames[:] }

// ReadNames is FreedNames for outcomes of reads.
func ReadNames() []string { return readNames[:] }
