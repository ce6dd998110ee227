// Package kvcache is the KV cache of the engine stand-ins: host memory in which every byte follows from the request, the
// layer, K or V, the block's position, the head and the token. The C examples hold the same (docs/examples/engine.h);
// golden values in the tests keep the two equal.
package kvcache

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Shape of a block of all heads: K, then V, each Heads x Tokens x Words x 8 bytes. A rank holds some of the heads.
const (
	Heads    = 4
	Tokens   = 16
	Words    = 16
	BlockLen = Parts * Heads * headLen

	Parts   = 2 // K and V
	headLen = Tokens * Words * 8

	LayersMax = 64
	BlocksMax = 65536
)

// Cache is one region of blocks per layer.
//
// Memory: mapped, never Go memory, since the transport registers it and watches libc's munmap only. It stays until the
// process ends: a late transfer may still write there.
type Cache struct {
	Layers, Blocks   uint32
	BlockLen         int // bytes of a block here
	firstHead, heads uint32
	base             [][]byte
}

// New maps a cache of all heads. It fails for sizes out of 1..LayersMax, 1..BlocksMax and when the system refuses the memory.
func New(layers, blocks uint32) (*Cache, error) { return NewRank(layers, blocks, 0, 1) }

// NewRank maps the cache of one of ranks ranks, which share the heads.
func NewRank(layers, blocks, rank, ranks uint32) (*Cache, error) {
	if layers < 1 || layers > LayersMax || blocks < 1 || blocks > BlocksMax {
		return nil, fmt.Errorf("a KV cache has 1 to %d layers and 1 to %d blocks, not %d and %d", LayersMax, BlocksMax, layers, blocks)
	}
	if ranks < 1 || Heads%ranks != 0 || rank >= ranks {
		return nil, fmt.Errorf("rank %d of %d: %d heads are shared by 1, 2 or %d ranks", rank, ranks, Heads, Heads)
	}
	c := &Cache{Layers: layers, Blocks: blocks, heads: Heads / ranks}
	c.firstHead = rank * c.heads
	c.BlockLen = Parts * int(c.heads) * headLen
	for range layers {
		mem, err := unix.Mmap(-1, 0, int(blocks)*c.BlockLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return nil, fmt.Errorf("map %d blocks of KV cache: %w", blocks, err)
		}
		c.base = append(c.base, mem)
	}
	return c, nil
}

// Layer is the memory of one layer.
func (c *Cache) Layer(layer uint32) []byte { return c.base[layer] }

// mixed is the end of splitmix64: a bijection in which every bit of the input moves about half of the output.
func mixed(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// Seed is what the words of one token of one head start from; v is 0 for K and 1 for V.
func Seed(request string, layer, v, block, head, token uint32) uint64 {
	name := uint64(0xcbf29ce484222325) // FNV-1a
	for i := 0; i < len(request); i++ {
		name = (name ^ uint64(request[i])) * 0x100000001b3
	}
	return seed(name, layer, v, block, head, token)
}

func seed(name uint64, layer, v, block, head, token uint32) uint64 {
	place := uint64(layer)<<56 | uint64(v)<<55 | uint64(head)<<44 | uint64(token)<<28 | uint64(block)
	return mixed(name ^ mixed(place+1))
}

// Word is one word of a token of a head.
func Word(seed uint64, word uint32) uint64 { return mixed(seed + uint64(word)*0x9e3779b97f4a7c15) }

// Fill writes a request's KV, by position in the request, into these blocks.
func (c *Cache) Fill(request string, blocks []uint32) {
	c.walk(request, blocks, true)
}

// BadBytes counts the bytes of these blocks that are not the request's.
func (c *Cache) BadBytes(request string, blocks []uint32) uint64 {
	return c.walk(request, blocks, false)
}

// Clear makes sure that what a block held before does not look like data that was read.
func (c *Cache) Clear(blocks []uint32) {
	for _, layer := range c.base {
		for _, b := range blocks {
			mem := layer[int(b)*c.BlockLen:][:c.BlockLen]
			for i := range mem {
				mem[i] = cleared
			}
		}
	}
}

const cleared = 0xee

// Landed counts the bytes of cleared blocks that have been written since. One in 256 of what is written looks as if it
// were not.
func (c *Cache) Landed(blocks []uint32) uint64 {
	landed := uint64(0)
	for _, layer := range c.base {
		for _, b := range blocks {
			for _, v := range layer[int(b)*c.BlockLen:][:c.BlockLen] {
				if v != cleared {
					landed++
				}
			}
		}
	}
	return landed
}

func (c *Cache) walk(request string, blocks []uint32, fill bool) (bad uint64) {
	name := uint64(0xcbf29ce484222325)
	for i := 0; i < len(request); i++ {
		name = (name ^ uint64(request[i])) * 0x100000001b3
	}
	for layer, mem := range c.base {
		for pos, b := range blocks {
			at := mem[int(b)*c.BlockLen:][:c.BlockLen]
			for row := uint32(0); row < Parts*c.heads*Tokens; row++ {
				s := seed(name, uint32(layer), row/(c.heads*Tokens), uint32(pos), c.firstHead+row/Tokens%c.heads, row%Tokens)
				for w := uint32(0); w < Words; w++ {
					want := Word(s, w)
					if fill {
						binary.LittleEndian.PutUint64(at, want)
					} else {
						for diff := binary.LittleEndian.Uint64(at) ^ want; diff != 0; diff >>= 8 {
							if diff&0xff != 0 {
								bad++
							}
						}
					}
					at = at[8:]
				}
			}
		}
	}
	return bad
}
