"""Decode's half: requests whose blocks lie elsewhere. Tracked from their arrival on, read when vLLM has blocks for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

import kvlease
from kvlease.vllm.engines import Engines
from kvlease.vllm.stats import READS, Source

if TYPE_CHECKING:
    from vllm.v1.request import Request

logger = init_logger(__name__)

TRACKED, READING, HELD, LOST = range(4)
WHY = (  # by KVL_READ_*
    "", "the lease had ended", "nothing proves that the lease stood", "the transfer failed", "the transfer did not end in time",
    "the request ended", "the engine is gone",
)  # fmt: skip


class Pull:
    """One local request that reads from another engine."""

    __slots__ = ("descs", "ended", "engine_id", "groups", "posted", "request_id", "state", "track", "user", "why")

    def __init__(self, request_id: str, user: int):
        self.request_id = request_id
        self.user = user
        self.engine_id: str | None = None
        self.groups: list[list[int]] = []  # the owner's blocks, as they were checked
        self.track = 0
        self.state = TRACKED
        self.ended = False  # vLLM's request has finished: nobody waits for the data
        self.why = ""
        self.posted = 0.0  # s that the call took
        self.descs = 0  # blocks times regions


class Reader:
    """What is tracked, and how reads ended.

    `done`: requests whose blocks are vLLM's again, since the data is proven or the request is over. `failed`: requests that wait
    for data which will not come; their blocks are free of transfers.
    """

    def __init__(
        self, ctx: kvlease.Context, producer: kvlease.Producer, source: Source, regions: list[int], whole: list[bool], recompute: bool, engine_ttl: float
    ):
        """Of each transfer group: how many regions, and whether its lists hold all blocks of a request, not a window's."""
        self._producer, self._source = producer, source
        self._regions, self._whole, self._recompute = regions, whole, recompute
        self.engines = Engines(ctx, engine_ttl)
        self._pulls: dict[str, Pull] = {}
        self._by_user: dict[int, Pull] = {}
        self._next = 0
        self._again: dict[str, tuple[Any, tuple[int, ...]]] = {}  # reads that found no room
        self.done: set[str] = set()
        self.failed: list[str] = []

    def track(self, request: Request) -> None:
        """A request has arrived: heartbeats from now on. Parameters that cannot be used are a load that fails, with the reason in the
        log: the engine's kv_load_failure_policy decides what that means."""
        pull = Pull(request.request_id, self._next)
        self._next += 1
        self._pulls[request.request_id] = pull
        try:
            remote = kvlease.params_read(request.kv_transfer_params)
            pull.groups = remote.groups
            if not any(pull.groups):
                raise ValueError("remote_block_ids names no block")
            engine = self.engines.use(remote)
            pull.engine_id = remote.engine_id
            pull.track = self._producer.track(engine, remote, request.request_id, pull.user)
        except (kvlease.Error, TypeError, ValueError, OverflowError, RecursionError) as e:
            self._source.count("kvlease_params_refused")
            self._lose(pull, f"kv_transfer_params: {e}")
            return
        self._by_user[pull.user] = pull

    def lost(self, request_id: str) -> bool:
        """There is nothing to read."""
        pull = self._pulls.get(request_id)
        return pull is not None and pull.state == LOST

    def give_up(self, request_id: str, awaited: bool) -> None:
        """vLLM has taken notice of it: computes the prompt, or waits for a load that fails."""
        self._drop(self._pulls[request_id])
        if awaited:
            self.failed.append(request_id)

    def read(self, request_id: str, local: Any, computed: tuple[int, ...]) -> None:
        """vLLM has blocks for what it lacks. computed: how many stand before these in each group."""
        pull = self._pulls.get(request_id)
        if pull is None or pull.state == LOST:
            self._fail(request_id)
            return
        try:
            here, there = self._match(pull.groups, local, computed)
            began = time.perf_counter()
            self._producer.read(pull.track, here, there)
            pull.posted = time.perf_counter() - began
            pull.descs = sum(len(ours) * n for ours, n in zip(local, self._regions))
            pull.state = READING
        except kvlease.Full:
            self._again[request_id] = local, computed
        except kvlease.Stale:  # its end is told by an event, if it was not
            self._lose(pull, pull.why or "the lease is gone")
            self._fail(request_id)
        except (kvlease.Error, TypeError, ValueError) as e:
            self._untrack(pull)
            self._lose(pull, str(e))
            self._fail(request_id)

    def _match(self, remote: list[list[int]], local: Any, computed: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
        """Both sides' blocks with the position of the first. A window's list is the end of a request whatever its length."""
        if len(local) != len(remote):
            raise ValueError(f"remote_block_ids has {len(remote)} groups, this engine {len(local)}")
        here, there = [], []
        for group, (ours, theirs) in enumerate(zip(local, remote)):
            first = computed[group] if self._whole[group] else len(theirs) - len(ours)
            if first < 0 or first + len(ours) > len(theirs):
                raise ValueError(f"remote_block_ids[{group}] has {len(theirs)} blocks, {max(first, 0) + len(ours)} are needed")
            here.append((ours, first))
            there.append((theirs[first : first + len(ours)], first))
        return here, there

    def read_again(self) -> None:
        """Reads that found no room in the ring."""
        if self._again:
            again, self._again = self._again, {}
            for request_id, (local, computed) in again.items():
                self.read(request_id, local, computed)

    def release(self, request_id: str) -> None:
        """Nothing is missing here, or the load is over: tell the owner."""
        pull = self._pulls.get(request_id)
        if pull is not None and pull.state in (TRACKED, LOST):
            self._untrack(pull)
            self._drop(pull)

    def stop(self, request_id: str) -> None:
        """The request has finished or was aborted. A read in flight is cancelled; its blocks come back by event."""
        pull = self._pulls.get(request_id)
        if pull is None:
            return
        pull.ended = True
        self._untrack(pull)
        if self._again.pop(request_id, None) is not None:
            self.done.add(request_id)
            pull.state = TRACKED
        if pull.state in (TRACKED, LOST):
            self._drop(pull)

    def event(self, e: kvlease.Event) -> None:
        pull = self._by_user.get(e.user)
        if pull is None:
            return
        if e.kind == kvlease.EV_READ_DONE:
            self._count(pull, e)
            self._drop(pull)
            self.done.add(pull.request_id)
        elif e.kind == kvlease.EV_READ_FAILED:
            self._count(pull, e)
            pull.why = WHY[e.status]
            if e.flags & kvlease.EVF_BLOCKS_HELD:
                pull.state = HELD
            else:
                self._over(pull)
        elif e.kind == kvlease.EV_BLOCKS_BACK:
            self._over(pull)
        elif e.kind == kvlease.EV_LEASE_GONE and pull.state == TRACKED:
            self._untrack(pull)
            self._lose(pull, "the lease is gone")

    def _count(self, pull: Pull, e: kvlease.Event) -> None:
        self._source.count("kvlease_reads", READS[e.status])
        data = self._source.stats.data
        if e.status == kvlease.READ_OK:
            data["transfer_duration"].append(e.value1 / 1e9)
            data["post_duration"].append(pull.posted)
            data["bytes_transferred"].append(e.value0)
            data["num_descriptors"].append(pull.descs)
        elif e.status != kvlease.READ_CANCELLED:
            data["num_failed_transfers"].append(1)

    def _over(self, pull: Pull) -> None:
        """A read ended without data, and no transfer writes into its blocks any more."""
        if pull.ended:
            self._drop(pull)
            self.done.add(pull.request_id)
            return
        logger.warning("kvlease: request %s: %s; the data is not used", pull.request_id, pull.why)
        self._fail(pull.request_id)

    def _lose(self, pull: Pull, why: str) -> None:
        pull.state, pull.why = LOST, why
        self._by_user.pop(pull.user, None)
        logger.warning("kvlease: request %s: %s; it is %s", pull.request_id, why, "computed here" if self._recompute else "failed")

    def _fail(self, request_id: str) -> None:
        if (pull := self._pulls.get(request_id)) is not None:
            self._drop(pull)
        self.failed.append(request_id)

    def _drop(self, pull: Pull) -> None:
        """Nothing more is to come of it."""
        self._pulls.pop(pull.request_id, None)
        self._by_user.pop(pull.user, None)
        if pull.engine_id is not None:
            self.engines.leave(pull.engine_id)

    def _untrack(self, pull: Pull) -> None:
        if not pull.track:
            return
        try:
            self._producer.untrack(pull.track)
        except kvlease.Error:  # it has ended, or the context is broken
            pass
