package faults

import "testing"

func TestParses(t *testing.T) {
	r, err := Load("../..")
	if err != nil {
		t.Fatal(err)
	}
	marks, err := Scan("../..", r.CTests)
	if err != nil {
		t.Error(err)
	}
	n, err := r.Check(marks)
	t.Log(n, len(r.Cases))
	t.Log(err)
}
