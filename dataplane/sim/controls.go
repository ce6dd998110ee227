package sim

import (
	_ "embed"
	"fmt"

	"go.yaml.in/yaml/v3"
)

//go:embed controls.yaml
var controlsFile []byte

// Control is a change of the real code with which wrong data must be accepted, so that it is known that the simulation would see it.
type Control struct {
	Name  string `yaml:"name"`
	Why   string `yaml:"why"`
	With  string `yaml:"with"` // a control whose edits come first
	Edits []Edit `yaml:"edits"`
}

// Edit replaces one place of a source file. Old occurs exactly once in it.
type Edit struct {
	File string `yaml:"file"` // from the root of the repository
	Old  string `yaml:"old"`
	New  string `yaml:"new"`
}

// Controls are the positive controls, each with all its edits.
func Controls() ([]Control, error) {
	var list []Control
	if err := yaml.Unmarshal(controlsFile, &list); err != nil {
		return nil, fmt.Errorf("controls.yaml: %w", err)
	}
	byName := map[string][]Edit{}
	for i := range list {
		c := &list[i]
		if c.With != "" {
			with, ok := byName[c.With]
			if !ok {
				return nil, fmt.Errorf("controls.yaml: %q goes with %q, which is not before it", c.Name, c.With)
			}
			c.Edits = append(append([]Edit(nil), with...), c.Edits...)
		}
		byName[c.Name] = c.Edits
	}
	return list, nil
}
