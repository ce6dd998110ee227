package wire

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ownMap is a map as an engine of its own would make it: keys in another order, and one that we do not know.
func ownMap(ours bool) []byte {
	h := Handshake{EngineID: "E", AgentMetadata: []byte("blob"), BaseAddrs: []uint64{4096}, NumBlocks: 8, BlockLens: []uint64{64},
		BlockStrides: []uint64{64}, Layout: "LBHNC", BlockSize: 16, AttnBackend: "FLASH_ATTN", PhysicalPerLogical: 1}
	pairs := handshakeKeysN // one more, one less
	if ours {
		pairs++
	}
	b := packMap(nil, pairs)
	b = packMap(packStr(packMap(packStr(b, "their_own"), 1), "deep"), 0)
	for k := keyLease - 1; k >= 0; k-- {
		if ours && k == keyBlockSize {
			b = append(packStr(b, handshakeKeys[keyLease]), 0xc0)
		}
		b = h.appendValue(packStr(b, handshakeKeys[k]), k)
	}
	return b
}

func mergedLease() *HandshakeLease {
	return &HandshakeLease{Version: LeaseVersion, Epoch: 7, Base: 1 << 40, Board: 1 << 20, Slots: 16, Duration: DurationMax, Agent: "a"}
}

func TestOurKeyIsPutIntoAnEnginesOwnMap(t *testing.T) {
	for _, tc := range []struct {
		name string
		ours bool
	}{{"as the last one", false}, {"in place of one that is there", true}} {
		t.Run(tc.name, func(t *testing.T) {
			m := ownMap(tc.ours)
			out, err := AppendMerged([]byte("before"), m, mergedLease())
			if err != nil {
				t.Fatal(err)
			}
			rest, ok := bytes.CutPrefix(out, []byte("before"))
			if !ok || !bytes.Contains(rest, packMap(packStr(packMap(packStr(nil, "their_own"), 1), "deep"), 0)) {
				t.Errorf("what was not ours has changed: %x", out)
			}
			var was, is Handshake
			if err := ParseHandshake(rest, &is); err != nil {
				t.Fatal(err)
			}
			if err := ParseHandshake(m, &was); err != nil {
				t.Fatal(err)
			}
			if was.Native || !is.Native {
				t.Errorf("native %v, then %v", was.Native, is.Native)
			}
			was.Native, was.Lease = is.Native, is.Lease
			if diff := cmp.Diff(was, is); diff != "" {
				t.Errorf("merged (-want +got):\n%s", diff)
			}
			again, err := AppendMerged(nil, rest, mergedLease())
			if err != nil || !bytes.Equal(again, rest) {
				t.Errorf("merged twice it is another map: %v", err)
			}
		})
	}
}

func TestMapsThatCannotBeMergedAreRefused(t *testing.T) {
	key := packStr(nil, "kvlease")
	for _, tc := range []struct {
		name string
		m    []byte
		want error
	}{
		{"nothing", nil, ErrTruncated},
		{"an array", packArray(nil, 0), ErrType},
		{"a map that claims four billion pairs", []byte{0xdf, 0xff, 0xff, 0xff, 0xff}, ErrLimit},
		{"our key twice", append(append(append(append(packMap(nil, 2), key...), 0xc0), key...), 0xc0), ErrDuplicate},
		{"bytes after it", append(packMap(nil, 0), 0), ErrTrailing},
		{"a key that is no text", append(packMap(nil, 1), 1, 1), ErrType},
		{"a value that ends too early", append(append(packMap(nil, 1), key...), 0xdb, 0, 0, 0, 9), ErrTruncated},
		{"a value nested too deep", append(append(packMap(nil, 1), key...), bytes.Repeat([]byte{0x91}, 1000)...), ErrDepth},
		{"a mebibyte", make([]byte, HandshakeMax+1), ErrTooLong},
		{"almost one", packBin(packStr(packMap(nil, 1), "x"), make([]byte, HandshakeMax-16)), ErrTooLong},
	} {
		dst := []byte("dst")
		out, err := AppendMerged(dst, tc.m, mergedLease())
		if !errors.Is(err, tc.want) || !bytes.Equal(out, dst) {
			t.Errorf("%s: %v, %d bytes; want %v", tc.name, err, len(out), tc.want)
		}
	}
}

func FuzzAppendMerged(f *testing.F) {
	f.Add(ownMap(false))
	f.Add(ownMap(true))
	f.Add([]byte{0x81, 0xa7, 'k', 'v', 'l', 'e', 'a', 's', 'e', 0xc0})
	f.Fuzz(func(t *testing.T, m []byte) {
		out, err := AppendMerged(nil, m, mergedLease())
		if err != nil {
			return
		}
		p := pack{b: out}
		p.skip(0)
		if err := p.end(); err != nil {
			t.Fatalf("merged map is not msgpack: %v", err)
		}
		again, err := AppendMerged(nil, out, mergedLease())
		if err != nil || !bytes.Equal(again, out) {
			t.Fatalf("merged twice it is another map: %v", err)
		}
	})
}
