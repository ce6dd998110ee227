package wire

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// anyID draws what engines call requests, and what they never should.
func anyID() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`chatcmpl-[0-9a-f]{8}-[0-9]`), rapid.StringMatching(`(HB|PUSH_REG|job):[a-z,:]{0,9}:[0-9]{1,6}`),
		rapid.StringN(0, 40, 200), rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 20), func(b []byte) string { return string(b) }),
		rapid.Map(rapid.IntRange(IDMax-1, IDMax+1), func(n int) string { return strings.Repeat("x", n) }),
	)
}

func TestANativeMessageSaysWhatItsWriterSaid(t *testing.T) {
	type entry struct {
		Slot, Gen uint32
		Key       uint64
	}
	rapid.Check(t, func(t *rapid.T) {
		h := Header{
			Kind: Kind(rapid.IntRange(int(Hello), int(Leaving)).Draw(t, "kind")), Flags: uint16(rapid.Byte().Draw(t, "flags")),
			Engine: rapid.Uint64().Draw(t, "engine"), Epoch: rapid.Uint64Min(1).Draw(t, "epoch"), Rank: rapid.Uint32().Draw(t, "rank"),
		}
		if h.Kind == Hello {
			want := HelloBody{
				Duration:      time.Duration(rapid.Int64Range(int64(DurationMin), int64(DurationMax)).Draw(t, "duration")),
				BatchBytesMax: rapid.Uint64().Draw(t, "batch bytes"), Nonce: [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "nonce")),
			}
			got, body, st := ParseNative(AppendHello(nil, &h, &want))
			b, st2 := ParseHello(body)
			if st != OK || st2 != OK || got != h || b != want {
				t.Fatalf("%v %v: %+v %+v", st, st2, got, b)
			}
			return
		}
		var want, got []entry
		if h.Kind != Leaving {
			n := rapid.IntRange(1, 40).Draw(t, "entries")
			for range n {
				want = append(want, entry{rapid.Uint32().Draw(t, "slot"), rapid.Uint32().Draw(t, "use"), rapid.Uint64().Draw(t, "key")})
			}
		}
		if h.Kind == Complete {
			h.Readers = rapid.Uint16Min(1).Draw(t, "readers")
		}
		msg := AppendHeader(nil, &h)
		for _, e := range want {
			msg = AppendEntry(msg, e.Slot, e.Gen, e.Key)
		}
		h.Count = uint32(len(want))
		SetCount(msg, h.Count)
		read, body, st := ParseNative(msg)
		for i := range int(read.Count) {
			slot, gen, key := Entry(body, i)
			got = append(got, entry{slot, gen, key})
		}
		if diff := cmp.Diff(want, got); st != OK || read != h || diff != "" {
			t.Fatalf("%v: %+v, want %+v, entries (-said +read):\n%s", st, read, h, diff)
		}
		for cut := range msg { // no part of a message is one
			if _, _, st := ParseNative(msg[:cut]); st == OK {
				t.Fatalf("the first %d of %d bytes are taken for a message", cut, len(msg))
			}
		}
	})
}

func TestStockHeartbeatsNameEveryIdThatTheyCanCarryOnceAndInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytesMax := rapid.IntRange(10, 300).Draw(t, "bytes max")
		var want, got []string
		var messages [][]byte
		var msg []byte
		for _, id := range rapid.SliceOfN(anyID(), 0, 40).Draw(t, "ids") {
			carried := len(id) > 0 && len(id) <= IDMax && utf8.ValidString(id) && !strings.Contains(id, ",")
			before := len(msg)
			next, st := AppendHeartbeatID(msg, bytesMax, []byte(id))
			if st == Full {
				if len(next) != before || before == 0 {
					t.Fatalf("%q: full, %d bytes of %d before", id, len(next), before)
				}
				messages = append(messages, msg)
				next, st = AppendHeartbeatID(nil, bytesMax, []byte(id))
			}
			if carried != (st == OK) || !carried && st != Unsendable {
				t.Fatalf("%q: %v", id, st)
			}
			if msg = next; carried {
				want = append(want, id)
			}
		}
		if len(msg) > 0 {
			messages = append(messages, msg)
		}
		for _, msg := range messages {
			m, st := ParseStock(msg)
			if st != OK || m.Kind != Heartbeat {
				t.Fatalf("%q: %v, kind %d", msg, st, m.Kind)
			}
			n := len(got)
			for w := NewIDs(m.Body, 1); ; {
				id, alone, ok := w.Next()
				if !ok {
					break
				}
				if !alone {
					t.Fatalf("%q is a run", id)
				}
				got = append(got, string(id))
			}
			if len(msg) > bytesMax && len(got) != n+1 {
				t.Fatalf("%d ids in %d bytes, at most %d", len(got)-n, len(msg), bytesMax)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("ids (-carried +read):\n%s", diff)
		}
	})
}

func TestAStockCompletionIsNeverReadAsAnythingElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id, n := anyID().Draw(t, "id"), rapid.Uint16().Draw(t, "readers")
		msg, st := AppendCompletion([]byte("before"), []byte(id), n)
		if st != OK {
			if string(msg) != "before" {
				t.Fatalf("%v, and %q is left", st, msg)
			}
			return
		}
		m, st := ParseStock(msg[len("before"):])
		if st != OK || m.Kind != Completion || string(m.ID) != id || m.N != n {
			t.Fatalf("%v: %+v, want %q of %d", st, m, id, n)
		}
	})
}

func anyParams(t *rapid.T) Params {
	text := func(what string, most int) string { return rapid.StringN(1, 20, most).Draw(t, what) }
	small := func(what string) uint32 { return uint32(rapid.IntRange(1, 64).Draw(t, what)) }
	p := Params{
		DoRemotePrefill: rapid.Bool().Draw(t, "prefill"), DoRemoteDecode: rapid.Bool().Draw(t, "decode"),
		EngineID: text("engine", 200), RequestID: text("request", 200), Host: text("host", 200), Port: uint32(rapid.IntRange(1, 65535).Draw(t, "port")),
		TPSize: small("tp"), DCPSize: small("dcp"), PPSize: small("pp"), NumTokens: rapid.Uint32Max(1<<30).Draw(t, "tokens"),
		Groups:                 rapid.SliceOfN(rapid.SliceOfN(rapid.Uint32(), 0, 9), 0, 4).Draw(t, "blocks"),
		RegistrationGeneration: rapid.Uint64Max(1<<53).Draw(t, "generation"), TransferMode: rapid.SampledFrom([]string{"read", "x\"\\\u2028"}).Draw(t, "mode"),
		Native: rapid.Bool().Draw(t, "native"),
	}
	if rapid.Bool().Draw(t, "fixed") {
		at := rapid.Float64Range(0, 1e9).Draw(t, "expiry")
		p.ExpiryTime = &at
	}
	if p.Native {
		p.Lease = ParamsLease{
			Version: LeaseVersion, Epoch: rapid.Uint64Min(1).Draw(t, "epoch"), Slot: rapid.Uint32Max(1<<23-1).Draw(t, "slot"),
			Generation: rapid.Uint32Max(math.MaxUint32-1).Draw(t, "g"), Key: rapid.Uint64().Draw(t, "key"),
		}
	}
	return p
}

// Another reader of JSON sees the same in what we write; and what we write we read.
func TestParametersAreReadAsTheyWereWrittenByUsAndByOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyParams(t)
		text := AppendParams(nil, &p)
		var got Params
		if err := ParseParams(text, &got); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if diff := cmp.Diff(p, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%s (-written +read):\n%s", text, diff)
		}
		var other struct {
			Blocks  [][]uint32 `json:"remote_block_ids"`
			Engine  string     `json:"remote_engine_id"`
			Request string     `json:"remote_request_id"`
			Host    string     `json:"remote_host"`
			Port    uint32     `json:"remote_port"`
			Tokens  uint32     `json:"remote_num_tokens"`
			Expiry  *float64   `json:"remote_blocks_expiry_time"`
			Mode    string     `json:"transfer_mode"`
			Lease   *struct {
				V     uint32 `json:"v"`
				Epoch string `json:"epoch"`
				Slot  uint32 `json:"slot"`
				G     uint32 `json:"g"`
			} `json:"kvlease"`
		}
		if err := json.Unmarshal(text, &other); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		theirs := []any{other.Blocks, other.Engine, other.Request, other.Host, other.Port, other.Tokens, other.Expiry, other.Mode, other.Lease != nil}
		ours := []any{p.Groups, p.EngineID, p.RequestID, p.Host, p.Port, p.NumTokens, p.ExpiryTime, p.TransferMode, p.Native}
		if diff := cmp.Diff(ours, theirs, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%s (-ours +theirs):\n%s", text, diff)
		}
		if l := other.Lease; l != nil && (l.V != 1 || l.Slot != p.Lease.Slot || l.G != p.Lease.Generation || len(l.Epoch) != 16) {
			t.Fatalf("%s: %+v", text, *l)
		}
		for cut := range text {
			if ParseParams(text[:cut], &got) == nil {
				t.Fatalf("%q, which is cut, is read", text[:cut])
			}
		}
	})
}

func anyHandshake(t *rapid.T) Handshake {
	n := rapid.IntRange(1, 5).Draw(t, "regions")
	text := func(what string) string { return rapid.StringN(0, 12, 60).Draw(t, what) }
	sizes := func(what string) []uint64 { return rapid.SliceOfN(rapid.Uint64Range(1, 1<<36), n, n).Draw(t, what) }
	maybe := func(what string) bool { return rapid.Bool().Draw(t, what) }
	h := Handshake{
		EngineID: rapid.StringN(1, 12, 60).Draw(t, "engine"), AgentMetadata: rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "blob"),
		BaseAddrs: rapid.SliceOfN(rapid.Uint64Range(1, 1<<47), n, n).Draw(t, "addresses"), DeviceID: rapid.Uint32Max(64).Draw(t, "device"),
		NumBlocks: rapid.Uint64Range(1, 1<<20).Draw(t, "blocks"), BlockLens: sizes("lengths"), Layout: text("layout"),
		BlockSize: rapid.Uint64Range(1, 1024).Draw(t, "block size"), AttnBackend: text("backend"), PhysicalPerLogical: rapid.Uint64Range(1, 8).Draw(t, "per logical"),
		DCPSize: 1, PCPSize: 1,
	}
	for _, l := range h.BlockLens {
		h.BlockStrides = append(h.BlockStrides, l+rapid.Uint64Max(64).Draw(t, "gap"))
	}
	if maybe("names") {
		for range n {
			h.RegionNames = append(h.RegionNames, text("name"))
		}
	}
	if maybe("kinds of memory") {
		for range n {
			h.RegionMemTypes = append(h.RegionMemTypes, transport.Mem(rapid.IntRange(0, 1).Draw(t, "kind")))
		}
	}
	if maybe("groups") {
		for range n {
			h.RegionGroupIDs = append(h.RegionGroupIDs, int64(rapid.IntRange(-1, 3).Draw(t, "group")))
		}
	}
	if h.Native = maybe("native"); h.Native {
		h.Lease = HandshakeLease{
			Version: LeaseVersion, Epoch: rapid.Uint64Min(1).Draw(t, "epoch"), Base: rapid.Uint64Range(1, 1<<62-1).Draw(t, "base"),
			Board: 8 * rapid.Uint64Range(1, 1<<40).Draw(t, "board"), Slots: rapid.Uint32Range(1, 1<<22).Draw(t, "slots"),
			Duration: time.Duration(rapid.Int64Range(int64(DurationMin), int64(DurationMax)).Draw(t, "duration")),
			Agent:    rapid.StringN(1, 12, 60).Draw(t, "agent"), Hash: text("hash"), TP: 1, PP: 1,
		}
		if maybe("parts") {
			for range n {
				h.Lease.Parts = append(h.Lease.Parts, uint32(rapid.IntRange(1, PartsMax).Draw(t, "parts of a block")))
			}
		}
	}
	return h
}

// sameHandshake compares what maps mean: parts of 1 each are as good as none told.
func sameHandshake(a, b Handshake) string {
	for _, h := range []*Handshake{&a, &b} {
		ones := true
		for _, n := range h.Lease.Parts {
			ones = ones && n == 1
		}
		if ones {
			h.Lease.Parts = nil
		}
	}
	return cmp.Diff(a, b, cmpopts.EquateEmpty())
}

func TestAHandshakeMapIsReadAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := anyHandshake(t)
		msg := AppendHandshake(nil, &h)
		var got Handshake
		if err := ParseHandshake(msg, &got); err != nil {
			t.Fatalf("%+v: %v", h, err)
		}
		if diff := sameHandshake(h, got); diff != "" {
			t.Fatalf("(-written +read):\n%s", diff)
		}
		cut := rapid.IntRange(0, len(msg)-1).Draw(t, "cut")
		if ParseHandshake(msg[:cut], &got) == nil {
			t.Fatalf("the first %d of %d bytes are taken for a map", cut, len(msg))
		}
		// Ours in a map of another writer: what stood there stays, and the key is the one that was put in.
		own := anyHandshake(t)
		own.Lease.Parts = nil // it is of other regions
		if !own.Native {
			return
		}
		merged, err := AppendMerged(nil, msg, &own.Lease)
		if err != nil {
			t.Fatal(err)
		}
		h.Lease, h.Native = own.Lease, true
		if err := ParseHandshake(merged, &got); err != nil {
			t.Fatal(err)
		}
		if diff := sameHandshake(h, got); diff != "" {
			t.Fatalf("merged (-want +read):\n%s", diff)
		}
	})
}

func TestFramesOfTheSideChannelAreReadAsTheyWereWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pp, rank := rapid.Uint32().Draw(t, "stage"), rapid.Uint32().Draw(t, "rank")
		if a, b, err := ParseRequest(AppendRequest(nil, pp, rank)); a != pp || b != rank || err != nil {
			t.Fatalf("request %d %d: %d %d %v", pp, rank, a, b, err)
		}
		hash, blob := rapid.StringN(0, 20, 100).Draw(t, "hash"), rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "metadata")
		if a, b, err := ParsePayload(AppendPayload(nil, hash, blob)); a != hash || !bytes.Equal(b, blob) || err != nil {
			t.Fatalf("payload %q %x: %q %x %v", hash, blob, a, b, err)
		}
	})
}
