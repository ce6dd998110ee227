// Package cnixl is the transport over NIXL: a C shim that opens libnixl_capi.so at run time, and its Go face.
//
// It only translates. What NIXL's statuses mean for a lease is written down in the shim, once, and in README.md.
package cnixl
