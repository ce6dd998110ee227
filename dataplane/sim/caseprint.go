package sim

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// Print writes a case as a case file that runs the same: a line for each engine, action and expectation.
func (c *Case) Print() []byte {
	f := fileCase{Case: *c}
	f.Case.Actions = nil
	for _, a := range c.Actions {
		f.Actions = append(f.Actions, fileActionOf(a))
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(nodeOf(reflect.ValueOf(f), 0)); err != nil {
		panic(err) // plain values only
	}
	return b.Bytes()
}

// Print writes a schedule as a case file without expectations.
func (s *Schedule) Print() []byte {
	c := Case{Schedule: *s}
	return c.Print()
}

func fileActionOf(a Action) fileAction {
	f := fileAction{Action: a, Rank: rankNumber(a.Rank), ToRank: rankNumber(a.ToRank), Reqs: a.Reqs}
	if a.Req != "" {
		f.Req = names{a.Req}
	}
	if a.As != "" {
		f.As = names{a.As}
	}
	if a.ID != "" {
		f.ID = names{a.ID}
	}
	f.Action.Req, f.Action.As, f.Action.ID, f.Action.Reqs = "", "", "", nil
	if !text(a.Data) {
		f.Action.Data, f.Hex = "", hex.EncodeToString([]byte(a.Data))
	}
	return f
}

func text(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) })
}

func parseHex(s string) (string, error) {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	return string(b), err
}

// nodeOf gives the node of a value. Entries of lists are one line each.
func nodeOf(v reflect.Value, depth int) *yaml.Node {
	switch {
	case v.Kind() == reflect.Pointer:
		return nodeOf(v.Elem(), depth)
	case v.Type() == durationType:
		return scalarNode("!!str", time.Duration(v.Int()).String())
	case v.Type() == rankType:
		switch v.Int() {
		case AllRanks:
			return scalarNode("!!str", "all")
		case HostOnly:
			return scalarNode("!!str", "host")
		}
	case v.Type() == namesType:
		list := packed(v.Interface().(names))
		if len(list) == 1 {
			return scalarNode("!!str", list[0])
		}
		return nodeOf(reflect.ValueOf(list), depth)
	case v.Kind() == reflect.Slice:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		if v.Type().Elem().Kind() == reflect.String {
			n.Style = yaml.FlowStyle
		}
		for i := range v.Len() {
			n.Content = append(n.Content, nodeOf(v.Index(i), depth+1))
		}
		return n
	case v.Kind() == reflect.Struct:
		n := &yaml.Node{Kind: yaml.MappingNode}
		if depth > 0 {
			n.Style = yaml.FlowStyle
		}
		for _, f := range keysOf(v.Type()) {
			c := v.FieldByIndex(f.index)
			if c.IsZero() || c.Kind() == reflect.Slice && c.Len() == 0 {
				if f.key != "at" || depth == 0 || c.Kind() == reflect.Pointer {
					continue
				}
			}
			n.Content = append(n.Content, scalarNode("!!str", f.key), nodeOf(c, depth+1))
		}
		return n
	}
	switch v.Kind() {
	case reflect.Bool:
		return scalarNode("!!bool", strconv.FormatBool(v.Bool()))
	case reflect.Float64:
		return scalarNode("!!float", strconv.FormatFloat(v.Float(), 'g', -1, 64))
	case reflect.String:
		return scalarNode("!!str", v.String())
	}
	return scalarNode("!!int", fmt.Sprint(v.Interface()))
}

// packed writes runs of numbered names as ranges.
func packed(list names) (out []string) {
	for i := 0; i < len(list); {
		head := strings.TrimRight(list[i], "0123456789")
		first, err := strconv.Atoi(list[i][len(head):])
		n := 1
		for err == nil && i+n < len(list) && list[i+n] == head+strconv.Itoa(first+n) && list[i] == head+strconv.Itoa(first) {
			n++
		}
		if n > 2 {
			out = append(out, list[i]+".."+list[i+n-1])
		} else {
			out = append(out, list[i:i+n]...)
		}
		i += n
	}
	return out
}

func scalarNode(tag, value string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
	if tag == "!!str" && strings.Contains(value, "\n") {
		n.Style = yaml.LiteralStyle
	}
	return n
}
