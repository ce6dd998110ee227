package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/kvcache"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/node"
	"github.com/kvlease/kvlease/cuda/devices"
	"github.com/kvlease/kvlease/dataplane/metrics"
)

type nodeCmd struct {
	Role      string        `help:"Which side this engine plays: prefill, decode or both." enum:"prefill,decode,both" default:"both"`
	EngineID  string        `help:"Name of this engine, as peers and routers say it; random if empty."`
	Drive     string        `help:"Who runs the step: inline (the forward loop) or pump (a thread)." enum:"inline,pump" default:"inline"`
	PassTime  time.Duration `help:"Length of a forward pass." default:"30ms"`
	Transport string        `help:"What moves the bytes: nixl, or loopback (this process only: leases can be granted and run out, nobody can read)." enum:"nixl,loopback" default:"nixl"`
	Nixl      string        `help:"libnixl_capi.so or a folder that holds it; searched for if empty." placeholder:"PATH"`
	Lease     time.Duration `help:"kv_lease_duration: first term of a lease; heartbeats come every sixth of it." default:"30s"`
	Blocks    uint32        `help:"Blocks of the KV cache." default:"512"`
	Layers    uint32        `help:"Layers of the KV cache, one region each." default:"4"`
	Memory    string        `help:"Where the KV cache is: dram (the host's memory) or vram (a GPU's)." enum:"dram,vram" default:"dram"`
	Device    int           `help:"With --memory vram: which GPU, after CUDA_VISIBLE_DEVICES." default:"0"`
	Reads     string        `name:"device-reads" help:"Who carries reads of device memory: transport, or ipc: the driver, between processes of this machine, for tests." enum:"transport,ipc" default:"transport"`
	Machine   string        `hidden:"" help:"Folder with sys, proc and dev of the machine in which NICs are looked for." placeholder:"DIR"`
	Watch     bool          `help:"Report heartbeats as they arrive."`
	Listen    string        `help:"Serve our handshake and the death wire on this side channel." placeholder:"HOST:PORT"`
	Metrics   string        `help:"Serve our metrics to Prometheus there; without a host on 127.0.0.1. For all engines of the machine: kvlease export." placeholder:"HOST:PORT"`
	Context   string        `help:"What this process holds of the engine: engine (all of it), host (requests), rank (memory of one rank)." enum:"engine,host,rank" default:"engine"`
	Tp        uint32        `help:"Ranks of the engine, with --context host or rank: 1, 2 or 4." default:"1"`
	TpRank    uint32        `help:"Which of them this process is, with --context rank."`
	Carrier   string        `help:"Socket where a host and its ranks meet; named after the engine if empty." placeholder:"PATH"`
	Config    string        `help:"Further keys of the configuration, as a JSON object." placeholder:"JSON"`
}

func (nodeCmd) Help() string {
	return `Commands are JSON objects, one a line, {"cmd":"grant","n":1,"id":"r1",...}; the answer to a command carries its "n" as "re", events carry "ev". Commands and their keys, those in brackets may be left out:

  prefill: ` + jsonl.Usage("expect", "grant", "overwrite", "revoke", "cancel", "pressure") + `
  decode:  ` + jsonl.Usage("engine", "forget", "track", "read", "untrack", "reject") + `
  memory:  ` + jsonl.Usage("fill", "clear", "check", "register", "unregister") + `
  all:     ` + jsonl.Usage("handshake", "stats", "quit") + `

A grant with "fixed_s" holds blocks for that time, whatever heartbeats say: a decode engine (--role both) keeps them for the next turn. "pressure" takes leases back until that many blocks are free. By "check" an engine counts the bytes of its blocks that are not the request's.

By hand, in two terminals:

  $ kvlease node --role prefill --engine-id P --listen 127.0.0.1:5600
  {"cmd":"grant","n":1,"id":"r1","blocks":[0,1,2],"tokens":48}

  $ kvlease node --role decode --engine-id D
  {"cmd":"engine","engine_id":"P","host":"127.0.0.1","port":5600}
  {"cmd":"track","id":"r1","params":<what grant has answered>}
  {"cmd":"read","id":"r1"}

Without a side channel: {"cmd":"handshake","n":1} to P, and its answer to D as {"cmd":"engine","engine_id":"P","handshake":"..."}.

With tensor parallelism an engine is a process for its requests and one for the memory of each rank. They meet at the carrier. Reads take local blocks at the host; "fill" and "check" are for the ranks:

  $ kvlease node --context host --engine-id P --tp 2 --role prefill --listen 127.0.0.1:5600
  $ kvlease node --context rank --engine-id P --tp 2 --tp-rank 0 --role prefill
  $ kvlease node --context rank --engine-id P --tp 2 --tp-rank 1 --role prefill

SIGTERM, quit or the end of stdin: peers are told, then the engine leaves, within 4 seconds whatever is in flight; "bye" says what was.`
}

// check finds arguments that do not go together.
func (c *nodeCmd) check() error {
	switch {
	case c.PassTime < time.Millisecond || c.PassTime > time.Minute:
		return fmt.Errorf("--pass-time is %v, allowed: 1ms to 1m", c.PassTime)
	case c.Blocks < 1 || c.Blocks > kvcache.BlocksMax:
		return fmt.Errorf("--blocks is %d, allowed: 1 to %d", c.Blocks, kvcache.BlocksMax)
	case c.Layers < 1 || c.Layers > kvcache.LayersMax:
		return fmt.Errorf("--layers is %d, allowed: 1 to %d", c.Layers, kvcache.LayersMax)
	case c.Context == "engine" && c.Tp != 1:
		return fmt.Errorf("--tp is %d: an engine of several ranks is a process with --context host and one with --context rank for each", c.Tp)
	case c.Tp < 1 || kvcache.Heads%c.Tp != 0:
		return fmt.Errorf("--tp is %d, allowed: 1, 2 or 4, since ranks share %d heads", c.Tp, kvcache.Heads)
	case c.Context != "rank" && c.TpRank != 0:
		return fmt.Errorf("--tp-rank is for --context rank, this is %s", c.Context)
	case c.TpRank >= c.Tp:
		return fmt.Errorf("--tp-rank is %d, of --tp %d ranks", c.TpRank, c.Tp)
	case c.Context == "engine" && c.Carrier != "":
		return errors.New("--carrier is for --context host and rank")
	case c.Context == "rank" && c.Listen != "":
		return errors.New("--listen is for the engine's host, not for its ranks")
	case c.Memory != "vram" && (c.Device != 0 || c.Reads != "transport"):
		return errors.New("--device and --device-reads are for --memory vram")
	case c.Device < 0:
		return fmt.Errorf("--device is %d, GPUs count from 0", c.Device)
	case c.Context != "engine" && c.EngineID == "":
		return errors.New("--engine-id: a host and its ranks must be given the same one")
	}
	if c.Metrics != "" {
		if _, err := metrics.ParseAddr(c.Metrics); err != nil {
			return fmt.Errorf("--metrics: %w", err)
		}
	}
	if c.Listen != "" {
		if _, port, err := net.SplitHostPort(c.Listen); err != nil || !isPort(port) {
			return fmt.Errorf("--listen is %q, wanted: HOST:PORT", c.Listen)
		}
	}
	return nil
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// machineAt is the machine that a folder shows, or this one.
func machineAt(dir string) devices.Machine {
	if dir == "" {
		return devices.Machine{}
	}
	return devices.Machine{Sys: filepath.Join(dir, "sys"), Proc: filepath.Join(dir, "proc"), Dev: filepath.Join(dir, "dev")}
}

func (c *nodeCmd) Run(w *world) error {
	if err := c.check(); err != nil {
		return usageError{err}
	}
	var keys map[string]any
	if c.Config != "" {
		if err := json.Unmarshal([]byte(c.Config), &keys); err != nil {
			return usageError{fmt.Errorf("--config needs a JSON object of keys: %w", err)}
		}
	}
	return node.Run(w.ctx, node.Config{
		Role: c.Role, EngineID: c.EngineID, Drive: c.Drive, Transport: c.Transport, NixlPath: c.Nixl,
		PassTime: c.PassTime, Lease: c.Lease, Layers: c.Layers, Blocks: c.Blocks, Watch: c.Watch,
		Listen: c.Listen, Metrics: c.Metrics, Context: c.Context, TP: c.Tp, TPRank: c.TpRank, Carrier: c.Carrier, Keys: keys,
		Memory: c.Memory, Device: c.Device, Reads: c.Reads, Machine: machineAt(c.Machine),
	}, transports, w.stdin, w.stdout, version)
}
