// Package cuda is what kvlease needs of GPUs: a C shim that opens the CUDA driver library at run time, and its Go face.
//
// It asks what memory is and whether NICs may reach it, keeps the engine's context current where NIXL is called, exports and flushes for
// GPUDirect RDMA, and watches events. Only who registers device memory opens it. What a result means and what helps against it stands
// in errors.go, once. README.md has the decisions.
package cuda
