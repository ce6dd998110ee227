package jsonl

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestACommandIsReadAsItWasWritten(t *testing.T) {
	for _, want := range []Command{
		{Cmd: "handshake", N: 1},
		{Cmd: "grant", N: 2, ID: `a "quoted" <id>`, Blocks: []uint32{0, 7, 65535}, Tokens: 48},
		{Cmd: "engine", EngineID: "P", Handshake: "00ff"},
		{Cmd: "track", ID: "r1", Params: json.RawMessage(`{"remote_block_ids":[[1,2]],"kvlease":{"v":1}}`)},
		{Cmd: "grant", ID: "r2", Blocks: []uint32{1}, FixedS: 2.4},
		{Cmd: "engine", EngineID: "P", Host: "::1", Port: 65535, TP: 64},
		{Cmd: "engine", EngineID: "P", Handshake: "00ff", Rank: 63},
		{Cmd: "forget", EngineID: "P"},
		{Cmd: "pressure", Wanted: 1<<32 - 1},
		{Cmd: "check", ID: "r1", Blocks: []uint32{1, 2}},
		{Cmd: "clear", Blocks: []uint32{1}},
		{Cmd: "unregister"},
		{Cmd: "quit"},
	} {
		line, err := Append(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseCommand(line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
	}
}

func TestAWrongCommandIsRefusedWithTheKeyNamed(t *testing.T) {
	for _, tc := range []struct{ name, line, names string }{
		{"no JSON", `grant r1`, "one JSON object"},
		{"an array", `["grant"]`, "one JSON object"},
		{"no cmd", `{"id":"r1"}`, `"cmd"`},
		{"cmd is a number", `{"cmd":1}`, `"cmd"`},
		{"unknown cmd", `{"cmd":"gramt","id":"r1"}`, "unknown command gramt"},
		{"a key that the command does not take", `{"cmd":"read","id":"r1","blocks":[1]}`, `"blocks"`},
		{"no id", `{"cmd":"read"}`, `"id"`},
		{"empty id", `{"cmd":"read","id":""}`, `"id"`},
		{"long id", `{"cmd":"read","id":"` + strings.Repeat("x", 128) + `"}`, `"id"`},
		{"no blocks", `{"cmd":"grant","id":"r1","blocks":[]}`, `"blocks"`},
		{"negative block", `{"cmd":"grant","id":"r1","blocks":[-1]}`, `"blocks"`},
		{"block out of range", `{"cmd":"grant","id":"r1","blocks":[65536]}`, "65536"},
		{"too many blocks", `{"cmd":"grant","id":"r1","blocks":[` + strings.Repeat("1,", 256) + `1]}`, `"blocks"`},
		{"params are text", `{"cmd":"track","id":"r1","params":"{}"}`, `"params"`},
		{"a port too large", `{"cmd":"engine","engine_id":"P","host":"h","port":65536}`, `"port" needs a number from 0 to 65535`},
		{"a rank too large", `{"cmd":"engine","engine_id":"P","handshake":"00","rank":64}`, `"rank" needs a number from 0 to 63`},
		{"too many ranks", `{"cmd":"engine","engine_id":"P","host":"h","port":1,"tp":65}`, `"tp"`},
		{"no time at all", `{"cmd":"grant","id":"r1","blocks":[1],"fixed_s":0}`, `"fixed_s"`},
		{"a fixed time too long", `{"cmd":"grant","id":"r1","blocks":[1],"fixed_s":86401}`, `at most 86400`},
		{"half a block wanted", `{"cmd":"pressure","wanted":0.5}`, `"wanted"`},
		{"pressure for nothing", `{"cmd":"pressure","wanted":0}`, `"wanted"`},
		{"pressure for what", `{"cmd":"pressure"}`, `"wanted"`},
		{"a command that takes nothing", `{"cmd":"register","id":"r1"}`, `"id"`},
		{"negative n", `{"cmd":"quit","n":-1}`, `"n"`},
		{"two objects", `{"cmd":"quit"}{"cmd":"quit"}`, "follows"},
		{"too long", `{"cmd":"read","id":"` + strings.Repeat("x", LineBytesMax) + `"}`, "at most 262144"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseCommand([]byte(tc.line))
			if err == nil || !strings.Contains(err.Error(), tc.names) {
				t.Errorf("error %v, want one that names %s", err, tc.names)
			}
		})
	}
}

func TestTheAnswerToAWrongCommandStillFindsItsQuestion(t *testing.T) {
	c, err := ParseCommand([]byte(`{"cmd":"read","n":17}`))
	if err == nil || c.N != 17 {
		t.Errorf("n = %d, error %v; want 17 and an error", c.N, err)
	}
}

func FuzzParseCommand(f *testing.F) {
	f.Add([]byte(`{"cmd":"grant","n":7,"id":"r1","blocks":[0,1,2],"tokens":48}`))
	f.Add([]byte(`{"cmd":"track","id":"r1","params":{"a":[[1]]}}`))
	f.Add([]byte(`{"cmd":"engine","engine_id":"P","host":"h","port":1,"tp":2,"rank":0}`))
	f.Add([]byte(`{"cmd":"grant","id":"r1","blocks":[1],"fixed_s":1e-9}`))
	f.Add([]byte(`{"cmd":"pressure","wanted":1}`))
	f.Add([]byte(`{"cmd":null}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`{"cmd":"quit","n":1e3}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		c, err := ParseCommand(line)
		if err != nil {
			return
		}
		if _, known := needs[c.Cmd]; !known || len(c.Blocks) > BlocksMax || len(c.ID) > IDBytesMax {
			t.Fatalf("accepted %q as %+v", line, c)
		}
		again, err := Append(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseCommand(again); err != nil {
			t.Fatalf("%q was accepted, its own form %q is not: %v", line, again, err)
		}
	})
}

func FuzzParseReport(f *testing.F) {
	f.Add([]byte(`{"ev":"freed","id":"r1","reason":"completed","held_ms":3004.2,"t_ns":12}`))
	f.Add([]byte(`{"re":3,"ok":false,"error":"no","t_ns":1}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if r, err := ParseReport(line); err == nil {
			r.Refused()
		}
	})
}
