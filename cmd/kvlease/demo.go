package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/demo"
	"github.com/kvlease/kvlease/cnixl"
	"github.com/kvlease/kvlease/internal/output"
)

type demoCmd struct {
	Only      string        `help:"Keys of the scenes to run, as in abc; all if empty." placeholder:"KEYS"`
	Svg       string        `help:"Where the timeline is drawn; empty: beside this program." placeholder:"FILE"`
	JSON      bool          `help:"Print one JSON object at the end on stdout; what happens goes to stderr."`
	Lease     time.Duration `help:"kv_lease_duration of all engines." default:"1.2s"`
	PassTime  time.Duration `help:"Forward pass of all engines." default:"10ms"`
	Memory    string        `help:"Where the KV caches are: dram (host memory), vram (GPUs), fakecuda (device memory of a fake driver, which the host cannot touch)." enum:"dram,vram,fakecuda" default:"dram"`
	Device    []int         `help:"With --memory vram or fakecuda: the GPU of P and, after a comma, that of D." default:"0,0"`
	Transport string        `help:"What moves the bytes between the processes." default:"nixl"`
	Examples  string        `help:"Folder of the C programs prefill and decode; searched for beside this program if empty." placeholder:"DIR"`
}

func (demoCmd) Help() string {
	return `Each scene runs engines as processes of their own over NIXL: stand-ins (kvlease node), and in scenes a to d at least one C program over the ABI (docs/examples). An engine of two ranks is three processes. Runs of a scene differ in who runs the step, in UCX's transports, and in ranks:

` + demo.Describe() + `
Scene i cuts TCP connections with ss of iproute2, as root; where that cannot be done it is skipped, and the table says why. A run in which the machine stood still, and a promise about time was broken, is played again, at most twice; never if wrong data was handed out.

With --memory vram or fakecuda every engine has its KV cache in device memory, registers it as an engine does, and offers blocks once the event behind their last write has fired. What is replaced then, and why, is said first. fakecuda needs no GPU: its memory falls over a process that touches it, and D reads it by the driver's copies; KVL_FAKE_CUDA scripts failures (cuda/fakecuda/src/script.c). vram has not run on a GPU yet.

The table at the end holds each promise beside what was measured. The exit code is 0 if all were kept, 1 with the broken promise named if not, 2 for a wrong argument.

  $ make demo                          build everything, then run all scenes, about a minute
  $ kvlease demo --only bc             two scenes
  $ kvlease demo --json > result.json  for programs
  $ kvlease demo --memory fakecuda     caches in device memory, without a GPU
  $ NO_COLOR=1 kvlease demo            without colour`
}

func (c *demoCmd) Run(w *world) error {
	if c.Transport == "loopback" {
		return usageError{errors.New("the demo cannot run over loopback: it moves bytes inside one process, and the demo's engines are processes of their own; use nixl")}
	}
	if c.Transport != "nixl" {
		return usageError{fmt.Errorf("--transport is %q, allowed: nixl", c.Transport)}
	}
	if c.Lease < 600*time.Millisecond || c.Lease > 3*time.Second {
		return usageError{fmt.Errorf("--lease is %v, allowed: 600ms to 3s, so that the demo ends in time", c.Lease)}
	}
	if c.PassTime < time.Millisecond || c.PassTime > 40*time.Millisecond {
		return usageError{fmt.Errorf("--pass-time is %v, allowed: 1ms to 40ms, less than the engines' step_max of 50ms", c.PassTime)}
	}
	if err := demo.CheckScenes(c.Only); err != nil {
		return usageError{err}
	}
	gpus, err := twoDevices(c.Device, c.Memory != demo.MemoryDRAM)
	if err != nil {
		return usageError{err}
	}
	programs, err := c.programs()
	if err != nil {
		return err
	}
	svg := c.Svg
	if svg == "" {
		svg = filepath.Join(filepath.Dir(programs.Node[0]), "demo.svg")
	}
	picture, err := openPicture(svg)
	if err != nil {
		return err
	}
	defer picture.Close()
	nameParts()
	cfg := demo.Config{Programs: programs, Lease: c.Lease, Pass: c.PassTime, Scenes: c.Only, Version: version, Memory: c.Memory, Device: demo.Device{Of: gpus}}
	script := os.Getenv("KVL_FAKE_CUDA") // the user's: onDevice puts its own before it
	end, err := c.onDevice(&cfg)
	if err != nil {
		return err
	}
	defer end()
	if err := findNIXL(w.ctx, programs.Node, cfg.NodeFlags()...); err != nil {
		return err
	}
	narrate := w.stdout
	if c.JSON {
		narrate = w.stderr
	}
	cfg.Narrate, cfg.Color = narrate, terminal(narrate) && os.Getenv("NO_COLOR") == ""
	result, err := demo.Run(w.ctx, cfg)
	if err != nil {
		return usageError{err}
	}
	if w.ctx.Err() != nil {
		return errors.New("interrupted; every engine was ended")
	}
	if err := picture.Write(result.WriteSVG); err != nil {
		return err
	}
	result.SVG = svg
	fmt.Fprintf(narrate, "timeline: %s\n", result.SVG)
	if c.JSON {
		enc := json.NewEncoder(w.stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(result); err != nil {
			return err
		}
	}
	if err := result.Verdict(); err != nil {
		return err
	}
	return missed(script, result)
}

// programs finds the two C programs and this one.
func (c *demoCmd) programs() (demo.Programs, error) {
	exe, err := os.Executable()
	if err != nil {
		return demo.Programs{}, err
	}
	here := filepath.Dir(exe)
	folders := []string{filepath.Join(here, "examples"), here}
	if c.Examples != "" {
		folders = []string{c.Examples}
	}
	for _, dir := range folders {
		prefill, decode := filepath.Join(dir, "prefill"), filepath.Join(dir, "decode")
		if executable(prefill) && executable(decode) {
			return demo.Programs{Prefill: []string{prefill}, Decode: []string{decode}, Node: []string{exe, "node"}}, nil
		}
	}
	return demo.Programs{}, fmt.Errorf("the C programs prefill and decode are in none of %v: run `make build`, or name their folder with --examples", folders)
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return regular(path) && err == nil && st.Mode()&0o111 != 0
}

// nameParts lets all engines, the C programs too, use the core beside this program and the NIXL wheel of `make deps`,
// unless the user has named others.
func nameParts() {
	if exe, err := os.Executable(); err == nil && os.Getenv("KVLEASE_CORE") == "" {
		if core := filepath.Join(filepath.Dir(exe), "libkvlease-core.so"); regular(core) {
			os.Setenv("KVLEASE_CORE", core)
		}
	}
	if os.Getenv("KVLEASE_NIXL") != "" {
		return
	}
	for _, dir := range nixlFolders() {
		wheel := filepath.Join(dir, "third_party", "nixl")
		if found, _ := filepath.Glob(filepath.Join(wheel, ".nixl*")); len(found) > 0 {
			os.Setenv("KVLEASE_NIXL", wheel)
			return
		}
	}
}

// probeMax is how long an engine with nothing to do may take; one that takes longer is told of by the scenes.
const probeMax = 20 * time.Second

// findNIXL says once, and before anything runs, what each engine would die of. flags: what engines are told of device memory; there the
// driver can be missing, too.
func findNIXL(ctx context.Context, node []string, flags ...string) error {
	lib, err := cnixl.Find(cnixl.Config{Folders: nixlFolders()})
	if err != nil {
		return err
	}
	if lib.File != "" && len(flags) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeMax)
	defer cancel()
	var said bytes.Buffer // the loader may know a NIXL, and a device is known by its driver: an engine with nothing to do tells
	engine := exec.CommandContext(ctx, node[0], slices.Concat(node[1:], []string{"--role", "prefill"}, flags)...)
	engine.Stderr = &said
	if engine.Run() == nil || ctx.Err() != nil {
		return nil
	}
	why := strings.TrimPrefix(strings.TrimSpace(said.String()), "kvlease: ")
	if lib.File == "" {
		why += " (make deps fetches one)"
	}
	return errors.New(why)
}

// openPicture finds out before the scenes run, not after them.
func openPicture(path string) (*output.File, error) {
	return output.Open(path, "name another file by --svg")
}

func regular(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// terminal reports whether w is one.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
