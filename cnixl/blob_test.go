package cnixl

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/dataplane/transport"
)

func field(tag, value string) string {
	return tag + string(binary.LittleEndian.AppendUint64(nil, uint64(len(value)))) + value + "|"
}

func number(tag string, n uint64) string {
	return field(tag, string(binary.LittleEndian.AppendUint64(nil, n)))
}

// blobOf builds metadata as NIXL 1.5.1 writes it: one UCX connection, one section with descs descriptors.
func blobOf(name string, descs int) string {
	b := blobStart + field("Agent", name) + number("Conns", 1) + field("t", "UCX") + field("c", "address") +
		field("", "MemSection") + number("nixlSecElms", 1) + field("bknd", "UCX") + field("nixlDList", "nixlSDList") +
		field("t", "\x00\x00\x00\x00") + number("n", uint64(descs))
	for range descs {
		b += field("", strings.Repeat("d", 35))
	}
	return b
}

func TestMetadataIsReadAsNIXLWritesIt(t *testing.T) {
	golden := "6e69786c5365724465737c" + // nixlSerDes|
		"4167656e74" + "0100000000000000" + "50" + "7c" + // Agent P
		"436f6e6e73" + "0800000000000000" + "0000000000000000" + "7c" + // Conns 0
		"0a00000000000000" + "4d656d53656374696f6e" + "7c" + // MemSection
		"6e69786c536563456c6d73" + "0800000000000000" + "0000000000000000" + "7c" // nixlSecElms 0
	bytes, err := hex.DecodeString(golden)
	if err != nil {
		t.Fatal(err)
	}
	if want := blobStart + field("Agent", "P") + number("Conns", 0) + field("", "MemSection") + number("nixlSecElms", 0); string(bytes) != want {
		t.Fatalf("golden bytes differ from %q", want)
	}
	for _, good := range []string{string(bytes), blobOf("P", 1), blobOf("P", 100), blobOf("P", 3) + "trailing"} {
		if _, err := checkBlob([]byte(good), "D"); err != nil {
			t.Errorf("%d bytes: %v", len(good), err)
		}
	}
}

func TestEveryCutOfMetadataIsRefused(t *testing.T) {
	blob := blobOf("prefill-0", 3)
	for n := range blob {
		if _, err := checkBlob([]byte(blob[:n]), "D"); !errors.Is(err, transport.ErrInvalid) {
			t.Fatalf("the first %d of %d bytes: %v, want ErrInvalid", n, len(blob), err)
		}
	}
}

func TestMetadataThatCannotBeIsRefused(t *testing.T) {
	for _, tc := range []struct{ name, blob string }{
		{"another format", "kvlL" + strings.Repeat("x", 100)},
		{"our own agent", blobOf("D", 1)},
		{"an empty name", blobOf("", 1)},
		{"a name of 256 bytes", blobOf(strings.Repeat("n", 256), 1)},
		{"a name with a zero byte", blobOf("a\x00b", 1)},
		{"2^62 connections", blobStart + field("Agent", "P") + number("Conns", 1<<62) + field("t", "UCX")},
		{"a field of 2^64-1 bytes", blobStart + "Agent\xff\xff\xff\xff\xff\xff\xff\xffP|"},
		{"2^40 descriptors", strings.Replace(blobOf("P", 1), number("n", 1), number("n", 1<<40), 1)},
		{"a short descriptor", strings.Replace(blobOf("P", 1), field("", strings.Repeat("d", 35)), field("", "short")+strings.Repeat("x", 40), 1)},
	} {
		if _, err := checkBlob([]byte(tc.blob), "D"); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", tc.name, err)
		}
	}
}

func TestMetadataOfANewerNIXLIsLeftToIt(t *testing.T) {
	blob := blobStart + field("Agent", "P") + number("Conns", 0) + field("", "MemSection") + field("failure zone", "a")
	if _, err := checkBlob([]byte(blob), "D"); err != nil {
		t.Error(err)
	}
}

func FuzzMetadata(f *testing.F) {
	f.Add([]byte(blobOf("P", 2)))
	f.Add([]byte(blobStart + field("Agent", "P") + number("Conns", 1<<62)))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, err := checkBlob(b, "D")
		if err != nil {
			if !errors.Is(err, transport.ErrInvalid) {
				t.Error(err)
			}
			return
		}
		alias := renamed(b, name, name+"~1")
		if len(name) > nameMax-2 {
			return
		}
		if got, err := checkBlob(alias, "D"); err != nil || got != name+"~1" {
			t.Errorf("renamed: %q, %v", got, err)
		}
		if string(renamed(alias, name+"~1", name)) != string(b) {
			t.Error("renaming there and back changes the blob")
		}
	})
}
