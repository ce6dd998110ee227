package capacity

import (
	"math"
	"strconv"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/internal/jsons"
)

// Span is a time.Duration that is written in seconds.
type Span time.Duration

// MarshalJSON writes seconds.
func (s Span) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, time.Duration(s).Seconds(), 'g', -1, 64), nil
}

// UnmarshalJSON reads them.
func (s *Span) UnmarshalJSON(text []byte) error {
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return err
	}
	*s = Span(math.Round(v * 1e9))
	return nil
}

// Spans is what is told of many spans of time. P50 and P99 are exact to a 256th.
type Spans struct {
	N   uint64 `json:"n"`
	Min Span   `json:"min_s"`
	P50 Span   `json:"p50_s"`
	P99 Span   `json:"p99_s"`
	Max Span   `json:"max_s"`
}

// Sample is what was held at one time, in blocks of all caches together.
type Sample struct {
	At     Span  `json:"at_s"`
	Leased int64 `json:"leased"` // under leases
	Wasted int64 `json:"wasted"` // of these, those that nobody would read any more
}

// Result is what one setting came to. Times are virtual but for those of steps and of Wall, which are this machine's.
type Result struct {
	Setting string `json:"setting"`
	Term    Span   `json:"term_s"`
	Fixed   bool   `json:"fixed"`
	Span    Span   `json:"span_s"` // of the run

	// Requests, and how each of them ended.
	Requests   uint64 `json:"requests"`
	Finished   uint64 `json:"finished"`
	TurnedAway uint64 `json:"turned_away"` // larger than a cache, or no room at the router
	GivenUp    uint64 `json:"given_up"`    // too many attempts were lost

	// Attempts that were lost, so that the request was computed anew, and why.
	Lost         uint64 `json:"lost"`
	LostLease    uint64 `json:"lost_lease"`    // its lease ended before it was read
	LostPCrash   uint64 `json:"lost_p_crash"`  //
	LostDCrash   uint64 `json:"lost_d_crash"`  //
	LostUnproven uint64 `json:"lost_unproven"` // its read failed, though its P lives
	LostTokens   uint64 `json:"lost_tokens"`   // of prefill, in vain
	Tokens       uint64 `json:"tokens"`        // of prefill, in all

	StaleReads  uint64 `json:"stale_reads"`  // reads that the fence refused
	ToldGone    uint64 `json:"told_gone"`    // requests that heard in the queue that their lease was over
	AtRisk      uint64 `json:"at_risk"`      // times that a reader was told that its heartbeats do not arrive
	Refused     uint64 `json:"refused"`      // requests that found their P's cache full
	RefusedWait Spans  `json:"refused_wait"` // for room in it
	Crowded     uint64 `json:"crowded"`      // times that no D had room

	CrashesP uint64 `json:"crashes_p"`
	CrashesD uint64 `json:"crashes_d"`
	Stalls   uint64 `json:"stalls"`

	Grants      uint64 `json:"grants"`
	Completed   uint64 `json:"completed"`
	Released    uint64 `json:"released"`
	Expired     uint64 `json:"expired"`
	WithProcess uint64 `json:"with_process"` // ended with their P

	BlockSeconds         float64 `json:"block_seconds"`           // under leases
	WastedBlockSeconds   float64 `json:"wasted_block_seconds"`    // held when nobody would read any more
	HandBackBlockSeconds float64 `json:"hand_back_block_seconds"` // from the end of the read to the end of the lease
	Reclaim              Spans   `json:"reclaim"`                 // from a D's crash to the ends of its leases
	First                Spans   `json:"first"`                   // of requests, from arrival to read
	Whole                Spans   `json:"whole"`                   // to the end

	BeatMessages uint64 `json:"beat_messages"`
	BeatBytes    uint64 `json:"beat_bytes"`
	Beats        uint64 `json:"beats"` // requests named in them
	RowReads     uint64 `json:"row_reads"`

	// Of all owners, and of all readers. One step in eight was timed; the longest is of those.
	StepsP   uint64 `json:"steps_p"`
	StepsD   uint64 `json:"steps_d"`
	CPUP     Span   `json:"cpu_p_s"`
	CPUD     Span   `json:"cpu_d_s"`
	StepMaxP Span   `json:"step_max_p_s"`
	StepMaxD Span   `json:"step_max_d_s"`
	BeatCPUP Span   `json:"beat_cpu_p_s"` // of these, heartbeats, at most
	BeatCPUD Span   `json:"beat_cpu_d_s"`

	Wall    Span               `json:"wall_s"`
	Samples jsons.List[Sample] `json:"samples"`
}

func (h *hist) spans() Spans {
	return Spans{h.n, Span(h.least), Span(h.quantile(0.5)), Span(h.quantile(0.99)), Span(h.up)}
}

func (w *world) result(wall time.Duration) *Result {
	p, d := &w.cpu[0], &w.cpu[1]
	r := &Result{
		Setting: w.set.Name(), Term: Span(w.set.Term), Fixed: w.set.Fixed, Span: Span(w.now.Sub(start)),
		Requests: w.arrived, Finished: w.ends[finished], TurnedAway: w.ends[turnedAway], GivenUp: w.ends[givenUp],
		LostLease: w.lostBy[lostLease], LostPCrash: w.lostBy[lostOwner], LostDCrash: w.lostBy[lostReader],
		LostUnproven: w.lostBy[lostUnproven], LostTokens: w.lostTokens, Tokens: w.tokens,
		StaleReads: w.failedBy[record.ReadStale], ToldGone: w.toldGone, AtRisk: w.atRisk,
		Refused: w.refused, RefusedWait: w.refusedFor.spans(), Crowded: w.crowded,
		CrashesP: w.crashesP, CrashesD: w.crashesD, Stalls: w.stalled,
		Grants: w.grants, Completed: w.freedBy[record.FreedCompleted], Released: w.freedBy[record.FreedReleased],
		Expired: w.freedBy[record.FreedExpired], WithProcess: w.freedBy[0],
		BlockSeconds: w.blockSeconds, WastedBlockSeconds: w.wasted, HandBackBlockSeconds: w.handBack,
		Reclaim: w.reclaim.spans(), First: w.first.spans(), Whole: w.whole.spans(),
		BeatMessages: w.beats.BeatBatches, BeatBytes: w.beats.BeatBytes, Beats: w.beats.Beats, RowReads: w.beats.Rows,
		StepsP: p.steps, StepsD: d.steps, CPUP: Span(p.total()), CPUD: Span(d.total()), StepMaxP: Span(p.most), StepMaxD: Span(d.most),
		BeatCPUP: Span(p.ofBeats()), BeatCPUD: Span(d.ofBeats()), Wall: Span(wall), Samples: w.samples.list,
	}
	for _, n := range w.lostBy {
		r.Lost += n
	}
	return r
}
