package attach

import (
	"fmt"

	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/internal/jsons"
)

// Report is what was found out, in the form of --json. Numbers of 64 bits that are names are hexadecimal text.
type Report struct {
	Addr     string             `json:"addr"`
	EngineID string             `json:"engine_id"`
	Speaks   string             `json:"speaks"` // "kvlease" or "stock"
	Hash     string             `json:"compatibility_hash"`
	TP       uint32             `json:"tp_size"` // said by our engines, else by the user
	PP       uint32             `json:"pp_size"`
	Notes    jsons.List[string] `json:"notes"`

	ConnectMs   float64 `json:"connect_ms"` // TCP and greeting
	RoundTrip   Spread  `json:"handshake_round_trip"`
	AheadMs     float64 `json:"clock_ahead_ms"` // its CLOCK_MONOTONIC minus ours
	AheadMostMs float64 `json:"clock_error_max_ms"`

	Lease   *Lease           `json:"kvlease,omitempty"`
	Ranks   jsons.List[Rank] `json:"ranks"`
	Unread  string           `json:"not_read,omitempty"` // why nothing was read
	Request *RequestReport   `json:"request,omitempty"`
	Against *Fit             `json:"against,omitempty"`
	Error   string           `json:"error,omitempty"`
}

// Spread is how long something took, in ms, over N times.
type Spread struct {
	N        int     `json:"n"`
	LeastMs  float64 `json:"least_ms"`
	MedianMs float64 `json:"median_ms"`
	MostMs   float64 `json:"most_ms"`
}

// Lease is what an engine of ours says of its leases.
type Lease struct {
	Version    uint32  `json:"version"`
	Epoch      string  `json:"epoch"`
	DurationMs float64 `json:"duration_ms"`
	ExtendMs   float64 `json:"extension_ms"` // what a heartbeat buys
	BeatMs     float64 `json:"interval_ms"`  // between two heartbeats
	Slots      uint32  `json:"slots"`
	KVHeads    uint32  `json:"kv_heads,omitempty"`
}

// Rank is one rank's map and what was measured with it.
type Rank struct {
	PP          uint32             `json:"pp_rank"`
	Rank        uint32             `json:"rank"`
	MapBytes    int                `json:"map_bytes"`
	Agent       string             `json:"agent,omitempty"`
	AgentBytes  int                `json:"agent_metadata_bytes"`
	Layout      string             `json:"kv_cache_layout"`
	Backend     string             `json:"attn_backend_name"`
	Device      uint32             `json:"device_id"`
	BlockTokens uint64             `json:"block_size"`
	Blocks      uint64             `json:"num_blocks"`
	PerLogical  uint64             `json:"physical_blocks_per_logical_kv_block"`
	DCP         uint64             `json:"dcp_size"`
	PCP         uint64             `json:"pcp_size"`
	SSM         [2]uint64          `json:"ssm_sizes"`
	PLE         *uint64            `json:"ple_block_len,omitempty"`
	Regions     jsons.List[Region] `json:"regions"`
	Board       *Board             `json:"board,omitempty"`

	LoadMs float64 `json:"load_ms,omitempty"`       // to load its agent: connecting is part of it or of the first read
	First  float64 `json:"first_read_ms,omitempty"` // one-sided
	Read   *Spread `json:"read,omitempty"`          // the following ones, of 8 bytes each
}

// Region is one registered array of blocks.
type Region struct {
	Name       string             `json:"name,omitempty"`
	Members    jsons.List[string] `json:"members"`
	Addr       string             `json:"addr"`
	Blocks     uint32             `json:"blocks"`
	BlockBytes uint64             `json:"block_bytes"`
	Stride     uint64             `json:"stride_bytes"`
	Group      int32              `json:"group"`
	Mem        string             `json:"memory"`
	Parts      uint32             `json:"parts,omitempty"`
	Replicated bool               `json:"replicated,omitempty"`
}

// Board is where the rows of a rank's leases are and what they say.
type Board struct {
	Addr     string `json:"addr"`
	Base     string `json:"base"`
	Mem      string `json:"memory"`
	Seen     bool   `json:"seen"` // it was read: the rest is of it
	Draining bool   `json:"draining"`
	Closed   bool   `json:"closed"`
	Looked   uint32 `json:"rows_read"`
	Held     uint32 `json:"leases_held"` // among those rows
}

// Fit is what keeps an engine from reading here.
type Fit struct {
	Addr     string             `json:"addr"`
	EngineID string             `json:"engine_id,omitempty"`
	Misfits  jsons.List[string] `json:"misfits"`
}

func hex64(v uint64) string  { return fmt.Sprintf("%016x", v) }
func addr64(v uint64) string { return fmt.Sprintf("0x%x", v) }

var memNames = map[wire.RegionMem]string{0: "DRAM", 1: "VRAM"}

// report is what the side channel has told.
func (e *engine) report() *Report {
	r := &Report{
		Addr: e.cfg.Addr, EngineID: e.id(), Speaks: "stock", Hash: e.ranks[0].Hash, TP: e.tp, PP: e.pp, Notes: e.notes(),
		ConnectMs: ms(e.connect), RoundTrip: spread(e.trips),
	}
	if ahead, bound, ok := e.clock(); ok {
		r.AheadMs, r.AheadMostMs = ms(ahead), ms(bound)
	}
	if e.native() {
		l := e.lease()
		r.Speaks = "kvlease"
		r.Lease = &Lease{
			Version: l.Version, Epoch: hex64(l.Epoch), DurationMs: ms(l.Duration), ExtendMs: ms(l.Duration * 2 / 3), BeatMs: ms(l.Duration / 6),
			Slots: l.Slots, KVHeads: l.KVHeads,
		}
	}
	for i := range e.ranks {
		r.Ranks = append(r.Ranks, e.ranks[i].report())
	}
	return r
}

func (k *rank) report() Rank {
	h := k.Handshake
	r := Rank{
		PP: k.Rank.PP, Rank: k.Rank.Transfer, MapBytes: len(k.Raw), AgentBytes: len(h.AgentMetadata), Layout: h.Layout, Backend: h.AttnBackend,
		Device: h.DeviceID, BlockTokens: h.BlockSize, Blocks: h.NumBlocks, PerLogical: h.PhysicalPerLogical, DCP: h.DCPSize, PCP: h.PCPSize,
		SSM: h.SSMSizes, PLE: h.PLEBlockLen,
	}
	if h.Native {
		l := &h.Lease
		r.Agent = l.Agent
		r.Board = &Board{Addr: addr64(l.Board), Base: hex64(l.Base), Mem: memNames[l.BoardMem]}
	}
	for i := range k.layout.Regions {
		v := reportRegion(&k.layout.Regions[i])
		if i < len(h.RegionMembers) {
			v.Members = h.RegionMembers[i]
		}
		r.Regions = append(r.Regions, v)
	}
	return r
}

func reportRegion(g *read.Region) Region {
	return Region{
		Name: g.Name, Addr: addr64(g.Addr), Blocks: g.Blocks, BlockBytes: g.BlockLen, Stride: g.BlockStride, Group: g.Group,
		Mem: memNames[g.Mem], Parts: g.Parts, Replicated: g.Replicated,
	}
}
