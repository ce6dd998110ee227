package cuda

// #include "shim.h"
import "C"

import (
	"fmt"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// Errors that a caller can decide on.
var (
	ErrUnavailable = transport.ErrUnavailable // the driver, the device or what it offers is not there
	ErrInvalid     = transport.ErrInvalid     // the memory that was handed in
)

// Error is a refusal: by the driver, if Code is set, else by us.
type Error struct {
	Call  string // the driver's function that refused or told us, without a version behind its name; "": none was asked
	Code  int    // CUresult; 0: it did not fail
	Cause string
	Fix   string
	Kind  error // ErrUnavailable or ErrInvalid
}

func (e *Error) Error() string {
	var where string
	if e.Call != "" {
		where = e.Call + ": "
	}
	if e.Code != 0 {
		where += codeName(e.Code) + ": "
	}
	return fmt.Sprintf("%s%s. Remedy: %s", where, e.Cause, e.Fix)
}

func (e *Error) Unwrap() error { return e.Kind }

type reason struct{ cause, fix string }

// at is a result of one function, where it means more than anywhere else.
type at struct {
	call string
	code int
}

const seeXid = "look for `NVRM: Xid` in dmesg and at nvidia-smi -q"

var reasonsAt = map[at]reason{
	{"cuInit", 3}:                          {"CUDA was begun in another process and this one was forked from it", "open the context after the fork, or start processes by exec (spawn)"},
	{"cuInit", 100}:                        {"the driver is there and sees no GPU", "check CUDA_VISIBLE_DEVICES, and that the container was given GPUs (--gpus all)"},
	{"cuInit", 999}:                        {"the driver could not reach its kernel modules", "check that /dev/nvidia-uvm exists and may be opened (nvidia-modprobe -u), and dmesg for NVRM lines"},
	{"cuInit", 304}:                        {"the operating system refused the driver", "check the rights of /dev/nvidia* and the container's device rules"},
	{"cuMemAlloc", 2}:                      {"the device has not that much memory free", "free some, or give the engine less (gpu_memory_utilization)"},
	{"cuDevicePrimaryCtxRetain", 2}:        {"the device has no memory left for our hold of the context", "give the engine less memory (gpu_memory_utilization)"},
	{"cuMemGetHandleForAddressRange", 1}:   {"the range is not whole, mapped memory of one allocation", "register memory as it was allocated, or load nvidia_peermem, which needs no such handle"},
	{"cuMemGetHandleForAddressRange", 801}: {"kernel or driver have no dma-buf for this memory", "use the open kernel modules on Linux 5.12 or later, or load nvidia_peermem (modprobe nvidia_peermem)"},
	{"cuPointerGetAttribute", 1}:           {"the driver does not know the address, or not this attribute of it", "register memory that is allocated and mapped"},
	{"cuFlushGPUDirectRDMAWrites", 801}:    {"the device has no flush from the host", "reads into its memory cannot be proven: use a device whose writes are ordered"},
	{"cuEventQuery", 400}:                  {"that is no event, or it was destroyed", "keep an event until its grant has been served"},
	{"cuIpcOpenMemHandle", 201}:            {"the memory belongs to this very process, or no context is current", "use its own address here"},
	{"cuIpcOpenMemHandle", 217}:            {"the two devices cannot reach each other's memory", "read from a device that can (nvidia-smi topo -p2p r)"},
	{"cuIpcOpenMemHandle", 400}:            {"the process that owns the memory is gone, or the handle is none", "meet the owner again"},
	{"cuDriverGetVersion", 34}:             {"this is the toolkit's stub without a driver behind it", "name the driver's own library by KVLEASE_CUDA, and keep .../lib64/stubs out of LD_LIBRARY_PATH"},
}

var reasons = map[int]reason{
	1:   {"an argument is not what the driver takes", "check address, size and device of the regions"},
	2:   {"out of memory", "free memory of the device or the host"},
	3:   {"the driver is not begun in this process", "open the context after the fork"},
	4:   {"the driver is shutting down", "close the context before the process exits"},
	34:  {"this is the toolkit's stub without a driver behind it", "name the driver's own library by KVLEASE_CUDA, and keep .../lib64/stubs out of LD_LIBRARY_PATH"},
	46:  {"the device is in use in a mode that lets nobody else in", "set the compute mode to default: nvidia-smi -c 0"},
	100: {"there is no GPU for this process", "check CUDA_VISIBLE_DEVICES and the container's GPUs"},
	101: {"there is no such device", "device is the ordinal after CUDA_VISIBLE_DEVICES: check it"},
	201: {"no context of the device is current on the thread", "report this: each of our calls makes it current first"},
	214: {"memory of the device has an error that could not be corrected", "take the GPU out of service; " + seeXid},
	220: {"NVLink has an error that could not be corrected", "take the GPU out of service; " + seeXid},
	400: {"that is no handle of the driver, or it was destroyed", "keep events and streams until nothing of ours uses them"},
	700: {"a kernel of this process touched memory that is not its own, and the context is lost", "end the process; compute-sanitizer finds the kernel"},
	709: {"the primary context was destroyed under us", "call kvl_unregister before cudaDeviceReset"},
	716: {"a kernel of this process made an access that is not aligned, and the context is lost", "end the process; compute-sanitizer finds the kernel"},
	719: {"a kernel failed or the device was lost, and the context with it", "end the process; " + seeXid},
	800: {"this process may not do that", "check the container's capabilities and device rules"},
	801: {"device, driver or kernel do not offer this", "kvlease doctor tells what they offer"},
	802: {"the fabric of an NVSwitch machine is not ready", "start nvidia-fabricmanager, of the driver's own version, and wait for it"},
	803: {"library and kernel module of the driver have different versions", "reboot after the driver's update, or mount the host's driver into the container"},
	804: {"the forward-compatibility package does not serve this GPU", "take cuda-compat out of LD_LIBRARY_PATH, or update the driver"},
	805: {"the MPS daemon cannot be reached", "start nvidia-cuda-mps-control, or unset CUDA_MPS_PIPE_DIRECTORY"},
	807: {"the MPS server is not ready", "try again, and look at the MPS daemon's log"},
	810: {"the MPS server has ended this client", "end the process, and look at the MPS daemon's log"},
	999: {"the driver gives no reason", seeXid},
}

// invalidCodes are what the caller handed in, not what is missing.
var invalidCodes = map[int]bool{1: true, 101: true, 400: true}

func driverError(call string, code int) *Error {
	r, ok := reasonsAt[at{call, code}]
	if !ok {
		r, ok = reasons[code]
	}
	if !ok {
		r = reason{"the driver refused", seeXid}
	}
	kind := ErrUnavailable
	if invalidCodes[code] {
		kind = ErrInvalid
	}
	return &Error{Call: call, Code: code, Cause: r.cause, Fix: r.fix, Kind: kind}
}

// errNoFlush is for devices whose kernels could miss what a read has brought.
var errNoFlush = &Error{
	Call:  "cuDeviceGetAttribute",
	Cause: "the device orders no writes of NICs and offers no flush from the host, so what a read has brought may not be seen by its kernels",
	Fix:   "use a GPU from Volta on, and host memory on this one",
	Kind:  ErrUnavailable,
}

// errorOf is what a result of the shim means, nil for one that is none.
func errorOf(st C.int32_t, fault *C.kvlc_fault_t) error {
	if st >= 0 {
		return nil
	}
	e := &Error{Kind: ErrUnavailable}
	switch st {
	case C.KVLC_CUDA:
		return driverError(C.GoString(&fault.call[0]), int(fault.code))
	case C.KVLC_NO_CONTEXT:
		e.Call = "cuDevicePrimaryCtxGetState"
		e.Cause = "the device has no primary context, and kvlease makes none behind the engine's back"
		e.Fix = "register after the engine has begun with the device (cudaSetDevice and a first allocation, torch.cuda.init()), with memory of its primary context"
	case C.KVLC_NO_SYNC:
		e.Call = "cuPointerSetAttribute"
		e.Cause = "this memory (VMM, pool) takes no SYNC_MEMOPS, and the driver has no cuCtxSetFlags to set it for the context"
		e.Fix = "update the driver to 12.1 or later, or allocate with cudaMalloc (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False)"
	case C.KVLC_NO_DEVICE:
		e.Kind = ErrInvalid
		e.Cause, e.Fix = "there is no such device, or its context is not held", "device is the ordinal after CUDA_VISIBLE_DEVICES: check it"
	default:
		e.Cause, e.Fix = fmt.Sprintf("status %d of the shim", int(st)), "report this"
	}
	return e
}

// openError is what Open says. how: where the name came from.
func openError(st C.int32_t, fault *C.kvlc_fault_t, path, how, text string) error {
	e := &Error{Kind: ErrUnavailable}
	switch st {
	case C.KVLC_NO_LIBRARY:
		e.Cause = text
		e.Fix = "install the NVIDIA driver, or give the container its libraries (--gpus, NVIDIA_DRIVER_CAPABILITIES=compute), or name the file by KVLEASE_CUDA"
	case C.KVLC_NO_SYMBOL:
		e.Cause = fmt.Sprintf("it has no symbol %s", C.GoString(&fault.call[0]))
		e.Fix = fmt.Sprintf("it is no whole driver of CUDA %s or later: name the driver's own library by KVLEASE_CUDA", DriverMin)
	case C.KVLC_OLD_DRIVER:
		e.Cause = fmt.Sprintf("the driver serves CUDA %s, kvlease needs %s", Version(fault.code), DriverMin)
		e.Fix = "update the NVIDIA driver to 525.60.13 or later"
	case C.KVLC_FULL:
		e.Cause, e.Fix = fmt.Sprintf("%d CUDA drivers are open in this process", int(C.KVLC_LIBRARIES_MAX)), "name one file only"
	default:
		if told, ok := errorOf(st, fault).(*Error); ok {
			e = told
		}
	}
	return fmt.Errorf("CUDA driver %s (%s): %w", path, how, e)
}
