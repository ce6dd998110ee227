package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/demo"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/scratch"
	machines "github.com/kvlease/kvlease/cuda/fabric/machine"
)

const (
	fakeWork    = "work 2"         // how long the fake's copies take: none is there when it was asked for
	fakeMachine = "eight-by-eight" // GPUs and NICs, so that registration looks at what NICs need
)

// twoDevices reads --device: the GPU of P and that of D, or one for both.
func twoDevices(list []int, onDevices bool) (both [2]int, err error) {
	switch n := len(list); {
	case n < 1 || n > 2 || slices.Min(list) < 0:
		return both, fmt.Errorf("--device is %v, wanted: one GPU or two, which count from 0", list)
	case !onDevices && !slices.Equal(list, []int{0, 0}):
		return both, errors.New("--device is for --memory of a device")
	default:
		return [2]int{list[0], list[n-1]}, nil
	}
}

// onDevice prepares caches in device memory; end takes back what was prepared. Engines inherit the environment that names the fake.
func (c *demoCmd) onDevice(cfg *demo.Config) (end func(), err error) {
	end = func() {}
	cfg.Device.Reads = "transport"
	if c.Memory != demo.MemoryFakeCUDA {
		return end, nil
	}
	driver, err := fakeDriver(cfg.Programs.Node[0])
	if err != nil {
		return end, err
	}
	shape, err := machines.Load(fakeMachine)
	if err != nil {
		return end, err
	}
	shape.Peer = "" // dma-buf is the way of NICs, so that a script can take it from them
	folder, err := scratch.New("machine")
	if err != nil {
		return end, err
	}
	end = folder.Remove
	if err := shape.Build(folder.Path); err != nil {
		end()
		return end, err
	}
	os.Setenv("KVLEASE_CUDA", driver)
	script := fakeWork
	if more := os.Getenv("KVL_FAKE_CUDA"); more != "" {
		script += ";" + more
	}
	os.Setenv("KVL_FAKE_CUDA", script)
	cfg.Device.Reads, cfg.Device.Machine, cfg.Device.Driver = "ipc", folder.Path, driver
	return end, nil
}

// missed names a script of failures of which no engine has told one: then nothing was shown by it.
func missed(script string, result *demo.Result) error {
	fails := func(command string) bool {
		word, _, _ := strings.Cut(strings.TrimSpace(command), " ")
		return word == "fail" || word == "dies"
	}
	if result.Memory != demo.MemoryFakeCUDA || len(result.Refused) > 0 || !slices.ContainsFunc(strings.Split(script, ";"), fails) {
		return nil
	}
	return fmt.Errorf("KVL_FAKE_CUDA is %q, and all promises were kept without a failure of the driver's: the scenes do not come to it, or it is one that is borne", script)
}

// fakeDriver is what `make build` puts beside this program.
func fakeDriver(program string) (string, error) {
	file := filepath.Join(filepath.Dir(program), "fake", "libfakecuda.so")
	if !regular(file) {
		return "", fmt.Errorf("the fake driver is not at %s: run `make build`", file)
	}
	return file, nil
}
