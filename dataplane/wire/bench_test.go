package wire

import (
	"fmt"
	"testing"
)

// The handshake map of an engine of 61 layers: made as the owner does once, and read as each reader does.
func BenchmarkHandshake(b *testing.B) {
	h := fullMap()
	h.BaseAddrs, h.BlockLens, h.BlockStrides, h.RegionNumBlocks, h.RegionGroupIDs = nil, nil, nil, nil, nil
	h.RegionNames, h.RegionMemTypes, h.RegionMembers, h.PackedMembers = nil, nil, nil, nil
	mem := fullMap().RegionMemTypes[0]
	h.Lease.Parts, h.Lease.Replicated = nil, nil
	for i := range 61 {
		h.BaseAddrs, h.BlockLens, h.BlockStrides = append(h.BaseAddrs, 0x7f0000000000+uint64(i)<<32), append(h.BlockLens, 73728), append(h.BlockStrides, 73728)
		h.RegionNumBlocks, h.RegionGroupIDs = append(h.RegionNumBlocks, 8192), append(h.RegionGroupIDs, 0)
		h.RegionNames, h.RegionMemTypes = append(h.RegionNames, fmt.Sprintf("model.layers.%d.self_attn.attn", i)), append(h.RegionMemTypes, mem)
		h.RegionMembers = append(h.RegionMembers, nil)
		h.Lease.Parts, h.Lease.Replicated = append(h.Lease.Parts, 1), append(h.Lease.Replicated, true)
	}
	msg := AppendHandshake(nil, &h)
	b.Run("make", func(b *testing.B) {
		b.ReportAllocs()
		var buf []byte
		for b.Loop() {
			buf = AppendHandshake(buf[:0], &h)
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var got Handshake
			if err := ParseHandshake(msg, &got); err != nil {
				b.Fatal(err)
			}
		}
	})
}
