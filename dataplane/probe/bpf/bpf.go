// Package bpf is the in-kernel half of the probe: trace.c, compiled, and the Go types of what it keeps.
//
// The compiled program is committed, so a build needs no clang. `make generate` remakes it and notes what it was made of.
package bpf

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -go-package bpf -target amd64,arm64 -type site -type stage -type counter -type series -type histogram -type outlier -type self Trace trace.c -- -O2 -g -Wall -Wextra -Werror -mcpu=v3 -fdebug-compilation-dir=.
//go:generate sh -c "cat trace.c kernel.h maps.h values.h | sha256sum | cut -c1-64 >source.sha256"
