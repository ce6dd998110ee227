"""Streams between the host context and ranks on other nodes: their messages travel with vLLM's step messages (carrier `delta`)."""

from __future__ import annotations

from collections.abc import Iterable

import kvlease


class Carried:
    """The host's end of all streams. The loop has to turn as long as `busy`: only its steps carry messages."""

    def __init__(self, ctx: kvlease.Context, ranks: int):
        self._ctx, self._ranks = ctx, ranks
        self.busy = True

    def take(self) -> tuple[bytes, ...]:
        """What goes to each rank with the next step; after a step of the context."""
        messages = tuple(self._ctx.delta_take(n) for n in range(self._ranks))
        self.busy = any(messages)
        return messages

    def put(self, messages: Iterable[tuple[int, bytes]]) -> None:
        """What ranks have said."""
        for rank, message in messages:
            put(self._ctx, rank, message)
            self.busy = self.busy or bool(message)

    def lose(self) -> None:
        """No step will carry anything any more."""
        for n in range(self._ranks):
            self._ctx.delta_lost(n)


def put(ctx: kvlease.Context, rank: int, message: bytes) -> None:
    """Hand in one message. One that finds no room is lost, which both ends notice and heal."""
    try:
        if message:
            ctx.delta_put(rank, message)
    except kvlease.Full:
        pass
