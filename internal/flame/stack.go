// Package flame makes flame graphs and tables of what perf has sampled, where C calls Go and Go calls C.
//
// Stacks travel in folded text: a line a stack, frames from the outermost on with semicolons between, then a blank and the
// weight. A frame is a name and, in brackets behind it, the file that it is in.
package flame

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Frame is one function of a stack; without a file it is a heading: a thread's or a benchmark's name.
type Frame struct{ Name, File string }

func (f Frame) String() string {
	if f.File == "" {
		return f.Name
	}
	return f.Name + " [" + f.File + "]"
}

// Stack is a weighted list of frames, the outermost first.
type Stack struct {
	Frames []Frame
	Weight int64 // ns of the software clock, or events of a counter
}

// lineMax is the longest line read: NIXL's C++ names take hundreds of bytes each, and a stack has at most 127 of them.
const lineMax = 1 << 20

// clean leaves nothing in a name that would end a frame or a line, or that XML forbids.
func clean(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ';':
			return ':'
		case unicode.IsControl(r), r == '\ufffe', r == '\uffff':
			return '\ufffd'
		}
		return r
	}, strings.ToValidUTF8(name, "\ufffd"))
}

// WriteFolded writes stacks in the order of their text, those with the same frames as one.
func WriteFolded(w io.Writer, stacks []Stack) error {
	sum := map[string]int64{}
	for _, s := range stacks {
		names := make([]string, len(s.Frames))
		for i, f := range s.Frames {
			names[i] = clean(f.String())
		}
		sum[strings.Join(names, ";")] += s.Weight
	}
	lines := make([]string, 0, len(sum))
	for line, weight := range sum {
		lines = append(lines, line+" "+strconv.FormatInt(weight, 10)+"\n")
	}
	slices.Sort(lines)
	_, err := io.WriteString(w, strings.Join(lines, ""))
	return err
}

// ReadFolded reads what WriteFolded wrote, or another tool.
func ReadFolded(r io.Reader) ([]Stack, error) {
	var stacks []Stack
	in := bufio.NewScanner(r)
	in.Buffer(nil, lineMax)
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		if line == "" {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		weight, err := strconv.ParseInt(line[at+1:], 10, 64)
		if at < 0 || err != nil || weight < 0 {
			return nil, fmt.Errorf("folded stacks, line %d: no weight behind the last blank", n)
		}
		s := Stack{Weight: weight}
		for name := range strings.SplitSeq(line[:at], ";") {
			s.Frames = append(s.Frames, parseFrame(name))
		}
		stacks = append(stacks, s)
	}
	return stacks, in.Err()
}

func parseFrame(s string) Frame {
	s = clean(s)
	if at := strings.LastIndex(s, " ["); at > 0 && at+2 < len(s)-1 && s[len(s)-1] == ']' { // " []" is a part of the name: a frame without a file is written without it
		return Frame{s[:at], s[at+2 : len(s)-1]}
	}
	return Frame{Name: s}
}

// Under keeps the stacks that pass through a function whose name matches.
func Under(stacks []Stack, through *regexp.Regexp) []Stack {
	return slices.DeleteFunc(slices.Clone(stacks), func(s Stack) bool {
		return !slices.ContainsFunc(s.Frames, func(f Frame) bool { return through.MatchString(f.Name) })
	})
}

// Scale makes the sum of the weights about this much, so that runs of different length count the same.
func Scale(stacks []Stack, to int64) []Stack {
	var all int64
	for _, s := range stacks {
		all += s.Weight
	}
	scaled := slices.Clone(stacks)
	for i := range scaled {
		scaled[i].Weight = int64(float64(scaled[i].Weight) / float64(max(all, 1)) * float64(to))
	}
	return scaled
}
