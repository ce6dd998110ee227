"""References of our own to blocks of vLLM's pool: the request they were computed for may go, and they stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock


class Blocks:
    """Takes and gives back references. vLLM hands its manager over when it has made it."""

    def __init__(self) -> None:
        self.manager: KVCacheManager | None = None

    def take(self, request_id: str) -> list[KVCacheBlock]:
        """All blocks that a request has."""
        assert self.manager is not None
        blocks = [b for g in self.manager.get_blocks(request_id).blocks for b in g if not b.is_null]
        self.manager.block_pool.touch(blocks)
        return blocks

    def give_back(self, blocks: list[KVCacheBlock]) -> None:
        assert self.manager is not None
        self.manager.block_pool.free_blocks(reversed(blocks))


class Aside:
    """Blocks into which a transfer may still write, although nobody waits for its data any more; by the user word of its track."""

    def __init__(self, blocks: Blocks):
        self._blocks = blocks
        self._kept: dict[int, list[KVCacheBlock]] = {}
        self._came = False

    def keep(self, user: int, request_id: str) -> None:
        self._kept[user] = self._blocks.take(request_id)

    def over(self, user: int) -> None:
        """No transfer writes into them any more."""
        if (blocks := self._kept.pop(user, None)) is not None:
            self._came = True
            self._blocks.give_back(blocks)

    def came(self) -> bool:
        """Have some come free since the last call?"""
        came, self._came = self._came, False
        return came

    def __len__(self) -> int:
        return len(self._kept)
