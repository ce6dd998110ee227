package faults

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"go.yaml.in/yaml/v3"
)

// The files of the registry, from the root of the repository.
const (
	RegistryFile = "docs/faults.yaml"
	DocFile      = "docs/faults.md"
)

// Registry is docs/faults.yaml.
type Registry struct {
	Rules  []Rule              `yaml:"rules"`
	CTests map[string][]string `yaml:"ctests"` // file in C, C++ or Python -> the tests of ctest that run it, if not one of the file's name
	Cases  []Case              `yaml:"cases"`
}

// Rule is something that the code promises, by the name that texts use for it.
type Rule struct {
	Name  string `yaml:"name"`
	Says  string `yaml:"says"`
	Where string `yaml:"where"` // the file that states it, from docs/
}

// Case is one fault.
type Case struct {
	ID    string  `yaml:"id"`
	Title string  `yaml:"title"`
	Kind  string  `yaml:"kind"`
	Rule  string  `yaml:"rule"` // of the lines that name none of their own
	NA    string  `yaml:"not_applicable"`
	Right []Right `yaml:"right"`
}

// Right is one thing that must hold. In the file it is a text, or a map if there is more to say than that.
type Right struct {
	Says string `yaml:"says"`
	Rule string `yaml:"rule"`
	NA   string `yaml:"not_applicable"` // why nothing can show it
	Open string `yaml:"open"`           // why nothing shows it yet
}

// UnmarshalYAML takes a text as a Right that only says.
func (r *Right) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		r.Says = n.Value
		return nil
	}
	type plain Right
	return n.Decode((*plain)(r))
}

var idForm = regexp.MustCompile(`^[CSF]\d\d?$`)

// Load reads the registry of the repository at root.
func Load(root string) (*Registry, error) {
	text, err := os.ReadFile(filepath.Join(root, RegistryFile))
	if err != nil {
		return nil, fmt.Errorf("read the registry: %w", err)
	}
	return Parse(text)
}

// Parse reads a registry and fills in what its lines take over from their cases.
func Parse(text []byte) (*Registry, error) {
	r := &Registry{}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(r); err != nil {
		return nil, fmt.Errorf("%s: %w", RegistryFile, err)
	}
	rules := map[string]bool{}
	for _, rule := range r.Rules {
		if rules[rule.Name] || rule.Name == "" || rule.Says == "" || rule.Where == "" {
			return nil, fmt.Errorf("%s: rule %q is named twice or says nothing", RegistryFile, rule.Name)
		}
		rules[rule.Name] = true
	}
	seen := map[string]bool{}
	for i := range r.Cases {
		c := &r.Cases[i]
		switch {
		case !idForm.MatchString(c.ID) || seen[c.ID]:
			return nil, fmt.Errorf("%s: %q is no id, or stands twice", RegistryFile, c.ID)
		case c.Title == "" || c.Kind == "" || len(c.Right) == 0 && c.NA == "":
			return nil, fmt.Errorf("%s: %s lacks title, kind or what is right", RegistryFile, c.ID)
		}
		seen[c.ID] = true
		for j := range c.Right {
			right := &c.Right[j]
			if right.Rule == "" {
				right.Rule = c.Rule
			}
			if right.NA == "" {
				right.NA = c.NA
			}
			switch {
			case right.Says == "":
				return nil, fmt.Errorf("%s: %s.%d says nothing", RegistryFile, c.ID, j+1)
			case right.NA == "" && !rules[right.Rule]:
				return nil, fmt.Errorf("%s: %s.%d names the rule %q, which is not in the list", RegistryFile, c.ID, j+1, right.Rule)
			}
		}
	}
	return r, nil
}

// line names a right line as marks do.
func line(c *Case, n int) string { return fmt.Sprintf("%s.%d", c.ID, n+1) }
