"""A region of KV cache, as Context.register takes it."""

from typing import NamedTuple


class Region(NamedTuple):
    """`blocks` blocks of `block_len` bytes, the first at `addr`, one each `block_stride` bytes (kvl_region_t in kvlease.h).

    The memory stays mapped until unregister or close has returned: the package holds no reference to it.
    """

    addr: int  # host or device address
    bytes: int  # whole extent that is registered
    block_len: int  # bytes of a block in this region
    block_stride: int  # bytes from one block to the next, at least block_len
    blocks: int  # block ids are 0 to blocks - 1
    group: int = -1  # transfer group whose ids address it; -1: every group's ids do
    device: int = 0  # GPU ordinal; 0 for host memory
    mem: str = "dram"  # or "vram"
    name: str = ""  # layer: regions of engines with pipeline stages are matched by it
    parts: int = 1  # pieces of a block: 2 if keys and values lie one after the other
    replicated: bool = False  # every rank holds the whole block (MLA)
