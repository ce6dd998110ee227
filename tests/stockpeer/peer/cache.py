"""A KV cache in host memory in which every byte follows from the request, the layer and the position of the block.

A block of a layer is a run of bytes per head, heads in order, so a rank of a larger engine holds a slice of it.
"""

import hashlib
import mmap

BLOCK_BYTES = 4096  # of a rank that holds all heads


def content(request_id, layer, position, share=(0, 1)):
    """One block; share (i, n) is the i-th of n slices of its heads."""
    block = hashlib.shake_128(f"{request_id}|{layer}|{position}".encode()).digest(BLOCK_BYTES)
    size = BLOCK_BYTES // share[1]
    return block[share[0] * size :][:size]


class Cache:
    def __init__(self, layers, blocks, share=(0, 1)):
        self.layers, self.blocks, self.share = layers, blocks, share
        self.block_len = BLOCK_BYTES // share[1]
        self.size = blocks * self.block_len  # of a layer
        self.memory = mmap.mmap(-1, layers * self.size)

    def _at(self, layer, block):
        if not 0 <= block < self.blocks:
            raise ValueError(f"there is no block {block}")
        start = layer * self.size + block * self.block_len
        return slice(start, start + self.block_len)

    def fill(self, request_id, blocks):
        for layer in range(self.layers):
            for position, block in enumerate(blocks):
                self.memory[self._at(layer, block)] = content(request_id, layer, position, self.share)

    def clear(self, blocks):
        for layer in range(self.layers):
            for block in blocks:
                self.memory[self._at(layer, block)] = b"\xee" * self.block_len

    def wrong_blocks(self, request_id, blocks, first=0):
        """How many blocks, over all layers, differ from the request's in any byte; the first one is at this position."""
        return sum(
            self.memory[self._at(layer, block)] != content(request_id, layer, position, self.share)
            for layer in range(self.layers) for position, block in enumerate(blocks, first)
        )
