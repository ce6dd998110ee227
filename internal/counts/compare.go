package counts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"

	"github.com/kvlease/kvlease/internal/output"
)

// ErrGrown is what Compare answers if a count has grown beyond its tolerance.
var ErrGrown = errors.New("hot functions take more instructions than before")

// File is what is committed as bench/counts.json.
type File struct {
	Commit string             `json:"commit"`
	Tools  map[string]string  `json:"tools"`
	Counts map[string]float64 `json:"counts"` // by Item.Name
}

// Load reads a file.
func Load(path string) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := new(File)
	if err := json.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(f.Tools) == 0 || len(f.Counts) == 0 {
		return nil, fmt.Errorf("%s: it has no tools or no counts", path)
	}
	for name, n := range f.Counts {
		if !(n > 0) {
			return nil, fmt.Errorf("%s: %q is %v", path, name, n)
		}
	}
	return f, nil
}

// Save writes it, counts to a hundredth.
func (f *File) Save(path string) error {
	for name, n := range f.Counts {
		f.Counts[name] = math.Round(n*100) / 100
	}
	text, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return err
	}
	return output.WriteFile(path, "name another file by -file", append(text, '\n'))
}

// goTools are the tools on which a count of a Go benchmark depends; C programs depend on all.
var goTools = []string{"arch", "cpu", "go", "valgrind"}

// Compare writes a table of what is, with what was, and answers ErrGrown with the names. Counts of other tools are shown and not compared, and it says so.
func Compare(w io.Writer, chosen []Item, was, is *File) error {
	return compare(w, chosen, items, was, is)
}

func compare(w io.Writer, chosen, all []Item, was, is *File) error {
	other := make(map[string]bool)
	for _, tool := range slices.Sorted(maps.Keys(is.Tools)) {
		if was.Tools[tool] != is.Tools[tool] {
			other[tool] = true
			fmt.Fprintf(w, "counts: not the same %s: %s, committed are counts of %s\n", tool, is.Tools[tool], was.Tools[tool])
		}
	}
	var errs []error
	compared, fewer := 0, 0
	for i := range chosen {
		it := &chosen[i]
		n, before := is.Counts[it.Name], was.Counts[it.Name]
		line := fmt.Sprintf("%-46s %10s per %s", it.Name, number(n), it.Per)
		switch apart := it.depends(other); {
		case before == 0:
			errs = append(errs, fmt.Errorf("%w: %s is counted, and not committed", ErrGrown, it.Name))
			line += ", new"
		case apart != "":
			line += fmt.Sprintf(", not compared with %s: other %s", number(before), apart)
		default:
			compared++
			line += fmt.Sprintf(", before %s: %+.1f %%", number(before), 100*(n/before-1))
			if n > before*(1+it.Tolerance) {
				line += ", MORE"
				errs = append(errs, fmt.Errorf("%w: %s: %s for %s, %+.1f %%, allowed is %+.0f %%", ErrGrown, it.Name, number(n), number(before), 100*(n/before-1), 100*it.Tolerance))
			} else if n < before*(1-it.Tolerance) {
				line += ", fewer"
				fewer++
			}
		}
		fmt.Fprintln(w, line)
	}
	for _, name := range slices.Sorted(maps.Keys(was.Counts)) {
		if !slices.ContainsFunc(all, func(it Item) bool { return it.Name == name }) {
			errs = append(errs, fmt.Errorf("%w: %s is committed, and counted no more", ErrGrown, name))
		}
	}
	fmt.Fprintf(w, "counts: %d of %d compared with those of commit %s\n", compared, len(chosen), was.Commit)
	if fewer > 0 {
		fmt.Fprintf(w, "counts: %d take fewer instructions: make counts RENEW=1 holds what was won\n", fewer)
	}
	return errors.Join(errs...)
}

// depends names a tool that is another one and counts for this item.
func (it *Item) depends(other map[string]bool) string {
	for _, tool := range slices.Sorted(maps.Keys(other)) {
		if it.C || slices.Contains(goTools, tool) {
			return tool
		}
	}
	return ""
}

// number writes a count with as many places as may matter.
func number(n float64) string {
	if n < 1000 {
		return fmt.Sprintf("%.1f", n)
	}
	return fmt.Sprintf("%.0f", n)
}
