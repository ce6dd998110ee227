package sim

import (
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// The model that all engines serve: a block of a layer holds so many bytes for each head.
const (
	headsN    = 4
	layersN   = 2
	headWords = 8
	headBytes = headWords * 8
)

// Times as the configuration of a context has them.
const (
	settleWait      = 50 * time.Millisecond
	quarantineLeast = 30 * time.Second
)

// cache is a rank's part of an engine's KV cache: the heads that it holds, of the layers of its stage.
type cache struct {
	first, held uint32 // heads
	layers      []uint32
	blocks      uint32
	mem         []byte
}

func newCache(p *place, rank uint32) *cache {
	shape := p.shape()
	c := &cache{blocks: p.blocks()}
	tp := rank % shape.TP
	if headsN >= shape.TP {
		c.held = headsN / shape.TP
		c.first = tp * c.held
	} else {
		c.first, c.held = tp/(shape.TP/headsN), 1
	}
	stage := rank / shape.TP
	for layer := range uint32(layersN) {
		if layer*shape.PP/layersN == stage {
			c.layers = append(c.layers, layer)
		}
	}
	c.mem = words(len(c.layers) * int(c.blocks) * c.blockLen())
	return c
}

func (c *cache) blockLen() int { return int(c.held) * headBytes }

// block is the words of one block of the i-th layer here.
func (c *cache) block(i int, b uint32) []uint64 {
	n := c.blockLen()
	at := (i*int(c.blocks) + int(b)) * n
	return asWords(c.mem[at : at+n])
}

// blockAt tells which block an address lies in.
func (c *cache) blockAt(addr uint64) (uint32, bool) {
	from := record.Addr(c.mem)
	if addr < from || addr >= from+uint64(len(c.mem)) {
		return 0, false
	}
	return uint32((addr-from)/uint64(c.blockLen())) % c.blocks, true
}

func (c *cache) name(i int) string { return fmt.Sprintf("layer.%d", c.layers[i]) }

func (c *cache) regionLen() uint64 { return uint64(c.blocks) * uint64(c.blockLen()) }

func (c *cache) regions() (list []transport.Region) {
	for i := range c.layers {
		list = append(list, transport.Region{Addr: record.Addr(c.mem) + uint64(i)*c.regionLen(), Bytes: c.regionLen()})
	}
	return list
}

func (c *cache) layout() *read.Layout {
	l := &read.Layout{}
	for i := range c.layers {
		l.Regions = append(l.Regions, read.Region{
			Addr: record.Addr(c.mem) + uint64(i)*c.regionLen(), BlockLen: uint64(c.blockLen()), BlockStride: uint64(c.blockLen()), Blocks: c.blocks,
			Group: -1, Parts: 1, Name: c.name(i),
		})
	}
	return l
}

// describe adds the cache to a handshake map.
func (c *cache) describe(h *wire.Handshake) {
	for i := range c.layers {
		h.BaseAddrs = append(h.BaseAddrs, record.Addr(c.mem)+uint64(i)*c.regionLen())
		h.BlockLens = append(h.BlockLens, uint64(c.blockLen()))
		h.BlockStrides = append(h.BlockStrides, uint64(c.blockLen()))
		h.RegionNumBlocks = append(h.RegionNumBlocks, uint64(c.blocks))
		h.RegionGroupIDs = append(h.RegionGroupIDs, -1)
		h.RegionNames = append(h.RegionNames, c.name(i))
		h.RegionMemTypes = append(h.RegionMemTypes, transport.DRAM)
		if h.Native {
			h.Lease.Parts = append(h.Lease.Parts, 1)
			h.Lease.Replicated = append(h.Lease.Replicated, false)
		}
	}
	h.NumBlocks = uint64(c.blocks)
}

// content is what a grant's block at a position holds.
func content(serial uint64, position, layer, head, word uint32) uint64 {
	return mix64(serial<<32 | uint64(position)<<20 | uint64(layer)<<16 | uint64(head)<<8 | uint64(word))
}

// fill writes a grant's content into a block.
func (c *cache) fill(serial uint64, position, b uint32) {
	for i, layer := range c.layers {
		w := c.block(i, b)
		for k := range w {
			w[k] = content(serial, position, layer, c.first+uint32(k)/headWords, uint32(k)%headWords)
		}
	}
}

// wrong counts the words of a block that are not a grant's.
func (c *cache) wrong(serial uint64, position, b uint32) (n int) {
	for i, layer := range c.layers {
		w := c.block(i, b)
		for k := range w {
			if w[k] != content(serial, position, layer, c.first+uint32(k)/headWords, uint32(k)%headWords) {
				n++
			}
		}
	}
	return n
}

// mark writes one word all over a block.
func (c *cache) mark(b uint32, word uint64) {
	for i := range c.layers {
		w := c.block(i, b)
		for k := range w {
			w[k] = word
		}
	}
}

// holds reports that a block still has its mark everywhere.
func (c *cache) holds(b uint32, word uint64) bool {
	for i := range c.layers {
		for _, v := range c.block(i, b) {
			if v != word {
				return false
			}
		}
	}
	return true
}

// scrub writes over everything.
func (c *cache) scrub(w *World) {
	w.junk++
	words := asWords(c.mem)
	for i := range words {
		words[i] = junkMark | w.junk
	}
}

// junkMark is in no content, but for chance.
const junkMark = 0xdead << 48
