package ipc

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// TestAProcessOfTheSameNumberIsAnother: its addresses mean nothing here, and what lies at them here are not its bytes.
func TestAProcessOfTheSameNumberIsAnother(t *testing.T) {
	tr, _ := newReader(t, newRig(t))
	blob, err := tr.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	own, err := tr.Load(blob)
	if err != nil {
		t.Fatalf("its own memory: %v", err)
	}
	m, err := parseMetadata(blob)
	if err != nil {
		t.Fatal(err)
	}
	m.of.chance++
	if _, err := tr.Load(appendMetadata(nil, m.of, m.regions, m.rest)); err == nil {
		t.Error("addresses of another process were taken for this one's")
	}
	if err := tr.Drop(own); err != nil {
		t.Error(err)
	}
}

func TestMetadataHasItsGoldenBytes(t *testing.T) {
	var of machine
	copy(of.boot[:], "01234567-89ab-cdef-0123-456789abcdef")
	of.process, of.chance = 0x01020304, 0x0a0b0c0d
	regions := []shared{{addr: 0x2200, bytes: 0x100, base: 0x2000, whole: 0x1000, device: 1}}
	copy(regions[0].handle[:], "handle")
	b := appendMetadata(nil, of, regions, []byte("rest"))
	want := "6b766c2d69706301" + hex.EncodeToString(of.boot[:]) + "04030201" + "01000000" + "0d0c0b0a" +
		"0022000000000000" + "0001000000000000" + "0020000000000000" + "0010000000000000" + "01000000" + "00000000" +
		hex.EncodeToString([]byte("handle")) + strings.Repeat("00", 58) + hex.EncodeToString([]byte("rest"))
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	m, err := parseMetadata(b)
	if err != nil || m.of != of || string(m.rest) != "rest" {
		t.Errorf("%+v, %v", m, err)
	}
	if diff := cmp.Diff(regions, m.regions, cmp.AllowUnexported(shared{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, spoil := range map[string]func(*shared){
		"empty":                    func(r *shared) { r.bytes = 0 },
		"before its allocation":    func(r *shared) { r.addr = 0x1fff },
		"past its allocation":      func(r *shared) { r.bytes = 0xe01 },
		"longer than all":          func(r *shared) { r.bytes = ^uint64(0) },
		"an allocation that wraps": func(r *shared) { r.whole = ^uint64(0) - 0x1fff },
	} {
		bad := regions[0]
		spoil(&bad)
		if _, err := parseMetadata(appendMetadata(nil, of, []shared{bad}, nil)); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (&Transport{self: machine{process: of.process}, inner: &wire{}}).Load(b); !errors.Is(err, transport.ErrInvalid) || !strings.Contains(err.Error(), "another machine") {
		t.Errorf("of another boot: %v", err)
	}
}

func FuzzMetadata(f *testing.F) {
	var of machine
	f.Add(appendMetadata(nil, of, []shared{{addr: 0x2200, bytes: 0x100, base: 0x2000, whole: 0x1000}}, []byte("rest")))
	f.Add(appendMetadata(nil, of, []shared{{addr: ^uint64(0) - 8, bytes: 8, base: ^uint64(0) - 8, whole: 9}}, nil))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMetadata(b)
		if err != nil {
			if !errors.Is(err, transport.ErrInvalid) {
				t.Errorf("%v", err)
			}
			return
		}
		for _, r := range m.regions {
			if r.addr < r.base || r.addr+r.bytes < r.addr || r.addr+r.bytes > r.base+r.whole {
				t.Errorf("%+v is not in its allocation", r)
			}
		}
		if got := appendMetadata(nil, m.of, m.regions, m.rest); len(got) != len(b) {
			t.Errorf("%d bytes of %d", len(got), len(b))
		}
	})
}
