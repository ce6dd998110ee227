"""Prefill's half: leases of this engine, and the blocks that they hold."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

import kvlease
from kvlease.vllm.logs import logger_of
from kvlease.vllm.stats import REASONS, Source

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock

    from kvlease.vllm.blocks import Blocks

logger = logger_of(__name__)

PRESSURE_BLOCKS = 64  # asked back at a time
PATIENCE = 0.02  # s that a request without a block waits for them
PRESSURE_EVERY = 1.0  # s between two times that nothing comes


class Held(NamedTuple):
    """Blocks under one lease. `step` is the last one that was handed out before the grant: it may still write into them."""

    request_id: str
    blocks: list[KVCacheBlock] | None  # None: vLLM holds them, until finished_sending
    step: int


class Owner:
    """Grants, and what comes of them.

    With the pump the blocks of a lease are held by a reference of our own, not by vLLM's finished request: so vLLM's loop, which
    turns as long as a request is there, stands still while leases are held.
    """

    def __init__(self, ctx: kvlease.Context, producer: kvlease.Producer, source: Source, blocks: Blocks | None):
        self._ctx, self._producer, self._source = ctx, producer, source
        self._blocks = blocks
        self._expected: dict[str, int] = {}
        self._held: dict[int, Held] = {}  # by user
        self._next = 0
        self._back: deque[Held] = deque()  # ended, their step not made yet
        self._asked = -PRESSURE_EVERY  # when blocks were asked back last
        self._came = False  # some have come since
        self.finished_sending: set[str] = set()

    def expect(self, request_id: str) -> None:
        """A request has started to run; messages about it that come before its grant are kept."""
        if request_id in self._expected:
            return
        try:
            self._expected[request_id] = self._producer.expect(request_id)
        except (kvlease.Error, ValueError):  # no room, or no id for the wire: a message that comes too early is lost, that is all
            self._expected[request_id] = 0

    def cancel(self, request_id: str) -> None:
        """It ended without blocks to hold."""
        if lease := self._expected.pop(request_id, 0):
            self.cancel_lease(lease)

    def cancel_lease(self, lease: int) -> None:
        try:
            self._producer.cancel(lease)
        except kvlease.Error:  # it has ended, or the context is broken
            pass

    def grant(self, request_id: str, params: dict[str, Any], step: int) -> tuple[bool, dict[str, Any] | None]:
        """Hold the blocks of a finished request. Answers what vLLM's request_finished does: does vLLM hold the blocks, and the
        parameters; None if there is no lease, so that nobody reads blocks which are not held."""
        user, self._next = self._next, self._next + 1
        expected, lease = self._expected.pop(request_id, 0), 0
        fixed = bool(params["do_remote_decode"])  # kept for a second turn: the time is set, no heartbeat moves it
        try:
            lease = self._producer.grant(request_id, params["remote_block_ids"], params["remote_num_tokens"], 0.0, expected, user, fixed)
            params["kvlease"] = msgspec.json.decode(self._ctx.params_key(lease))
        except (kvlease.Error, ValueError) as e:
            if lease:
                self.cancel_lease(lease)
            self._source.count("kvlease_leases_refused")
            logger.error("kvlease: no lease for request %s, the decoder will have to compute it: %s", request_id, e)
            return False, None
        blocks = self._blocks.take(request_id) if self._blocks is not None else None
        self._held[user] = Held(request_id, blocks, step)
        return blocks is None, params

    def freed(self, event: kvlease.Event) -> None:
        """KVL_EV_FREED: the blocks are free, once no step that was handed out before the grant is under way."""
        reason = REASONS[event.status - 1]
        self._source.count("kvlease_leases_freed", reason)
        if reason == "expired":
            self._source.stats.record_kv_expired_req()
        held = self._held.pop(event.user, None)
        if held is not None:
            self._back.append(held)

    def give_back(self, steps_made: int) -> bool:
        """Free what has ended. True if something was."""
        some = False
        while self._back and self._back[0].step <= steps_made:
            held = self._back.popleft()
            some = self._came = True
            if held.blocks is None or self._blocks is None:
                self.finished_sending.add(held.request_id)
            else:
                self._blocks.give_back(held.blocks)
        return some

    def pressure(self) -> bool:
        """A running request finds no block. True: ask again in the next step, some may come back. Not for ever: when nothing has come
        in a while vLLM preempts, as it does without leases."""
        now = time.monotonic()
        if not self._held:
            return False
        if now - self._asked < PATIENCE:
            return True
        if now - self._asked < PRESSURE_EVERY and not self._came:
            return False
        self._asked, self._came = now, False
        try:
            self._producer.pressure(PRESSURE_BLOCKS)
        except kvlease.Error:
            return False
        return True
