package faults

import (
	"errors"
	"fmt"
)

// Counts says how the right lines of the registry stand.
type Counts struct{ Shown, Open, NotApplicable int }

// Check says what is wrong between the registry and the marks: a line that nothing shows, one that is excused and yet
// shown, a mark that names no line.
func (r *Registry) Check(marks []Mark) (Counts, error) {
	shown := map[string]int{}
	for _, m := range marks {
		shown[m.Line]++
	}
	var n Counts
	var wrong []error
	known := map[string]bool{}
	for i := range r.Cases {
		c := &r.Cases[i]
		if len(c.Right) == 0 {
			n.NotApplicable++
		}
		for j, right := range c.Right {
			name := line(c, j)
			known[name] = true
			has := shown[name] > 0
			switch {
			case right.NA != "" && has:
				wrong = append(wrong, fmt.Errorf("%s is marked, and called not applicable", name))
			case right.Open != "" && has:
				wrong = append(wrong, fmt.Errorf("%s is marked: it is not open any more", name))
			case right.NA != "":
				n.NotApplicable++
			case right.Open != "":
				n.Open++
			case has:
				n.Shown++
			default:
				wrong = append(wrong, fmt.Errorf("%s is shown by no test: %s", name, right.Says))
			}
		}
	}
	for _, m := range marks {
		if !known[m.Line] {
			wrong = append(wrong, fmt.Errorf("%s:%d: shows %s, which is no line of %s", m.File, m.At, m.Line, RegistryFile))
		}
	}
	return n, errors.Join(wrong...)
}
