// Package sites is the machine code of the trace sites in what is linked with it: libkvlease-core.so and the kvlease tool.
// Importing it is enough: contexts opened afterwards have them. hook__submit is not among them: libkvlease.so has it from the same
// header, programs with hooks in Go from package hooks.
package sites

// #cgo CFLAGS: -std=c11 -O2 -Wall -Wextra -Werror
// #cgo noescape kvl_site_fire
// #cgo nocallback kvl_site_fire
// #include "fire.h"
import "C"

import (
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/trace"
)

func init() { trace.SetProcess(trace.New(Words(), Fire)) }

// Words are the semaphores of this program or library.
func Words() *trace.Words { return (*trace.Words)(unsafe.Pointer(C.kvl_site_words_at())) }

// Fire runs through a site.
func Fire(site trace.Site, a, b, c, d uint64) {
	C.kvl_site_fire(C.uint32_t(site), C.uint64_t(a), C.uint64_t(b), C.uint64_t(c), C.uint64_t(d))
}
