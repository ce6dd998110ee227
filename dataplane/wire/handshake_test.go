package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// stockGolden is the map of vllm-wire 1.6, made by the wheel's own classes.
const stockGolden = "de0015a9656e67696e655f6964a145ae6167656e745f6d65746164617461c4020102b36b765f6361636865735f626173655f6164647291cf00007f0000000000a96465766963655f696400aa6e756d5f626c6f636b7308aa626c6f636b5f6c656e7391cd1000ad626c6f636b5f7374726964657391cd1000af6b765f63616368655f6c61796f7574a54c42484e43aa626c6f636b5f73697a6510a973736d5f73697a6573920000b16174746e5f6261636b656e645f6e616d65aa464c4153485f4154544ed924706879736963616c5f626c6f636b735f7065725f6c6f676963616c5f6b765f626c6f636b01b1726567696f6e5f6e756d5f626c6f636b73c0b0726567696f6e5f67726f75705f696473c0ac726567696f6e5f6e616d6573c0b0726567696f6e5f6d656d5f7479706573c0a86463705f73697a6501a87063705f73697a6501ad706c655f626c6f636b5f6c656ec0ae726567696f6e5f6d656d6265727390b57061636b65645f6d656d6265725f6c61796f75747380"

func stockMap() Handshake {
	return Handshake{
		EngineID: "E", AgentMetadata: []byte{1, 2}, BaseAddrs: []uint64{0x7f0000000000}, NumBlocks: 8,
		BlockLens: []uint64{4096}, BlockStrides: []uint64{4096}, Layout: "LBHNC", BlockSize: 16, AttnBackend: "FLASH_ATTN",
		PhysicalPerLogical: 1, DCPSize: 1, PCPSize: 1,
	}
}

// fullMap uses every key.
func fullMap() Handshake {
	ple := uint64(640)
	return Handshake{
		EngineID: "P-1", AgentMetadata: []byte("blob"), BaseAddrs: []uint64{0x7f0000000000, 0x7f1000000000}, DeviceID: 3,
		NumBlocks: 8, BlockLens: []uint64{4096, 64}, BlockStrides: []uint64{8192, 300}, Layout: "LBHNC", BlockSize: 16,
		SSMSizes: [2]uint64{70000, 5}, AttnBackend: "FLASH_ATTN", PhysicalPerLogical: 2,
		RegionNumBlocks: []uint64{8, 4}, RegionGroupIDs: []int64{0, -1}, RegionNames: []string{"model.layers.0", strings.Repeat("n", 300)},
		RegionMemTypes: []RegionMem{transport.VRAM, transport.DRAM}, DCPSize: 2, PCPSize: 4, PLEBlockLen: &ple,
		RegionMembers: [][]string{{"a", "b"}, {}}, PackedMembers: []PackedMember{{"b", 0, 100000}, {"a", 100000, 7}},
		Native: true, Lease: HandshakeLease{
			Version: 1, Epoch: 0xfedcba9876543210, Base: 0x123456789abcdef, Board: 0x7f2000000000, BoardDevice: 0,
			BoardMem: transport.DRAM, Slots: 1024, Duration: 30 * time.Second, Agent: "agent-1", Rank: 1, Hash: strings.Repeat("ab", 32),
			TP: 2, PP: 3, KVHeads: 8, Parts: []uint32{2, 1}, Replicated: []bool{false, true},
		},
	}
}

func TestTheStockMapHasTheBytesOfVllm(t *testing.T) {
	h := stockMap()
	if diff := cmp.Diff(stockGolden, hex.EncodeToString(AppendHandshake(nil, &h))); diff != "" {
		t.Errorf("encoded (-golden +got):\n%s", diff)
	}
	var got Handshake
	if err := ParseHandshake(unhex(t, stockGolden), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
}

func TestOurKeyFollowsTheStockBytes(t *testing.T) {
	h := stockMap()
	h.Native, h.Lease = true, fullMap().Lease
	got := hex.EncodeToString(AppendHandshake(nil, &h))
	want := "de0016" + stockGolden[len("de0015"):] + "a7" + hex.EncodeToString([]byte("kvlease"))
	if !strings.HasPrefix(got, want) {
		t.Errorf("got %s\nwant the start %s", got, want)
	}
}

func TestEveryKeyComesBack(t *testing.T) {
	h := fullMap()
	var got Handshake
	if err := ParseHandshake(AppendHandshake(nil, &h), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h, got); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
}

// edit puts another value to one key of a map; nil takes the key out. A key that is not there is added at the end.
func edit(t testing.TB, msg []byte, key string, value []byte) []byte {
	t.Helper()
	p := pack{b: msg}
	n := p.mapLen(HandshakeMax)
	var out []byte
	found := false
	for range n {
		from := p.b
		k := string(p.str(StringMax))
		valueFrom := p.b
		p.skip(1)
		if p.err != nil {
			t.Fatal(p.err)
		}
		pair := from[:len(from)-len(p.b)]
		if k == key {
			found = true
			if value == nil {
				n--
				continue
			}
			pair = append(append([]byte(nil), pair[:len(from)-len(valueFrom)]...), value...)
		}
		out = append(out, pair...)
	}
	if !found {
		n++
		out = append(packStr(out, key), value...)
	}
	return append(packMap(nil, n), out...)
}

// editLease does the same within the kvlease key.
func editLease(t testing.TB, msg []byte, key string, value []byte) []byte {
	t.Helper()
	var h Handshake
	if err := ParseHandshake(msg, &h); err != nil {
		t.Fatal(err)
	}
	return edit(t, msg, "kvlease", edit(t, h.Lease.append(nil), key, value))
}

func nest(levels int) []byte {
	return append([]byte(strings.Repeat("\x91", levels)), 0)
}

func TestMalformedMapsAreNamed(t *testing.T) {
	h := fullMap()
	good := AppendHandshake(nil, &h)
	u64 := func(v uint64) []byte { return binary.BigEndian.AppendUint64([]byte{0xcf}, v) }
	for _, tc := range []struct {
		name string
		msg  []byte
		want error
		key  string
	}{
		{"nothing", nil, ErrTruncated, ""},
		{"a map too long", make([]byte, HandshakeMax+1), ErrTooLong, ""},
		{"no map", []byte{0x90}, ErrType, ""},
		{"cut in the middle", good[:len(good)/2], ErrTruncated, ""},
		{"cut by one byte", good[:len(good)-1], ErrLimit, "kvlease.replicated"},
		{"a byte after the end", append(append([]byte(nil), good...), 0xc0), ErrTrailing, ""},
		{"a map that counts four billion pairs", unhex(t, "dfffffffff"), ErrLimit, ""},
		{"the 26-byte killer: an array that counts four billion", unhex(t, "81b36b765f6361636865735f626173655f61646472ddffffffff"), ErrLimit, "kv_caches_base_addr"},
		{"the same as text", unhex(t, "81a9656e67696e655f6964dbffffffff"), ErrTruncated, "engine_id"},
		{"the same as bytes", unhex(t, "81ae6167656e745f6d65746164617461c6ffffffff"), ErrTruncated, "agent_metadata"},
		{"a million levels in an unknown key", append(append(unhex(t, "81"), packStr(nil, "x")...), nest(1000000)...), ErrDepth, ""},
		{"a million maps in an unknown key", append(append(unhex(t, "81"), packStr(nil, "x")...), strings.Repeat("\x81\xa0", 500000)...), ErrDepth, ""},
		{"an unknown key nested one too deep", edit(t, good, "x", nest(DepthMax)), ErrDepth, ""},
		{"a byte that msgpack never uses", edit(t, good, "x", []byte{0xc1}), ErrSyntax, ""},
		{"an unknown ext that is cut", edit(t, good, "x", unhex(t, "c9ffffffff01")), ErrTruncated, ""},
		{"a key that is no text", unhex(t, "810100"), ErrType, ""},
		{"required keys missing", []byte{0x80}, ErrMissing, "engine_id"},
		{"one required key missing", edit(t, good, "block_size", nil), ErrMissing, "block_size"},
		{"a required key nil", edit(t, good, "num_blocks", []byte{0xc0}), ErrType, "num_blocks"},
		{"a number below zero", edit(t, good, "num_blocks", []byte{0xff}), ErrNegative, "num_blocks"},
		{"the lowest number", edit(t, good, "device_id", unhex(t, "d38000000000000000")), ErrNegative, "device_id"},
		{"an address below zero", edit(t, good, "kv_caches_base_addr", unhex(t, "92d0ff00")), ErrNegative, "kv_caches_base_addr"},
		{"a number too large", edit(t, good, "num_blocks", u64(1<<32)), ErrRange, "num_blocks"},
		{"a float as number", edit(t, good, "block_size", unhex(t, "cb4030000000000000")), ErrType, "block_size"},
		{"a number as text", edit(t, good, "engine_id", []byte{1}), ErrType, "engine_id"},
		{"bytes as text", edit(t, good, "engine_id", packBin(nil, []byte("E"))), ErrType, "engine_id"},
		{"text as bytes", edit(t, good, "agent_metadata", packStr(nil, "E")), ErrType, "agent_metadata"},
		{"text that is not UTF-8", edit(t, good, "engine_id", packStr(nil, "\xff")), ErrUTF8, "engine_id"},
		{"text too long", edit(t, good, "engine_id", packStr(nil, strings.Repeat("x", StringMax+1))), ErrTooLong, "engine_id"},
		{"an empty engine id", edit(t, good, "engine_id", packStr(nil, "")), ErrValue, "engine_id"},
		{"three state sizes", edit(t, good, "ssm_sizes", unhex(t, "93000000")), ErrLimit, "ssm_sizes"},
		{"one state size", edit(t, good, "ssm_sizes", unhex(t, "9100")), ErrValue, "ssm_sizes"},
		{"more lengths than regions", edit(t, good, "block_lens", unhex(t, "93010101")), ErrValue, "block_lens"},
		{"fewer groups than regions", edit(t, good, "region_group_ids", unhex(t, "9100")), ErrValue, "region_group_ids"},
		{"no names for two regions", edit(t, good, "region_names", unhex(t, "90")), ErrValue, "region_names"},
		{"a group below -1", edit(t, good, "region_group_ids", unhex(t, "9200fe")), ErrRange, "region_group_ids"},
		{"an unknown kind of memory", edit(t, good, "region_mem_types", packStr(packStr(packArray(nil, 2), "VRAM"), "vram")), ErrValue, "region_mem_types"},
		{"more regions than the limit", edit(t, good, "kv_caches_base_addr", append(packArray(nil, RegionsMax+1), make([]byte, RegionsMax+1)...)), ErrLimit, "kv_caches_base_addr"},
		{"a region that wraps the address space", edit(t, good, "kv_caches_base_addr", append([]byte{0x92, 0}, u64(1<<64-1)...)), ErrValue, "kv_caches_base_addr"},
		{"a stride that wraps the address space", edit(t, good, "block_strides", append([]byte{0x92, 1}, u64(1<<63)...)), ErrValue, "kv_caches_base_addr"},
		{"blocks of no token", edit(t, good, "block_size", []byte{0}), ErrValue, "block_size"},
		{"a packed layer of three numbers", edit(t, good, "packed_member_layouts", unhex(t, "81a16193000000")), ErrLimit, "packed_member_layouts"},

		{"our key as a list", edit(t, good, "kvlease", []byte{0x90}), ErrType, "kvlease"},
		{"our key without version", editLease(t, good, "v", nil), ErrMissing, "kvlease.v"},
		{"a version as text", editLease(t, good, "v", packStr(nil, "1")), ErrType, "kvlease.v"},
		{"no epoch", editLease(t, good, "epoch", nil), ErrMissing, "kvlease.epoch"},
		{"epoch 0", editLease(t, good, "epoch", []byte{0}), ErrValue, "kvlease.epoch"},
		{"an epoch below zero", editLease(t, good, "epoch", []byte{0xff}), ErrNegative, "kvlease.epoch"},
		{"a base of 2^62", editLease(t, good, "base", u64(1<<62)), ErrRange, "kvlease.base"},
		{"a board at 0", editLease(t, good, "board", []byte{0}), ErrValue, "kvlease.board"},
		{"a board on an odd address", editLease(t, good, "board", u64(0x7f2000000001)), ErrValue, "kvlease.board"},
		{"a board that wraps", editLease(t, good, "board", u64(1<<64-64)), ErrValue, "kvlease.board"},
		{"memory of another kind", editLease(t, good, "board_mem", packStr(nil, "dram")), ErrValue, "kvlease.board_mem"},
		{"no slots", editLease(t, good, "slots", []byte{0}), ErrValue, "kvlease.slots"},
		{"too many slots", editLease(t, good, "slots", u64(SlotsMax+1)), ErrRange, "kvlease.slots"},
		{"a duration of nothing", editLease(t, good, "duration_ns", []byte{0}), ErrValue, "kvlease.duration_ns"},
		{"a duration beyond a day", editLease(t, good, "duration_ns", u64(uint64(DurationMax)+1)), ErrRange, "kvlease.duration_ns"},
		{"no agent", editLease(t, good, "agent", packStr(nil, "")), ErrValue, "kvlease.agent"},
		{"no rank", editLease(t, good, "rank", nil), ErrMissing, "kvlease.rank"},
		{"no ranks of a stage", editLease(t, good, "tp", []byte{0}), ErrValue, "kvlease.tp"},
		{"more ranks than an engine may have", editLease(t, good, "tp", []byte{65}), ErrRange, "kvlease.tp"},
		{"four billion stages", editLease(t, good, "pp", u64(1<<32)), ErrRange, "kvlease.pp"},
		{"sizes whose product is too large", editLease(t, good, "pp", []byte{33}), ErrValue, "kvlease.pp"},
		{"a rank past them", editLease(t, good, "rank", []byte{6}), ErrValue, "kvlease.rank"},
		{"more heads than a model may have", editLease(t, good, "kv_heads", u64(KVHeadsMax+1)), ErrRange, "kvlease.kv_heads"},
		{"a block of no parts", editLease(t, good, "parts", unhex(t, "920200")), ErrValue, "kvlease.parts"},
		{"a block of too many", editLease(t, good, "parts", unhex(t, "920241")), ErrRange, "kvlease.parts"},
		{"parts of three regions", editLease(t, good, "parts", unhex(t, "93020202")), ErrValue, "kvlease.parts"},
		{"parts of four billion regions", editLease(t, good, "parts", unhex(t, "ddffffffff")), ErrLimit, "kvlease.parts"},
		{"a number for a truth", editLease(t, good, "replicated", unhex(t, "92c301")), ErrType, "kvlease.replicated"},
		{"truths of one region", editLease(t, good, "replicated", unhex(t, "91c3")), ErrValue, "kvlease.replicated"},
		{"an unknown key of ours nested too deep", editLease(t, good, "x", nest(DepthMax)), ErrDepth, "kvlease"},
	} {
		var got Handshake
		err := ParseHandshake(tc.msg, &got)
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		} else if tc.key != "" && !strings.HasPrefix(err.Error(), "handshake key "+tc.key+":") {
			t.Errorf("%s: %v does not name %s", tc.name, err, tc.key)
		}
		if diff := cmp.Diff(Handshake{}, got); diff != "" {
			t.Errorf("%s changed the output:\n%s", tc.name, diff)
		}
	}
}

func TestAKeyGivenTwiceIsRefused(t *testing.T) {
	h := fullMap()
	good := AppendHandshake(nil, &h)
	for _, tc := range []struct {
		name string
		msg  []byte
		want string
	}{
		{"in the map", append(append(packMap(nil, handshakeKeysN+1), good[3:]...), append(packStr(nil, "engine_id"), 0xa1, 'E')...), "handshake key engine_id:"},
		{"in our key", edit(t, good, "kvlease", append(append(packMap(nil, leaseKeysN+1), h.Lease.append(nil)[3:]...), append(packStr(nil, "rank"), 0)...)), "handshake key kvlease.rank:"},
	} {
		var got Handshake
		if err := ParseHandshake(tc.msg, &got); !errors.Is(err, ErrDuplicate) || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestWhatIsNotKnownIsSkipped(t *testing.T) {
	h := fullMap()
	good := AppendHandshake(nil, &h)
	kinds := unhex(t, "9f"+"c0"+"c2"+"cc01"+"cd0001"+"ce00000001"+"cf0000000000000001"+"d0ff"+"ca00000000"+"cb0000000000000000"+
		"d40100"+"c7020100ff"+"c4020102"+"d90161"+"8101a0"+"da000161")
	for _, tc := range []struct {
		name string
		msg  []byte
	}{
		{"a key of every type", edit(t, good, "later", kinds)},
		{"a key as deep as is allowed", edit(t, good, "later", nest(DepthMax-1))},
		{"a key of every type within ours", editLease(t, good, "later", kinds)},
	} {
		var got Handshake
		if err := ParseHandshake(tc.msg, &got); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if diff := cmp.Diff(h, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

func TestAMapOfALaterVersionIsStockAndSaysWhich(t *testing.T) {
	h := fullMap()
	later := append(packStr(packMap(nil, 2), "epoch"), packStr(nil, "text now")...)
	later = append(packStr(later, "v"), 2)
	var got Handshake
	if err := ParseHandshake(edit(t, AppendHandshake(nil, &h), "kvlease", later), &got); err != nil {
		t.Fatal(err)
	}
	h.Native, h.Lease = false, HandshakeLease{Version: 2}
	if diff := cmp.Diff(h, got); diff != "" { // shows C09.1
		t.Errorf("read (-want +got):\n%s", diff)
	}
}

func TestAMapWithoutTheKeysThatHaveDefaultsIsRead(t *testing.T) {
	msg := unhex(t, stockGolden)
	for _, key := range handshakeKeys[keyPhysicalPerLogical+1 : keyLease] {
		msg = edit(t, msg, key, nil)
	}
	var got Handshake
	if err := ParseHandshake(msg, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(stockMap(), got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
}

func TestAMapWithoutSizesIsOfOneRankWithPlainBlocks(t *testing.T) {
	h := fullMap()
	msg := AppendHandshake(nil, &h)
	for _, key := range leaseKeys[leaseTP:] {
		msg = editLease(t, msg, key, nil)
	}
	for _, tc := range []struct {
		name string
		msg  []byte
	}{
		{"without the keys", msg},
		{"with what they mean by default", editLease(t, editLease(t, editLease(t, editLease(t, msg, "tp", []byte{1}), "kv_heads", []byte{0}),
			"parts", unhex(t, "920101")), "replicated", unhex(t, "92c2c2"))},
		{"with nil", editLease(t, editLease(t, msg, "parts", []byte{0xc0}), "replicated", []byte{0xc0})},
	} {
		var got Handshake
		if err := ParseHandshake(tc.msg, &got); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		want := fullMap()
		want.Lease.TP, want.Lease.PP, want.Lease.KVHeads, want.Lease.Parts, want.Lease.Replicated = 1, 1, 0, nil, nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s, read (-want +got):\n%s", tc.name, diff)
		}
		if got.Parts(1) != 1 || got.Replicated(1) {
			t.Errorf("%s: parts %d, replicated %v", tc.name, got.Parts(1), got.Replicated(1))
		}
		if out := AppendHandshake(nil, &got); !bytes.Equal(out, msg) {
			t.Errorf("%s: written as other bytes", tc.name)
		}
	}
	full, stock := fullMap(), stockMap()
	if full.Parts(0) != 2 || full.Replicated(0) || !full.Replicated(1) || stock.Parts(0) != 0 || stock.Replicated(0) {
		t.Error("parts or replicated regions are not what the map says")
	}
}

func TestIncompatibleCachesAreNamed(t *testing.T) {
	other := uint64(1)
	for _, tc := range []struct {
		change func(*Handshake)
		want   string
	}{
		{func(h *Handshake) { h.NumBlocks, h.DeviceID, h.EngineID = 99, 5, "D" }, ""},
		{func(h *Handshake) { h.BlockStrides[0] = 1 << 20 }, ""},
		{func(h *Handshake) { h.RegionNames, h.RegionMemTypes = nil, nil }, ""},
		{func(h *Handshake) { h.Lease.Hash = "" }, ""},
		{func(h *Handshake) { h.Lease.Hash = "x" }, "compatibility_hash is " + strings.Repeat("ab", 32) + " here and x there"},
		{func(h *Handshake) { h.Layout = "LBNHC" }, "kv_cache_layout is LBHNC here and LBNHC there"},
		{func(h *Handshake) { h.AttnBackend = "FLASHINFER" }, "attn_backend_name is FLASH_ATTN here and FLASHINFER there"},
		{func(h *Handshake) { h.BlockSize = 32 }, "block_size is 16 here and 32 there"},
		{func(h *Handshake) { h.PhysicalPerLogical = 1 }, "physical_blocks_per_logical_kv_block is 2 here and 1 there"},
		{func(h *Handshake) { h.DCPSize = 1 }, "dcp_size is 2 here and 1 there"},
		{func(h *Handshake) { h.PCPSize = 1 }, "pcp_size is 4 here and 1 there"},
		{func(h *Handshake) { h.BaseAddrs = h.BaseAddrs[:1] }, "the number of regions is 2 here and 1 there"},
		{func(h *Handshake) { h.SSMSizes[1] = 6 }, "ssm_sizes is [70000 5] here and [70000 6] there"},
		{func(h *Handshake) { h.PLEBlockLen = nil }, "ple_block_len is 640 here and absent there"},
		{func(h *Handshake) { h.PLEBlockLen = &other }, "ple_block_len is 640 here and 1 there"},
		{func(h *Handshake) { h.BlockLens[1] = 128 }, "block_lens[1] is 64 here and 128 there"},
		{func(h *Handshake) { h.RegionGroupIDs[1] = 1 }, "region_group_ids[1] is -1 here and 1 there"},
		{func(h *Handshake) { h.RegionGroupIDs = nil }, "region_group_ids[1] is -1 here and 0 there"},
		{func(h *Handshake) { h.RegionNames[0] = "x" }, "region_names[0] is model.layers.0 here and x there"},
		{func(h *Handshake) { h.Lease.KVHeads = 0 }, ""},
		{func(h *Handshake) { h.Lease.KVHeads = 4 }, "kvlease.kv_heads is 8 here and 4 there"},
		{func(h *Handshake) { h.Lease.Parts = nil }, "kvlease.parts[0] is 2 here and 1 there"},
		{func(h *Handshake) { h.Lease.Replicated = nil }, "kvlease.replicated[1] is true here and false there"},
		{func(h *Handshake) { h.Lease.TP, h.BlockLens[1] = 4, 32 }, ""},             // other sizes: how the heads fit is for NewMaps
		{func(h *Handshake) { h.Lease.PP, h.BaseAddrs = 1, h.BaseAddrs[:1] }, ""},   // other layers in a stage
		{func(h *Handshake) { h.Lease.Rank, h.BaseAddrs = 3, h.BaseAddrs[:1] }, ""}, // another stage
		{func(h *Handshake) { h.Native, h.BlockLens[1] = false, 32 }, ""},           // a stock peer of sizes that are not in its map
		{func(h *Handshake) { h.Native, h.BlockSize = false, 32 }, "block_size is 16 here and 32 there"},
	} {
		local, remote := fullMap(), fullMap()
		tc.change(&remote)
		err := Compatible(&local, &remote)
		if tc.want == "" {
			if err != nil {
				t.Errorf("refused: %v", err)
			}
			continue
		}
		if !errors.Is(err, ErrIncompatible) || !strings.HasSuffix(err.Error(), ": "+tc.want) { // shows C09.1, C59.1
			t.Errorf("%v, want %q", err, tc.want)
		}
	}
}

// What was read is written and read again as the same; nothing that comes in panics or takes more memory than it brings.
func FuzzHandshake(f *testing.F) {
	h := fullMap()
	f.Add(unhex(f, stockGolden))
	f.Add(AppendHandshake(nil, &h))
	f.Add(unhex(f, "81b36b765f6361636865735f626173655f61646472ddffffffff"))
	f.Add(append(append(unhex(f, "81"), packStr(nil, "x")...), nest(20)...))
	f.Fuzz(func(t *testing.T, msg []byte) {
		var got, again Handshake
		if ParseHandshake(msg, &got) != nil {
			return
		}
		if !got.Native {
			got.Lease = HandshakeLease{}
		}
		out := AppendHandshake(nil, &got)
		if err := ParseHandshake(out, &again); err != nil {
			t.Fatalf("written as %x: %v", out, err)
		}
		if diff := cmp.Diff(got, again, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("read (-first +again):\n%s", diff)
		}
	})
}
