package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/clock"
)

const (
	requestGolden = "93c40c6765745f6d6574615f6d73670003"
	payloadGolden = "82b2636f6d7061746962696c6974795f68617368d940"
	stampGolden   = "cb40c81cc000000000"
)

func TestSideChannelFramesHaveTheBytesOfVllm(t *testing.T) {
	hash := strings.Repeat("ab", 32)
	payload := payloadGolden + strings.Repeat("6162", 32) + "b46167656e745f6d657461646174615f6279746573c40180"
	for _, tc := range []struct {
		name string
		got  []byte
		want string
	}{
		{"request", AppendRequest(nil, 0, 3), requestGolden},
		{"payload", AppendPayload(nil, hash, []byte{0x80}), payload},
		{"stamp", AppendStamp(nil, 12345_500_000_000), stampGolden},
	} {
		if diff := cmp.Diff(tc.want, hex.EncodeToString(tc.got)); diff != "" {
			t.Errorf("%s (-golden +got):\n%s", tc.name, diff)
		}
	}
	if pp, rank, err := ParseRequest(unhex(t, requestGolden)); pp != 0 || rank != 3 || err != nil {
		t.Errorf("request read as %d %d %v", pp, rank, err)
	}
	if gotHash, metadata, err := ParsePayload(unhex(t, payload)); gotHash != hash || !bytes.Equal(metadata, []byte{0x80}) || err != nil {
		t.Errorf("payload read as %q %x %v", gotHash, metadata, err)
	}
	if at, err := ParseStamp(unhex(t, stampGolden)); at != 12345_500_000_000 || err != nil {
		t.Errorf("stamp read as %d %v", at, err)
	}
}

func TestMalformedFramesAreNamed(t *testing.T) {
	request := func(s string) error {
		pp, rank, err := ParseRequest(unhex(t, s))
		if pp != 0 || rank != 0 {
			t.Errorf("ranks %d and %d beside %v", pp, rank, err)
		}
		return err
	}
	payload := func(s string) error { _, _, err := ParsePayload(unhex(t, s)); return err }
	stamp := func(s string) error { _, err := ParseStamp(unhex(t, s)); return err }
	hash := "b2636f6d7061746962696c6974795f68617368a0"
	meta := "b46167656e745f6d657461646174615f6279746573c400"
	for _, tc := range []struct {
		name string
		got  error
		want error
	}{
		{"an empty request", request(""), ErrTruncated},
		{"a request too long", request(strings.Repeat("00", RequestMax+1)), ErrTooLong},
		{"a request of two", request("92c40c6765745f6d6574615f6d736700"), ErrValue},
		{"a request of four", request("94c40c6765745f6d6574615f6d7367000300"), ErrLimit},
		{"a request that counts four billion", request("ddffffffff"), ErrLimit},
		{"another request", request("93c40c6765745f6d6574615f6d7300" + "0003"), ErrValue},
		{"a request by text", request("93ac6765745f6d6574615f6d73670003"), ErrType},
		{"a rank below zero", request("93c40c6765745f6d6574615f6d736700ff"), ErrNegative},
		{"a rank that is no number", request("93c40c6765745f6d6574615f6d736700c0"), ErrType},
		{"a rank too large", request("93c40c6765745f6d6574615f6d736700cf0000000100000000"), ErrRange},
		{"a byte after the request", request(requestGolden + "00"), ErrTrailing},
		{"a cut request", request(requestGolden[:len(requestGolden)-2]), ErrTruncated},
		{"the nested killer as a request", request(strings.Repeat("91", RequestMax)), ErrValue},

		{"an empty payload", payload(""), ErrTruncated},
		{"a payload too long", payload(strings.Repeat("00", HandshakeMax+1)), ErrTooLong},
		{"a payload without metadata", payload("81" + hash), ErrMissing},
		{"a payload without hash", payload("81" + meta), ErrMissing},
		{"a payload that is a list", payload("92" + hash + meta), ErrType},
		{"a hash twice", payload("83" + hash + meta + hash), ErrDuplicate},
		{"metadata as text", payload("82" + hash + meta[:len(meta)-4] + "a0"), ErrType},
		{"metadata longer than the payload", payload("82" + hash + meta[:len(meta)-4] + "c6ffffffff"), ErrTruncated},
		{"a byte after the payload", payload("82" + hash + meta + "00"), ErrTrailing},
		{"the nested killer in a payload", payload("83" + hash + meta + "a178" + strings.Repeat("91", 100000)), ErrDepth},
		{"an unknown key", payload("83" + hash + "a178" + "9100" + meta), nil},

		{"an empty stamp", stamp(""), ErrTruncated},
		{"a stamp as number", stamp("cf0000000000000001"), ErrType},
		{"a short stamp", stamp(stampGolden[:16]), ErrTruncated},
		{"a byte after the stamp", stamp(stampGolden + "00"), ErrTrailing},
		{"a stamp that is no number", stamp("cb7ff8000000000000"), ErrRange},
		{"an infinite stamp", stamp("cb7ff0000000000000"), ErrRange},
		{"a stamp below zero", stamp("cbbff0000000000000"), ErrRange},
		{"a stamp beyond 292 years", stamp("cb42a0000000000000"), ErrRange},
	} {
		if !errors.Is(tc.got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, tc.got, tc.want)
		}
	}
}

func FuzzSideChannel(f *testing.F) {
	f.Add(unhex(f, requestGolden))
	f.Add(AppendPayload(nil, "hash", []byte{1}))
	f.Add(unhex(f, stampGolden))
	f.Fuzz(func(t *testing.T, msg []byte) {
		if pp, rank, err := ParseRequest(msg); err == nil {
			if a, b, err := ParseRequest(AppendRequest(nil, pp, rank)); a != pp || b != rank || err != nil {
				t.Fatalf("request %x", msg)
			}
		}
		if hash, metadata, err := ParsePayload(msg); err == nil {
			if a, b, err := ParsePayload(AppendPayload(nil, hash, metadata)); a != hash || !bytes.Equal(b, metadata) || err != nil {
				t.Fatalf("payload %x", msg)
			}
		}
		if at, err := ParseStamp(msg); err == nil {
			again, err := ParseStamp(AppendStamp(nil, at))
			if off := again - at; err != nil || at < 0 || math.Abs(float64(off)) > math.Max(1, float64(at)/(1<<51)) {
				t.Fatalf("stamp %x: %d, again %d, %v", msg, at, again, err)
			}
		}
	})
}

func TestAStampOfThisCenturyIsExactToAMicrosecond(t *testing.T) {
	for _, at := range []clock.RemoteInstant{0, 1, 999_999_999, 12345_678_901_234, 1_577_880_000_000_000_000 + 123_456_789} {
		got, err := ParseStamp(AppendStamp(nil, at))
		if off := got - at; err != nil || off > 1000 || off < -1000 {
			t.Errorf("%d came back as %d (%v)", at, got, err)
		}
	}
}
