package sim

import (
	"path/filepath"
	"strings"
	"testing"
)

// Every case file is run and what it expects is looked at. Which lines of docs/faults.yaml an expectation shows stands beside it.
func TestEveryCaseComesOutRight(t *testing.T) {
	for _, file := range caseFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			c, err := LoadCase(file)
			if err != nil {
				t.Fatal(err)
			}
			out, err := c.Run(false)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range out.Result.Violations {
				t.Errorf("seed %d: %v", out.Seed, v)
			}
			for _, f := range out.Findings {
				if !f.OK {
					t.Errorf("%s:%d: seed %d: %s: at %v: %s", file, f.Expectation.Line(), out.Seed, f.Expectation, f.At, f.Got)
				}
			}
		})
	}
}
