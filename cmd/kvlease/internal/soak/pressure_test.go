package soak

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestPressureIsReadAsTheKernelWritesIt(t *testing.T) {
	some, full := pressureTotals("some avg10=11.99 avg60=18.48 avg300=47.74 total=10224347309\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=77\n")
	if some != 10224347309 || full != 77 {
		t.Errorf("some %d, full %d", some, full)
	}
	if some, full = pressureTotals(""); some != 0 || full != 0 {
		t.Errorf("of nothing: %d, %d", some, full)
	}
	if n := majorFaults("27096 (a) R 1 (b)) R 27093 27093 21009 0 -1 4194304 99 5 123 6 0 0"); n != 123 {
		t.Errorf("%d major faults, want the twelfth field", n)
	}
	if n := majorFaults("1 (x"); n != 0 {
		t.Errorf("%d of half a line", n)
	}
	before := readPressure()
	time.Sleep(time.Millisecond)
	if d := readPressure().since(before); d.Seconds <= 0 || d.Seconds > 60 || d.MemFull > 60e6 {
		t.Errorf("since then %+v", d)
	}
}

func TestTheWorstStallSaysHowManyStoodWithIt(t *testing.T) {
	w := worst([]Stall{{LeaseMs: 50, What: "pause", Ms: 3}, {LeaseMs: 75, What: "step", Ms: 900, LoadMs: 890}, {LeaseMs: 100, What: "step", Ms: 450}, {Ms: 449}})
	if w.LeaseMs != 75 || w.Others != 1 || w.LoadMs != 890 {
		t.Errorf("%+v", w)
	}
	if w := worst([]Stall{{}, {}}); w != nil {
		t.Errorf("of nothing: %+v", w)
	}
	run := &Run{P: Process{Contexts: []Figures{{LeaseMs: 75}}}, D: Process{Contexts: []Figures{{LeaseMs: 75, LoadMaxMs: 890}}, Worst: w,
		Pressure: Pressure{Seconds: 600, CPUSome: 9e6, MemFull: 2e6, MajorFaults: 4, Reclaimed: 5}}}
	var out bytes.Buffer
	run.print(&out)
	for _, want := range []string{"longest stall: a step of 900.0 ms with a load of 890.0 ms, 75 ms lease", "1 other contexts", "memory 0.00 s (all 2.00)",
		"4 major faults here", "5 pages", "890.00"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
