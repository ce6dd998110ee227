package sim

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var (
	showFlag = flag.Uint64("sim.show", 0, "print the log of this seed")
	grepFlag = flag.String("sim.grep", "", "only lines with one of these words")
)

func TestShow(t *testing.T) {
	if *showFlag == 0 {
		t.Skip("no seed to show: give -sim.show")
	}
	s := Random(*showFlag, nil)
	fmt.Printf("%+v\n%+v\n", s.Link, s.Engines)
	r, err := Run(s, Options{Log: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Log {
		line := r.Log[i].String()
		for _, w := range strings.Split(*grepFlag, "|") {
			if strings.Contains(line, w) {
				fmt.Fprintln(os.Stdout, line)
				break
			}
		}
	}
}
