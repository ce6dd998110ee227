"""What the contexts of this process have to say goes to vLLM's log, with its level, whether or not their engine makes passes."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import traceback
from typing import Any

from vllm.logger import init_logger

import kvlease


def logger_of(module: str) -> logging.Logger:
    """vLLM's, whose handlers, level and format are those of "vllm" and of the names below it; another name has none of them."""
    return init_logger(f"vllm.{module}")


logger = logger_of(__name__)

LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}
EVERY = 1.0  # s between two looks; what 256 records of a context do not hold until then is lost
PATIENCE = 1.0  # s that a context which leaves waits for a look that is under way: a logger may stand


def hand_over(ctx: kvlease.Context) -> None:
    for line in ctx.log():
        try:
            logger.log(LEVELS.get(line["level"], logging.WARNING), "kvlease %s", text(line))
        except Exception:  # a filter or handler that somebody has put there: neither the other lines nor a close may end by it
            with contextlib.suppress(Exception):
                traceback.print_exc()


def text(line: dict[str, Any]) -> str:
    """lease_expired: engine d-0, request r: it expired ...; to do: ..."""
    about = ", ".join(f"{name} {line[name]}" for name in ("engine", "request") if line.get(name))
    out = f"{line['kind']}: {about}{': ' if about else ''}{line['what']}"
    if line["remedy"] != "none":
        out += f"; to do: {line['remedy']}"
    if n := line.get("left_out", 0):
        out += f" ({n} more were left out)"
    return out


class Teller:
    """Hands over what each context says, on a thread that lives as long as there is one. Any thread."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: in a forked child the thread is not there, nor what the contexts are made of, and its lock may be held for ever."""
        self._changed = threading.Condition()
        self._contexts: list[kvlease.Context] = []
        self._thread: threading.Thread | None = None
        self._told: kvlease.Context | None = None  # whose records the thread is handing over

    def watch(self, ctx: kvlease.Context) -> None:
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="kvlease_logs", daemon=True)
                thread.start()  # or there is none, and the next context tries again
                self._thread = thread
            self._contexts.append(ctx)

    def leave(self, ctx: kvlease.Context) -> None:
        """Hand over what a context has said until now, and look at it no more; before it is closed."""
        with self._changed:
            self._drop(ctx)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._told is not ctx, PATIENCE)
        try:
            hand_over(ctx)
        except kvlease.Error:  # it is closed; or a look at it goes on
            pass

    def end(self) -> None:
        """The interpreter ends, perhaps with contexts that nobody has closed: a thread must not run into that."""
        with self._changed:
            thread, contexts = self._thread, tuple(self._contexts)
        for ctx in contexts:
            self.leave(ctx)
        if thread is not None:
            thread.join(PATIENCE)

    def _drop(self, ctx: kvlease.Context) -> None:
        self._contexts = [c for c in self._contexts if c is not ctx]

    def _run(self) -> None:
        with self._changed:
            try:
                while self._contexts:
                    self._changed.wait(EVERY)
                    for ctx in self._contexts:
                        if any(c is ctx for c in self._contexts):  # it has not left since
                            self._tell(ctx)
            finally:
                self._thread = None

    def _tell(self, ctx: kvlease.Context) -> None:
        """Without the lock: whoever logs may wait for whoever reads."""
        self._told = ctx
        self._changed.release()
        try:
            hand_over(ctx)
            over = False
        except kvlease.Busy:  # somebody else takes its records
            over = False
        except kvlease.Error:  # closed by somebody who has not said so here
            over = True
        finally:
            self._changed.acquire()
            self._told = None
            self._changed.notify_all()
        if over:
            self._drop(ctx)


teller = Teller()
atexit.register(teller.end)
os.register_at_fork(after_in_child=teller.forget)
