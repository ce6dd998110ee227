package flame

import (
	"regexp"
	"strings"
)

// Kind says whose code a frame is.
type Kind int

const (
	Heading Kind = iota
	OursGo
	OursC
	Transport
	GoRuntime
	Kernel
	Other
	kinds
)

var kindClass = [kinds]string{"h", "g", "c", "n", "r", "k", "o"}

var kindName = [kinds]string{"", "kvlease, Go", "kvlease, C", "NIXL and UCX", "Go's runtime", "kernel", "libc and others"}

var (
	ourGo     = regexp.MustCompile(`^((ringbuf|cnixl|cuda|dataplane)(/[a-z]+)*|cmd/[a-z/]+|internal/(kernel|plural))\.|^main\.`)
	ourC      = regexp.MustCompile(`^kvl[xc]_|^kvl_site_`)
	transport = regexp.MustCompile(`^lib(nixl|uc[mpst]|plugin_|serdes|stream|absl)`)
	goRuntime = regexp.MustCompile(`^(runtime|internal|sync|syscall|time|math|strings|bytes|type:|go:|golang\.org/)[./]|^runtime\b` +
		`|^_?cgo|^x_cgo|^crosscall|^kvlgo_|^(memeq|cmp|index)body|^aeshash|^gcWriteBarrier|^gogo$`)
)

// Ours reports whether a frame is kvlease's own code, which wrappers that cgo makes are not.
func (k Kind) Ours() bool { return k == OursGo || k == OursC }

// KindOf tells by name and file; a benchmark's own code counts as others'.
func KindOf(f Frame) Kind {
	switch {
	case f.File == "":
		return Heading
	case f.File == "kernel":
		return Kernel
	case strings.HasPrefix(f.File, "libkvlease.so"):
		return OursC
	case transport.MatchString(f.File):
		return Transport
	case strings.HasPrefix(f.File, "libc.") || strings.HasPrefix(f.File, "ld-linux"):
		return Other
	case ourC.MatchString(f.Name):
		return OursC
	case strings.Contains(f.Name, "_Cfunc_"), goRuntime.MatchString(f.Name) && !ourGo.MatchString(f.Name):
		return GoRuntime
	case ourGo.MatchString(f.Name) && !strings.Contains(f.Name, ".Benchmark"):
		return OursGo
	}
	return Other
}
