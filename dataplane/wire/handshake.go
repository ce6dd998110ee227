package wire

import (
	"slices"
	"time"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// Handshake is one rank's metadata map (agent_metadata_bytes): vLLM's keys, and ours as the last one.
//
// The lists over regions are all as long as BaseAddrs, or nil where nil is allowed. Names, units and meanings are vLLM's.
type Handshake struct {
	EngineID           string
	AgentMetadata      []byte   // the transport's blob
	BaseAddrs          []uint64 // kv_caches_base_addr: start of each region
	DeviceID           uint32
	NumBlocks          uint64   // kernel blocks
	BlockLens          []uint64 // bytes of a block, per region
	BlockStrides       []uint64 // bytes from one block to the next, per region
	Layout             string   // kv_cache_layout
	BlockSize          uint64   // tokens per kernel block
	SSMSizes           [2]uint64
	AttnBackend        string
	PhysicalPerLogical uint64         // kernel blocks per logical block
	RegionNumBlocks    []uint64       // nil: NumBlocks everywhere
	RegionGroupIDs     []int64        // nil: one group; -1: every group's ids address the region
	RegionNames        []string       // may be nil
	RegionMemTypes     []RegionMem    // nil: not said
	DCPSize, PCPSize   uint64         // at least 1
	PLEBlockLen        *uint64        // may be nil
	RegionMembers      [][]string     // layer names per region, may be empty
	PackedMembers      []PackedMember // packed_member_layouts, in the order of the map
	Lease              HandshakeLease // the kvlease key
	Native             bool           // the kvlease key is there and of a version that we speak
}

// RegionMem is a region's kind of memory.
type RegionMem = transport.Mem

// PackedMember is where a layer lies in a packed region.
type PackedMember struct {
	Name          string
	Offset, Bytes uint64
}

// HandshakeLease is the kvlease key: where a reader finds the fence words, and who the owner is.
// Of a version that we do not speak only Version is set, and the peer is treated as stock.
type HandshakeLease struct {
	Version     uint32
	Epoch       uint64 // boot epoch, not 0
	Base        uint64 // fence word of use 0, below 2^62
	Board       uint64 // address of the board; rows start BoardHeadLen after it
	BoardDevice uint32
	BoardMem    transport.Mem
	Slots       uint32 // rows
	Duration    time.Duration
	Agent       string // transport name of this rank's agent
	Rank        uint32 // pp rank x TP + tp rank
	Hash        string // compatibility_hash, for maps that travel without the payload around them; may be empty

	// Size of the engine and how its blocks hold heads. Written only where it is not what a map without the key means.
	TP, PP     uint32   // ranks of a stage, stages; 1 (0 is written as 1)
	KVHeads    uint32   // of the model, over all ranks; 0: not told
	Parts      []uint32 // pieces of a block per region, each with one run of bytes per head; nil: 1 each
	Replicated []bool   // per region: every rank holds the whole block; nil: none
}

// LeaseVersion is the version of the kvlease key in handshakes and parameters that we write and read.
const LeaseVersion = 1

// Keys in the order of declaration, which is the order on the wire.
const (
	keyEngineID = iota
	keyAgentMetadata
	keyBaseAddr
	keyDeviceID
	keyNumBlocks
	keyBlockLens
	keyBlockStrides
	keyLayout
	keyBlockSize
	keySSMSizes
	keyAttnBackend
	keyPhysicalPerLogical // the last one without a default
	keyRegionNumBlocks
	keyRegionGroupIDs
	keyRegionNames
	keyRegionMemTypes
	keyDCPSize
	keyPCPSize
	keyPLEBlockLen
	keyRegionMembers
	keyPackedMembers
	keyLease
	handshakeKeysN
)

var handshakeKeys = [handshakeKeysN]string{
	"engine_id", "agent_metadata", "kv_caches_base_addr", "device_id", "num_blocks", "block_lens", "block_strides",
	"kv_cache_layout", "block_size", "ssm_sizes", "attn_backend_name", "physical_blocks_per_logical_kv_block",
	"region_num_blocks", "region_group_ids", "region_names", "region_mem_types", "dcp_size", "pcp_size", "ple_block_len",
	"region_members", "packed_member_layouts", "kvlease",
}

const (
	leaseV = iota
	leaseEpoch
	leaseBase
	leaseBoard
	leaseBoardDevice
	leaseBoardMem
	leaseSlots
	leaseDuration
	leaseAgent
	leaseRank // the last one that must be there
	leaseHash
	leaseTP
	leasePP
	leaseKVHeads
	leaseParts
	leaseReplicated
	leaseKeysN
)

var leaseKeys = [leaseKeysN]string{
	"v", "epoch", "base", "board", "board_device", "board_mem", "slots", "duration_ns", "agent", "rank", "hash",
	"tp", "pp", "kv_heads", "parts", "replicated",
}

// Bounds of what a map says of an engine's size.
const (
	RanksMax   = 64      // tp x pp
	PartsMax   = 64      // of a block
	KVHeadsMax = 1 << 16 // of a model
)

var memNames = [...]string{transport.DRAM: "DRAM", transport.VRAM: "VRAM"}

// AppendHandshake encodes the map. Without Native the kvlease key is left out and the bytes are those of stock vLLM.
func AppendHandshake(dst []byte, h *Handshake) []byte {
	n := handshakeKeysN
	if !h.Native {
		n-- // the last key is ours
	}
	dst = packMap(dst, n)
	for k := range n {
		dst = packStr(dst, handshakeKeys[k])
		dst = h.appendValue(dst, k)
	}
	return dst
}

func (h *Handshake) appendValue(dst []byte, key int) []byte {
	switch key {
	case keyEngineID:
		return packStr(dst, h.EngineID)
	case keyAgentMetadata:
		return packBin(dst, h.AgentMetadata)
	case keyBaseAddr:
		return packUints(dst, h.BaseAddrs)
	case keyDeviceID:
		return packUint(dst, uint64(h.DeviceID))
	case keyNumBlocks:
		return packUint(dst, h.NumBlocks)
	case keyBlockLens:
		return packUints(dst, h.BlockLens)
	case keyBlockStrides:
		return packUints(dst, h.BlockStrides)
	case keyLayout:
		return packStr(dst, h.Layout)
	case keyBlockSize:
		return packUint(dst, h.BlockSize)
	case keySSMSizes:
		return packUints(dst, h.SSMSizes[:])
	case keyAttnBackend:
		return packStr(dst, h.AttnBackend)
	case keyPhysicalPerLogical:
		return packUint(dst, h.PhysicalPerLogical)
	case keyRegionNumBlocks:
		return packList(dst, h.RegionNumBlocks, packUint)
	case keyRegionGroupIDs:
		return packList(dst, h.RegionGroupIDs, packInt)
	case keyRegionNames:
		return packList(dst, h.RegionNames, packStr)
	case keyRegionMemTypes:
		return packList(dst, h.RegionMemTypes, packMem)
	case keyDCPSize:
		return packUint(dst, max(h.DCPSize, 1))
	case keyPCPSize:
		return packUint(dst, max(h.PCPSize, 1))
	case keyPLEBlockLen:
		if h.PLEBlockLen == nil {
			return append(dst, 0xc0)
		}
		return packUint(dst, *h.PLEBlockLen)
	case keyRegionMembers:
		dst = packArray(dst, len(h.RegionMembers))
		for _, names := range h.RegionMembers {
			dst = packArray(dst, len(names))
			for _, name := range names {
				dst = packStr(dst, name)
			}
		}
		return dst
	case keyPackedMembers:
		dst = packMap(dst, len(h.PackedMembers))
		for _, m := range h.PackedMembers {
			dst = packArray(packStr(dst, m.Name), 2)
			dst = packUint(packUint(dst, m.Offset), m.Bytes)
		}
		return dst
	}
	return h.Lease.append(dst)
}

func (l *HandshakeLease) append(dst []byte) []byte {
	parts := slices.ContainsFunc(l.Parts, func(n uint32) bool { return n != 1 })
	replicated := slices.Contains(l.Replicated, true)
	n := leaseTP
	for _, told := range []bool{l.TP > 1, l.PP > 1, l.KVHeads > 0, parts, replicated} {
		if told {
			n++
		}
	}
	dst = packMap(dst, n)
	number := func(key int, v uint64) { dst = packUint(packStr(dst, leaseKeys[key]), v) }
	text := func(key int, s string) { dst = packStr(packStr(dst, leaseKeys[key]), s) }
	number(leaseV, LeaseVersion)
	number(leaseEpoch, l.Epoch)
	number(leaseBase, l.Base)
	number(leaseBoard, l.Board)
	number(leaseBoardDevice, uint64(l.BoardDevice))
	text(leaseBoardMem, memNames[l.BoardMem])
	number(leaseSlots, uint64(l.Slots))
	number(leaseDuration, uint64(l.Duration))
	text(leaseAgent, l.Agent)
	number(leaseRank, uint64(l.Rank))
	text(leaseHash, l.Hash)
	if l.TP > 1 {
		number(leaseTP, uint64(l.TP))
	}
	if l.PP > 1 {
		number(leasePP, uint64(l.PP))
	}
	if l.KVHeads > 0 {
		number(leaseKVHeads, uint64(l.KVHeads))
	}
	if parts {
		dst = packList(packStr(dst, leaseKeys[leaseParts]), l.Parts, func(dst []byte, v uint32) []byte { return packUint(dst, uint64(v)) })
	}
	if replicated {
		dst = packList(packStr(dst, leaseKeys[leaseReplicated]), l.Replicated, packBool)
	}
	return dst
}

func packUints(dst []byte, list []uint64) []byte {
	dst = packArray(dst, len(list))
	for _, v := range list {
		dst = packUint(dst, v)
	}
	return dst
}

// packList is a list, or nil for a nil one.
func packList[T any](dst []byte, list []T, one func([]byte, T) []byte) []byte {
	if list == nil {
		return append(dst, 0xc0)
	}
	dst = packArray(dst, len(list))
	for _, v := range list {
		dst = one(dst, v)
	}
	return dst
}

func packMem(dst []byte, m RegionMem) []byte { return packStr(dst, memNames[m]) }
