package wire

import (
	"bytes"
	"encoding/hex"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var speaker = Header{Engine: 0x1122334455667788, Epoch: 0x99aabbccddeeff00, Rank: 7}

// head is the speaker's header.
func head(k Kind, readers uint16, count uint32) []byte {
	h := speaker
	h.Kind, h.Readers, h.Count = k, readers, count
	return AppendHeader(nil, &h)
}

// listing is a message with n entries {i, i+1, i+2}.
func listing(k Kind, readers uint16, n int) []byte {
	msg := head(k, readers, 0)
	for i := range n {
		msg = AppendEntry(msg, uint32(i), uint32(i+1), uint64(i+2))
	}
	SetCount(msg, uint32(n))
	return msg
}

func TestNativeMessagesHaveTheGoldenBytes(t *testing.T) {
	const from = "8877665544332211" + "00ffeeddccbbaa99" + "07000000"
	for _, tc := range []struct {
		name string
		got  []byte
		want string
	}{
		{"a renewal of two leases", listing(Renew, 0, 2),
			"ff4b0102" + "0000" + "0000" + from + "02000000" + "00000000" + "01000000" + "0200000000000000" + "01000000" + "02000000" + "0300000000000000"},
		{"a completion by one of three readers", listing(Complete, 3, 1),
			"ff4b0103" + "0000" + "0300" + from + "01000000" + "00000000" + "01000000" + "0200000000000000"},
		{"a release", listing(Release, 0, 1),
			"ff4b0104" + "0000" + "0000" + from + "01000000" + "00000000" + "01000000" + "0200000000000000"},
		{"a goodbye", head(Leaving, 0, 0), "ff4b0105" + "0000" + "0000" + from + "00000000"},
		{"a hello", AppendHello(nil, &speaker, &HelloBody{Duration: 30 * time.Second, BatchBytesMax: 16384, Nonce: [16]byte{1, 15: 16}}),
			"ff4b0101" + "0000" + "0000" + from + "00000000" + "00ac23fc06000000" + "0040000000000000" + "01000000000000000000000000000010"},
	} {
		if diff := cmp.Diff(tc.want, hex.EncodeToString(tc.got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
		if _, _, st := ParseNative(tc.got); st != OK {
			t.Errorf("%s is read as %s", tc.name, st)
		}
	}
}

func TestEntriesComeBackAsTheyWereWritten(t *testing.T) {
	h, entries, st := ParseNative(listing(Complete, 2, 3))
	want := speaker
	want.Kind, want.Readers, want.Count = Complete, 2, 3
	if diff := cmp.Diff(want, h); st != OK || diff != "" {
		t.Fatalf("%s, header (-want +got):\n%s", st, diff)
	}
	for i := range 3 {
		if slot, g, key := Entry(entries, i); slot != uint32(i) || g != uint32(i+1) || key != uint64(i+2) {
			t.Errorf("entry %d: %d %d %d", i, slot, g, key)
		}
	}
}

func TestMalformedNativeMessagesHaveAName(t *testing.T) {
	set := func(msg []byte, at int, v ...byte) []byte {
		copy(msg[at:], v)
		return msg
	}
	zero := make([]byte, 8)
	for _, tc := range []struct {
		name string
		msg  []byte
		want Status
	}{
		{"nothing", nil, Empty},
		{"text", []byte("HB:a"), NotNative},
		{"S01: two bytes that are not UTF-8", []byte{0xff, 0xfe}, BadMagic},
		{"the first byte alone", []byte{0xff}, BadMagic},
		{"the magic alone", []byte{0xff, 0x4b}, BadLength},
		{"half a header", head(Renew, 0, 0)[:31], BadLength},
		{"a longer message than is parsed", append([]byte{0xff, 0x4b}, make([]byte, ParseMax)...), TooLong},
		{"version 0", set(listing(Renew, 0, 1), 2, 0), BadVersion},
		{"version 2", set(listing(Renew, 0, 1), 2, 2), BadVersion},
		{"kind 0", set(listing(Renew, 0, 1), 3, 0), BadKind},
		{"a kind of a later version", set(listing(Renew, 0, 1), 3, 6), BadKind},
		{"a later kind of another shape", append(set(head(Renew, 0, 0), 3, 9), 1, 2, 3), BadKind},
		{"a flag that must be understood", set(listing(Renew, 0, 1), 5, 0x01), BadFlags},
		{"a list of nothing", head(Renew, 0, 0), Empty},
		{"an entry less than counted", listing(Renew, 0, 2)[:HeaderLen+EntryLen], BadLength},
		{"half an entry", listing(Renew, 0, 2)[:HeaderLen+EntryLen+8], BadLength},
		{"an entry more than counted", append(listing(Renew, 0, 1), make([]byte, EntryLen)...), BadLength},
		{"a byte more than counted", append(listing(Release, 0, 1), 0), BadLength},
		{"a count that wraps 32 bits of length", set(listing(Renew, 0, 1), 28, 1, 0, 0, 0x10), BadLength},
		{"the largest count", set(listing(Renew, 0, 1), 28, 0xff, 0xff, 0xff, 0xff), BadLength},
		{"a goodbye with a byte", append(head(Leaving, 0, 0), 0), BadLength},
		{"a goodbye with a count and its entry", set(append(head(Leaving, 0, 0), make([]byte, EntryLen)...), 28, 1), BadLength},
		{"a hello without body", head(Hello, 0, 0), BadLength},
		{"a hello with a count", set(append(head(Hello, 0, 0), make([]byte, HelloLen+EntryLen)...), 28, 1), BadLength},
		{"epoch 0", set(listing(Renew, 0, 1), 16, zero...), BadValue},
		{"a completion of no reader", listing(Complete, 0, 1), BadValue},
		{"a flag that may be ignored", set(listing(Renew, 0, 1), 4, 0xff), OK},
		{"a renewal that names readers", listing(Renew, 9, 1), OK},
	} {
		_, body, st := ParseNative(tc.msg)
		if st != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, st, tc.want)
		}
		if (body != nil) != (st == OK) {
			t.Errorf("%s: %s with a body of %d bytes", tc.name, st, len(body))
		}
	}
}

func TestAHelloOutOfRangeIsRefused(t *testing.T) {
	for _, tc := range []struct {
		duration time.Duration
		want     Status
	}{
		{0, BadValue}, {DurationMin - 1, BadValue}, {DurationMin, OK}, {DurationMax, OK}, {DurationMax + 1, BadValue}, {-1, BadValue},
	} {
		msg := AppendHello(nil, &speaker, &HelloBody{Duration: tc.duration})
		_, body, st := ParseNative(msg)
		if st != OK {
			t.Fatal(st)
		}
		if got, st := ParseHello(body); st != tc.want || st == OK && got.Duration != tc.duration {
			t.Errorf("%v: %s %v, want %s", tc.duration, st, got.Duration, tc.want)
		}
	}
	if _, st := ParseHello(make([]byte, HelloLen-1)); st != BadLength {
		t.Errorf("short body: %s", st)
	}
}

func TestEngineHashIsThatOfTheSpecification(t *testing.T) {
	for id, want := range map[string]uint64{
		"":    0x1e924b9d737700d7, // SipHash-2-4 of nothing under a zero key, as published with other implementations
		"P-1": 0x51ef6e49ee596356,
	} {
		if got := EngineHash([]byte(id)); got != want {
			t.Errorf("%q: %#x, want %#x", id, got, want)
		}
	}
}

func TestNativeMessagesAreMadeAndReadWithoutAllocation(t *testing.T) {
	buf := make([]byte, 0, 16384)
	sum := uint64(0)
	n := testing.AllocsPerRun(100, func() {
		h := speaker
		h.Kind = Renew
		buf = AppendHeader(buf[:0], &h)
		for i := range uint32(100) {
			buf = AppendEntry(buf, i, i, uint64(i))
		}
		SetCount(buf, 100)
		h, entries, _ := ParseNative(buf)
		for i := range int(h.Count) {
			_, _, key := Entry(entries, i)
			sum += key
		}
		buf = AppendHello(buf[:0], &h, &HelloBody{Duration: time.Second})
		_, body, _ := ParseNative(buf)
		b, _ := ParseHello(body)
		sum += uint64(b.Duration)
	})
	if n != 0 || sum == 0 {
		t.Errorf("%v allocations", n)
	}
}

// A message that is read is, written again, the same bytes, so nothing of it was passed over in silence.
func FuzzNative(f *testing.F) {
	f.Add(listing(Renew, 0, 2))
	f.Add(listing(Complete, 3, 1))
	f.Add(listing(Release, 0, 1))
	f.Add(head(Leaving, 0, 0))
	f.Add(AppendHello(nil, &speaker, &HelloBody{Duration: time.Second, Nonce: [16]byte{1}}))
	f.Add([]byte{0xff, 0xfe})
	f.Fuzz(func(t *testing.T, msg []byte) {
		h, body, st := ParseNative(msg)
		if st != OK {
			if body != nil {
				t.Fatalf("%s with a body", st)
			}
			return
		}
		out := AppendHeader(nil, &h)
		if h.Kind == Hello {
			b, st := ParseHello(body)
			if st != OK {
				return
			}
			out = AppendHello(nil, &h, &b)
			// a hello names no readers; what a sender puts there is ignored
			copy(out[6:8], msg[6:8])
		} else {
			for i := range int(h.Count) {
				slot, g, key := Entry(body, i)
				out = AppendEntry(out, slot, g, key)
			}
		}
		if !bytes.Equal(msg, out) {
			t.Fatalf("read %x, written %x", msg, out)
		}
	})
}

func TestAHashThatStandsForNoneHasNoText(t *testing.T) {
	for h, want := range map[uint64]string{0: "", 0xab: "00000000000000ab", 1<<64 - 1: "ffffffffffffffff"} {
		if got := HashText(h); got != want {
			t.Errorf("%d is %q, want %q", h, got, want)
		}
	}
}
