package sim

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// A case file is decoded by hand, so that a mistake is one line that names the file, the line and what would be right: the
// library's own errors speak of Go types, and it takes 5 for five nanoseconds.

// caseError is what is wrong at a line of a file.
type caseError struct {
	file string
	line int
	what string
}

func (e *caseError) Error() string { return fmt.Sprintf("%s:%d: %s", e.file, e.line, e.what) }

// strict decodes nodes of one file.
type strict struct {
	file  string
	nodes int
}

// nodesMax is how many values a file may hold, those that aliases repeat included.
const nodesMax = 4_000_000

func (d *strict) errorf(n *yaml.Node, format string, args ...any) error {
	return &caseError{d.file, n.Line, fmt.Sprintf(format, args...)}
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	namesType    = reflect.TypeFor[names]()
	rankType     = reflect.TypeFor[rankNumber]()
)

// into decodes a node. what names the thing for errors: "an action", "span".
func (d *strict) into(n *yaml.Node, v reflect.Value, what string) error {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if d.nodes += 1 + len(n.Content); d.nodes > nodesMax {
		return d.errorf(n, "the file holds more than %d values", nodesMax)
	}
	switch {
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return d.into(n, v.Elem(), what)
	case v.Type() == durationType:
		return d.duration(n, v, what)
	case v.Type() == namesType:
		return d.names(n, v, what)
	case v.Type() == rankType:
		return d.rank(n, v, what)
	case v.Kind() == reflect.Struct:
		return d.fields(n, v, what)
	case v.Kind() == reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			return d.errorf(n, "%s is %s, want a list", what, shown(n))
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, c := range n.Content {
			if err := d.into(c, v.Index(i), entryOf(v.Type().Elem(), what)); err != nil {
				return err
			}
		}
		return nil
	}
	return d.scalar(n, v, what)
}

func (d *strict) scalar(n *yaml.Node, v reflect.Value, what string) error {
	if n.Kind != yaml.ScalarNode {
		return d.errorf(n, "%s is %s, want one value", what, shown(n))
	}
	switch v.Kind() {
	case reflect.String:
		if n.Tag == "!!null" {
			return d.errorf(n, "%s is empty", what)
		}
		v.SetString(n.Value)
	case reflect.Bool:
		if n.Tag != "!!bool" {
			return d.errorf(n, "%s is %s, want true or false", what, shown(n))
		}
		v.SetBool(n.Value == "true")
	case reflect.Float64:
		f := math.NaN()
		if n.Tag != "!!int" && n.Tag != "!!float" || n.Decode(&f) != nil || math.IsNaN(f) {
			return d.errorf(n, "%s is %s, want a number", what, shown(n))
		}
		v.SetFloat(f)
	default:
		if n.Tag != "!!int" || n.Decode(v.Addr().Interface()) != nil {
			return d.errorf(n, "%s is %s, want a whole number%s", what, shown(n), notNegative(v.Kind()))
		}
	}
	return nil
}

func notNegative(k reflect.Kind) string {
	if k == reflect.Uint32 || k == reflect.Uint64 {
		return " from 0"
	}
	return ""
}

func (d *strict) duration(n *yaml.Node, v reflect.Value, what string) error {
	if n.Kind == yaml.ScalarNode {
		if t, err := time.ParseDuration(n.Value); err == nil && (n.Tag == "!!str" || n.Value == "0") {
			v.SetInt(int64(t))
			return nil
		}
		if n.Tag == "!!int" || n.Tag == "!!float" {
			return d.errorf(n, "%s is %s, which has no unit: write %ss, or ms, us, m, h", what, n.Value, n.Value)
		}
	}
	return d.errorf(n, "%s is %s, want a time like 5s, 250ms or 1m30s", what, shown(n))
}

// fields decodes a mapping into a struct. Fields of inlined structs stand beside the others.
func (d *strict) fields(n *yaml.Node, v reflect.Value, what string) error {
	if n.Kind != yaml.MappingNode {
		return d.errorf(n, "%s is %s, want keys with values", what, shown(n))
	}
	known := keysOf(v.Type())
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, c := n.Content[i], n.Content[i+1]
		at := slices.IndexFunc(known, func(f field) bool { return f.key == k.Value })
		if at < 0 {
			return d.errorf(k, "%s has no key %q%s", what, k.Value, instead(k.Value, keyNames(known)))
		}
		if seen[k.Value] {
			return d.errorf(k, "%s has %s twice", what, k.Value)
		}
		seen[k.Value] = true
		name := k.Value
		if what != caseFile {
			name += " of " + what
		}
		if c.Kind == yaml.ScalarNode && c.Tag == "!!null" {
			return d.errorf(k, "%s has no value: give it one, or leave the key out", name)
		}
		if err := d.into(c, v.FieldByIndex(known[at].index), name); err != nil {
			return err
		}
	}
	return nil
}

const caseFile = "a case file"

// entryOf is what an entry of a list is called in errors.
func entryOf(t reflect.Type, list string) string {
	switch t {
	case reflect.TypeFor[fileAction]():
		return "an action"
	case reflect.TypeFor[Expectation]():
		return "an expectation"
	case reflect.TypeFor[Engine]():
		return "an engine"
	}
	return "an entry of " + list
}

// field is a key of a struct.
type field struct {
	key   string
	index []int
}

func keysOf(t reflect.Type) (out []field) {
	for i := range t.NumField() {
		f := t.Field(i)
		key, rest, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case rest == "inline":
			for _, in := range keysOf(f.Type) {
				out = slices.DeleteFunc(out, func(o field) bool { return o.key == in.key })
				in.index = append([]int{i}, in.index...)
				out = append(out, in)
			}
		case key != "" && key != "-":
			out = slices.DeleteFunc(out, func(o field) bool { return o.key == key }) // the outer one counts
			out = append(out, field{key: key, index: []int{i}})
		}
	}
	return out
}

func keyNames(fields []field) (out []string) {
	for _, f := range fields {
		out = append(out, f.key)
	}
	return out
}

// insteadMax is how many words a line of an error lists.
const insteadMax = 64

// instead is the remedy for a word that is none of known: the nearest one, or all.
func instead(word string, known []string) string {
	best, least := "", len(word)/2+1
	for _, k := range known {
		if n := distance(word, k); n < least {
			best, least = k, n
		}
	}
	if best != "" {
		return fmt.Sprintf("; is it %s?", best)
	}
	if more := len(known) - insteadMax; more > 0 {
		return fmt.Sprintf("; there are %s and %d more", strings.Join(known[:insteadMax], ", "), more)
	}
	return "; there are " + strings.Join(known, ", ")
}

// distance is how many letters have to change.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			next := min(row[j+1], row[j]) + 1
			if a[i] == b[j] {
				next = last
			} else {
				next = min(next, last+1)
			}
			last, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}

// shown is a node for an error.
func shown(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "keys with values"
	}
	if len(n.Value) > 40 {
		return fmt.Sprintf("%.40q...", n.Value)
	}
	return fmt.Sprintf("%q", n.Value)
}

// names is one name, a range like r1..r100 or b..j, or a list of both.
type names []string

const namesMax = 100_000

func (d *strict) names(n *yaml.Node, v reflect.Value, what string) error {
	list := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		list = n.Content
	}
	var out names
	for _, c := range list {
		if c.Kind != yaml.ScalarNode || c.Value == "" {
			return d.errorf(c, "%s is %s, want a name, a range like r1..r100, or a list of them", what, shown(c))
		}
		some, err := spread(c.Value)
		if err != nil {
			return d.errorf(c, "%s: %v", what, err)
		}
		if out = append(out, some...); len(out) > namesMax {
			return d.errorf(c, "%s has more than %d names", what, namesMax)
		}
	}
	v.Set(reflect.ValueOf(out))
	return nil
}

// spread makes r1..r100 a hundred names, and b..j nine. What has no two dots is one name.
func spread(s string) (names, error) {
	from, to, ok := strings.Cut(s, "..")
	if !ok {
		return names{s}, nil
	}
	if len(from) == 1 && len(to) == 1 && from[0] >= 'a' && from[0] <= to[0] && to[0] <= 'z' {
		var out names
		for c := from[0]; c <= to[0]; c++ {
			out = append(out, string(c))
		}
		return out, nil
	}
	head := strings.TrimRight(from, "0123456789")
	var a, b int
	_, err1 := fmt.Sscanf(from[len(head):], "%d", &a)
	tail, found := strings.CutPrefix(to, head)
	_, err2 := fmt.Sscanf(tail, "%d", &b)
	switch {
	case !found || err1 != nil || err2 != nil || fmt.Sprint(head, a) != from || fmt.Sprint(head, b) != to || b < a:
		return nil, fmt.Errorf("%q is no range: write it like r1..r100 or b..j", s)
	case b-a >= namesMax:
		return nil, fmt.Errorf("%q is more than %d names", s, namesMax)
	}
	var out names
	for i := a; i <= b; i++ {
		out = append(out, fmt.Sprint(head, i))
	}
	return out, nil
}

// rankNumber is a rank of an action: a number, all or host.
type rankNumber int

func (d *strict) rank(n *yaml.Node, v reflect.Value, what string) error {
	switch n.Value {
	case "all":
		v.SetInt(AllRanks)
		return nil
	case "host":
		v.SetInt(HostOnly)
		return nil
	}
	var r int
	if n.Kind != yaml.ScalarNode || n.Decode(&r) != nil || r < HostOnly {
		return d.errorf(n, "%s is %s, want a number from 0, all or host", what, shown(n))
	}
	v.SetInt(int64(r))
	return nil
}
