// Package counts counts the instructions of hot functions under valgrind, a measure without noise beside the times of bench/, and
// compares them with those that are committed.
package counts

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ErrProfile is what ReadCallgrind answers for text that is no profile.
var ErrProfile = errors.New("not a profile of callgrind")

// Calls is what one function did below another.
type Calls struct {
	N            uint64 // calls
	Instructions uint64 // of the called function with all that it calls
}

// Profile is a callgrind.out file, format version 1, as far as it is used: valgrind's manual, "Callgrind Format Specification".
type Profile struct {
	Total uint64              // instructions of the whole process
	calls map[[2]string]Calls // by caller and called
	own   map[string]uint64   // instructions of each function without what it calls
}

// Callgrind numbers names where they first occur, and marks a function that is on the stack already by '2, '3 and so on. A line of costs begins with
// a position, which may be told by how far it is from the last one.
var (
	cost      = regexp.MustCompile(`^[+-]?\d|^\* `)
	numbered  = regexp.MustCompile(`^\((\d+)\)(?: (.*))?$`)
	recursion = regexp.MustCompile(`'\d+$`)
)

// ReadCallgrind reads a profile of one event, the instructions.
func ReadCallgrind(r io.Reader) (*Profile, error) {
	p := &Profile{calls: make(map[[2]string]Calls), own: make(map[string]uint64)}
	names := make(map[string]string)
	name := func(text string) string {
		m := numbered.FindStringSubmatch(text)
		if m == nil {
			return recursion.ReplaceAllString(text, "")
		}
		if m[2] != "" {
			names[m[1]] = recursion.ReplaceAllString(m[2], "")
		}
		return names[m[1]]
	}
	var by, called string
	var calls uint64 // of the next line of costs
	events := false
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for n := 1; in.Scan(); n++ {
		line := in.Text()
		key, value, _ := strings.Cut(line, "=")
		var err error
		switch {
		case line == "events: Ir":
			events = true
		case strings.HasPrefix(line, "totals: "):
			p.Total, err = strconv.ParseUint(line[len("totals: "):], 10, 64)
		case key == "fn":
			by = name(value)
		case key == "cfn":
			called = name(value)
		case key == "calls":
			count, _, _ := strings.Cut(value, " ")
			calls, err = strconv.ParseUint(count, 10, 64)
		case calls > 0 || cost.MatchString(line):
			fields := strings.Fields(line)
			var cost uint64
			if len(fields) != 2 {
				err = fmt.Errorf("%q is no position and cost", line)
			} else if cost, err = strconv.ParseUint(fields[1], 10, 64); err == nil && calls == 0 {
				p.own[by] += cost
			} else if err == nil && by != called {
				c := p.calls[[2]string{by, called}]
				p.calls[[2]string{by, called}] = Calls{c.N + calls, c.Instructions + cost}
			}
			calls = 0
		}
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %v", ErrProfile, n, err)
		}
	}
	switch {
	case in.Err() != nil:
		return nil, fmt.Errorf("%w: %v", ErrProfile, in.Err())
	case !events || p.Total == 0:
		return nil, fmt.Errorf("%w: it lacks the events line or the totals", ErrProfile)
	}
	return p, nil
}

// Of sums the calls of a function by all but these, which are those that prepare what is counted. A name of Go is cut to what follows the last slash:
// lease.(*Table).Sweep. Who called is not always known: where Go changes a goroutine's stack, callgrind may keep a function that has returned.
func (p *Profile) Of(called string, except ...string) (c Calls) {
	for pair, calls := range p.calls {
		if short(pair[1]) == called && !slices.Contains(except, short(pair[0])) {
			c.N += calls.N
			c.Instructions += calls.Instructions
		}
	}
	return c
}

// But is what all functions took themselves whose names do not begin so. It does not depend on who called whom.
func (p *Profile) But(prefix string) (n uint64) {
	for name, own := range p.own {
		if !strings.HasPrefix(name, prefix) {
			n += own
		}
	}
	return n
}

// short cuts the path of a Go function's package.
func short(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }
