// Package fabric tells which GPUs and NICs a machine has, how far they are from each other, what ails them, and what UCX should
// be told because of that.
//
// Paths and NICs come from sysfs, GPUs from NVIDIA's management library (package nvml) or, without their health, from the bus. Roots and
// library are given by the caller, so tests build whole machines (package machine) in a folder. No context of CUDA is made, and
// no device is opened. There is no cgo here: an engine's own process may use it.
//
// None of it has run on a machine with a GPU or an RDMA NIC yet.
package fabric
