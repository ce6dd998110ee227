package regions

import (
	"encoding/hex"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/transport"
)

var goldenRegions = []transport.Region{{Addr: 0x1000, Bytes: 0x20}, {Addr: 0x3000, Bytes: 1, Device: 2, Mem: transport.VRAM}}

const golden = "03000000" + "0807060504030201" + "02000000" + "00000000" + "502d30" +
	"0010000000000000" + "2000000000000000" + "00000000" + "00000000" +
	"0030000000000000" + "0100000000000000" + "02000000" + "01000000"

func TestMetadataHasItsGoldenBytes(t *testing.T) {
	for _, magic := range []string{"kvlL", "kvlS"} { // loopback, the simulated network
		b := Append(nil, magic, "P-0", 0x0102030405060708, goldenRegions)
		if got, want := hex.EncodeToString(b), hex.EncodeToString([]byte(magic))+golden; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		m, err := Parse(b, magic)
		if err != nil || string(m.Name) != "P-0" || m.Epoch != 0x0102030405060708 || !m.Are(goldenRegions) {
			t.Errorf("%q, epoch %x, %d regions, %v", m.Name, m.Epoch, m.Len(), err)
		}
		if diff := cmp.Diff(goldenRegions, m.Regions()); diff != "" {
			t.Errorf("regions (-want +got):\n%s", diff)
		}
		for n := range b {
			if _, err := Parse(b[:n], magic); !errors.Is(err, transport.ErrInvalid) {
				t.Errorf("the first %d bytes: %v, want ErrInvalid", n, err)
			}
		}
		if _, err := Parse(b, "kvlX"); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("as another transport's: %v, want ErrInvalid", err)
		}
	}
}

func FuzzMetadata(f *testing.F) {
	const magic = "kvlL"
	f.Add(Append(nil, magic, "P-0", 1, goldenRegions))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b, magic)
		if err != nil {
			return
		}
		again, err := Parse(Append(nil, magic, string(m.Name), m.Epoch, m.Regions()), magic)
		if err != nil || string(again.Name) != string(m.Name) || again.Epoch != m.Epoch || !again.Are(m.Regions()) {
			t.Errorf("%q %d %v came back as %q %d %v, %v", m.Name, m.Epoch, m.Regions(), again.Name, again.Epoch, again.Regions(), err)
		}
	})
}
