// Package fabric tells which GPUs and NICs this machine has, how far they are from each other, what ails them, and what UCX should
// be told because of that.
//
// GPUs come from NVIDIA's management library (NVML) through go-nvml, paths and NICs from sysfs. Roots and library are given by the
// caller, so tests build whole machines (package machine) in a folder. No context of CUDA is made, and no device is opened.
//
// go-nvml leaves NVML's functions to the loader, which binds each one at its first call and ends the process if it is missing. So:
// every call here looks its symbols up first; only one library is used in the life of a process; and whatever links this package must bind
// lazily (make passes -z lazy, since some compilers pass -z now). libkvlease-core.so is loaded with RTLD_NOW and must never link it:
// a test of the core watches that.
//
// None of it has run on a machine with a GPU or an RDMA NIC yet.
package fabric
