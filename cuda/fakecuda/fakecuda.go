// Package fakecuda builds and scripts a fake CUDA driver: own C with the functions that kvlease asks for, with memory that only they may
// touch, answered from a script (src/script.c). It follows what the CUDA driver API's reference documents, and nothing has been compared
// with a real driver. For tests, and for trying device memory where there is no GPU: KVLEASE_CUDA names the library, KVL_FAKE_CUDA the script.
package fakecuda

import (
	"fmt"
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
	return out, fakelib.Build(out, append(sources, "-ldl"), "-fvisibility=hidden")
}

// Control gives the library at path one command of src/script.c and returns its answer. Of what is told of a thread, it is the
// calling one.
func Control(path, command string) (int, error) {
	return fakelib.Control(path, "kvl_fake_cuda_control", command)
}

// Alloc is memory that another part of the process made: host, device, managed, vmm, pool, or ipc. piece is in how many bytes at once
// VMM memory is mapped; 0: in one.
func Alloc(path, kind string, device int, bytes, piece uint64) (addr uint64, err error) {
	grain, err := Control(path, fmt.Sprintf("alloc %s %d %d %d", kind, device, bytes, piece))
	if err != nil {
		return 0, err
	}
	base, err := Control(path, fmt.Sprintf("base %d", device)) // an answer is 31 bits wide, an address wider
	return uint64(base)<<21 + uint64(grain)<<9, err
}
