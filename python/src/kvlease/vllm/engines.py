"""Remote engines that the library knows. It keeps asking each of them as long as it is known, so those that nobody needs go."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import kvlease

if TYPE_CHECKING:
    from collections.abc import Iterator

NEVER_UP_TTL = 150.0  # s and a lease duration that an engine is kept which never answered: longer than it counts as missed (heartbeat/health.go)
SWEEP_EVERY = 5.0  # s
AT_ONCE = 64  # engines that are forgotten when the table is full
ROOM_TRIES = 20  # ms that a request then waits for their places
SETTLE = 5.0  # s in which an engine is expected to answer


class Known:
    __slots__ = ("at", "down", "handle", "left", "met", "users")

    def __init__(self, handle: int):
        self.handle = handle
        self.at: tuple[int, str, int, int] | None = None  # sizes and address that it was named with
        self.users = 0  # local requests tracked there
        self.left = 0.0  # when the last of them ended
        self.met = False  # it has answered
        self.down = time.monotonic()  # since when nothing can be read from it; 0: it can be


class Engines:
    """By engine_id, in order of last use. `ttl` is vLLM's engine_ttl: s without a request after which an engine is forgotten; 0: never.
    `duration`: s of a lease."""

    def __init__(self, ctx: kvlease.Context, ttl: float, duration: float):
        self._ctx, self._ttl, self._never_up_ttl = ctx, ttl, duration + NEVER_UP_TTL
        self._known: dict[str, Known] = {}
        self._ids: dict[int, str] = {}
        self._next = 0.0
        self.unsettled = 0.0  # until then an engine may answer that is owed the news of a request that has ended

    def use(self, remote: kvlease.Remote) -> int:
        """Handle of a request's engine; give it back by leave. kvlease.Full: so many engines have requests here."""
        self.sweep()
        engine_id, at = remote.engine_id, (remote.tp_size, remote.host, remote.port, remote.pp_size)
        known = self._known.get(engine_id)
        if known is None or known.at != at:  # else the library would say the same, for a lock and a wake-up
            known = self._meet(remote)
            known.at = at
        self._known.pop(engine_id, None)
        self._known[engine_id] = known
        known.users += 1
        known.left = 0.0
        return known.handle

    def _meet(self, remote: kvlease.Remote) -> Known:
        """An engine that is new, or was named otherwise before."""
        try:
            handle = self._add(remote)
        except kvlease.Full:
            handle = self._make_room(remote)
        known = self._known.get(remote.engine_id)
        if known is not None and known.handle == handle:
            return known
        new = Known(handle)
        if known is not None:
            new.users = known.users
        self._ids[handle] = remote.engine_id
        return new

    def leave(self, engine_id: str) -> None:
        """One of its requests has ended."""
        known = self._known.get(engine_id)
        if known is not None:
            known.users -= 1
            known.left = time.monotonic()
            if not known.met:
                self.unsettled = known.left + SETTLE

    def answered(self, handle: int) -> None:
        """KVL_EV_ENGINE_UP."""
        engine_id = self._ids.get(handle)
        if engine_id is not None:
            known = self._known[engine_id]
            known.met, known.down = True, 0.0

    def went(self, handle: int) -> str | None:
        """KVL_EV_ENGINE_DOWN: its engine_id, if it is known."""
        engine_id = self._ids.get(handle)
        if engine_id is not None and not (known := self._known[engine_id]).down:
            known.down = time.monotonic()
        return engine_id

    def down(self, engine_id: str) -> float:
        """Since when nothing can be read from an engine; 0: it can be, or it is not known."""
        known = self._known.get(engine_id)
        return known.down if known is not None else 0.0

    def sweep(self) -> None:
        """Forget those whose time is over. Looks once in some seconds."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + SWEEP_EVERY
        for engine_id in list(self._idle()):
            known = self._known[engine_id]
            if known.met and self._ttl <= 0:
                continue
            if now - known.left >= (self._ttl if known.met else self._never_up_ttl):
                self._forget(engine_id)

    def _make_room(self, remote: kvlease.Remote) -> int:
        """Forget some that have not been used for longest; their places come free in the library's next step."""
        if not (oldest := list(itertools.islice(self._idle(), AT_ONCE))):
            raise kvlease.Full("all known engines have requests here")
        for engine_id in oldest:
            self._forget(engine_id)
        for _ in range(ROOM_TRIES):
            try:
                return self._add(remote)
            except kvlease.Full:
                time.sleep(0.001)
        return self._add(remote)

    def _add(self, remote: kvlease.Remote) -> int:
        return self._ctx.engine_add(remote.engine_id, remote.tp_size, remote.host, remote.port, remote.pp_size)

    def _idle(self) -> Iterator[str]:
        return (engine_id for engine_id, known in self._known.items() if known.users == 0)

    def _forget(self, engine_id: str) -> None:
        known = self._known.pop(engine_id)
        self._ids.pop(known.handle, None)
        try:
            self._ctx.engine_remove(known.handle)
        except kvlease.Stale:
            pass

    def __len__(self) -> int:
        return len(self._known)
