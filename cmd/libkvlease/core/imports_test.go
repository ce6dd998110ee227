package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// A Go program that imports os/signal takes signals from its host; and the listener must not be that of net/http/pprof or expvar's page.
func TestTheCoreLeavesSignalsToItsHost(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	for _, unwanted := range []string{"os/signal", "net/http/pprof"} {
		if slices.Contains(deps, unwanted) {
			t.Errorf("the core imports %s", unwanted)
		}
	}
	if !slices.Contains(deps, "net/http") {
		t.Error("go list says nothing of the core")
	}
}

// go-nvml leaves the functions of a library that may not be here to the loader, and the core is loaded with all of its symbols bound.
func TestTheCoreLeavesNoSymbolToTheLoader(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if slices.ContainsFunc(deps, func(d string) bool { return strings.HasPrefix(d, "github.com/NVIDIA/go-nvml") }) {
		t.Error("the core imports go-nvml: no engine could load it")
	}
	if !slices.Contains(deps, "runtime/cgo") {
		t.Error("go list says nothing of the core")
	}
}
