package demo

import (
	"encoding/json"
	"fmt"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
)

// counters are what P has heard up to a point in time.
type counters struct {
	at             uint64
	batches, beats uint64
}

func (s *stage) counters() (counters, error) {
	answer, err := s.p.ask(s.ctx, jsonl.Command{Cmd: "stats"})
	if err != nil {
		return counters{}, err
	}
	var stats struct {
		Batches *uint64 `json:"batches_received"`
		Beats   *uint64 `json:"beats_applied"`
	}
	if err := json.Unmarshal(answer[0].Stats, &stats); err != nil || stats.Batches == nil || stats.Beats == nil {
		return counters{}, fmt.Errorf("%s: the counters of %s lack batches_received or beats_applied: %v", s.name(), s.p, err)
	}
	return counters{at: answer[0].TimeNS, batches: *stats.Batches, beats: *stats.Beats}, nil
}
