package edges

import (
	"flag"
	"testing"
)

var long = flag.Bool("long", false, "run the long scenes, too")

func TestEachEdgeHoldsAndEachWeakerOneIsRefuted(t *testing.T) {
	for _, s := range Scenes() {
		t.Run(s.Name, func(t *testing.T) {
			if s.Long && !*long {
				t.Skip("-long runs it")
			}
			s.Run(func(r Run) {
				t.Logf("%-50s %8d graphs %8d executions %6d left out: bad %v", r.Change, r.Graphs, r.Executions, r.LeftOut, r.Bad != nil)
				if !r.OK() && r.Bad != nil {
					t.Errorf("as it is: %v", r.Bad)
				} else if !r.OK() {
					t.Errorf("%s: nothing bad found in %d executions", r.Change, r.Executions)
				}
			})
		})
	}
}
