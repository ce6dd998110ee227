package log

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/internal/plural"
)

// Line is a record as it is told. JSON has these keys, those that are empty left out; Format gives the same as key=value.
type Line struct {
	Time    string            `json:"time"` // UTC, RFC 3339 with milliseconds
	Level   string            `json:"level"`
	Kind    string            `json:"kind"`
	Context uint64            `json:"context"`           // its number in the process
	Self    string            `json:"self,omitempty"`    // the engine that speaks; of a rank with its number
	Engine  string            `json:"engine,omitempty"`  // id, or # and its hash where the id is not known here
	Request string            `json:"request,omitempty"` // first bytes of its id
	What    string            `json:"what"`
	Remedy  string            `json:"remedy"`
	Values  map[string]uint64 `json:"values,omitempty"` // the numbers in What; unit in the name
	LeftOut uint32            `json:"left_out,omitempty"`
}

// Take gives what waits as lines of JSON, each with its newline, as many as room allows. need is the length of the first line if
// not even that fits; it stays.
func (l *Log) Take(room int) (lines []byte, need int) {
	return l.take(room, func(n *Line) []byte {
		b, err := json.Marshal(n)
		if err != nil { // strings and numbers only
			panic(err)
		}
		return append(b, '\n')
	})
}

// TakeText is Take with lines of key=value for a terminal.
func (l *Log) TakeText(room int) (lines []byte, need int) {
	return l.take(room, func(n *Line) []byte { return n.Append(nil) })
}

func (l *Log) take(room int, form func(*Line) []byte) (lines []byte, need int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var r record
	for {
		if len(l.pending) == 0 {
			if !l.next(&r) {
				return lines, 0
			}
			n := l.line(&r)
			l.pending = form(&n)
		}
		if len(lines)+len(l.pending) > room {
			if len(lines) == 0 {
				need = len(l.pending)
			}
			return lines, need
		}
		lines = append(lines, l.pending...)
		l.pending = nil
	}
}

// line says a record in words.
func (l *Log) line(r *record) Line {
	d := &Defs[r.kind]
	n := Line{
		Level: d.Level.String(), Kind: d.Name, Context: l.context, Self: l.self, Remedy: d.Remedy, LeftOut: r.left,
		Engine: clean(r.engine[:r.engineLen], r.cut&cutEngine != 0), Request: clean(r.request[:r.reqLen], r.cut&cutRequest != 0),
	}
	if l.wall != nil {
		n.Time = l.wall(r.at).UTC().Format("2006-01-02T15:04:05.000Z")
	} else {
		n.Time = strconv.FormatInt(int64(r.at), 10)
	}
	if n.Engine == "" && r.hash != 0 {
		if l.name != nil {
			n.Engine = clean([]byte(l.name(r.hash)), false)
		}
		if n.Engine == "" {
			n.Engine = fmt.Sprintf("#%016x", r.hash)
		}
	}
	values := [2]uint64{r.a, r.b}
	for i, name := range d.Values {
		if name == "" {
			continue
		}
		if n.Values == nil {
			n.Values = map[string]uint64{}
		}
		n.Values[name] = values[i]
	}
	n.What = d.say(n.Values, clean(r.text[:r.textLen], r.cut&cutText != 0))
	return n
}

// place is what Def.What leaves open.
var place = regexp.MustCompile(`\{([a-z_]+)\}|\[([^|\]]*)\|([^\]]*)\]`)

// say is What of these numbers and this text, which is put in as it is.
func (d *Def) say(values map[string]uint64, text string) string {
	var out strings.Builder
	var last uint64
	at := 0
	for _, m := range place.FindAllStringSubmatchIndex(d.What, -1) {
		out.WriteString(d.What[at:m[0]])
		at = m[1]
		switch {
		case m[2] < 0:
			out.WriteString(plural.Of(last, d.What[m[4]:m[5]], d.What[m[6]:m[7]]))
		case d.What[m[2]:m[3]] == "text":
			out.WriteString(text)
		default:
			name := d.What[m[2]:m[3]]
			last = values[name]
			out.WriteString(show(name, last))
		}
	}
	out.WriteString(d.What[at:])
	return out.String()
}

// show writes a value as people read it; the end of its name says what it is.
func show(name string, v uint64) string {
	if strings.HasSuffix(name, "_ns") {
		return span(time.Duration(v))
	}
	return strconv.FormatUint(v, 10)
}

// span rounds to three figures or so.
func span(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Microsecond).String()
}

// clean makes text of peers fit for a line: whatever is no printable character is escaped, and what was cut ends in three dots.
func clean(b []byte, cut bool) string {
	var out strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case r == utf8.RuneError && n <= 1:
			if cut && len(b) < utf8.UTFMax && !utf8.FullRune(b) { // the cut went through a character
				b = nil
				continue
			}
			fmt.Fprintf(&out, `\x%02x`, b[0])
		case r == '\\':
			out.WriteString(`\\`)
		case strconv.IsPrint(r):
			out.WriteRune(r)
		default:
			q := strconv.QuoteRuneToASCII(r)
			out.WriteString(q[1 : len(q)-1])
		}
		b = b[n:]
	}
	if cut {
		out.WriteString("...")
	}
	return out.String()
}

// Append writes the line for a terminal.
func (n *Line) Append(b []byte) []byte {
	b = fmt.Appendf(b, "kvlease time=%s level=%s kind=%s context=%d", n.Time, n.Level, n.Kind, n.Context)
	for _, f := range [...][2]string{{"self", n.Self}, {"engine", n.Engine}, {"request", n.Request}, {"what", n.What}, {"remedy", n.Remedy}} {
		if f[1] != "" {
			b = fmt.Appendf(b, " %s=%s", f[0], quoted(f[1]))
		}
	}
	if n.LeftOut > 0 {
		b = fmt.Appendf(b, " left_out=%d", n.LeftOut)
	}
	return append(b, '\n')
}

// quoted puts a text in quotes. Its escapes were made by clean and stay as they are.
func quoted(s string) string { return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"` }

// Wall gives the time of day of instants of a clock, from what both show when it is asked.
func Wall(now func() clock.Instant) func(clock.Instant) time.Time {
	return func(at clock.Instant) time.Time { return time.Now().Add(at.Sub(now())) }
}
