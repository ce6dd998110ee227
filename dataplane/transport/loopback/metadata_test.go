package loopback

import (
	"encoding/hex"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kvlease/kvlease/dataplane/transport"
)

var goldenRegions = []transport.Region{{Addr: 0x1000, Bytes: 0x20}, {Addr: 0x3000, Bytes: 1, Device: 2, Mem: transport.VRAM}}

const golden = "6b766c4c" + "03000000" + "0807060504030201" + "02000000" + "00000000" + "502d30" +
	"0010000000000000" + "2000000000000000" + "00000000" + "00000000" +
	"0030000000000000" + "0100000000000000" + "02000000" + "01000000"

func TestMetadataHasItsGoldenBytes(t *testing.T) {
	b := appendBlob(nil, "P-0", 0x0102030405060708, goldenRegions)
	if got := hex.EncodeToString(b); got != golden {
		t.Errorf("got  %s\nwant %s", got, golden)
	}
	name, epoch, regions, err := parseBlob(b)
	if err != nil || name != "P-0" || epoch != 0x0102030405060708 {
		t.Errorf("name %q, epoch %x, %v", name, epoch, err)
	}
	if diff := cmp.Diff(goldenRegions, regions); diff != "" {
		t.Errorf("regions (-want +got):\n%s", diff)
	}
	for n := range b {
		if _, _, _, err := parseBlob(b[:n]); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("the first %d bytes: %v, want ErrInvalid", n, err)
		}
	}
}

func FuzzMetadata(f *testing.F) {
	f.Add(appendBlob(nil, "P-0", 1, goldenRegions))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, epoch, regions, err := parseBlob(b)
		if err != nil {
			return
		}
		name2, epoch2, regions2, err := parseBlob(appendBlob(nil, name, epoch, regions))
		if err != nil || name2 != name || epoch2 != epoch || !cmp.Equal(regions, regions2) {
			t.Errorf("%q %d %v came back as %q %d %v, %v", name, epoch, regions, name2, epoch2, regions2, err)
		}
	})
}
