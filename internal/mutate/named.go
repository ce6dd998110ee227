package mutate

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"go.yaml.in/yaml/v3"
)

// NamedFile holds the named mutations, from the root of the repository.
const NamedFile = "internal/mutate/named.yaml"

// Mutation is a mistake that somebody could make, and the test that must see it.
type Mutation struct {
	Name   string `yaml:"name"`
	Why    string `yaml:"why"` // what would go wrong
	Change `yaml:",inline"`
	Also   []Change `yaml:"also,omitempty"` // further changes of the same mistake
	Caught Caught   `yaml:"caught_by"`
	CI     bool     `yaml:"ci,omitempty"` // one of the few that the package's own test runs
}

// Caught names a test.
type Caught struct {
	Package string `yaml:"package"` // folder from the root; of C programs, the folder of their sources
	Test    string `yaml:"test"`    // function of a Go test, or a C program
}

// Changes gives all changes of a mutation.
func (m *Mutation) Changes() []Change { return append([]Change{m.Change}, m.Also...) }

// LoadNamed reads the named mutations of the tree under root. An unknown key, an empty field or a name given twice is an error.
func LoadNamed(root string) ([]Mutation, error) {
	var all []Mutation
	if err := readYAML(root, NamedFile, &all); err != nil {
		return nil, fmt.Errorf("named mutations: %w", err)
	}
	var errs []error
	seen := make(map[string]bool)
	for _, m := range all {
		switch {
		case m.Name == "" || m.Why == "" || m.File == "" || m.Caught.Package == "" || m.Caught.Test == "":
			errs = append(errs, fmt.Errorf("named mutation %q: a field is empty", m.Name))
		case seen[m.Name]:
			errs = append(errs, fmt.Errorf("named mutation %q is there twice", m.Name))
		}
		seen[m.Name] = true
	}
	return all, errors.Join(errs...)
}

// readYAML reads a file of the tree under root. An unknown key is an error.
func readYAML(root, file string, into any) error {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	if err != nil {
		return err
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	return d.Decode(into)
}

// Check says what is wrong with a mutation in the tree under root: a change that does not apply, or a test that is not there.
func (m *Mutation) Check(root string) error {
	if _, err := applied(root, m.Changes()); err != nil {
		return fmt.Errorf("mutation %q: %w", m.Name, err)
	}
	if !m.Caught.exists(root) {
		return fmt.Errorf("mutation %q: no test %s in %s", m.Name, m.Caught.Test, m.Caught.Package)
	}
	return nil
}

// IsC says that the test is a C program.
func (c Caught) IsC() bool { return filepath.Base(c.Package) == "ctest" }

func (c Caught) exists(root string) bool {
	dir := filepath.Join(root, filepath.FromSlash(c.Package))
	if c.IsC() {
		_, err := os.Stat(filepath.Join(dir, c.Test+".c"))
		return err == nil
	}
	is := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(c.Test) + `\(t \*testing\.T\)`)
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && is.Match(text) {
			return true
		}
	}
	return false
}
