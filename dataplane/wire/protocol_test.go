package wire

import (
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/deathwire"
	"github.com/kvlease/kvlease/dataplane/record"
)

// fields is a vector of docs/protocol.md. Each field must be asked for: what a check forgets is an error, too.
type fields struct {
	t     *testing.T
	kv    map[string]string
	asked map[string]bool
}

func (f fields) text(name string) string {
	f.t.Helper()
	v, ok := f.kv[name]
	if !ok {
		f.t.Fatalf("the vector has no %s", name)
	}
	f.asked[name] = true
	return v
}

func (f fields) number(name string, base int) uint64 {
	f.t.Helper()
	v, err := strconv.ParseUint(f.text(name), base, 64)
	if err != nil {
		f.t.Fatal(err)
	}
	return v
}

func (f fields) dec(name string) uint64 { f.t.Helper(); return f.number(name, 10) }
func (f fields) hex(name string) uint64 { f.t.Helper(); return f.number(name, 16) }

// same compares a field with what the code says.
func (f fields) same(name, code string) {
	f.t.Helper()
	if diff := cmp.Diff(f.text(name), code); diff != "" {
		f.t.Errorf("%s (-document +code):\n%s", name, diff)
	}
}

func (f fields) sameHex(name string, code uint64) {
	f.t.Helper()
	f.same(name, fmt.Sprintf("%016x", code))
}

func (f fields) header() Header {
	f.t.Helper()
	return Header{Engine: EngineHash([]byte(f.text("engine"))), Epoch: f.hex("epoch"), Rank: uint32(f.dec("rank"))}
}

var kindNames = map[string]Kind{"hello": Hello, "renew": Renew, "complete": Complete, "release": Release, "leaving": Leaving}

// checks holds, by the kind of vector, what makes the document's values out of its own fields.
var checks = map[string]func(f fields){
	"handshake-key": func(f fields) {
		want := HandshakeLease{
			Version: 1, Epoch: f.hex("epoch"), Base: f.hex("base"), Board: f.hex("board"), BoardDevice: uint32(f.dec("board_device")),
			Slots: uint32(f.dec("slots")), Duration: time.Duration(f.dec("duration_ns")), Agent: f.text("agent"),
			Rank: uint32(f.dec("rank")), Hash: f.text("hash"),
			TP: uint32(f.dec("tp")), PP: uint32(f.dec("pp")), KVHeads: uint32(f.dec("kv_heads")),
		}
		for _, n := range strings.Fields(f.text("parts")) {
			v, err := strconv.ParseUint(n, 10, 32)
			if err != nil {
				f.t.Fatal(err)
			}
			want.Parts = append(want.Parts, uint32(v))
		}
		for _, v := range strings.Fields(f.text("replicated")) {
			want.Replicated = append(want.Replicated, v == "true")
		}
		f.same("board_mem", memNames[want.BoardMem])
		f.same("hex", hex.EncodeToString(want.append(nil)))
		var h Handshake
		if sub := h.parseLease(&pack{b: want.append(nil)}); sub != "" || !h.Native {
			f.t.Errorf("not read: %s", sub)
		}
		if diff := cmp.Diff(want, h.Lease); diff != "" {
			f.t.Errorf("read (-document +code):\n%s", diff)
		}
	},
	"params-key": func(f fields) {
		l := ParamsLease{Epoch: f.hex("epoch"), Slot: uint32(f.dec("slot")), Generation: uint32(f.dec("g")), Key: f.hex("key")}
		f.same("json", string(AppendParamsLease(nil, &l)))
	},
	"board-header": func(f fields) {
		board := make([]byte, record.BoardHeadLen+record.RowLen)
		h, _ := record.Board(board)
		h.Version, h.Flags, h.DurationNs = uint32(f.dec("version")), uint32(f.dec("flags")), f.dec("duration_ns")
		h.Base, h.Epoch = f.hex("base"), f.hex("epoch")
		f.same("hex", hex.EncodeToString(board[:record.BoardHeadLen]))
		if h.Version != record.BoardVersion {
			f.t.Errorf("version %d, the code says %d", h.Version, record.BoardVersion)
		}
	},
	"row": func(f fields) {
		slot := uint32(f.dec("slot"))
		addr := record.RowAddr(f.hex("board"), slot)
		f.sameHex("address", addr)
		board := make([]byte, record.BoardHeadLen+int(slot+1)*record.RowLen)
		_, rows := record.Board(board)
		rows[slot].Fence, rows[slot].DeadlineUs = f.hex("fence"), f.dec("deadline_us")
		rows[slot].GenBeats = f.dec("beats")<<32 | f.dec("generation")
		f.same("hex", hex.EncodeToString(board[addr-f.hex("board"):][:record.RowLen]))
	},
	"fence": func(f fields) {
		word := record.FenceWord(f.hex("base"), uint32(f.dec("g")))
		f.sameHex("word", word)
		f.sameHex("ended", word+1)
		f.sameHex("closed", record.FenceClosed)
	},
	"engine-hash": func(f fields) { f.sameHex("hash", EngineHash([]byte(f.text("id")))) },
	"native": func(f fields) {
		h := f.header()
		h.Kind, h.Readers, h.Flags = kindNames[f.text("kind")], uint16(f.dec("readers")), uint16(f.dec("number"))
		msg := AppendHeader(nil, &h)
		for _, e := range strings.Split(f.text("entries"), ", ") {
			var slot, g uint32
			var key uint64
			if n, _ := fmt.Sscanf(e, "%d %d %x", &slot, &g, &key); n == 3 {
				msg = AppendEntry(msg, slot, g, key)
				h.Count++
			}
		}
		SetCount(msg, h.Count)
		f.same("hex", hex.EncodeToString(msg))
		got, _, st := ParseNative(msg)
		if diff := cmp.Diff(h, got); st != OK || diff != "" {
			f.t.Errorf("read as %s (-document +code):\n%s", st, diff)
		}
		SetNumber(msg, 0) // as a sender that does not count
		if old, _, st := ParseNative(msg); st != OK || old.Number() != 0 || got.Number() != uint8(h.Flags) {
			f.t.Errorf("%s: number %d, and %d of a sender that does not count", st, got.Number(), old.Number())
		}
	},
	"hello": func(f fields) {
		h := f.header()
		b := HelloBody{Duration: time.Duration(f.dec("duration_ns")), BatchBytesMax: f.dec("batch_bytes_max")}
		copy(b.Nonce[:], unhex(f.t, f.text("nonce")))
		msg := AppendHello(nil, &h, &b)
		f.same("hex", hex.EncodeToString(msg))
		_, body, st := ParseNative(msg)
		if got, st2 := ParseHello(body); st != OK || st2 != OK || got != b {
			f.t.Errorf("read as %s %s %+v", st, st2, got)
		}
	},
	"death-wire": func(f fields) {
		w := deathwire.Frame{Kind: deathwire.Kind(f.dec("kind")), Flags: uint16(f.dec("flags")), Engine: EngineHash([]byte(f.text("engine"))), Epoch: f.hex("epoch")}
		copy(w.Nonce[:], unhex(f.t, f.text("nonce")))
		f.same("hex", hex.EncodeToString(w.Append(nil)))
		if got, err := deathwire.Parse(w.Append(nil)); err != nil || got != w {
			f.t.Errorf("read as %+v, %v", got, err)
		}
	},
	"wire-nonce": func(f fields) {
		nonce := deathwire.Nonce([2]uint64{f.hex("k0"), f.hex("k1")}, f.text("owner"))
		f.same("nonce", hex.EncodeToString(nonce[:]))
	},
	"stock": func(f fields) {
		m, st := ParseStock([]byte(f.text("text")))
		if st != OK {
			f.t.Fatal(st)
		}
		f.same("means", map[StockKind]string{Heartbeat: "heartbeat", Completion: "completion"}[m.Kind])
		if m.Kind == Heartbeat {
			var ids []string
			for walk := NewIDs(m.Body, RunMax); ; {
				id, _, ok := walk.Next()
				if !ok {
					break
				}
				ids = append(ids, string(id))
			}
			f.same("ids", strings.Join(ids, " | "))
		}
		if m.ID != nil || f.kv["id"] != "" {
			if f.kv["id"] == "" && m.Kind == Heartbeat {
				f.t.Errorf("also the completion of %q", m.ID)
				return
			}
			f.same("id", string(m.ID))
			f.same("readers", fmt.Sprint(m.N))
		}
	},
	"limits": func(f fields) {
		for name, v := range map[string]int{
			"notification": ParseMax, "handshake": HandshakeMax, "params": ParamsMax, "id": IDMax, "string": StringMax,
			"regions": RegionsMax, "groups": GroupsMax, "slots": SlotsMax, "depth": DepthMax,
			"ranks": RanksMax, "parts": PartsMax, "kv_heads": KVHeadsMax,
		} {
			f.same(name, fmt.Sprint(v))
		}
	},
}

func TestTheProtocolDocumentIsTrue(t *testing.T) {
	text, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	parts := strings.Split(string(text), "\n```vector ")
	for _, part := range parts[1:] {
		block, _, closed := strings.Cut(part, "\n```\n")
		kind, body, _ := strings.Cut(block, "\n")
		check := checks[kind]
		if !closed || check == nil {
			t.Errorf("vector %q is not closed or of a kind without a check", kind)
			continue
		}
		seen[kind]++
		t.Run(fmt.Sprintf("%s %d", kind, seen[kind]), func(t *testing.T) {
			f := fields{t: t, kv: map[string]string{}, asked: map[string]bool{}}
			for _, line := range strings.Split(body, "\n") {
				name, value, ok := strings.Cut(line, ":")
				if !ok {
					t.Fatalf("line %q", line)
				}
				f.kv[name] = strings.TrimSpace(value)
			}
			check(f)
			for name := range f.kv {
				if !f.asked[name] {
					t.Errorf("nothing checks %s", name)
				}
			}
		})
	}
	for kind := range checks {
		if seen[kind] == 0 {
			t.Errorf("the document has no vector of kind %s", kind)
		}
	}
	for _, k := range []string{"renew", "complete", "release", "leaving"} {
		if !strings.Contains(string(text), "kind: "+k+"\n") {
			t.Errorf("the document has no %s", k)
		}
	}
}
