package handshake

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/dataplane/zmtp"
	"github.com/kvlease/kvlease/internal/await"
)

func serve(t testing.TB, cfg ServerConfig) *Server {
	t.Helper()
	if cfg.Monotonic == nil {
		cfg.Monotonic = monotonic
	}
	s, err := Serve("127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func mustSet(t testing.TB, s *Server, r Rank, p Payload) {
	t.Helper()
	if err := s.Set(r, p); err != nil {
		t.Fatal(err)
	}
}

// ask is one request on a connection of its own; nil for a dropped one.
func ask(t testing.TB, s *Server, frames ...[]byte) [][]byte {
	t.Helper()
	reply, _, err := zmtp.Client{Limits: zmtp.Limits{Request: longest}}.Request(t.Context(), s.Addr().String(), frames...)
	if err != nil && !errors.Is(err, zmtp.ErrHungUp) {
		t.Fatal(err)
	}
	return reply
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTheServerAnswersWithVllmsBytes(t *testing.T) { // vectors of vllm-wire 1.6
	await.NoLeaks(t)
	s := serve(t, ServerConfig{Monotonic: func() clock.RemoteInstant { return 12345500000000 }})
	mustSet(t, s, Rank{0, 3}, Payload{hashA, []byte{0x80}})
	got := ask(t, s, unhex(t, "93c40c6765745f6d6574615f6d73670003"))
	want := [][]byte{
		unhex(t, "82b2636f6d7061746962696c6974795f68617368d940"+strings.Repeat("6162", 32)+"b46167656e745f6d657461646174615f6279746573c40180"),
		unhex(t, "cb40c81cc000000000"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reply (-want +got):\n%s", diff)
	}
}

func TestNoRequestEndsTheServer(t *testing.T) { // S19
	good := wire.AppendRequest(nil, 0, 1)
	tail := func(first string) []byte { return append(append([]byte{0x93}, unhex(t, first)...), 0, 1) }
	type outcome struct{ Answered, Unexpected, Malformed, Unregistered, Unknown uint64 }
	for _, tc := range []struct {
		name   string
		frames [][]byte
		want   outcome
	}{
		{"a request", [][]byte{good}, outcome{Answered: 1}},
		{"another first element", [][]byte{tail("c403616263")}, outcome{Answered: 1, Unexpected: 1}},
		{"get_meta_msg as text", [][]byte{tail("ac6765745f6d6574615f6d7367")}, outcome{Answered: 1, Unexpected: 1}},
		{"a first element that is a map of a list", [][]byte{tail("81a16193c0c3cb0000000000000000")}, outcome{Answered: 1, Unexpected: 1}},
		{"integers in a longer form", [][]byte{append(good[:len(good)-2:len(good)-2], 0xcd, 0, 0, 0xcf, 0, 0, 0, 0, 0, 0, 0, 1)}, outcome{Answered: 1}},
		{"a rank that there is not", [][]byte{wire.AppendRequest(nil, 0, 2)}, outcome{Unknown: 1}},
		{"a rank whose memory is not registered", [][]byte{wire.AppendRequest(nil, 0, 0)}, outcome{Unregistered: 1}},
		{"a pp rank whose memory is not registered", [][]byte{wire.AppendRequest(nil, 1, 1)}, outcome{Unregistered: 1}},
		{"a pp rank that there is not", [][]byte{wire.AppendRequest(nil, 2, 1)}, outcome{Unknown: 1}},
		{"the largest rank", [][]byte{wire.AppendRequest(nil, 1<<32-1, 1<<32-1)}, outcome{Unknown: 1}},
		{"a negative rank", [][]byte{append(good[:len(good)-1:len(good)-1], 0xff)}, outcome{Malformed: 1}},
		{"a rank of 64 bits", [][]byte{append(good[:len(good)-1:len(good)-1], 0xcf, 1, 0, 0, 0, 0, 0, 0, 0)}, outcome{Malformed: 1}},
		{"a rank as text", [][]byte{append(good[:len(good)-1:len(good)-1], 0xa1, '1')}, outcome{Malformed: 1}},
		{"an empty frame", [][]byte{{}}, outcome{Malformed: 1}},
		{"only the array", [][]byte{{0x93}}, outcome{Malformed: 1}},
		{"half a request", [][]byte{good[:7]}, outcome{Malformed: 1}},
		{"no ranks", [][]byte{good[:len(good)-2]}, outcome{Malformed: 1}},
		{"bytes after the end", [][]byte{append(good[:len(good):len(good)], 0)}, outcome{Malformed: 1}},
		{"an array of two", [][]byte{append([]byte{0x92}, good[1:]...)}, outcome{Malformed: 1}},
		{"two frames", [][]byte{good, good}, outcome{Malformed: 1}},
		{"four thousand nested arrays", [][]byte{append([]byte{0x93}, bytes.Repeat([]byte{0x91}, 4000)...)}, outcome{Malformed: 1}},
		{"an array of four billion", [][]byte{append(tail("ddffffffff"), good...)}, outcome{Malformed: 1}},
		{"text of four billion bytes", [][]byte{append(tail("dbffffffff"), good...)}, outcome{Malformed: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			await.NoLeaks(t)
			s := serve(t, ServerConfig{TP: 2, PP: 2})
			mustSet(t, s, Rank{0, 1}, Payload{hashA, stockMap("P", "blob")})
			reply := ask(t, s, tc.frames...)
			if answered := len(reply) == 2 && bytes.Equal(reply[0], payload("P", "blob")); answered != (tc.want.Answered == 1) {
				t.Errorf("reply %q", reply)
			}
			st := s.Stats()
			if diff := cmp.Diff(tc.want, outcome{st.Answered, st.Unexpected, st.Malformed, st.Unregistered, st.Unknown}); diff != "" {
				t.Errorf("counted (-want +got):\n%s", diff)
			}
			if st.Wire.Malformed != tc.want.Malformed || st.Wire.Declined != tc.want.Unknown+tc.want.Unregistered { // a rank without memory is a peer's right to ask for
				t.Errorf("below: %+v", st.Wire)
			}
			if ask(t, s, good) == nil { // shows S19.1
				t.Error("the next request was not answered")
			}
		})
	}
}

// The formats of the MessagePack specification: what stands first in a request is skipped, whatever it is.
func TestTheLengthOfAFirstElementIsKnownInEveryFormOfMsgpack(t *testing.T) {
	for _, tc := range []struct{ name, head, body string }{
		{"fixint", "7f", ""}, {"negative fixint", "e0", ""},
		{"nil", "c0", ""}, {"false", "c2", ""}, {"true", "c3", ""},
		{"uint 8", "cc", "01"}, {"uint 16", "cd", "0102"}, {"uint 32", "ce", "01020304"}, {"uint 64", "cf", "0102030405060708"},
		{"int 8", "d0", "01"}, {"int 16", "d1", "0102"}, {"int 32", "d2", "01020304"}, {"int 64", "d3", "0102030405060708"},
		{"float 32", "ca", "01020304"}, {"float 64", "cb", "0102030405060708"},
		{"fixstr", "a2", "6162"}, {"str 8", "d903", "616263"}, {"str 16", "da0003", "616263"}, {"str 32", "db00000003", "616263"},
		{"bin 8", "c403", "616263"}, {"bin 16", "c50003", "616263"}, {"bin 32", "c600000003", "616263"},
		{"fixext 1", "d4", "0561"}, {"fixext 2", "d5", "056161"}, {"fixext 4", "d6", "0561616161"},
		{"fixext 8", "d7", "05" + strings.Repeat("61", 8)}, {"fixext 16", "d8", "05" + strings.Repeat("61", 16)},
		{"ext 8", "c702", "056161"}, {"ext 16", "c80002", "056161"}, {"ext 32", "c900000002", "056161"},
		{"fixarray", "92", "01a162"}, {"array 16", "dc0002", "01a162"}, {"array 32", "dd00000002", "01a162"},
		{"fixmap", "82", "01a1620304"}, {"map 16", "de0002", "01a1620304"}, {"map 32", "df00000002", "01a1620304"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			value := unhex(t, tc.head+tc.body)
			if n, ok := valueLen(append(value[:len(value):len(value)], 0xc1, 0xc1)); !ok || n != len(value) {
				t.Errorf("%d bytes, %v; want %d", n, ok, len(value))
			}
			for short := range value {
				if n, ok := valueLen(value[:short]); ok {
					t.Errorf("%d bytes of it are a value of %d", short, n)
				}
			}
		})
	}
	if n, ok := valueLen([]byte{0xc1}); ok {
		t.Errorf("the byte that is never used is a value of %d bytes", n)
	}
}

func TestTheStampIsTakenForEachReply(t *testing.T) {
	s := serve(t, ServerConfig{})
	mustSet(t, s, Rank{}, Payload{hashA, stockMap("P", "")})
	before := monotonic()
	for range 3 {
		at, err := wire.ParseStamp(ask(t, s, wire.AppendRequest(nil, 0, 0))[1])
		if after := monotonic(); err != nil || at < before-1000 || at > after+1000 { // a float of seconds
			t.Errorf("stamp %v between %v and %v, %v", at, before, after, err)
		}
		before = at
	}
}

func TestPayloadsAreReplacedWhole(t *testing.T) {
	await.NoLeaks(t)
	s := serve(t, ServerConfig{})
	versions := map[string]bool{}
	set := func(i int) {
		blob := strings.Repeat(fmt.Sprint(i%10), 20000)
		mustSet(t, s, Rank{}, Payload{hashA, stockMap("P", blob)})
	}
	for i := range 10 {
		versions[string(payload("P", strings.Repeat(fmt.Sprint(i), 20000)))] = true
	}
	set(0)
	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
				set(i)
			}
		}
	})
	c, err := zmtp.Client{Limits: zmtp.Limits{Request: longest}}.Dial(t.Context(), s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	seen := map[string]bool{}
	for len(seen) < 3 {
		reply, _, err := c.Request(t.Context(), wire.AppendRequest(nil, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		if !versions[string(reply[0])] {
			t.Fatalf("a payload of %d bytes that nobody set", len(reply[0]))
		}
		seen[string(reply[0])] = true
	}
	close(stop)
	writer.Wait()
}

func TestTheGenerationCountsPayloadsThatChanged(t *testing.T) {
	s := serve(t, ServerConfig{})
	p := Payload{hashA, stockMap("P", "0")}
	for i, step := range []struct {
		r    Rank
		p    Payload
		want uint64
	}{{Rank{0, 0}, p, 1}, {Rank{0, 1}, p, 2}, {Rank{0, 1}, p, 2}, {Rank{0, 1}, Payload{hashA, stockMap("P", "1")}, 3}} {
		mustSet(t, s, step.r, step.p)
		if got := s.Generation(); got != step.want {
			t.Errorf("step %d: generation %d, want %d", i, got, step.want)
		}
	}
	s.Withdraw()
	if ask(t, s, wire.AppendRequest(nil, 0, 0)) != nil || s.Stats().Ranks != 0 || s.Generation() != 3 {
		t.Errorf("after withdraw: stats %+v", s.Stats())
	}
	mustSet(t, s, Rank{}, p)
	if ask(t, s, wire.AppendRequest(nil, 0, 0)) == nil || s.Generation() != 4 {
		t.Errorf("after it is set again: stats %+v", s.Stats())
	}
}

func TestWhatIsServedIsBounded(t *testing.T) {
	s := serve(t, ServerConfig{})
	for name, p := range map[string]Payload{
		"map":  {hashA, make([]byte, wire.HandshakeMax)},
		"hash": {strings.Repeat("x", wire.StringMax+1), nil},
	} {
		if err := s.Set(Rank{}, p); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	for i := range uint32(RanksMax) {
		mustSet(t, s, Rank{0, i}, Payload{hashA, nil})
	}
	if err := s.Set(Rank{1, 0}, Payload{}); !errors.Is(err, ErrFull) {
		t.Errorf("error %v, want %v", err, ErrFull)
	}
	if _, err := Serve("127.0.0.1:0", ServerConfig{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("no clock: error %v", err)
	}
	if _, err := NewClient(Config{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("no clock: error %v", err)
	}
	if _, err := NewClient(Config{Now: boottime, Interval: -time.Second}); !errors.Is(err, ErrInvalid) {
		t.Errorf("negative interval: error %v", err)
	}
}

func FuzzARequestNeverPanicsAndMeansWhatWireSays(f *testing.F) {
	f.Add(wire.AppendRequest(nil, 0, 3))
	f.Add([]byte("\x93\xc4\x03abc\x00\x01"))
	f.Add([]byte("\x93\x81\xa1a\x93\xc0\xc3\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"))
	f.Add([]byte("\x93\xdd\xff\xff\xff\xff\x00\x01"))
	f.Fuzz(func(t *testing.T, msg []byte) {
		r, expected, err := parseRequest(msg)
		pp, rank, strict := wire.ParseRequest(msg)
		switch {
		case strict == nil && (err != nil || !expected || r != Rank{pp, rank}):
			t.Errorf("%s, %v, %v; wire reads %d and %d", r, expected, err, pp, rank)
		case err != nil && r != Rank{}:
			t.Errorf("%s with error %v", r, err)
		case strict != nil && expected:
			t.Errorf("expected, but wire says %v", strict)
		}
		if n, ok := valueLen(msg); ok && (n < 1 || n > len(msg)) {
			t.Errorf("a value of %d bytes in %d", n, len(msg))
		}
	})
}
