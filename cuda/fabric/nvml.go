package fabric

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Sentinels of what the management library can fail with; each stands for another thing to do.
var (
	ErrNoLibrary = errors.New("no NVIDIA management library")
	ErrNoDriver  = errors.New("the NVIDIA driver is not loaded")
	ErrMismatch  = errors.New("the NVIDIA library is of another version than the kernel module")
	ErrNoRights  = errors.New("this process may not open the NVIDIA devices")
	ErrOldDriver = errors.New("the NVIDIA driver is too old")
	ErrLost      = errors.New("the GPU is lost: it has fallen off the bus")
	ErrReset     = errors.New("the GPU must be reset before it can be used")
	ErrSymbol    = errors.New("the NVIDIA management library lacks a function")
	ErrOther     = errors.New("another NVIDIA management library is in use in this process")
	ErrUntold    = errors.New("this GPU does not tell it")
)

// cudaMin is the oldest CUDA version that a driver must serve, as NVML has it. Every 12.x runs on a driver for 12.0 (CUDA compatibility
// guide, "minor version compatibility": 525.60.13 and later); GPU memory as a dma-buf needs 11.7.
const cudaMin = 12000

// libraryName is what the loader is asked for.
const libraryName = "libnvidia-ml.so.1"

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

// openManagement opens NVML at path, or as the loader finds it if that is empty. What is opened has to be closed.
func openManagement(path string) (*management, error) {
	if path == "" {
		path = libraryName
	}
	bound.Lock()
	defer bound.Unlock()
	if bound.path != "" && bound.path != path {
		return nil, fmt.Errorf("%s, and %s was asked for: %w", bound.path, path, ErrOther)
	}
	file := dl.New(path, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	if err := file.Open(); err != nil { // go-nvml keeps the loader's words to itself
		return nil, fmt.Errorf("%w: %w", ErrNoLibrary, err)
	}
	for _, name := range required {
		if err := file.Lookup(name); err != nil {
			return nil, errors.Join(fmt.Errorf("%s has no %s: %w", path, name, ErrSymbol), file.Close())
		}
	}
	bound.path = path
	m := &management{lib: nvml.New(nvml.WithLibraryPath(path))}
	m.symbol = m.lib.Extensions().LookupSymbol
	err := asError(m.lib.Init())
	return m, errors.Join(err, file.Close())
}

// required is what is called without being looked up first: by go-nvml itself, or before the library says that it is open.
var required = []string{"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"}

func (m *management) close() error { return asError(m.lib.Shutdown()) }

// ask calls f if the library has its function.
func (m *management) ask(symbol string, f func() nvml.Return) error {
	if err := m.symbol(symbol); err != nil {
		return fmt.Errorf("%s: %w", symbol, ErrSymbol)
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
		return ErrNoLibrary
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return ErrNoDriver
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return ErrMismatch
	case nvml.ERROR_NO_PERMISSION:
		return ErrNoRights
	case nvml.ERROR_GPU_IS_LOST:
		return ErrLost
	case nvml.ERROR_RESET_REQUIRED:
		return ErrReset
	case nvml.ERROR_NOT_SUPPORTED:
		return ErrUntold
	}
	return fmt.Errorf("NVML status %d (%s)", r, strings.ToLower(r.Error()))
}

// Driver is the kernel module that serves the GPUs.
type Driver struct {
	Version string
	CUDA    int // the newest version that it serves, 12040 for 12.4; 0: not told
}

func (d Driver) String() string {
	if d.CUDA == 0 {
		return d.Version
	}
	return fmt.Sprintf("%s, CUDA %d.%d", d.Version, d.CUDA/1000, d.CUDA%1000/10)
}

// driver asks for the versions.
func (m *management) driver() (d Driver, err error) {
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
	if err != nil && !errors.Is(err, ErrSymbol) { // older than any that will do: its version says so
		return d, err
	}
	if d.CUDA < cudaMin {
		return d, fmt.Errorf("driver %s, needed is one for CUDA 12.0 (525.60.13) or later: %w", d, ErrOldDriver)
	}
	return d, nil
}
