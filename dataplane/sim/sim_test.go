package sim

import (
	"bytes"
	"flag"
	"testing"
	"time"
)

var (
	seedsFlag = flag.Int("sim.seeds", 200, "random runs")
	firstFlag = flag.Uint64("sim.first", 0, "seed of the first one; 0: by the clock")
)

func TestNoRandomRunBreaksARule(t *testing.T) {
	first := *firstFlag
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	t.Logf("seeds from %d on", first)
	var sum Result
	bad := 0
	for i := range *seedsFlag {
		seed := first + uint64(i)
		r, err := Run(Random(seed, nil), Options{})
		if err != nil {
			t.Fatal(err)
		}
		sum.add(r)
		if !r.OK() {
			bad++
			t.Errorf("seed %d: %v", seed, r.Violations[0])
			if bad > 20 {
				break
			}
		}
	}
	t.Logf("%d leases, %d reads done, failed by status %v, freed by reason %v, %d blocks compared, %d wrong at stock peers", sum.Granted, sum.Done, sum.Failed, sum.Freed, sum.Compared, sum.StockWrong)
}

// TestSeedsThatOnceBrokeARule runs again what random runs have found.
func TestSeedsThatOnceBrokeARule(t *testing.T) {
	for seed, what := range map[uint64]string{
		77000618:            "a grant for memory that had gone stood over the next",
		77001444:            "slots whose expectation ended unheard",
		88000851:            "two places that run one engine id",
		500000950:           "a host that breaks before a rank has heard of it",
		1796025606195244930: "a rank that missed the end of an expectation",
		183100000000002753:  "a lease renewed while its second look waited for a backlog, and not again",
		183200000000003821:  "blocks that a stock owner had spoilt itself",
		190100000000000021:  "two leases of a stock owner under one id",
		190700000000000924:  "an expectation under an id whose lease came and went in the same step",
		190800000000003042:  "a rank that joins a host which is broken already",
		190200000000002570:  "a lease renewed while its second look waited, of an owner whose every pass is a stall",
	} {
		r, err := Run(Random(seed, nil), Options{})
		if err != nil {
			t.Errorf("seed %d (%s): %v", seed, what, err)
		} else if !r.OK() {
			t.Errorf("seed %d (%s): %v", seed, what, r.Violations[0])
		}
	}
}

func TestTheSameScheduleGivesTheSameLog(t *testing.T) {
	for seed := range uint64(10) {
		var logs [2]bytes.Buffer
		for i := range logs {
			r, err := Run(Random(seed, nil), Options{Log: true})
			if err != nil {
				t.Fatal(err)
			}
			r.Log.WriteTo(&logs[i])
		}
		if !bytes.Equal(logs[0].Bytes(), logs[1].Bytes()) {
			t.Fatalf("seed %d: two runs differ", seed)
		}
	}
}
