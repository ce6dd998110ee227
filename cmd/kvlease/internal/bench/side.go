package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/kvlease/kvlease/cuda/devices"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Spec is one pair of sides, as D says it to P.
type Spec struct {
	Transport string `json:"transport"`
	NixlPath  string `json:"nixl_path,omitempty"`
	Memory    string `json:"memory"`
	Devices   [2]int `json:"devices"` // of P and D
	Block     uint64 `json:"block"`   // bytes
	Blocks    uint32 `json:"blocks"`
	Burst     int    `json:"burst"`

	Keys    map[string]any  `json:"keys,omitempty"` // further ones of the configuration of both contexts
	Machine devices.Machine `json:"machine"`
}

func (s *Spec) bytes() uint64 { return s.Block * uint64(s.Blocks) }

// config is the context's. The lease outlives every wait of a run; what a burst holds at once fits.
func (s *Spec) config(name string) ([]byte, error) {
	keys := map[string]any{
		"engine_id": "bench-" + name, "transport": s.Transport, "drive": "inline", "kv_lease_duration": 120,
		"requests_max": max(s.Burst, 64) + 64, "tracked_max": max(s.Burst, 64) + 64, "stats_page": "",
	}
	if s.NixlPath != "" {
		keys["nixl_path"] = s.NixlPath
	}
	maps.Copy(keys, s.Keys)
	return json.Marshal(keys)
}

// side is what one process has: KV blocks, a context over them, and a raw agent over the same blocks.
type side struct {
	spec   Spec
	mem    memory
	core   *core.Core
	host   *host.Host
	raw    transport.Transport
	in     *transport.Inbox
	events [64]record.Event
}

// inboxes of raw notifications: a burst comes in several polls.
const (
	inboxNotifs = 1024
	inboxBytes  = 1 << 20
)

func openSide(name string, spec *Spec, transports map[string]core.OpenTransport) (_ *side, err error) {
	s := &side{spec: *spec, in: transport.NewInbox(inboxNotifs, inboxBytes)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	text, err := spec.config(name)
	if err != nil {
		return nil, err
	}
	cfg, err := core.ParseConfig(text)
	if err != nil {
		return nil, err
	}
	device, other := spec.Devices[0], false
	if name == "D" {
		device, other = spec.Devices[1], true
	}
	if s.mem, err = openMemory(spec.Memory, spec.bytes(), other, device); err != nil {
		return nil, err
	}
	mem, err := core.NewMemory(cfg.Sizes())
	if err != nil {
		return nil, err
	}
	if s.core, err = core.Open(cfg, mem, transports, nil); err != nil {
		return nil, err
	}
	s.core.UseDevices(spec.Machine.Open)
	if err = s.core.Register([]core.Region{{
		Addr: s.mem.addr(), Bytes: spec.bytes(), BlockLen: spec.Block, BlockStride: spec.Block, Blocks: spec.Blocks, Group: -1, Name: "kv",
		Mem: s.mem.kind(), Device: s.mem.device(),
	}}); err != nil {
		return nil, err
	}
	if s.host, err = host.New(mem, nil); err != nil {
		return nil, err
	}
	// After the registration: cfg has what NIXL was told of the devices then, so both agents have the same NICs.
	if s.raw, err = transports[spec.Transport](cfg, "bench-raw-"+name); err != nil {
		return nil, fmt.Errorf("the raw agent: %w", err)
	}
	return s, s.raw.Register([]transport.Region{{Addr: s.mem.addr(), Bytes: spec.bytes(), Device: s.mem.device(), Mem: s.mem.kind()}})
}

const closeMax = 2 * time.Second

// close ends what openSide has opened. What does not end in time keeps its memory until the process ends: a peer may still read there.
func (s *side) close() (err error) {
	if s.raw != nil {
		err = s.raw.Close()
	}
	if s.core != nil {
		err = errors.Join(err, s.core.Close(closeMax))
	}
	if s.mem != nil && err == nil {
		err = s.mem.free()
	}
	s.raw, s.core, s.mem = nil, nil, nil
	return err
}

// poll takes the events that are there.
func (s *side) poll(on func(*record.Event) error) error {
	for {
		n := s.host.Poll(s.events[:], core.Now())
		for i := range s.events[:n] {
			if err := on(&s.events[i]); err != nil {
				return err
			}
		}
		if n < len(s.events) {
			return nil
		}
	}
}
