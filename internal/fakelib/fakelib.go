// Package fakelib builds the fakes of libraries that are opened at run time, from C of ours, and gives them commands.
package fakelib

// #cgo LDFLAGS: -ldl
// #include <dlfcn.h>
// #include <stdlib.h>
//
// static int control(const char *file, const char *symbol, const char *command, int *found)
// {
//	void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
//	int (*call)(const char *) = library != NULL ? (int (*)(const char *))dlsym(library, symbol) : NULL;
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
	"sync"
	"unsafe"
)

// Sources are the C files in the folder src beside the Go file that calls this.
func Sources() ([]string, error) {
	_, caller, _, _ := runtime.Caller(1)
	files, err := filepath.Glob(filepath.Join(filepath.Dir(caller), "src", "*.c"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no sources of the fake beside %s", caller)
	}
	return files, nil
}

// Build compiles sources into the shared library out. It needs cc, or what CC names.
func Build(out string, sources []string, flags ...string) error {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	args := []string{"-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread", "-o", out}
	args = append(append(args, flags...), sources...)
	if text, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cc, err, text)
	}
	return nil
}

// Once is a fake that all tests of a process share: built for the first that asks, gone with Remove, which is TestMain's.
type Once struct {
	Build func(dir string) (path string, err error)

	once sync.Once
	dir  string
	path string
	err  error
}

// Path is where the fake lies.
func (o *Once) Path() (string, error) {
	o.once.Do(func() {
		if o.dir, o.err = os.MkdirTemp("", "kvlease-fake"); o.err == nil {
			o.path, o.err = o.Build(o.dir)
		}
	})
	return o.path, o.err
}

// Remove removes what was built. A process that has opened the fake keeps it.
func (o *Once) Remove() {
	if o.dir != "" {
		_ = os.RemoveAll(o.dir)
	}
}

// Control gives the library at path a command, through its function named symbol, and returns its answer. A negative one is
// an error: the command was not understood.
func Control(path, symbol, command string) (int, error) {
	file, name, line := C.CString(path), C.CString(symbol), C.CString(command)
	defer C.free(unsafe.Pointer(file))
	defer C.free(unsafe.Pointer(name))
	defer C.free(unsafe.Pointer(line))
	var found C.int
	r := int(C.control(file, name, line, &found))
	if found == 0 {
		return 0, fmt.Errorf("%s is no fake: it has no %s", path, symbol)
	}
	if r < 0 {
		return r, fmt.Errorf("%s does not understand %q", filepath.Base(path), command)
	}
	return r, nil
}
