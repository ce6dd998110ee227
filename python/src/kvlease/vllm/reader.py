"""Decode's half: requests whose blocks lie elsewhere. Tracked from their arrival on, read when vLLM has blocks for them."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import kvlease
from kvlease.vllm.engines import SETTLE, Engines
from kvlease.vllm.logs import logger_of
from kvlease.vllm.stats import READS, Source

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from kvlease.vllm.blocks import Aside
    from kvlease.vllm.settings import Settings

logger = logger_of(__name__)

TRACKED, READING, LOST = range(3)
WHY = (  # by KVL_READ_*
    "", "the lease had ended", "nothing proves that the lease stood", "the transfer failed", "the transfer did not end in time",
    "the request ended", "the engine is gone",
)  # fmt: skip


class Group(NamedTuple):
    """A transfer group of this engine, and so of each engine that it can read from."""

    regions: int  # that its block ids address
    block_size: int  # tokens
    skips: bool  # blocks that no later token looks at are vLLM's null block, whose id is 0
    clipped: bool  # an owner's list is only the end of a request's: a sliding window


class Pull:
    """One local request that reads from another engine."""

    __slots__ = ("descs", "ended", "engine_id", "groups", "posted", "request_id", "second", "state", "tokens", "track", "user", "why")

    def __init__(self, request_id: str, user: int, second: bool):
        self.request_id = request_id
        self.user = user
        self.second = second  # a prefill that reads what its decoder has kept
        self.engine_id: str | None = None
        self.groups: list[list[int]] = []  # the owner's blocks, as they were checked
        self.tokens = 0  # that they hold
        self.track = 0
        self.state = TRACKED
        self.ended = False  # vLLM's request has finished: nobody waits for the data
        self.why = ""
        self.posted = 0.0  # s that the call took
        self.descs = 0  # blocks times regions


class Reader:
    """What is tracked, and how reads ended.

    `done`: requests whose blocks are vLLM's again, since the data is proven or the request is over. `failed`: requests that wait
    for data which will not come. Neither waits for a transfer: what one may still write into is put aside.
    """

    def __init__(self, ctx: kvlease.Context, producer: kvlease.Producer, source: Source, aside: Aside, groups: list[Group], blocks: int, settings: Settings):
        self._producer, self._source = producer, source
        self._aside, self._groups, self._recompute = aside, groups, settings.recompute
        self._blocks = blocks  # of this engine: more it can need of no other
        self.engines = Engines(ctx, settings.engine_ttl, settings.lease_duration)
        self._pulls: dict[str, Pull] = {}
        self._by_user: dict[int, Pull] = {}
        self._next = 0
        self._broken = ""  # why nothing is read any more
        self._again: dict[str, tuple[Any, int, int]] = {}  # reads that wait for a step, or for room in the ring
        self.doubtful: deque[tuple[float, Pull]] = deque()  # second turns whose decoder cannot be read from, and when to look again
        self.done: set[str] = set()
        self.failed: list[str] = []

    def track(self, request: Request) -> None:
        """A request has arrived: heartbeats from now on. Parameters that cannot be used are a load that fails, with the reason in the
        log: the engine's kv_load_failure_policy decides what that means."""
        params = request.kv_transfer_params
        pull = Pull(request.request_id, self._next, not params.get("do_remote_prefill"))
        self._next += 1
        self._pulls[request.request_id] = pull
        try:
            self._check_length(params.get("remote_block_ids"))
            remote = kvlease.params_read(params)
            pull.groups, pull.tokens = remote.groups, remote.tokens
            if self._broken:
                raise ValueError(f"not read, {self._broken}")
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
        if pull.second and self.engines.down(remote.engine_id):
            self._doubt(pull)

    def _check_length(self, ids: Any) -> None:
        """A list that is too long costs its own length only once somebody looks into it."""
        if not isinstance(ids, (list, tuple)):
            return
        if len(ids) > len(self._groups):
            raise ValueError(f"remote_block_ids has {len(ids)} groups, this engine {len(self._groups)}")
        for number, group in enumerate(ids):
            if isinstance(group, (list, tuple)) and len(group) > self._blocks:
                raise ValueError(f"remote_block_ids[{number}] names {len(group)} blocks, this engine has {self._blocks}")

    def engine_down(self, handle: int) -> None:
        """KVL_EV_ENGINE_DOWN."""
        if (engine_id := self.engines.went(handle)) is not None:
            for pull in self._pulls.values():
                if pull.second and pull.engine_id == engine_id:
                    self._doubt(pull)

    def out_of_reach(self, request_id: str) -> bool:
        """A second turn whose decoder cannot be read from; the request is lost if that goes on."""
        pull = self._pulls.get(request_id)
        return pull is not None and pull.second and pull.engine_id is not None and self.engines.down(pull.engine_id) > 0

    def _doubt(self, pull: Pull) -> None:
        self.doubtful.append((time.monotonic() + SETTLE, pull))

    def doubt(self) -> None:
        """A prefill can compute what its decoder has: it does, once that was out of reach for as long as an engine takes to answer. A
        decode waits for as long as its lease may stand."""
        now = time.monotonic()
        while self.doubtful and self.doubtful[0][0] <= now:
            _, pull = self.doubtful.popleft()
            if self._pulls.get(pull.request_id) is not pull or pull.engine_id is None or not (down := self.engines.down(pull.engine_id)):
                continue
            if now - down < SETTLE:
                self._doubt(pull)
                continue
            why = f"the decoder {pull.engine_id} cannot be reached"
            self._untrack(pull)
            if pull.state == TRACKED:
                self._lose(pull, why)
            elif pull.state == READING:
                pull.why = why  # the end of its read follows

    def give_up_reading(self, why: str) -> None:
        """A context is broken: all requests do without. Blocks of those that are being read stay aside, since nobody may be able to say
        when that ends."""
        if not self._broken:
            self._broken = why
            for pull in list(self._pulls.values()):
                self._untrack(pull)
                if pull.state == TRACKED:
                    self._lose(pull, why)
                elif pull.state == READING:
                    pull.why = why
                    self._over(pull, held=True)

    def lost(self, request_id: str) -> bool:
        """There is nothing to read."""
        pull = self._pulls.get(request_id)
        return pull is not None and pull.state == LOST

    def give_up(self, request_id: str, awaited: bool) -> None:
        """vLLM has taken notice of it: computes the prompt, or waits for a load that fails."""
        self._drop(self._pulls[request_id])
        if awaited:
            self.failed.append(request_id)

    def read(self, request_id: str, local: Any, tokens: int, step: int = 0) -> None:
        """vLLM has blocks for what it lacks. They end with the one of the last of these tokens; steps up to this one may still write
        into them."""
        self._again[request_id] = local, tokens, step

    def start(self, steps_made: int) -> None:
        """Reads into whose blocks no step writes any more."""
        if self._again:
            for request_id, (local, tokens, step) in list(self._again.items()):
                if step <= steps_made:
                    self._start(request_id, local, tokens)

    def _start(self, request_id: str, local: Any, tokens: int) -> None:
        pull = self._pulls.get(request_id)
        if pull is None or pull.state == LOST:
            self._fail(request_id)
            return
        try:
            here, there = self._match(pull, local, tokens)
            began = time.perf_counter()
            self._producer.read(pull.track, here, there)
            pull.posted = time.perf_counter() - began
            pull.descs = sum(len(ours) * group.regions for ours, group in zip(local, self._groups, strict=True))
            pull.state = READING
            del self._again[request_id]
        except kvlease.Full:  # it stays for the next time
            pass
        except kvlease.Stale:  # its end is told by an event, if it was not
            self._lose(pull, pull.why or "the lease is gone")
            self._fail(request_id)
        except (kvlease.Error, TypeError, ValueError) as e:
            self._untrack(pull)
            self._lose(pull, str(e))
            self._fail(request_id)

    def _match(self, pull: Pull, local: Any, tokens: int) -> tuple[list[Any], list[Any]]:
        """Both sides' blocks with the position of the first. Our lists end with the last block, whatever they begin with."""
        if len(local) != len(pull.groups):
            raise ValueError(f"remote_block_ids has {len(pull.groups)} groups, this engine {len(local)}")
        here, there = [], []
        for number, (ours, theirs, group) in enumerate(zip(local, pull.groups, self._groups, strict=True)):
            end = -(-tokens // group.block_size)
            begin = self._end(pull, group) - len(theirs) if group.clipped else 0
            wanted = theirs[max(end - len(ours) - begin, 0) : max(end - begin, 0)]
            if len(wanted) != len(ours) or (group.skips and 0 in wanted):
                raise ValueError(
                    f"remote_block_ids[{number}] has {len(theirs)} blocks from position {begin} on and not all of the {len(ours)} before position {end}"
                )
            here.append((ours, end - len(ours)))
            there.append((wanted, end - len(ours)))
        return here, there

    def _end(self, pull: Pull, group: Group) -> int:
        """Position behind the owner's last block."""
        tokens = pull.tokens or max((len(ids) * g.block_size for ids, g in zip(pull.groups, self._groups, strict=True) if not g.clipped), default=0)
        if tokens == 0:
            raise ValueError("remote_num_tokens is missing, and a window is found by it")
        return -(-tokens // group.block_size)

    def release(self, request_id: str) -> None:
        """Nothing is missing here, or the load is over: tell the owner."""
        pull = self._pulls.get(request_id)
        if pull is not None and pull.state in (TRACKED, LOST):
            self._untrack(pull)
            self._drop(pull)

    def stop(self, request_id: str) -> None:
        """The request has finished or was aborted. A read in flight is cancelled, and its end told by event."""
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
        held = bool(e.flags & kvlease.EVF_BLOCKS_HELD)
        pull = self._by_user.get(e.user)
        if pull is None:
            if e.kind != kvlease.EV_LEASE_GONE and not held:
                self._aside.over(e.user)
        elif e.kind == kvlease.EV_READ_DONE:
            self._count(pull, e)
            self._drop(pull)
            self.done.add(pull.request_id)
        elif e.kind == kvlease.EV_READ_FAILED:
            self._count(pull, e)
            pull.why = pull.why or WHY[e.status]
            self._over(pull, held)
        elif e.kind == kvlease.EV_LEASE_GONE and pull.state == TRACKED:
            self._untrack(pull)
            self._lose(pull, "the lease is gone")

    def awaits_blocks(self) -> bool:
        """Are there blocks aside that somebody will give back?"""
        return len(self._aside) > 0 and not self._broken

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

    def _over(self, pull: Pull, held: bool) -> None:
        """A read ended without data. Held: a transfer may still write into its blocks."""
        if held:
            self._aside.keep(pull.user, pull.request_id)
        if pull.ended:
            self._drop(pull)
            self.done.add(pull.request_id)
            return
        logger.warning("kvlease: request %s: %s; the data is not used", pull.request_id, pull.why)
        self._fail(pull.request_id)

    def _lose(self, pull: Pull, why: str) -> None:
        pull.state, pull.why = LOST, why
        self._by_user.pop(pull.user, None)
        logger.warning("kvlease: request %s: %s; it is %s", pull.request_id, why, "computed here" if self._recompute or pull.second else "failed")

    def _fail(self, request_id: str) -> None:
        self._again.pop(request_id, None)
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
