package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/kvcache"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/node"
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
	Watch     bool          `help:"Report heartbeats as they arrive."`
	Listen    string        `help:"Serve our handshake on this side channel." placeholder:"HOST:PORT"`
	Context   string        `help:"What this process holds of the engine: engine (all of it), host (requests), rank (memory of one rank)." enum:"engine,host,rank" default:"engine"`
	Tp        uint32        `help:"Ranks of the engine, with --context host or rank: 1, 2 or 4." default:"1"`
	TpRank    uint32        `help:"Which of them this process is, with --context rank."`
	Carrier   string        `help:"Socket where a host and its ranks meet; named after the engine if empty." placeholder:"PATH"`
	Config    string        `help:"Further keys of the configuration, as a JSON object." placeholder:"JSON"`
}

func (nodeCmd) Help() string {
	return `Commands are JSON objects, one a line; the answer to a command carries its "n" as "re", events carry "ev".

  prefill: handshake, expect, grant, overwrite, revoke, cancel, pressure     decode: engine, forget, track, read, untrack
  memory: fill, clear, check, register, unregister                           all: stats, quit

By hand, in two terminals:

  $ kvlease node --role prefill --engine-id P
  {"cmd":"handshake","n":1}
  {"cmd":"grant","n":2,"id":"r1","blocks":[0,1,2],"tokens":48}

  $ kvlease node --role decode --engine-id D
  {"cmd":"engine","engine_id":"P","handshake":"<what P has answered>"}
  {"cmd":"track","id":"r1","params":<what grant has answered>}
  {"cmd":"read","id":"r1"}

SIGTERM, quit or the end of stdin: peers are told, then the engine leaves.`
}

func (c *nodeCmd) Run(w *world) error {
	switch {
	case c.PassTime < time.Millisecond || c.PassTime > time.Minute:
		return usageError{fmt.Errorf("--pass-time is %v, allowed: 1ms to 1m", c.PassTime)}
	case c.Blocks < 1 || c.Blocks > kvcache.BlocksMax:
		return usageError{fmt.Errorf("--blocks is %d, allowed: 1 to %d", c.Blocks, kvcache.BlocksMax)}
	case c.Layers < 1 || c.Layers > kvcache.LayersMax:
		return usageError{fmt.Errorf("--layers is %d, allowed: 1 to %d", c.Layers, kvcache.LayersMax)}
	}
	var keys map[string]any
	if c.Config != "" {
		if err := json.Unmarshal([]byte(c.Config), &keys); err != nil {
			return usageError{fmt.Errorf("--config needs a JSON object of keys: %w", err)}
		}
	}
	if c.Context != "engine" && c.EngineID == "" {
		return usageError{errors.New("--engine-id: a host and its ranks must be given the same one")}
	}
	if c.Context == "engine" && c.Tp != 1 {
		return usageError{fmt.Errorf("--tp is %d: an engine of several ranks is a process with --context host and one with --context rank for each", c.Tp)}
	}
	return node.Run(w.ctx, node.Config{
		Role: c.Role, EngineID: c.EngineID, Drive: c.Drive, Transport: c.Transport, NixlPath: c.Nixl,
		PassTime: c.PassTime, Lease: c.Lease, Layers: c.Layers, Blocks: c.Blocks, Watch: c.Watch,
		Listen: c.Listen, Context: c.Context, TP: c.Tp, TPRank: c.TpRank, Carrier: c.Carrier, Keys: keys,
	}, transports, w.stdin, w.stdout, version)
}
