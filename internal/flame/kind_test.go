package flame

import (
	"os/exec"
	"strings"
	"testing"
)

func TestEveryPackageOfTheCoreCountsAsOurs(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", module+"cmd/libkvlease/core").Output()
	if err != nil {
		t.Fatal(err)
	}
	ours := 0
	for path := range strings.FieldsSeq(string(out)) {
		name, inside := strings.CutPrefix(path, module)
		if inside {
			ours++
		}
		if kind := KindOf(Frame{name + ".F", "libkvlease-core.so"}); (kind == OursGo) != inside {
			t.Errorf("%s is of kind %d", path, kind)
		}
	}
	if ours < 20 {
		t.Errorf("%d packages of ours in the core", ours)
	}
}

func TestTheShimsOfTheCoreAreOursAndTheirWrappersAreTheRuntimes(t *testing.T) {
	for name, want := range map[string]Kind{
		"kvlx_post": OursC, "kvlc_device_count": OursC, "kvl_site_fire": OursC,
		"_cgo_17e37a3e1236_Cfunc_kvlx_post": GoRuntime, "kvlgo_step": GoRuntime, "runtime.cgocall": GoRuntime, "aeshashbody": GoRuntime,
		"bench/plane.BenchmarkIdleStep": Other, "cuda/fabric.(*Machine).Read": OursGo,
	} {
		if got := KindOf(Frame{name, "libkvlease-core.so"}); got != want {
			t.Errorf("%s is of kind %d, want %d", name, got, want)
		}
	}
}
