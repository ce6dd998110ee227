package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/bench"
	"github.com/kvlease/kvlease/cnixl"
	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/dataplane/transport"
)

type benchCmd struct {
	Block   []string `help:"Sizes of a block in bytes, with K or M for powers of 1,024." default:"16K,256K,1M"`
	Count   []int    `help:"Numbers of blocks of a read." default:"1,16,64"`
	Rounds  int      `help:"Rounds; a figure is the median of their medians." default:"5"`
	Samples int      `help:"Samples of each way in a round." default:"9"`
	Burst   int      `help:"Notifications that are sent at once for a rate." default:"1000"`
	Memory  string   `help:"Memory of the KV blocks on both sides: dram (the host's) or vram (a GPU's)." default:"dram"`
	Device  []int    `help:"With --memory vram the GPU of P and, after a comma, that of D." default:"0,0"`
	Nixl    string   `help:"libnixl_capi.so or a folder that holds it; searched for if empty." placeholder:"PATH"`
	Config  string   `help:"Further keys of the configuration of both contexts, as a JSON object." placeholder:"JSON"`
	JSON    bool     `help:"Print one JSON object."`
	Svg     string   `help:"Draw the figures into this file, too." placeholder:"FILE"`
	Child   bool     `hidden:""`
}

func (benchCmd) Help() string {
	return `Two processes of this machine, P that owns blocks and D that reads them, each with a context of kvlease and with a raw NIXL agent over the same memory. Everything is measured in each way in turn, sample by sample, so that a machine that is busy now and then is so for all of them:

  copy      the same blocks copied within D: what the memory gives
  bare      NIXL alone: no lease, no fence, and P does not hear of it
  raw       NIXL alone, with the notification that tells P, as a stock engine reads
  raw+8     the same with a read of 8 bytes before the notification: the least that a fence can cost
  kvlease   a read under a lease, with its fence, until D may use the blocks; the completion leaves in the same step

A notification is raw NIXL's from the call in D until P has polled it; kvlease's is a release, from the hook in D until P's engine has been told that its blocks are free. In a burst kvlease puts many releases into one message. The first byte is the first word of a read's first block, as D sees it between two looks at the transfer: it may not be used before the fence.

Above the tables stands what the machine's links could carry: the PCIe links of the GPUs that are measured and the ports of the NICs that UCX may use, as sysfs tells them. Reads that pass none of them are held against copy.

Blocks are chosen by chance on both sides, and what was read is checked. A figure is the median of the rounds' medians; the least and the most of these are its spread.

  $ kvlease bench                                       about half a minute
  $ kvlease bench --block 64K --count 1,128 --rounds 9
  $ UCX_TLS=tcp kvlease bench --json                    as over a network, on this machine
  $ kvlease bench --svg bench.svg
  $ kvlease bench --memory vram --device 0,1            from GPU 0 into GPU 1; it has not run on a GPU yet

docs/bench.md says how to read the figures.`
}

// config turns the flags into what is measured.
func (c *benchCmd) config() (bench.Config, error) {
	cfg := bench.Config{
		Transport: "nixl", NixlPath: c.Nixl, Memory: c.Memory, Counts: c.Count, Rounds: c.Rounds, Samples: c.Samples, Burst: c.Burst,
	}
	var err error
	if cfg.Devices, err = twoDevices(c.Device, c.Memory == "vram"); err != nil {
		return cfg, err
	}
	if c.Config != "" {
		if err := json.Unmarshal([]byte(c.Config), &cfg.Keys); err != nil {
			return cfg, fmt.Errorf("--config needs a JSON object of keys: %w", err)
		}
	}
	for _, s := range c.Block {
		b, err := byteSize(s)
		if err != nil {
			return cfg, fmt.Errorf("--block has %q, wanted: bytes, as 65536, 64K or 1M", s)
		}
		cfg.Blocks = append(cfg.Blocks, b)
	}
	return cfg, cfg.Check()
}

// byteSize reads a number of bytes, with K or M for powers of 1,024.
func byteSize(s string) (uint64, error) {
	digits, shift := s, 0
	if d, ok := strings.CutSuffix(s, "K"); ok {
		digits, shift = d, 10
	} else if d, ok := strings.CutSuffix(s, "M"); ok {
		digits, shift = d, 20
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	return n << shift, err
}

func (c *benchCmd) Run(w *world) error {
	if c.Child {
		return bench.Serve(w.ctx, w.stdin, w.stdout, transports)
	}
	cfg, err := c.config()
	if err != nil {
		return usageError{err}
	}
	picture, err := openPicture(c.Svg)
	if err != nil {
		return err
	}
	defer picture.Close()
	lib, err := cnixl.Find(cnixl.Config{Path: c.Nixl, Folders: nixlFolders()})
	if err != nil {
		return noNIXL(err)
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	runtime.LockOSThread() // P ends with the thread that started it
	defer runtime.UnlockOSThread()
	peer, end, err := bench.Start(exec.Command(exe, "bench", "--child"))
	if err != nil {
		return err
	}
	result, err := bench.Run(w.ctx, cfg, peer, transports)
	ended := end()
	if w.ctx.Err() != nil {
		return errors.New("interrupted; both ends were ended")
	}
	if err != nil {
		if lib.File != "" { // then it is here, and says itself what it lacks
			return err
		}
		return noNIXL(err)
	}
	if ended != nil {
		return ended
	}
	result.Version = version
	result.SetLibrary(lib.Version)
	if err := picture.Write(result.WriteSVG); err != nil {
		return err
	}
	if !c.JSON {
		return result.Write(w.stdout)
	}
	enc := json.NewEncoder(w.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(result)
}

// noNIXL adds what helps, if NIXL is what is missing; a driver of GPUs says it itself.
func noNIXL(err error) error {
	var gpu *cuda.Error
	if errors.Is(err, transport.ErrUnavailable) && !errors.As(err, &gpu) {
		return fmt.Errorf("%w (make deps fetches one; --nixl names one)", err)
	}
	return err
}
