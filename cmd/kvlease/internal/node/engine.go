// Package node is an engine stand-in in Go: a KV cache in host or device memory, a forward loop, and commands as JSON lines. It is
// the Go twin of docs/examples/prefill.c and decode.c, over the same core without the C library in between.
package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/kvcache"
	"github.com/kvlease/kvlease/cuda/devices"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
	"golang.org/x/sys/unix"
)

// Config is what a stand-in is made of.
type Config struct {
	Role      string         // prefill, decode or both: which commands it takes
	Context   string         // engine, host or rank: what this process holds of the engine
	TP        uint32         // ranks of the engine
	TPRank    uint32         // which of them this is
	Carrier   string         // path of the socket between host and ranks
	Listen    string         // host:port of the side channel, "" none
	Metrics   string         // host:port for Prometheus, "" none
	Keys      map[string]any // further keys of the configuration
	EngineID  string
	Drive     string // inline or pump
	Transport string
	NixlPath  string
	PassTime  time.Duration
	Lease     time.Duration
	Layers    uint32
	Blocks    uint32
	Watch     bool // report heartbeats as they arrive

	Memory  string          // "" or dram: the host's; vram: a device's
	Device  int             // its ordinal
	Reads   string          // of device memory: "" or transport: by the transport; ipc: by the driver (cuda/ipc)
	Machine devices.Machine // where NICs are looked for
}

// core writes the configuration of the context. A lease of 3 s or less has to be asked for, with the longest pass said.
func (c *Config) core() ([]byte, error) {
	keys := map[string]any{
		"engine_id": c.EngineID, "transport": c.Transport, "drive": c.Drive, "kv_lease_duration": c.Lease.Seconds(),
		"block_size": kvcache.Tokens,
	}
	if c.Context == "host" || c.Context == "rank" {
		keys["role"], keys["tp_size"], keys["carrier_path"] = c.Context, c.TP, c.Carrier
	}
	if c.Context == "rank" {
		keys["tp_rank"] = c.TPRank
	}
	if c.Listen != "" {
		host, port, err := net.SplitHostPort(c.Listen)
		if err != nil {
			return nil, fmt.Errorf("the side channel is to listen at %q: %w", c.Listen, err)
		}
		number, err := strconv.Atoi(port)
		if err != nil {
			return nil, fmt.Errorf("the side channel is to listen at %q: %q is no port", c.Listen, port)
		}
		keys["side_channel_listen"], keys["side_channel_host"], keys["side_channel_port"] = true, host, number
	}
	if c.NixlPath != "" {
		keys["nixl_path"] = c.NixlPath
	}
	if c.Lease <= 3*time.Second {
		keys["allow_short_leases"], keys["step_max"] = true, 0.05
	}
	for name, v := range c.Keys {
		keys[name] = v
	}
	return json.Marshal(keys)
}

// engine is one context with its KV cache, which a host context does not have: what a program holds of kvlease.
//
// Threads: one.
type engine struct {
	core   *core.Core
	host   *host.Host
	memory *memory // nil in a host context
	pump   bool
	peers  map[string]uint64 // engine handles by id
}

func openEngine(cfg *Config, transports map[string]core.OpenTransport) (_ *engine, err error) {
	text, err := cfg.core()
	if err != nil {
		return nil, err
	}
	parsed, err := core.ParseConfig(text)
	if err != nil {
		return nil, err
	}
	e := &engine{pump: cfg.Drive == "pump", peers: map[string]uint64{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close(0))
		}
	}()
	if cfg.Context != "host" {
		if e.memory, err = openMemory(cfg); err != nil {
			return nil, err
		}
		transports = e.memory.transports(transports)
	}
	mem, err := core.NewMemory(parsed.Sizes())
	if err != nil {
		return nil, err
	}
	if e.core, err = core.Open(parsed, mem, transports, nil); err != nil {
		return nil, err
	}
	if e.memory != nil {
		e.core.UseDevices(e.memory.view)
		if err := e.core.Register(e.memory.regions()); err != nil {
			return nil, err
		}
	}
	var wake func()
	if e.pump {
		wake = e.core.Wake
	}
	if e.host, err = host.New(mem, wake); err != nil {
		return nil, err
	}
	e.host.Trace(e.core.Sites())
	if cfg.Context == "host" {
		e.host.HostOf(int(cfg.TP))
	}
	return e, nil
}

// close ends the context, then gives the cache back: not before, since NIXL has it registered.
func (e *engine) close(limit time.Duration) error {
	if e.core != nil {
		if err := e.core.Close(limit); err != nil {
			return err
		}
	}
	if e.memory == nil {
		return nil
	}
	return e.memory.store.Close()
}

// pass is what the forward loop does once per pass. Inline it is the step; with the pump it says that the loop lives.
func (e *engine) pass() error {
	if e.pump {
		atomic.StoreUint64(&e.core.Memory().Control.PassNs, uint64(core.Now()))
		if why := e.core.Broken(); why != "" {
			return fmt.Errorf("%w: %s", core.ErrPoisoned, why)
		}
		return nil
	}
	return e.core.Step()
}

func (e *engine) addPeer(c *jsonl.Command, handshake []byte) error {
	h, err := e.core.AddPeer(heartbeat.EngineDesc{ID: c.EngineID, TP: c.TP}, c.Host, int(c.Port))
	if err != nil {
		return err
	}
	e.peers[c.EngineID] = h
	if len(handshake) == 0 {
		return nil
	}
	return e.core.Handshake(h, c.Rank, handshake)
}

// monotonic is CLOCK_MONOTONIC, in which parameters name the end of a fixed life.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every Linux that runs this has the clock
	}
	return ts.Nano()
}

func (e *engine) peerName(handle uint64) string {
	for id, h := range e.peers {
		if h == handle {
			return id
		}
	}
	return ""
}

// grant holds a finished request's blocks under a lease and answers the transfer parameters for the router. They may leave once the lease is
// Ready, if event is not 0: the blocks are written then. fixed is 0, or how long they are held whatever heartbeats say.
func (e *engine) grant(id string, blocks []uint32, tokens uint32, expected record.Handle, user, event uint64, fixed time.Duration) (record.Handle, []byte, error) {
	end := float64(monotonic()+int64(fixed)) / 1e9
	lease, err := e.host.Grant(host.Grant{
		ID: []byte(id), Blocks: uint32(len(blocks)), Tokens: tokens, Expected: expected, User: user, Event: event, TTL: fixed, Fixed: fixed > 0,
	}, core.Now())
	if err != nil {
		return 0, nil, err
	}
	var expiry *float64
	if fixed > 0 {
		expiry = &end
	}
	cfg := e.core.Config()
	epoch, _, _ := e.core.Memory().Control.ReadEra() // changes only while nothing is granted
	return lease, wire.AppendParams(nil, &wire.Params{
		DoRemotePrefill: true, EngineID: cfg.EngineID, RequestID: id, Host: cfg.SideChannelHost, Port: uint32(cfg.SideChannelPort),
		TPSize: uint32(cfg.TPSize), DCPSize: 1, PPSize: 1, NumTokens: tokens, Groups: [][]uint32{blocks}, TransferMode: "pull", Native: true,
		ExpiryTime: expiry,
		Lease:      wire.ParamsLease{Version: 1, Epoch: epoch, Slot: lease.Slot(), Generation: lease.Use(), Key: e.host.Key(lease)},
	}), nil
}

// track starts heartbeats for a request that has entered the queue.
func (e *engine) track(params *wire.Params, id string, user uint64) (record.Handle, error) {
	peer, r, err := e.remote(params)
	if err != nil {
		return 0, err
	}
	return e.host.Track(peer, r, []byte(id), user, core.Now())
}

// reject tells the owner of a request that was refused before admission that nobody will read it.
func (e *engine) reject(params *wire.Params) error {
	peer, r, err := e.remote(params)
	if err != nil {
		return err
	}
	return e.host.Reject(peer, r, core.Now())
}

// remote is what transfer parameters say of the owner's lease.
func (e *engine) remote(params *wire.Params) (peer uint64, r *host.Remote, err error) {
	peer, ok := e.peers[params.EngineID]
	if !ok {
		return 0, nil, fmt.Errorf("the parameters name engine %q, which was not introduced", params.EngineID)
	}
	r = &host.Remote{ID: []byte(params.RequestID)}
	if params.ExpiryTime != nil {
		r.ExpiresNs = uint64(*params.ExpiryTime * 1e9)
	}
	if params.Native {
		r.Native, r.Epoch, r.Key, r.Slot, r.Generation = true, params.Lease.Epoch, params.Lease.Key, params.Lease.Slot, params.Lease.Generation
	}
	return peer, r, nil
}

// read asks for blocks; neighbours on both sides become one run.
func (e *engine) read(track record.Handle, local, remote []uint32) error {
	var runs []record.Run
	for i := range local {
		if n := len(runs); n > 0 && local[i] == runs[n-1].Local+runs[n-1].N && remote[i] == runs[n-1].Remote+runs[n-1].N {
			runs[n-1].N++
			continue
		}
		runs = append(runs, record.Run{Local: local[i], Remote: remote[i], N: 1})
	}
	return e.host.Read(track, runs)
}
