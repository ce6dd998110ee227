package mutate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// ErrApply is what a change answers whose old text does not stand exactly once in its file.
var ErrApply = errors.New("the change does not apply")

// Change replaces one place of one source file.
type Change struct {
	File string `yaml:"file"` // from the root of the repository, with slashes
	Old  string `yaml:"old"`  // occurs exactly once in File
	New  string `yaml:"new"`
}

// Apply makes the changed text of a file. It writes nothing.
func (c Change) Apply(text []byte) ([]byte, error) {
	switch n := bytes.Count(text, []byte(c.Old)); {
	case c.Old == "":
		return nil, fmt.Errorf("%w: %s: the old text is empty", ErrApply, c.File)
	case c.Old == c.New:
		return nil, fmt.Errorf("%w: %s: the new text is the old one: %q", ErrApply, c.File, c.Old)
	case n != 1:
		return nil, fmt.Errorf("%w: %s: the old text occurs %d times, not once: %q", ErrApply, c.File, n, c.Old)
	}
	return bytes.Replace(text, []byte(c.Old), []byte(c.New), 1), nil
}

// Overlay writes the changed files and the JSON that names them into dir, and returns the path of the JSON, for the
// -overlay flag of go build, go test and go vet. Changes of one file are made in their order. The tree under root stays
// as it is. What is built with the overlay has its own entries in Go's build cache, so runs do not disturb each other.
//
// Preconditions: dir exists, and is not used by a second overlay.
func Overlay(root, dir string, changes ...Change) (string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return "", fmt.Errorf("find the root: %w", err)
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find the folder of the overlay: %w", err)
	}
	texts, err := applied(root, changes)
	if err != nil {
		return "", err
	}
	return writeOverlay(dir, texts)
}

// applied gives the changed texts of files under root by their path. It writes nothing.
func applied(root string, changes []Change) (map[string][]byte, error) {
	texts := make(map[string][]byte)
	for _, c := range changes {
		path := filepath.Join(root, filepath.FromSlash(c.File))
		text, read := texts[path]
		if !read {
			var err error
			if text, err = os.ReadFile(path); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrApply, err)
			}
		}
		text, err := c.Apply(text)
		if err != nil {
			return nil, err
		}
		texts[path] = text
	}
	return texts, nil
}

// writeOverlay takes whole texts by their absolute path.
func writeOverlay(dir string, texts map[string][]byte) (string, error) {
	var names struct{ Replace map[string]string }
	names.Replace = make(map[string]string)
	for path, text := range texts {
		at := filepath.Join(dir, strconv.Itoa(len(names.Replace))+"-"+filepath.Base(path))
		if err := os.WriteFile(at, text, 0o644); err != nil {
			return "", fmt.Errorf("write the overlay: %w", err)
		}
		names.Replace[path] = at
	}
	out, err := json.Marshal(names)
	if err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	at := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(at, out, 0o644); err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	return at, nil
}
