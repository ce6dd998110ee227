// Package doctor looks at a machine, or at one process on it, as an engine on kvlease would find it: each check measures one thing, says
// whether it will do, why it matters, and what exactly to do about it.
//
// A check is a function of a System: the roots of /proc, /sys and /dev, the libraries, the peers. Tests give their own.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/attach"
	"github.com/kvlease/kvlease/cnixl"
	"github.com/kvlease/kvlease/cuda/fabric"
	"github.com/kvlease/kvlease/cuda/fabric/nvml"
	"github.com/kvlease/kvlease/cuda/fabric/rdma"
	"github.com/kvlease/kvlease/internal/jsons"
)

// State is what a check has come to.
type State string

// Skip: there is nothing to look at, or no right to look.
const (
	Pass State = "pass"
	Warn State = "warn" // it works, worse than it could
	Fail State = "fail" // an engine would not start, or would break under load
	Skip State = "skip"
)

// Result is one line of the report.
type Result struct {
	Group string `json:"group"`
	Name  string `json:"name"`
	State State  `json:"state"`
	Value string `json:"value"`         // what was measured
	Why   string `json:"why,omitempty"` // what it does to an engine; not with Pass
	Fix   string `json:"fix,omitempty"` // what to do; not with Pass
}

// System is what the checks look at.
type System struct {
	Proc, Sys, Dev, Shm string // roots, and the folder of shared memory
	Root                string // of the file system of the process
	PID                 string // the process that is looked at, a folder of Proc: a number, or self
	Kernel, Arch        string // its release, and the processors as Go names them
	NVML                string // NVIDIA's management library; searched for if empty
	Watch               time.Duration
	Patience            time.Duration // with a library

	Env     func(name string) (string, bool) // of the process that is looked at
	Environ func() ([]string, error)

	FindNIXL func() (cnixl.Library, error)
	CUDA     func() (*CUDA, error)     // what the driver's API says
	LoadNIXL func(cnixl.Library) error // opens an agent in this process; nil: it is not tried
	Trace    func() error              // what kvlease trace lacks
	Caveats  func() []string
	Room     func(dir string) (free, total uint64, err error) // total 0: its file system has no limit
	TryFile  func(dir string, bytes int64) error              // makes a file of that size without a name, and leaves none
	Clock    func() time.Duration                             // what one reading of the clock costs

	Peers []string
	Ask   func(ctx context.Context, addr string) (*attach.Report, error)

	host *fabric.Host
}

// self tells whether the process that is looked at is this one.
func (s *System) self() bool { return s.PID == "self" }

// proc is the text of a file of the process, for example its limits.
func (s *System) proc(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(s.Proc, s.PID, name))
	return string(text), err
}

// look looks at the machine's GPUs and NICs, before all checks.
func (s *System) look(ctx context.Context) {
	s.host = fabric.Look(fabric.Config{Sys: s.Sys, Proc: s.Proc, Dev: s.Dev, Release: s.Kernel,
		Ask: func() (fabric.Answer, error) {
			return within(ctx, s.Patience, func() (fabric.Answer, error) { return nvml.Look(s.NVML, s.Watch) })
		}})
}

// fabric is what look has seen.
func (s *System) fabric() *fabric.Host { return s.host }

// errSilent says that a library has been asked and stands still.
var errSilent = errors.New("no answer")

// within waits for the answer of a library, which stands still for ever where its driver or device does: whoever looks at such a machine is to be told that,
// and all the rest. The call stays where it is until the process ends.
func within[T any](ctx context.Context, patience time.Duration, ask func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := ask()
		answers <- answer{value, err}
	}()
	late := time.NewTimer(patience)
	defer late.Stop()
	var none T
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		return none, fmt.Errorf("interrupted before its library had answered: %w", ctx.Err())
	case <-late.C:
		return none, fmt.Errorf("%w in %v: a call of the library stands still", errSilent, patience)
	}
}

// sysfs says why no device can be seen at all, as where /sys is not mounted: then that there is none is not known.
func (s *System) sysfs() error {
	_, err := os.Stat(filepath.Join(s.Sys, "devices"))
	return err
}

// told is what the process's user has told UCX.
func (s *System) told() func(name string) (string, bool) {
	return rdma.Told(s.Env, filepath.Join(s.Proc, s.PID))
}

// check gives its lines: one, or one for each GPU, NIC or peer, or none.
type check func(ctx context.Context, s *System) []Result

// groups are the checks in the order of the report.
var groups = []struct {
	name   string
	checks []check
}{
	{"limits", []check{lockedMemory, openFiles, coreFiles}},
	{"processor", []check{cpus, cpuQuota, isolation, governor, clockSource}},
	{"memory", []check{memoryLimit, sharedMemory, removeIPC, numa}},
	{"gpu", []check{gpuDriver, gpus, instances, xidLog, driverAPI}},
	{"rdma", []check{nics, addresses, links, gpuMemoryToNICs, nearestNICs, redirects, translation}},
	{"nixl", []check{nixlLibrary, nixlLoads, copies, environment}},
	{"ebpf", []check{tracing}},
	{"peers", []check{peers}},
}

// Report is everything that was found.
type Report struct {
	Kernel   string               `json:"kernel"`
	PID      string               `json:"pid"`
	Results  jsons.List[Result]   `json:"results"`
	Settings jsons.List[Settings] `json:"settings"` // of UCX, for each GPU
	Counts   map[State]int        `json:"counts"`
}

// Settings are what the process of a rank on a GPU should tell UCX.
type Settings struct {
	GPU  int                        `json:"gpu"`
	UUID string                     `json:"uuid"`
	NICs jsons.List[string]         `json:"nics"`
	Why  string                     `json:"why"`
	Env  jsons.List[fabric.Setting] `json:"env"`
}

// Look makes all checks.
func Look(ctx context.Context, s *System) *Report {
	s.look(ctx)
	r := &Report{Kernel: s.Kernel, PID: s.PID, Counts: map[State]int{Pass: 0, Warn: 0, Fail: 0, Skip: 0}}
	for _, g := range groups {
		for _, check := range g.checks {
			for _, line := range check(ctx, s) {
				line.Group = g.name
				r.Counts[line.State]++
				r.Results = append(r.Results, line)
			}
		}
	}
	r.Settings = settings(s)
	return r
}

// settings are those of each GPU.
func settings(s *System) []Settings {
	h := s.fabric()
	list := []Settings{}
	for g, c := range h.Choose() {
		one := Settings{GPU: g, UUID: h.GPUs[g].UUID, NICs: []string{}, Why: c.Why, Env: h.Settings(fmt.Sprint("GPU ", g), c, s.told())}
		for _, n := range c.NICs {
			one.NICs = append(one.NICs, h.NICs[n].Name)
		}
		list = append(list, one)
	}
	return list
}

// SettingsOf are those of one GPU.
func SettingsOf(ctx context.Context, s *System, gpu int) (*Settings, error) {
	s.look(ctx)
	all := settings(s)
	if gpu < len(all) {
		return &all[gpu], nil
	}
	if err := s.fabric().GPUErr; err != nil {
		return nil, fmt.Errorf("GPU %d: %w", gpu, err)
	}
	return nil, fmt.Errorf("there is no GPU %d, only %d", gpu, len(all))
}

// one is a list of a single line.
func one(name string, state State, value string) []Result {
	return []Result{{Name: name, State: state, Value: value}}
}

// ill is a list of a single line that is not as it should be.
func ill(name string, state State, value, why, fix string, args ...any) []Result {
	return []Result{{Name: name, State: state, Value: value, Why: why, Fix: fmt.Sprintf(fix, args...)}}
}

// unread is the line of what could not be looked at.
func unread(name string, err error) []Result { return one(name, Skip, "not seen: "+err.Error()) }
