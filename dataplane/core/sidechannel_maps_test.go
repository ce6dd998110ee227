package core

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// fetch asks an engine for a map as a peer does.
func fetch(t *testing.T, n *node) (handshake.Map, error) {
	t.Helper()
	c, err := handshake.NewClient(handshake.Config{Now: Now})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	addr, err := sideAddr(n.core.cfg.SideChannelHost, n.port())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Want(1, handshake.Desc{ID: n.core.cfg.EngineID, Addr: addr, Ranks: []handshake.Rank{{}}}); err != nil {
		t.Fatal(err)
	}
	var r handshake.Result
	eventually(t, "it answers or not", func() bool { var ok bool; r, ok = c.Next(); return ok })
	if r.Err != nil {
		return handshake.Map{}, r.Err
	}
	return r.Maps[0], nil
}

func TestAnEnginesOwnMapIsServedWithOurKey(t *testing.T) {
	l := newSideLab(t)
	l.edit = func(cfg *Config) {
		cfg.SideChannelHost, cfg.SideChannelPort, cfg.SideChannelListen, cfg.CompatHash = l.host, 0, true, "their hash"
	}
	p := l.node("P", `{}`)
	ours, err := p.core.OwnHandshake(0)
	if err != nil {
		t.Fatal(err)
	}
	h := new(wire.Handshake)
	if err := wire.ParseHandshake(ours, h); err != nil {
		t.Fatal(err)
	}
	own := *h
	own.Native, own.AttnBackend, own.NumBlocks = false, "THEIR_OWN", 77
	theirs := wire.AppendHandshake(nil, &own)
	if err := p.core.HandshakeSet(0, theirs); err != nil {
		t.Fatal(err)
	}
	got, err := fetch(t, p)
	if err != nil {
		t.Fatal(err)
	}
	m, _ := p.core.OwnHandshake(0)
	if got.Hash != "their hash" || !bytes.Equal(got.Raw, m) || bytes.Equal(m, ours) {
		t.Errorf("served with hash %q: %x; kvl_handshake_get has %x", got.Hash, got.Raw, m)
	}
	if g := got.Handshake; g.AttnBackend != "THEIR_OWN" || g.NumBlocks != 77 || !g.Native || !reflect.DeepEqual(g.Lease, h.Lease) {
		t.Errorf("served %+v", g)
	}
	for _, tc := range []struct {
		name string
		rank uint32
		m    []byte
		want error
	}{
		{"not msgpack", 0, []byte{0xc1}, ErrInvalid},
		{"an empty map", 0, []byte{0x80}, ErrInvalid},
		{"another engine's", 0, stockMap("Q"), ErrInvalid},
		{"a rank that we do not have", 1, theirs, ErrInvalid},
	} {
		if err := p.core.HandshakeSet(tc.rank, tc.m); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
	if again, _ := p.core.OwnHandshake(0); !bytes.Equal(again, m) {
		t.Error("a map that was refused has changed what is served")
	}
	if err := p.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.core.OwnHandshake(0); !errors.Is(err, ErrState) {
		t.Errorf("after kvl_unregister: %v", err)
	}
	if _, err := fetch(t, p); err == nil {
		t.Error("a map is served without memory")
	}
	if err := p.core.HandshakeSet(0, theirs); err != nil { // before the memory is there
		t.Fatal(err)
	}
	if err := p.core.Register(p.regions); err != nil {
		t.Fatal(err)
	}
	got, err = fetch(t, p)
	if err != nil {
		t.Fatal(err)
	}
	if g := got.Handshake; g.AttnBackend != "THEIR_OWN" || g.Lease.Epoch == h.Lease.Epoch {
		t.Errorf("in the next era %+v", g)
	}
}

// stockMap is a map of the engine's own, as good as any.
func stockMap(id string) []byte {
	return wire.AppendHandshake(nil, &wire.Handshake{
		EngineID: id, AgentMetadata: []byte("blob"), BaseAddrs: []uint64{0x7f0000000000}, NumBlocks: 8, BlockLens: []uint64{4096},
		BlockStrides: []uint64{4096}, Layout: "LBHNC", BlockSize: 16, AttnBackend: "FLASH_ATTN", PhysicalPerLogical: 1,
	})
}
