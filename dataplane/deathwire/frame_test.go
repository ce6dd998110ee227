package deathwire

import (
	"encoding/hex"
	"errors"
	"testing"

	"github.com/kvlease/kvlease/dataplane/siphash"
)

// The bytes of docs/protocol.md.
func TestAFramesBytes(t *testing.T) {
	const want = "4b564c57" + "01" + "01" + "0000" + "cb0f5dc961c3d21a" + "71605f4e3d2c1b0a" + "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"
	f := Frame{Kind: Hello, Engine: siphash.Sum64(0, 0, []byte("D-1")), Epoch: 0x0a1b2c3d4e5f6071}
	for i := range f.Nonce {
		f.Nonce[i] = byte(0xa0 + i)
	}
	if got := hex.EncodeToString(f.Append(nil)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, err := Parse(f.Append(nil)); err != nil || got != f {
		t.Errorf("parsed %+v %v", got, err)
	}
}

func TestFramesThatAreNoneAreRefused(t *testing.T) {
	good := (&Frame{Kind: Leaving, Engine: 1, Epoch: 2}).Append(nil)
	for _, tc := range []struct {
		name string
		edit func(b []byte) []byte
	}{
		{"another magic", func(b []byte) []byte { b[3]++; return b }},
		{"another version", func(b []byte) []byte { b[4]++; return b }},
		{"kind 0", func(b []byte) []byte { b[5] = 0; return b }},
		{"a kind of later", func(b []byte) []byte { b[5] = 5; return b }},
		{"epoch 0", func(b []byte) []byte { b[16] = 0; return b }},
		{"too short", func(b []byte) []byte { return b[:FrameLen-1] }},
		{"too long", func(b []byte) []byte { return append(b, 0) }},
		{"nothing", func([]byte) []byte { return nil }},
	} {
		if _, err := Parse(tc.edit(append([]byte(nil), good...))); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	good[6], good[7] = 1, 1
	if _, err := Parse(good); err != nil {
		t.Errorf("the bytes kept for later: %v", err)
	}
}

func TestANonceIsOfOneSecretAndOneOwner(t *testing.T) {
	secret := [2]uint64{1, 2}
	n := Nonce(secret, "P-1")
	if n != Nonce(secret, "P-1") {
		t.Error("it is another one the second time")
	}
	// A lease key is a hash of 8 bytes under the same secret, and a peer chooses its own id.
	var key [8]byte
	for i := range key {
		key[i] = 'k'
	}
	for what, other := range map[string][16]byte{
		"another owner": Nonce(secret, "P-2"), "another secret": Nonce([2]uint64{1, 3}, "P-1"), "none": {},
	} {
		if n == other {
			t.Errorf("the same as that of %s", what)
		}
	}
	of8 := Nonce(secret, string(key[:]))
	lease := siphash.Sum64(secret[0], secret[1], key[:])
	for at := 0; at < 16; at += 8 {
		v := uint64(0)
		for i := 7; i >= 0; i-- {
			v = v<<8 | uint64(of8[at+i])
		}
		if v == lease {
			t.Error("half of it is a lease key")
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add((&Frame{Kind: Hello, Engine: 1, Epoch: 2, Nonce: nonce(3)}).Append(nil))
	f.Add([]byte("KVLW"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(got.Append(nil))
		if err != nil || again != got {
			t.Fatalf("%+v becomes %+v %v", got, again, err)
		}
	})
}
