// Package hooks is hook__submit for programs whose hooks are in Go (dataplane/host): the kvlease tool. The other sites come with it.
package hooks

// #cgo CFLAGS: -std=c11 -O2 -Wall -Wextra -Werror
// #cgo noescape kvl_site_submit
// #cgo nocallback kvl_site_submit
// #include <stdint.h>
// void kvl_site_submit(uint64_t ctx, uint64_t producer, uint64_t position, uint64_t tag);
import "C"

import (
	"github.com/kvlease/kvlease/cmd/libkvlease/sites"
	"github.com/kvlease/kvlease/dataplane/trace"
)

func init() { trace.SetProcess(trace.New(sites.Words(), fire)) }

func fire(site trace.Site, a, b, c, d uint64) {
	if site == trace.HookSubmit {
		C.kvl_site_submit(C.uint64_t(a), C.uint64_t(b), C.uint64_t(c), C.uint64_t(d))
		return
	}
	sites.Fire(site, a, b, c, d)
}
