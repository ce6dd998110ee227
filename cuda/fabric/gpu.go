package fabric

import (
	"errors"
	"fmt"
)

// Sentinels of what NVIDIA's management library can answer; each stands for another thing to do.
var (
	ErrNoLibrary = errors.New("no NVIDIA management library")
	ErrNamed     = errors.New("the file that --nvml or KVLEASE_NVML names is none")
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

// Answer is what the management library has told.
type Answer struct {
	Driver    Driver
	GPUs      []GPU
	Unwatched error // why Xid errors could not be waited for
}

// GPU is one GPU as NVML numbers them: in the order of their bus addresses, which CUDA_VISIBLE_DEVICES does not change.
type GPU struct {
	Index int
	UUID  string
	Name  string
	PCI   string // address of its function as sysfs has it
	Node  int    // NUMA node, -1: not told

	Memory Room
	BAR1   Room // the window through which a NIC reaches its memory
	MIG    Mode
	Parts  []Instance // with MIG, in NVML's order
	ECC    ECC
	Rows   Rows
	Action Action   // what the driver wants to be done
	Xids   []uint64 // errors that came while it was looked at; older ones are in the kernel's log

	Err    error    // why it could not be looked at, in whole or from some point on: ErrLost, ErrReset
	Untold []string // functions that this driver or GPU does not have

	path []string
	link Link
}

// Instance is a part of a GPU in MIG mode: to CUDA a device of its own.
type Instance struct {
	Name   string // which ends in its size: MIG 1g.10gb
	UUID   string // as CUDA_VISIBLE_DEVICES names it
	Memory Room
}

// Room is memory, in bytes. Told: the library has said it; Free is Total at most.
type Room struct {
	Total, Free, Used uint64
	Told              bool
}

// Mode is a switch that takes effect with the next reset.
type Mode struct{ Has, Now, Next bool }

// ECC is the state of error correction, and what was not corrected since the driver was loaded.
type ECC struct {
	Mode
	Uncorrected uint64
}

// Rows are the rows of memory that were replaced by spare ones.
type Rows struct {
	Corrected, Uncorrected int
	Pending, Failed        bool
}

// Action is nvmlDeviceGpuRecoveryAction_t.
type Action uint32

var actions = [...]string{"none", "reset the GPU", "reboot the node", "drain its peer traffic", "drain its peer traffic and reset it", "recover its IMEX domain",
	"reset its PCIe bus", "reboot the system"}

func (a Action) String() string {
	if int(a) < len(actions) {
		return actions[a]
	}
	return fmt.Sprintf("action %d", uint32(a))
}
