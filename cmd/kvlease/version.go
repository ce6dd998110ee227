package main

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/kvlease/kvlease/cnixl"
	"github.com/kvlease/kvlease/dataplane/probe"
	"github.com/kvlease/kvlease/internal/kernel"
)

type versionCmd struct {
	JSON bool `help:"Print one JSON object."`
}

// versions is what matters for a report of trouble.
type versions struct {
	Kvlease string `json:"kvlease"`
	Go      string `json:"go"`
	Kernel  string `json:"kernel"`
	Machine string `json:"machine"`
	NIXL    string `json:"nixl,omitempty"`
	File    string `json:"nixl_file,omitempty"`
	Found   string `json:"nixl_found_by,omitempty"`
	Missing string `json:"nixl_missing,omitempty"`
	Untrace string `json:"trace_missing,omitempty"` // what kvlease trace lacks here
}

func (c *versionCmd) Run(w *world) error {
	v := versions{Kvlease: version, Go: runtime.Version(), Kernel: "Linux " + kernel.Release(), Machine: runtime.GOARCH}
	v.findNIXL()
	if err := probe.Check(); err != nil {
		v.Untrace = err.Error()
	}
	if c.JSON {
		enc := json.NewEncoder(w.stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	fmt.Fprintf(w.stdout, "kvlease %s\ngo      %s %s\nkernel  %s\n", v.Kvlease, v.Go, v.Machine, v.Kernel)
	if v.Missing != "" {
		fmt.Fprintf(w.stdout, "nixl    not found: %s\n", v.Missing)
	} else {
		fmt.Fprintf(w.stdout, "nixl    %s  %s (found by: %s)\n", v.NIXL, v.File, v.Found)
	}
	if v.Untrace != "" {
		fmt.Fprintf(w.stdout, "trace   not from here: %s\n", v.Untrace)
	} else {
		fmt.Fprintln(w.stdout, "trace   possible from here")
	}
	return nil
}

// findNIXL looks where an engine would look, without loading anything.
func (v *versions) findNIXL() {
	lib, err := cnixl.Find(cnixl.Config{Folders: nixlFolders()})
	switch {
	case err != nil:
		v.Missing = err.Error()
	case lib.File == "":
		v.Missing = "KVLEASE_NIXL is not set and no unpacked wheel is near; the system's loader may know one"
	default:
		v.NIXL, v.File, v.Found = lib.Version, lib.File, lib.How
	}
}
