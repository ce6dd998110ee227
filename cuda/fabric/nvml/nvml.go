// Package nvml asks NVIDIA's management library (NVML) for GPUs and what ails them, through go-nvml.
//
// go-nvml leaves NVML's functions to the loader, which binds each one at its first call and ends the process if it is missing. So:
// every call here looks its symbols up first; only one library is used in the life of a process; and whatever links this package must bind
// lazily (make passes -z lazy, since some compilers pass -z now). libkvlease-core.so is loaded with RTLD_NOW and must never link it:
// a test of the core watches that.
package nvml

// #include <stdlib.h>
// #include "../../../cmd/libkvlease/src/whole.h"
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/kvlease/kvlease/cuda/fabric"
)

// cudaMin is the oldest CUDA version that a driver must serve, as NVML has it. Every 12.x runs on a driver for 12.0 (CUDA compatibility
// guide, "minor version compatibility": 525.60.13 and later); GPU memory as a dma-buf needs 11.7.
const cudaMin = 12000

// Numbers of the library that are no rubbish: GPUs of a machine, instances of a GPU, which are 7 today (NVIDIA, MIG user guide).
const gpusMax, partsMax = 1024, 64

// libraryName is what the loader is asked for.
const libraryName = "libnvidia-ml.so.1"

// Look asks the library in a file for everything, KVLEASE_NVML or what the loader finds if that is empty, and waits so long for Xid
// errors. The errors are those of fabric.
func Look(file string, watch time.Duration) (a fabric.Answer, err error) {
	m, err := openManagement(cmp.Or(file, os.Getenv("KVLEASE_NVML"), libraryName))
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	if a.Driver, err = m.driver(); err != nil {
		return a, err
	}
	var n int
	err = m.ask("nvmlDeviceGetCount_v2", func() (r nvml.Return) {
		n, r = m.lib.DeviceGetCount()
		return r
	})
	if err != nil {
		return a, err
	}
	if n > gpusMax {
		return a, fmt.Errorf("nvmlDeviceGetCount_v2 counts %d GPUs, and %d are more than any machine has", n, gpusMax)
	}
	asked := make([]gpu, 0, n)
	for i := range n {
		asked = append(asked, m.look(i))
	}
	if watch > 0 {
		a.Unwatched = m.watch(asked, watch)
	}
	for i := range asked {
		a.GPUs = append(a.GPUs, asked[i].GPU)
	}
	return a, nil
}

// management is an open NVML.
type management struct {
	lib    nvml.Interface
	symbol func(name string) error
}

// bound is the library that this process has used: functions that were bound once stay those of that library.
var bound struct {
	sync.Mutex
	path string
}

// openManagement opens NVML at path. What is opened has to be closed.
func openManagement(path string) (*management, error) {
	bound.Lock()
	defer bound.Unlock()
	if bound.path != "" && bound.path != path {
		return nil, fmt.Errorf("%s, and %s was asked for: %w", bound.path, path, fabric.ErrOther)
	}
	file := dl.New(path, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	err := whole(path)
	if err == nil {
		err = file.Open()
	}
	if err != nil { // go-nvml keeps the loader's words to itself
		if path != libraryName { // whoever has named one is told, also where there is no GPU
			return nil, fmt.Errorf("%w: %w: %w", fabric.ErrNoLibrary, fabric.ErrNamed, err)
		}
		return nil, fmt.Errorf("%w: %w", fabric.ErrNoLibrary, err)
	}
	for _, name := range required {
		if err := file.Lookup(name); err != nil {
			return nil, errors.Join(fmt.Errorf("%s has no %s: %w", path, name, fabric.ErrSymbol), file.Close())
		}
	}
	bound.path = path
	m := &management{lib: nvml.New(nvml.WithLibraryPath(path))}
	m.symbol = m.lib.Extensions().LookupSymbol
	if err := asError(m.lib.Init()); err != nil {
		return m, errors.Join(fmt.Errorf("nvmlInit_v2: %w", err), file.Close())
	}
	return m, file.Close()
}

// whole refuses a library that is cut short, of which the loader, and the process with it, would die, and what is no file, for which it would wait.
func whole(path string) error {
	file := C.CString(path)
	defer C.free(unsafe.Pointer(file))
	if why := C.kvl_unloadable(file); why != nil {
		return fmt.Errorf("%s %s: install it again", path, C.GoString(why))
	}
	return nil
}

// required is what is called without being looked up first: by go-nvml itself, or before the library says that it is open.
var required = []string{"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"}

func (m *management) close() error { return asError(m.lib.Shutdown()) }

// ask calls f if the library has its function.
func (m *management) ask(symbol string, f func() nvml.Return) error {
	if err := m.symbol(symbol); err != nil {
		return fmt.Errorf("%s: %w", symbol, fabric.ErrSymbol)
	}
	if err := asError(f()); err != nil {
		return fmt.Errorf("%s: %w", symbol, err)
	}
	return nil
}

// asError gives a status of NVML the sentinel for what can be done about it.
func asError(r nvml.Return) error {
	switch r {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return fabric.ErrNoLibrary
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fabric.ErrNoDriver
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fabric.ErrMismatch
	case nvml.ERROR_NO_PERMISSION:
		return fabric.ErrNoRights
	case nvml.ERROR_GPU_IS_LOST:
		return fabric.ErrLost
	case nvml.ERROR_RESET_REQUIRED:
		return fabric.ErrReset
	case nvml.ERROR_NOT_SUPPORTED:
		return fabric.ErrUntold
	}
	return fmt.Errorf("NVML status %d (%s)", r, strings.ToLower(r.Error()))
}

// driver asks for the versions.
func (m *management) driver() (d fabric.Driver, err error) {
	err = m.ask("nvmlSystemGetDriverVersion", func() (r nvml.Return) {
		d.Version, r = m.lib.SystemGetDriverVersion()
		return r
	})
	if err != nil {
		return d, err
	}
	err = m.ask("nvmlSystemGetCudaDriverVersion_v2", func() (r nvml.Return) {
		d.CUDA, r = m.lib.SystemGetCudaDriverVersion_v2()
		return r
	})
	if err != nil && !errors.Is(err, fabric.ErrSymbol) { // older than any that will do: its version says so
		return d, err
	}
	if d.CUDA < cudaMin {
		return d, fmt.Errorf("driver %s, needed is one for CUDA 12.0 (525.60.13) or later: %w", d, fabric.ErrOldDriver)
	}
	return d, nil
}
