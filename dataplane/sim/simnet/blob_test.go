package simnet

import (
	"encoding/hex"
	"errors"
	"testing"

	"github.com/kvlease/kvlease/dataplane/transport"
)

var goldenRegions = []transport.Region{{Addr: 0x1000, Bytes: 0x20}, {Addr: 0x3000, Bytes: 1, Device: 2, Mem: transport.VRAM}}

const golden = "6b766c53" + "03000000" + "0807060504030201" + "02000000" + "00000000" + "502d30" +
	"0010000000000000" + "2000000000000000" + "00000000" + "00000000" +
	"0030000000000000" + "0100000000000000" + "02000000" + "01000000"

func TestMetadataHasItsGoldenBytes(t *testing.T) {
	b := appendBlob(nil, "P-0", 0x0102030405060708, goldenRegions)
	if got := hex.EncodeToString(b); got != golden {
		t.Errorf("got  %s\nwant %s", got, golden)
	}
	m, err := parseBlob(b)
	if err != nil || string(m.name) != "P-0" || m.epoch != 0x0102030405060708 || !m.are(goldenRegions) {
		t.Errorf("%q, epoch %x, %d regions, %v", m.name, m.epoch, m.len(), err)
	}
	for n := range b {
		if _, err := parseBlob(b[:n]); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("the first %d bytes: %v, want ErrInvalid", n, err)
		}
	}
}

func FuzzMetadata(f *testing.F) {
	f.Add(appendBlob(nil, "P-0", 1, goldenRegions))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseBlob(b)
		if err != nil {
			return
		}
		var regions []transport.Region
		for i := range m.len() {
			regions = append(regions, m.region(i))
		}
		again, err := parseBlob(appendBlob(nil, string(m.name), m.epoch, regions))
		if err != nil || string(again.name) != string(m.name) || again.epoch != m.epoch || !again.are(regions) {
			t.Errorf("%q came back as %q, %v", m.name, again.name, err)
		}
		n := New(Config{})
		a, err := n.Agent("D", AgentConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if p, err := a.Load(b); err != nil || a.Send(p, nil) != nil {
			t.Errorf("it did not load: %v", err)
		}
	})
}
