// Package fake builds and scripts a fake NIXL library: own C that implements the symbols cnixl uses, for agents of one
// process, and does what a script says. Tests only.
package fake

import (
	"path/filepath"

	"github.com/kvlease/kvlease/internal/fakelib"
)

// Build compiles the library into dir under the given file name and returns its path. It needs cc, or what CC names.
func Build(dir, name string) (string, error) {
	sources, err := fakelib.Sources()
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, name)
	return out, fakelib.Build(out, append(sources, "-ldl"))
}

// Control gives the library at path one command of src/script.c and returns its answer.
func Control(path, command string) (int, error) {
	return fakelib.Control(path, "kvl_fake_control", command)
}
