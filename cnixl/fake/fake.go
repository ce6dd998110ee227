// Package fake builds and scripts a fake NIXL library: own C that implements the symbols cnixl uses, for agents of one
// process, and does what a script says. Tests only.
package fake

// #cgo LDFLAGS: -ldl
// #include <dlfcn.h>
// #include <stdlib.h>
//
// static int control(const char *file, const char *command, int *found)
// {
//	void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
//	int (*call)(const char *) = library != NULL ? (int (*)(const char *))dlsym(library, "kvl_fake_control") : NULL;
//	*found = call != NULL;
//	return call != NULL ? call(command) : 0;
// }
import "C"

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"unsafe"
)

// Build compiles the library into dir under the given file name and returns its path. It needs cc, or what CC names.
func Build(dir, name string) (string, error) {
	_, here, _, _ := runtime.Caller(0)
	sources, err := filepath.Glob(filepath.Join(filepath.Dir(here), "src", "*.c"))
	if err != nil || len(sources) == 0 {
		return "", fmt.Errorf("no sources of the fake beside %s", here)
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	out := filepath.Join(dir, name)
	args := append([]string{"-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread", "-o", out}, sources...)
	if text, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cc, err, text)
	}
	return out, nil
}

// Control gives the library at path one command of src/script.c and returns its answer.
func Control(path, command string) (int, error) {
	file, line := C.CString(path), C.CString(command)
	defer C.free(unsafe.Pointer(file))
	defer C.free(unsafe.Pointer(line))
	var found C.int
	r := int(C.control(file, line, &found))
	if found == 0 {
		return 0, fmt.Errorf("%s is no fake NIXL", path)
	}
	if r < 0 {
		return r, fmt.Errorf("fake NIXL does not understand %q", command)
	}
	return r, nil
}
