package flame

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Cost is what one function took.
type Cost struct {
	Name        string
	Self, Total float64 // shares of all weight: in the function itself, and with what it calls
}

// Top gives kvlease's own functions with the largest share of their own, at most n, and the share of each kind of code. A
// function counts as one whichever programs it is linked into.
func Top(stacks []Stack, n int) (top []Cost, byKind [kinds]float64) {
	self, total := map[string]int64{}, map[string]int64{}
	var kind [kinds]int64
	var all int64
	for _, s := range stacks {
		if len(s.Frames) == 0 {
			continue
		}
		all += s.Weight
		leaf := s.Frames[len(s.Frames)-1]
		kind[KindOf(leaf)] += s.Weight
		self[leaf.Name] += s.Weight
		for i, f := range s.Frames {
			if KindOf(f).Ours() && !slices.Contains(s.Frames[:i], f) { // once, however deep it calls itself
				total[f.Name] += s.Weight
			}
		}
	}
	share := func(w int64) float64 { return float64(w) / float64(max(all, 1)) }
	for f, w := range total {
		top = append(top, Cost{f, share(self[f]), share(w)})
	}
	slices.SortFunc(top, func(a, b Cost) int {
		return cmp.Or(cmp.Compare(b.Self, a.Self), cmp.Compare(b.Total, a.Total), strings.Compare(a.Name, b.Name))
	})
	for k, w := range kind {
		byKind[k] = share(w)
	}
	return top[:min(n, len(top))], byKind
}

// ReadNotes reads lines "function: what was done about it"; # begins a comment.
func ReadNotes(r io.Reader) (map[string]string, error) {
	notes := map[string]string{}
	in := bufio.NewScanner(r)
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, note, found := strings.Cut(line, ": ")
		if !found {
			return nil, fmt.Errorf("notes, line %d: no \"function: note\"", n)
		}
		notes[name] = note
	}
	return notes, in.Err()
}

// WriteTop writes the table and what all is made of, as Markdown.
func WriteTop(w io.Writer, stacks []Stack, n int, notes map[string]string) error {
	top, byKind := Top(stacks, n)
	var b strings.Builder
	b.WriteString("Samples are in ")
	sep := ""
	for k := OursGo; k < kinds; k++ {
		fmt.Fprintf(&b, "%s%s %.1f %%", sep, kindName[k], 100*byKind[k])
		sep = ", "
	}
	b.WriteString(".\n\n| | function | itself | with what it calls | what was done |\n|---:|---|---:|---:|---|\n")
	cell := strings.NewReplacer("`", "'", "|", "\\|")
	for i, c := range top {
		note := notes[c.Name]
		if note == "" {
			note = "not looked at yet"
		}
		fmt.Fprintf(&b, "| %d | `%s` | %.2f %% | %.2f %% | %s |\n", i+1, cell.Replace(c.Name), 100*c.Self, 100*c.Total, strings.ReplaceAll(note, "|", "\\|"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
