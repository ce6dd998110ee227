package soak

import "testing"

// FuzzProc: whatever stands in the files of /proc that a soak run reads, nothing panics.
func FuzzProc(f *testing.F) {
	f.Add("some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n", "7 (a) b) S 1 7 7 0 -1 4194304 100 0 5 0 1")
	f.Add("some total=99999999999999999999", "1 (")
	f.Fuzz(func(t *testing.T, pressure, stat string) {
		pressureTotals(pressure)
		majorFaults(stat)
	})
}
