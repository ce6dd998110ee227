// Package bench measures what kvlease costs on a node: notifications, reads, the first byte and the fence between two processes,
// each in turn with raw NIXL, which is a second agent over the same memory without plane, board and fence, and with a copy.
package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/soak"
	"github.com/kvlease/kvlease/cuda/devices"
	"github.com/kvlease/kvlease/dataplane/core"
)

// Config is what is measured.
type Config struct {
	Transport string
	NixlPath  string
	Memory    string   // of both sides, a key of memories
	Devices   [2]int   // of P and D, if it is a device's
	Blocks    []uint64 // sizes of a block in bytes
	Counts    []int    // blocks of a read
	Rounds    int
	Samples   int // of each way in a round
	Burst     int // notifications of a rate

	Keys    map[string]any  // further keys of the contexts' configuration
	Machine devices.Machine // where this machine is seen; the zero value but in tests
}

// Bounds of a configuration.
const (
	BlockMin, BlockMax = 64, 64 << 20
	CountMax           = 16384
	SideMax            = 8 << 30 // bytes of KV blocks on a side
	RoundsMax          = 1000
	SamplesMax         = 1000
	BurstMax           = 100_000
	shapesMax          = 64
)

// Check finds values that cannot be measured; the words are those of the flags.
func (c *Config) Check() error {
	if len(c.Blocks) == 0 || len(c.Counts) == 0 || len(c.Blocks)*len(c.Counts) > shapesMax {
		return fmt.Errorf("--block and --count have %d and %d values, allowed: 1 to %d pairs", len(c.Blocks), len(c.Counts), shapesMax)
	}
	if memories[c.Memory] == nil {
		return fmt.Errorf("--memory is %q, allowed: %s", c.Memory, Memories())
	}
	most := 0
	for _, n := range c.Counts {
		if n < 1 || n > CountMax {
			return fmt.Errorf("--count has %d, allowed: 1 to %d", n, CountMax)
		}
		most = max(most, n)
	}
	for _, b := range c.Blocks {
		switch {
		case b < BlockMin || b > BlockMax || b%8 != 0:
			return fmt.Errorf("--block has %d, allowed: %d to %d bytes, in words of 8", b, BlockMin, BlockMax)
		case b*uint64(most) > SideMax:
			return fmt.Errorf("--block %d by --count %d is %d bytes on each side, allowed: %d", b, most, b*uint64(most), uint64(SideMax))
		}
	}
	for _, v := range []struct {
		name    string
		n, most int
	}{{"--rounds", c.Rounds, RoundsMax}, {"--samples", c.Samples, SamplesMax}, {"--burst", c.Burst, BurstMax}} {
		if v.n < 1 || v.n > v.most {
			return fmt.Errorf("%s is %d, allowed: 1 to %d", v.name, v.n, v.most)
		}
	}
	return nil
}

// most is how many blocks a side has.
func (c *Config) most() (n int) {
	for _, k := range c.Counts {
		n = max(n, k)
	}
	return n
}

// Ways in which a thing is done.
const (
	WayCopy   = "copy"    // the same blocks within D
	WayBare   = "bare"    // NIXL alone, and P is not told
	WayRaw    = "raw"     // NIXL alone, with the notification that tells P, as a stock engine reads
	WayFenced = "raw+8"   // the same with a read of 8 bytes before the notification: the least that a fence costs
	WayOurs   = "kvlease" // with lease, fence and completion
)

const (
	warmUps = 1                // rounds that are not counted
	longest = 20 * time.Second // bounds every wait
)

// Run measures as D, with an owner P behind peer. The goroutine keeps its thread, as a step does in the libraries.
func Run(ctx context.Context, cfg Config, peer *Peer, transports map[string]core.OpenTransport) (*Result, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // collected between rounds
	r := &Result{
		Date: time.Now().UTC().Format(time.RFC3339), Machine: soak.ThisMachine(), Transport: cfg.Transport, Memory: cfg.Memory, Devices: cfg.Devices,
		Rounds: cfg.Rounds, Samples: cfg.Samples, Burst: cfg.Burst, Keys: cfg.Keys,
	}
	defer func() { r.Load = load() }()
	var err error
	if r.Links, err = cfg.machineLinks(); err != nil {
		return nil, err
	}
	for i, block := range cfg.Blocks {
		s := Spec{Transport: cfg.Transport, NixlPath: cfg.NixlPath, Memory: cfg.Memory, Devices: cfg.Devices, Block: block, Blocks: uint32(cfg.most()), Burst: cfg.Burst, Keys: cfg.Keys, Machine: cfg.Machine}
		d, err := openReader(ctx, &s, peer, transports)
		if err == nil && i == 0 {
			r.Notifications, err = d.notifications(&cfg)
		}
		if err == nil {
			err = d.reads(&cfg, r)
		}
		if err = errors.Join(err, d.close()); err != nil {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return nil, err
		}
	}
	return r, nil
}

// rounds runs each of the ways in turn, a sample of each and then the next of each, in an order by chance, so that none is always behind
// the same other. begin comes before a round, sample gives the figures of one way. What comes
// back is by way and figure, a median for each round.
func (d *reader) rounds(cfg *Config, ways int, begin func() error, sample func(way int) ([]float64, error)) ([][]series, error) {
	sets := make([][]series, ways)
	for round := -warmUps; round < cfg.Rounds; round++ {
		runtime.GC()
		if err := begin(); err != nil {
			return nil, err
		}
		one := make([][]series, ways)
		for range cfg.Samples {
			for _, way := range d.rng.Perm(ways) {
				values, err := sample(way)
				if err != nil {
					return nil, err
				}
				if one[way] == nil {
					one[way] = make([]series, len(values))
				}
				for k, v := range values {
					one[way][k] = append(one[way][k], v)
				}
			}
		}
		if round < 0 {
			continue
		}
		for way := range ways {
			if sets[way] == nil {
				sets[way] = make([]series, len(one[way]))
			}
			for k := range one[way] {
				sets[way][k] = append(sets[way][k], one[way][k].median())
			}
		}
	}
	return sets, nil
}

// load is how many threads of the machine have wanted a core in the last minute; 0: nobody knows.
func load() (l float64) {
	text, _ := os.ReadFile("/proc/loadavg")
	_, _ = fmt.Sscan(string(text), &l)
	return l
}
