package sim

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Case is a schedule with what has to come of it: what a case file holds (docs/case-files.md).
type Case struct {
	Text     string   `yaml:"text,omitempty"`        // the story, for people
	Covers   []string `yaml:"covers,omitempty,flow"` // fault cases and weak points of docs/faults.yaml
	Seeds    int      `yaml:"seeds,omitempty"`       // runs, with the seeds from Seed on; 0 counts as 1
	Schedule `yaml:",inline"`
	Expect   []Expectation `yaml:"expect,omitempty"`

	File string `yaml:"-"`
}

// fileCase is a case as it stands in a file.
type fileCase struct {
	Case    `yaml:",inline"`
	Actions []fileAction `yaml:"actions,omitempty"`
}

// fileAction is one entry of the list of actions; it may stand for many.
type fileAction struct {
	Action `yaml:",inline"`
	Req    names         `yaml:"req,omitempty,flow"` // several: one action for each
	As     names         `yaml:"as,omitempty,flow"`  // as many as Req, or one for all
	ID     names         `yaml:"id,omitempty,flow"`  // likewise
	Reqs   names         `yaml:"reqs,omitempty,flow"`
	Rank   rankNumber    `yaml:"rank,omitempty"`
	ToRank rankNumber    `yaml:"to_rank,omitempty"`
	Hex    string        `yaml:"hex,omitempty"`   // data that is no text
	Every  time.Duration `yaml:"every,omitempty"` // again and again until Until; without Until each next one of Req that much later
	Until  time.Duration `yaml:"until,omitempty"`
}

// actionsMax is how many actions a file may stand for.
const actionsMax = 200_000

// timeMax is the longest time of a case: forty leases behind it there is still no overflow.
const timeMax = 10_000 * time.Hour

//go:embed testdata/*.yaml
var builtIn embed.FS

// BuiltIn lists the names of the cases that are part of this package, such as C26: LoadCase knows them without a file.
func BuiltIn() (list []string) {
	files, err := builtIn.ReadDir("testdata")
	if err != nil {
		panic(err) // it is part of the program
	}
	for _, f := range files {
		list = append(list, strings.TrimSuffix(f.Name(), ".yaml"))
	}
	return list
}

// LoadCase reads a case file, or a case that is built in if there is no file of that name. Errors name the file, the line and what would be right.
func LoadCase(path string) (*Case, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && slices.Contains(BuiltIn(), path) {
		path = "testdata/" + path + ".yaml"
		data, err = builtIn.ReadFile(path)
	}
	if err != nil {
		return nil, err
	}
	return ParseCase(path, data)
}

// ParseCase is LoadCase of a file's bytes.
func ParseCase(file string, data []byte) (*Case, error) {
	d := &strict{file: file}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var root yaml.Node
	if err := dec.Decode(&root); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: the file is empty", file)
		}
		return nil, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: more than one document: a file holds one case", file)
	}
	var f fileCase
	top := root.Content[0]
	if err := d.into(top, reflect.ValueOf(&f).Elem(), caseFile); err != nil {
		return nil, err
	}
	c := f.Case
	c.File = file
	lines, err := c.expand(d, f.Actions, listOf(top, "actions"))
	if err != nil {
		return nil, err
	}
	if err := c.check(d, top, lines); err != nil {
		return nil, err
	}
	for i, n := range listOf(top, "expect") {
		c.Expect[i].line = n.Line
		if err := c.Expect[i].check(&c); err != nil {
			return nil, d.errorf(n, "%v", err)
		}
	}
	return &c, nil
}

// valueOf gives what stands under a key of the file, the whole file if nothing does.
func valueOf(top *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(top.Content); i += 2 {
		if top.Content[i].Value == key {
			return top.Content[i+1]
		}
	}
	return top
}

// listOf gives the entries of a list of the file.
func listOf(top *yaml.Node, key string) []*yaml.Node {
	n := valueOf(top, key)
	switch {
	case n == top:
		return nil
	case n.Kind == yaml.AliasNode:
		n = n.Alias
	}
	return n.Content
}

// expand turns the entries of the file into actions in order of time, and gives the node of each.
func (c *Case) expand(d *strict, list []fileAction, nodes []*yaml.Node) ([]*yaml.Node, error) {
	type placed struct {
		a Action
		n *yaml.Node
	}
	var all []placed
	for i := range list {
		some, err := list[i].each()
		if err == nil && len(all)+len(some) > actionsMax {
			err = fmt.Errorf("more than %d actions in all", actionsMax)
		}
		if err != nil {
			return nil, d.errorf(nodes[i], "%v", err)
		}
		for _, a := range some {
			all = append(all, placed{a, nodes[i]})
		}
	}
	slices.SortStableFunc(all, func(a, b placed) int { return int(max(-1, min(1, a.a.At-b.a.At))) })
	lines := make([]*yaml.Node, len(all))
	c.Actions = nil
	for i, p := range all {
		c.Actions = append(c.Actions, p.a)
		lines[i] = p.n
	}
	return lines, nil
}

// each gives the actions that an entry stands for.
func (f *fileAction) each() ([]Action, error) {
	a := f.Action
	a.Rank, a.ToRank, a.Reqs = int(f.Rank), int(f.ToRank), f.Reqs
	if f.Hex != "" {
		data, err := parseHex(f.Hex)
		if err != nil || a.Data != "" {
			return nil, fmt.Errorf("hex is %q, want pairs of hex digits like \"ff 02\", and no data beside it", f.Hex)
		}
		a.Data = data
	}
	for key, list := range map[string]names{"as": f.As, "id": f.ID} {
		if len(list) > 1 && len(list) != len(f.Req) {
			return nil, fmt.Errorf("%d names in %s for %d in req: give one for each, or one for all", len(list), key, len(f.Req))
		}
	}
	switch {
	case f.Every < 0 || f.Until != 0 && f.Every == 0:
		return nil, fmt.Errorf("until without every: say how often")
	case f.Until != 0 && f.Until < f.At:
		return nil, fmt.Errorf("until %v is before at %v", f.Until, f.At)
	case f.Every > 0 && f.Until == 0 && len(f.Req) < 2:
		return nil, fmt.Errorf("every without until: say until when, or give a range in req")
	case f.At < 0 || f.Until > timeMax || f.At > timeMax || f.Every > timeMax:
		return nil, fmt.Errorf("times are from 0s to %v", timeMax)
	case f.Every > 0 && f.Until > 0 && int64((f.Until-f.At)/f.Every+1) > actionsMax/int64(max(len(f.Req), 1)):
		return nil, fmt.Errorf("more than %d actions", actionsMax)
	}
	var out []Action
	for {
		for i := range max(1, len(f.Req)) {
			b := a
			if i < len(f.Req) {
				b.Req = f.Req[i]
			}
			if len(f.As) > 0 {
				b.As = f.As[min(i, len(f.As)-1)]
			}
			if len(f.ID) > 0 {
				b.ID = f.ID[min(i, len(f.ID)-1)]
			}
			if f.Until == 0 {
				b.At += time.Duration(i) * f.Every
			}
			out = append(out, b)
		}
		if a.At += f.Every; f.Until == 0 || a.At > f.Until {
			return out, nil
		}
	}
}

// check looks at what the names of a case mean.
func (c *Case) check(d *strict, top *yaml.Node, lines []*yaml.Node) error {
	switch {
	case c.Span > timeMax:
		return d.errorf(valueOf(top, "span"), "the span is %v, at most %v", c.Span, timeMax)
	case c.Span < 0:
		return d.errorf(valueOf(top, "span"), "the span is %v, want how long actions and faults go on", c.Span)
	case c.Span == 0:
		return d.errorf(top, "there is no span: say how long actions and faults go on, like span: 60s")
	case len(c.Engines) == 0:
		return d.errorf(top, "there are no engines: list them, like engines: [{id: P}, {id: D, known: [P]}]")
	case c.Seeds < 0 || c.Seeds > seedsMax:
		return d.errorf(valueOf(top, "seeds"), "seeds is %d, want how many runs, 1 to %d", c.Seeds, seedsMax)
	case c.Settle > timeMax:
		return d.errorf(valueOf(top, "settle"), "settle is %v, at most %v", c.Settle, timeMax)
	}
	var ids []string
	nodes := listOf(top, "engines")
	for i, e := range c.Engines {
		if e.ID == "" || slices.Contains(ids, e.ID) {
			return d.errorf(nodes[i], "an engine with id %q: each needs its own", e.ID)
		}
		ids = append(ids, e.ID)
	}
	for i, e := range c.Engines {
		if err := e.check(); err != nil {
			return d.errorf(nodes[i], "%v", err)
		}
		for _, k := range e.Known {
			if !slices.Contains(ids, k) {
				return d.errorf(nodes[i], "engine %s knows %q, which is none%s", e.ID, k, instead(k, ids))
			}
		}
	}
	if err := c.Link.check(); err != nil {
		return d.errorf(valueOf(top, "link"), "%v", err)
	}
	granted := map[string]bool{}
	if err := (&Schedule{Engines: c.Engines}).check(); err != nil {
		return d.errorf(top, "%s", strings.TrimPrefix(err.Error(), "sim: "))
	}
	for i := range c.Actions {
		a := &c.Actions[i]
		if err := c.checkAction(a, ids, granted); err != nil {
			return d.errorf(lines[i], "%v", err)
		}
		if err := a.check(); err != nil {
			return d.errorf(lines[i], "%v", err)
		}
		if v := verbs[a.Do]; v.peer && a.Peer == "" {
			return d.errorf(lines[i], "%s with whom? say peer: and an engine", a.Do)
		} else if v.req && a.Req == "" && a.As == "" {
			return d.errorf(lines[i], "%s of what? say req: and a name", a.Do)
		}
		if a.Do == Grant || a.Do == Expect {
			granted[a.Req] = true
		}
	}
	return nil
}

func (c *Case) checkAction(a *Action, ids []string, granted map[string]bool) error {
	_, known := verbs[a.Do]
	switch {
	case a.Do == "":
		return fmt.Errorf("an action without do: say what happens; there are %s", verbList())
	case !known:
		return fmt.Errorf("do is %q, which is no action%s", a.Do, instead(string(a.Do), verbNames()))
	case !slices.Contains(ids, a.Engine):
		return fmt.Errorf("%s at engine %q, which is none%s", a.Do, a.Engine, instead(a.Engine, ids))
	case a.Peer != "" && !slices.Contains(ids, a.Peer):
		return fmt.Errorf("%s with peer %q, which is no engine%s", a.Do, a.Peer, instead(a.Peer, ids))
	case a.At < 0 || a.At > c.Span:
		return fmt.Errorf("%s at %v: actions happen from 0s to the span, %v", a.Do, a.At, c.Span)
	}
	if len(c.Expect) == 0 { // drawn, or made smaller: what means nothing any more does nothing
		return nil
	}
	switch a.Do {
	case Cancel, Revoke, Track, Reject:
		if !granted[a.Req] {
			return fmt.Errorf("%s of %q, which nobody has granted or expected before%s", a.Do, a.Req, instead(a.Req, sortedKeys(granted)))
		}
	case Renew, Complete, Release:
		for _, r := range a.Reqs {
			if !granted[r] {
				return fmt.Errorf("%s of %q, which nobody has granted or expected before%s", a.Do, r, instead(r, sortedKeys(granted)))
			}
		}
	}
	return nil
}

func sortedKeys(m map[string]bool) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out[:min(len(out), 8)]
}

func verbNames() (out []string) {
	for v := range verbs {
		out = append(out, string(v))
	}
	slices.Sort(out)
	return out
}

func verbList() string { return strings.Join(verbNames(), ", ") }
