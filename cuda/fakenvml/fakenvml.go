// Package fakenvml builds and scripts a fake of NVIDIA's management library: own C with the symbols that kvlease asks for,
// answered from a script (src/script.c). It follows what the NVML API reference documents, and nothing has been compared with a real
// driver. For tests, and for trying kvlease doctor where there is no GPU: KVLEASE_NVML names the library, KVL_FAKE_NVML the script.
package fakenvml

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kvlease/kvlease/internal/fakelib"
)

// Build compiles the library into dir under the given file name and returns its path. It needs cc, or what CC names. The symbols in
// without are left out, as in the library of a driver that does not have them yet.
func Build(dir, name string, without ...string) (string, error) {
	sources, err := fakelib.Sources()
	if err != nil {
		return "", err
	}
	var flags []string
	for _, symbol := range without {
		flags = append(flags, fmt.Sprintf("-D%s=hidden_%s", symbol, strings.TrimPrefix(symbol, "nvml")))
	}
	out := filepath.Join(dir, name)
	return out, fakelib.Build(out, sources, flags...)
}

// Control gives the library at path one command of src/script.c and returns its answer.
func Control(path, command string) (int, error) {
	return fakelib.Control(path, "kvl_fake_nvml_control", command)
}
