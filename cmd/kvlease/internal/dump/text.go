package dump

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/pages"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/internal/plural"
)

// WriteJSON prints one object in a line.
func (r *Report) WriteJSON(w io.Writer) error {
	line, err := text.JSON(r)
	if err != nil {
		return err
	}
	_, err = w.Write(line)
	return err
}

// WriteText prints tables, of each context the last ends up to so many.
func (r *Report) WriteText(w io.Writer, ends int) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "process %d, %s, at %s\n", r.PID, r.State, r.At.Format("2006-01-02 15:04:05.000 -0700"))
	for _, c := range r.Contexts {
		b.WriteByte('\n')
		c.write(&b, ends)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func span(ns int64) string { return text.Span(time.Duration(ns)) }

func spanOf(ns *int64) string {
	if ns == nil {
		return ""
	}
	return span(*ns)
}

func (c *Context) write(b *bytes.Buffer, ends int) {
	fmt.Fprintf(b, "context %d: %s, %s", c.Context, text.Printable(c.Engine), text.Printable(c.Role))
	if c.Role == "rank" {
		fmt.Fprintf(b, " %d of %d", c.Rank, c.TP*c.PP)
	}
	fmt.Fprintf(b, "; kvlease %s over %s, %s, open for %s\n", text.Printable(c.Library), text.Printable(c.Transport), text.Printable(c.Drive), span(c.OpenNs))
	fmt.Fprintf(b, "  leases of %s, a heartbeat every %s buys %s; the page is %s old\n", span(c.DurationNs), span(c.IntervalNs), span(c.ExtensionNs), span(max(0, c.PageAgeNs)))
	fmt.Fprintf(b, "  by the page: %s\n", c.totals())
	for _, m := range []struct {
		is   bool
		text string
	}{
		{c.Memory.of, c.Memory.String()},
		{c.Poisoned, "poisoned: every row is closed, and all leases end"},
		{c.Draining, "draining: it takes nothing new"},
		{c.Untaken > 0, pages.Untaken(c.Role, c.Untaken)},
		{c.LogLost > 0, plural.Counted(c.LogLost, "record of its log is", "records of its log are") + " lost: nobody takes them, or too seldom"},
		{c.Why != "", c.Why},
	} {
		if m.is {
			fmt.Fprintf(b, "  %s\n", text.Printable(m.text))
		}
	}
	if len(c.Readers) > 0 {
		c.writeReaders(b)
	}
	if len(c.Owners) > 0 {
		c.writeOwners(b)
	}
	if c.Table {
		c.writeLeases(b)
	}
	c.writeEnds(b, ends)
}

func (m *Memory) String() string {
	have := text.Bytes(float64(m.Registered)) + "B"
	switch {
	case m.Registering > 0:
		return fmt.Sprintf("memory: %s of %sB are registered so far", have, text.Bytes(float64(m.Registering)))
	case m.Unproven > 0:
		return fmt.Sprintf("memory: %s; that peers can read %s was not shown: memory_unproven in its log", have, plural.Counted(m.Unproven, "region", "regions"))
	case m.Proven > 0:
		return fmt.Sprintf("memory: %s; of %s a page was read back as by a peer", have, plural.Counted(m.Proven, "region", "regions"))
	}
	if m.Registered == 0 && m.Asleep {
		return "memory: unregistered on purpose, it sleeps"
	}
	if m.Registered == 0 {
		return "memory: none is registered; nobody can read from it, and it reads nothing"
	}
	return "memory: " + have // of a library that does not tell
}

func (c *Context) totals() string {
	s := plural.Counted(c.Held, "lease", "leases") + " with " + plural.Counted(c.Blocks, "block", "blocks")
	if c.BlockBytes > 0 {
		s += fmt.Sprintf(" (%sB)", text.Bytes(float64(c.Blocks*c.BlockBytes)))
	}
	var list []string
	for _, reason := range record.FreedNames {
		if n := c.Freed[reason]; n > 0 {
			list = append(list, fmt.Sprintf("%s %d", reason, n))
		}
	}
	if len(list) > 0 {
		s += "; ended so far: " + strings.Join(list, ", ")
	}
	return s
}

func indent(b *bytes.Buffer, lines []string) {
	for _, l := range lines {
		b.WriteString("  " + l + "\n")
	}
}

func (c *Context) writeReaders(b *bytes.Buffer) {
	var rows [][]string
	for i := range c.Readers {
		r := &c.Readers[i]
		rows = append(rows, []string{
			text.Cut(text.Printable(r.Name), nameCells), fmt.Sprint(r.Leases), fmt.Sprint(r.Blocks), spanOf(r.BeatAgeNs), spanOf(r.LeastSlackNs), r.Hash, r.Epoch,
		})
	}
	b.WriteByte('\n')
	indent(b, text.Table([]text.Column{{Head: "READER"}, {Head: "LEASES", Right: true}, {Head: "BLOCKS", Right: true}, {Head: "BEAT AGO", Right: true}, {Head: "LEAST SLACK", Right: true}, {Head: "HASH"}, {Head: "EPOCH"}}, rows))
}

func (c *Context) writeOwners(b *bytes.Buffer) {
	var rows [][]string
	for i := range c.Owners {
		o := &c.Owners[i]
		reads, fails, read := fmt.Sprint(o.Reads), fmt.Sprint(o.Fails), text.Bytes(float64(o.Bytes))
		if c.Role == "host" { // it reads nothing itself: its ranks' dumps have it
			reads, fails, read = "", "", ""
		}
		state := text.Printable(o.State)
		if o.Missed && o.State == "connected" { // by one of its ranks, or by reads that bring nothing
			state += ", fails"
		}
		rows = append(rows, []string{
			text.Cut(text.Printable(o.Name), nameCells), state, fmt.Sprint(o.Tracked), reads, spanOf(o.BeatAgeNs), spanOf(o.HeardAgeNs),
			fails, read, text.Printable(o.Address), c.asked(o),
		})
	}
	b.WriteByte('\n')
	indent(b, text.Table([]text.Column{
		{Head: "READS FROM"}, {Head: "STATE"}, {Head: "TRACKED", Right: true}, {Head: "READS", Right: true}, {Head: "BEAT AGO", Right: true}, {Head: "HEARD AGO", Right: true},
		{Head: "FAILS", Right: true}, {Head: "BYTES", Right: true}, {Head: "ADDRESS"}, {Head: "HANDSHAKE"},
	}, rows))
}

// asked is how asking an engine for its maps stands.
func (c *Context) asked(o *Owner) string {
	if o.Asked == "" && c.Role == "rank" {
		return "by host" // whose own dump has it
	}
	if o.AskFails == 0 {
		return text.Printable(o.Asked)
	}
	return fmt.Sprintf("%s: %s in %s (%s)", text.Printable(o.Asked), plural.Counted(o.AskFails, "failure", "failures"), spanOf(o.AskSinceNs), text.Printable(o.AskWhy))
}

// nameCells is what names of readers get, so that one long name leaves the rest readable.
const nameCells = 40

func (c *Context) writeLeases(b *bytes.Buffer) {
	states := map[string]int{}
	var rows [][]string
	for i := range c.Leases {
		l := &c.Leases[i]
		states[l.State]++
		marks := slices.Clone(l.Marks)
		if l.Torn {
			marks = append(marks, "torn")
		}
		state := l.State
		if l.Reason != "" {
			state += ": " + l.Reason
		}
		age, blocks, beats := spanOf(l.AgeNs), fmt.Sprint(l.Blocks), fmt.Sprint(l.Beats)
		if l.State == "expected" || l.State == "lapsed" {
			blocks = ""
		}
		if l.AgeNs == nil || l.State == "ended" {
			beats = ""
		}
		rows = append(rows, []string{
			spanOf(l.SlackNs), state, age, blocks, beats, text.Cut(text.Printable(l.Reader), nameCells), fmt.Sprintf("%d:%d", l.Slot, l.Use), l.User, strings.Join(marks, ", "), l.name(),
		})
	}
	b.WriteByte('\n')
	fmt.Fprintf(b, "  %s in memory", plural.Counted(len(c.Leases), "slot in use", "slots in use"))
	var list []string
	for _, s := range [...]string{"held", "due", "lingers", "ended", "submitted", "expected", "lapsed"} {
		if states[s] > 0 {
			list = append(list, fmt.Sprintf("%d %s", states[s], s))
		}
	}
	if len(list) > 0 {
		fmt.Fprintf(b, ": %s", strings.Join(list, ", "))
	}
	fmt.Fprintf(b, "; %d of %d were ever used", c.Used, c.Slots)
	if c.Torn > 0 {
		fmt.Fprintf(b, "; torn %d: they changed with every look", c.Torn)
	}
	b.WriteByte('\n')
	if len(rows) > 0 {
		indent(b, text.Table([]text.Column{
			{Head: "SLACK", Right: true}, {Head: "STATE"}, {Head: "AGE", Right: true}, {Head: "BLOCKS", Right: true}, {Head: "BEATS", Right: true}, {Head: "READER"},
			{Head: "SLOT:USE"}, {Head: "USER", Right: true}, {Head: "MARKS"}, {Head: "ID"},
		}, rows))
	}
}

// name is the id, its hash, or why there is none.
func (l *Lease) name() string {
	switch {
	case l.ID != "":
		return text.Printable(l.ID)
	case l.IDHash != "":
		return "#" + l.IDHash
	case l.idLen > 0:
		return "(an id of " + plural.Counted(l.idLen, "byte", "bytes") + ")"
	case l.State == "submitted":
		return "(still in the ring)"
	}
	return "(no id kept)"
}

func (c *Context) writeEnds(b *bytes.Buffer, most int) {
	if len(c.Ends) == 0 || most == 0 {
		return
	}
	shown := c.Ends[max(0, len(c.Ends)-most):]
	var rows [][]string
	for i := range slices.Backward(shown) {
		e := &shown[i]
		id := text.Printable(e.ID)
		switch {
		case e.ID == "" && e.IDHash != "":
			id = "#" + e.IDHash
		case e.IDLen > len(e.ID):
			id += fmt.Sprintf("… (%d bytes)", e.IDLen)
		}
		rows = append(rows, []string{
			span(e.AgoNs), e.Reason, span(e.HeldNs), fmt.Sprint(e.Blocks), text.Cut(text.Printable(e.Reader), nameCells), fmt.Sprintf("%d:%d", e.Slot, e.Use), e.User, id,
		})
	}
	fmt.Fprintf(b, "\n  ended last, %d of %d", len(shown), c.Ends[len(c.Ends)-1].Number)
	if len(shown) < len(c.Ends) {
		fmt.Fprintf(b, " (--ends %d shows what is kept)", len(c.Ends))
	}
	b.WriteByte('\n')
	indent(b, text.Table([]text.Column{
		{Head: "AGO", Right: true}, {Head: "REASON"}, {Head: "HELD", Right: true}, {Head: "BLOCKS", Right: true}, {Head: "READER"}, {Head: "SLOT:USE"}, {Head: "USER", Right: true}, {Head: "ID"},
	}, rows))
}
