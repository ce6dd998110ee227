"""Decode's half: requests whose blocks lie elsewhere. Tracked from their arrival on, read when vLLM has blocks for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

import kvlease

if TYPE_CHECKING:
    from vllm.v1.request import Request

logger = init_logger(__name__)

TRACKED, READING, HELD, LOST = range(4)
OUTCOMES = {
    kvlease.READ_STALE: "the lease had ended",
    kvlease.READ_UNPROVEN: "nothing proves that the lease stood",
    kvlease.READ_FAILED: "the transfer failed",
    kvlease.READ_TIMEOUT: "the transfer did not end in time",
    kvlease.READ_CANCELLED: "the request ended",
    kvlease.READ_LOST: "the engine is gone",
}


class Pull:
    """One local request that reads from another engine."""

    __slots__ = ("request_id", "user", "track", "state", "ended", "why")

    def __init__(self, request_id: str, user: int):
        self.request_id = request_id
        self.user = user
        self.track = 0
        self.state = TRACKED
        self.ended = False  # vLLM's request has finished: nobody waits for the data
        self.why = ""


class Reader:
    """What is tracked, and how reads ended.

    `done`: requests whose blocks are vLLM's again, since the data is proven or the request is over. `failed`: requests that wait
    for data which will not come; their blocks are free of transfers.
    """

    def __init__(self, ctx: kvlease.Context, producer: kvlease.Producer, recompute: bool):
        self._ctx, self._producer, self._recompute = ctx, producer, recompute
        self._pulls: dict[str, Pull] = {}
        self._by_user: dict[int, Pull] = {}
        self._next = 0
        self._again: dict[str, tuple[Request, Any]] = {}  # reads that found no room
        self.done: set[str] = set()
        self.failed: list[str] = []
        self.reads: list[kvlease.Event] = []  # proven ones, for the statistics

    def track(self, request: Request) -> None:
        """A request has arrived: heartbeats from now on. Parameters that cannot be used are a load that fails, with the reason in the
        log: the engine's kv_load_failure_policy decides what that means."""
        pull = Pull(request.request_id, self._next)
        self._next += 1
        self._pulls[request.request_id] = pull
        try:
            remote = kvlease.params_read(json.dumps(request.kv_transfer_params))
            if not any(remote.groups):
                raise ValueError("remote_block_ids names no block")
            engine = self._ctx.engine_add(remote.engine_id, remote.tp_size, remote.host, remote.port, remote.pp_size)
            pull.track = self._producer.track(engine, remote, request.request_id, pull.user)
        except (kvlease.Error, TypeError, ValueError) as e:
            self._lose(pull, f"kv_transfer_params: {e}")
            return
        self._by_user[pull.user] = pull

    def lost(self, request_id: str) -> bool:
        """There is nothing to read, and the prompt can be computed here."""
        pull = self._pulls.get(request_id)
        return self._recompute and pull is not None and pull.state == LOST

    def read(self, request: Request, local: Any) -> None:
        """vLLM has blocks: the last of each group's, as many as it lacks."""
        pull = self._pulls.get(request.request_id)
        if pull is None or pull.state == LOST:
            self._fail(request.request_id)
            return
        try:
            theirs = request.kv_transfer_params["remote_block_ids"]
            if len(local) != len(theirs):
                raise ValueError(f"remote_block_ids has {len(theirs)} groups, this engine {len(local)}")
            here, there = [], []
            for group, (ours, other) in enumerate(zip(local, theirs)):
                first = len(other) - len(ours)
                if first < 0:
                    raise ValueError(f"remote_block_ids[{group}] has {len(other)} blocks, {len(ours)} are needed")
                here.append((ours, first))
                there.append((other[first:], first))
            self._producer.read(pull.track, here, there)
            pull.state = READING
        except kvlease.Full:
            self._again[request.request_id] = request, local
        except kvlease.Stale:  # its end is told by an event, if it was not
            self._lose(pull, pull.why or "the lease is gone")
            self._fail(request.request_id)
        except (kvlease.Error, TypeError, ValueError) as e:
            self._untrack(pull)
            self._lose(pull, str(e))
            self._fail(request.request_id)

    def read_again(self) -> None:
        """Reads that found no room in the ring."""
        if self._again:
            again, self._again = self._again, {}
            for request, local in again.values():
                self.read(request, local)

    def release(self, request_id: str) -> None:
        """Nothing is missing here, or the load is over: tell the owner."""
        pull = self._pulls.get(request_id)
        if pull is not None and pull.state in (TRACKED, LOST):
            self._untrack(pull)
            del self._pulls[request_id]

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
            del self._pulls[request_id]

    def event(self, e: kvlease.Event) -> None:
        pull = self._by_user.get(e.user)
        if pull is None:
            return
        if e.kind == kvlease.EV_READ_DONE:
            self.reads.append(e)
            self._forget(pull)
            self.done.add(pull.request_id)
        elif e.kind == kvlease.EV_READ_FAILED:
            pull.why = OUTCOMES.get(e.status, f"status {e.status}")
            if e.flags & kvlease.EVF_BLOCKS_HELD:
                pull.state = HELD
            else:
                self._over(pull)
        elif e.kind == kvlease.EV_BLOCKS_BACK:
            self._over(pull)
        elif e.kind == kvlease.EV_LEASE_GONE and pull.state == TRACKED:
            self._untrack(pull)
            self._lose(pull, "the lease is gone")

    def _over(self, pull: Pull) -> None:
        """A read ended without data, and no transfer writes into its blocks any more."""
        self._forget(pull)
        if pull.ended:
            self.done.add(pull.request_id)
            return
        logger.warning("kvlease: request %s: %s; the data is not used", pull.request_id, pull.why)
        self._fail(pull.request_id)

    def _lose(self, pull: Pull, why: str) -> None:
        pull.state, pull.why = LOST, why
        self._by_user.pop(pull.user, None)
        logger.warning("kvlease: request %s: %s; it is %s", pull.request_id, why, "computed here" if self._recompute else "failed")

    def _fail(self, request_id: str) -> None:
        self._pulls.pop(request_id, None)
        self.failed.append(request_id)

    def _forget(self, pull: Pull) -> None:
        self._pulls.pop(pull.request_id, None)
        self._by_user.pop(pull.user, None)

    def _untrack(self, pull: Pull) -> None:
        if not pull.track:
            return
        try:
            self._producer.untrack(pull.track)
        except kvlease.Stale:
            pass
        if pull.state == TRACKED:
            self._by_user.pop(pull.user, None)

    @property
    def tracked(self) -> int:
        return len(self._pulls)
