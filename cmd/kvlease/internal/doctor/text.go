package doctor

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
)

// Write prints a report for people: what is well in a line, the rest with why it matters and what to do.
func (r *Report) Write(to io.Writer) error {
	w := bufio.NewWriter(to)
	width := 0
	for _, l := range r.Results {
		width = max(width, text.Width(text.Printable(l.Name)))
	}
	group := ""
	for _, l := range r.Results {
		if l.Group != group {
			group = l.Group
			fmt.Fprintln(w, group)
		}
		fmt.Fprintf(w, "  %s  %s  %s\n", l.State, text.Left(text.Printable(l.Name), width), text.Printable(l.Value))
		if l.Why != "" {
			fmt.Fprintf(w, "        why  %s\n        fix  %s\n", text.Printable(l.Why), text.Printable(l.Fix))
		}
	}
	for _, s := range r.Settings {
		s.write(w)
	}
	fmt.Fprintf(w, "%d pass, %d warn, %d fail, %d skip\n", r.Counts[Pass], r.Counts[Warn], r.Counts[Fail], r.Counts[Skip])
	return w.Flush()
}

// write prints the settings of a GPU, as lines that a shell takes.
func (s *Settings) write(w io.Writer) {
	if len(s.Env) == 0 {
		return
	}
	fmt.Fprintf(w, "settings for the rank on GPU %d\n", s.GPU)
	_ = s.WriteShell(w) // the report's own end says so
}

// WriteShell prints the settings that the user has not made, each below its reason.
func (s *Settings) WriteShell(to io.Writer) error {
	w := bufio.NewWriter(to)
	for _, v := range s.Env {
		fmt.Fprintf(w, "  # %s\n", v.Reason)
		if v.IsSet {
			fmt.Fprintf(w, "  # %s is %s already, and stays so\n", v.Name, shellQuote(v.Users))
			continue
		}
		fmt.Fprintf(w, "  export %s=%s\n", v.Name, shellQuote(v.Value))
	}
	return w.Flush()
}

// shellQuote makes a value one word of a shell.
func shellQuote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:,.-/") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(text.Printable(s), "'", `'\''`) + "'"
}
